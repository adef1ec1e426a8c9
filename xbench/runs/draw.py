"""Cells of a validation: a whole matrix of workloads and fabrics, or cells drawn from it by a seed.

A drawing is a function of its arguments alone, so it is fixed before anything is measured. It is balanced: cells are
shuffled, and the next cell is always the one whose most drawn factor (`_levels`) was drawn least so far, for its
weight. So the first half of a drawing is balanced too. A quarter of the cells is held out: reports show them only when
every cell has been measured.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

from xbench.errors import SpecError
from xbench.spec import FabricSpec, WorkloadSpec

HELD_OUT = 4
"""One cell in so many is held out."""


class MatrixCell(NamedTuple):
    """A cell before it is measured."""

    workload: WorkloadSpec
    fabric: FabricSpec
    held_out: bool = False


def whole_matrix(workloads: Sequence[WorkloadSpec], fabrics: Sequence[FabricSpec]) -> list[MatrixCell]:
    """Every workload on every fabric, fabric by fabric."""
    return [MatrixCell(workload, fabric) for fabric, workload in product(fabrics, workloads)]


def draw(workloads: Sequence[WorkloadSpec], fabrics: Sequence[FabricSpec], count: int, seed: int) -> list[MatrixCell]:
    """`count` different cells. A fabric's rate and workers are weighted by how often `fabrics` has them.

    Same arguments, same cells. Raises SpecError if there are fewer cells.
    """
    cells = whole_matrix(workloads, list(dict.fromkeys(fabrics)))
    if count > len(cells):
        raise SpecError(
            f"--cells: {count} cells cannot be drawn from the {len(cells)} of --workloads, --rates and --hosts",
            hint=f"try --cells {len(cells)}, or name more",
        )
    generator = random.Random(seed)
    generator.shuffle(cells)
    weights = Counter(level for cell in whole_matrix(workloads, fabrics) for level in _levels(cell))
    uses: Counter[tuple[str, object]] = Counter()
    found: list[MatrixCell] = []
    while len(found) < count:
        cell = min(
            cells, key=lambda one: sorted((uses[level] / weights[level] for level in _levels(one)), reverse=True)
        )
        cells.remove(cell)
        uses.update(_levels(cell))
        found.append(cell)
    held_out = generator.sample(range(count), count // HELD_OUT)
    return [cell._replace(held_out=place in held_out) for place, cell in enumerate(found)]


def _levels(cell: MatrixCell) -> list[tuple[str, object]]:
    """The factors of a cell that are balanced, with their values here. A workload includes its batch size."""
    name, rate = cell.workload.name, cell.fabric.rate
    return [
        ("workload", cell.workload),
        ("rate", rate),
        ("workers", cell.fabric.world_size),
        ("name and rate", (name, rate)),
    ]
