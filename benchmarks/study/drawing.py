"""Cells of a study: all of a matrix of workloads, hosts and rates, or a balanced drawing of some of them.

A drawing is a function of its arguments alone, so it is fixed before anything is measured. Cells are shuffled, and the
next one is always the cell whose most drawn factor was drawn least so far, for its weight: a number of hosts that is
named twice has twice the weight. So the first half of a drawing is balanced too. A quarter of the cells is held out.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple


class Cell(NamedTuple):
    """A workload as `xbench compare` takes it, on a number of hosts and a rate of links."""

    workload: str
    hosts: int
    rate: str
    held_out: bool = False


def matrix(workloads: Sequence[str], hosts: Sequence[int], rates: Sequence[str]) -> list[Cell]:
    """Every workload on every number of hosts and rate; a repeated number repeats its cells."""
    return [Cell(workload, count, rate) for count, rate, workload in product(hosts, rates, workloads)]


def draw(workloads: Sequence[str], hosts: Sequence[int], rates: Sequence[str], count: int, seed: int) -> list[Cell]:
    """`count` different cells in the order of measurement. Raises ValueError if there are fewer cells."""
    cells = matrix(workloads, list(dict.fromkeys(hosts)), rates)
    if count > len(cells):
        raise ValueError(f"{count} cells cannot be drawn from {len(cells)}")
    generator = random.Random(seed)
    generator.shuffle(cells)
    weights = Counter(level for cell in matrix(workloads, hosts, rates) for level in _levels(cell))
    uses: Counter[tuple[str, object]] = Counter()
    found: list[Cell] = []
    while len(found) < count:
        cell = min(cells, key=lambda one: sorted((uses[x] / weights[x] for x in _levels(one)), reverse=True))
        cells.remove(cell)
        uses.update(_levels(cell))
        found.append(cell)
    held_out = generator.sample(range(count), count // 4)
    return [cell._replace(held_out=place in held_out) for place, cell in enumerate(found)]


def _levels(cell: Cell) -> list[tuple[str, object]]:
    """The balanced factors of a cell: workload with its batch, rate, hosts, and model with rate."""
    name = cell.workload.partition(":")[0]
    return [
        ("workload", cell.workload), ("rate", cell.rate), ("hosts", cell.hosts), ("name and rate", (name, cell.rate)),
    ]  # fmt: skip
