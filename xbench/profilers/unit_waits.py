"""Waits of ranks for each other at the units of a sharded mode, from their steps without communication.

A mode that waits for each collective ends every unit at the slowest rank's time for it. Which rank is the slowest
differs from unit to unit. With t(r, u) for the time of rank r in unit u of one pass, the ranks wait for

    Σ over u of max over r of t(r, u)  −  max over r of Σ over u of t(r, u)

longer than if they met at the end of the pass alone. The steps of the ranks are paired by their number.

Ranks that share a core take turns on it, at whatever unit they are. The formula does not hold for them: a rank that
waits leaves the core to the other one.
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple


class Waits(NamedTuple):
    """The waits of a step [s], by pass."""

    forward_s: float
    backward_s: float


def share_cores(places: Iterable[tuple[str, frozenset[int]]]) -> bool:
    """True if a set of cores has more ranks than cores. `places`: each rank's machine and cores.

    Sets that overlap only in part are not compared.
    """
    return any(ranks > len(cores) for (_, cores), ranks in Counter(places).items())


def unit_waits(raws: Sequence[dict[str, Any]], units: Mapping[str, Sequence[str]]) -> Waits:
    """The median waits over the steps after the warm-up.

    `raws`: the profiles of all ranks (`StepProfile.raw`). `units`: parameter names by unit.
    """
    owner = {name: unit for unit, names in units.items() for name in names}
    layers = raws[0]["layers"]
    trained = [at for at, layer in enumerate(layers) if layer["tensors"]]
    runs = [list(run) for _, run in itertools.groupby(trained, key=lambda at: owner.get(_first_tensor(layers[at]), ""))]
    steps = range(max(raw["warmup"] for raw in raws), len(raws[0]["steps"]["step_s"]))
    return Waits(
        statistics.median(_wait_s([_forward_s(raw, runs, step) for raw in raws]) for step in steps),
        statistics.median(_wait_s([_backward_s(raw, runs, step) for raw in raws]) for step in steps),
    )


def _first_tensor(layer: dict[str, Any]) -> str:
    name: str = layer["tensors"][0]["name"]
    return name


def _wait_s(ranks: Sequence[Sequence[float]]) -> float:
    """The waits of one pass: `ranks` has each rank's time by unit."""
    apart_s: float = sum(max(times_s) for times_s in zip(*ranks, strict=True))
    return apart_s - max(sum(times_s) for times_s in ranks)


def _forward_s(raw: dict[str, Any], runs: Sequence[Sequence[int]], step: int) -> list[float]:
    return [sum(raw["layers"][at]["forward_s"][step] for at in run) for run in runs]


def _backward_s(raw: dict[str, Any], runs: Sequence[Sequence[int]], step: int) -> list[float]:
    """The time between the last gradients of one unit and those of the next."""
    found, end_s = [], 0.0
    for run in reversed(runs):
        ready_s = [tensor["ready_s"][step] for at in run for tensor in raw["layers"][at]["tensors"]]
        last_s = max((time_s for time_s in ready_s if time_s is not None), default=end_s)
        found.append(max(0.0, last_s - end_s))
        end_s = max(end_s, last_s)
    return found
