"""A schedule in a package of its own: gradients travel in pairs. Importing this imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xbench.modes import ModeInfo

if TYPE_CHECKING:
    from xbench.planning.plans import Planner

PAIRS = ModeInfo(
    "pairs",
    "two neighbours a collective, as soon as both are ready",
    "xbench_pairs.schedule:Pairs",
    planner="xbench_pairs:plan",
    script_change=3,
)


def plan(planner: Planner, mode: ModeInfo) -> list[list[int]]:
    """Each gradient with the next one in ready order, of the same dtype."""
    buckets: list[list[int]] = []
    for index, gradient in enumerate(planner.step.gradients):
        last = buckets[-1] if buckets else []
        if len(last) == 1 and planner.step.gradients[last[0]].dtype == gradient.dtype:
            last.append(index)
        else:
            buckets.append([index])
    return buckets
