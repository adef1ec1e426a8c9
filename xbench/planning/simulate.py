"""One step of one job on a timeline: the device computes, one link carries the buckets in plan order.

A bucket's collective starts when its last gradient is ready and the bucket before it has arrived, and takes T(bytes):

    start[k] = max(ready of k's members, end[k−1])        end[k] = start[k] + T(bytes of k)
    step     = forward + max(backward, end[last]) + optimizer

With `early_update` the optimizer updates a bucket's parameters as soon as backward is over and the bucket has arrived,
while later buckets still travel (its time shared out by bytes): only the last bucket's update has to follow the link.

    done[0] = backward        done[k] = max(done[k−1], end[k]) + optimizer · bytes of k / bytes of all
    step    = forward + done[last]

Launching costs nothing here, and compute and communication do not slow each other down. A model of that contention
changes `transfers` (when a collective runs) and the length of backward in `simulate`, and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from xbench.planning.cost import Transfer
from xbench.planning.gradients import Gradient
from xbench.records import Slice, Timeline

Buckets = list[list[int]]
"""Indices into the gradients in ready order; the outer list is in launch order."""


@dataclass(frozen=True)
class Step:
    """A simulated step. `exposed_s` is what it takes beyond its compute: how long the optimizer waits for gradients."""

    step_s: float
    exposed_s: float
    timeline: Timeline


@dataclass(frozen=True)
class Collective:
    """One bucket's way over the link; times [s] since the start of backward."""

    start_s: float
    end_s: float
    nbytes: int


def transfers(
    gradients: Sequence[Gradient], buckets: Buckets, curve: Transfer, *, not_before_s: float = 0.0
) -> list[Collective]:
    """When each bucket travels, in launch order; none starts before `not_before_s` [s since backward's start].

    Raises ValueError when a bucket is empty, or a gradient is missing, unknown or in two buckets.
    """
    placed = sorted(index for bucket in buckets for index in bucket)
    if placed != list(range(len(gradients))) or not all(buckets):
        raise ValueError(f"the buckets do not hold each of the {len(gradients)} gradients exactly once")
    sizes = [sum(gradients[index].nbytes for index in bucket) for bucket in buckets]
    took = curve(np.array(sizes, dtype=np.float64)).tolist()
    found: list[Collective] = []
    free_s = not_before_s
    for bucket, nbytes, transfer_s in zip(buckets, sizes, took, strict=True):
        start_s = max(free_s, max(gradients[index].ready_s for index in bucket))
        free_s = start_s + transfer_s
        found.append(Collective(start_s, free_s, nbytes))
    return found


def simulate(
    gradients: Sequence[Gradient],
    buckets: Buckets,
    curve: Transfer | None,
    *,
    forward_s: float,
    backward_s: float,
    optimizer_s: float,
    single_after_backward: bool = False,
    early_update: bool = False,
) -> Step:
    """The step that these buckets make. No buckets: compute alone, and `curve` may be None.

    `single_after_backward`: nothing travels before the whole backward pass is over. Raises ValueError for a part of
    the step that is negative or not finite, for buckets that are not a partition of the gradients, and for buckets
    without a curve.
    """
    for name, part_s in (("forward_s", forward_s), ("backward_s", backward_s), ("optimizer_s", optimizer_s)):
        if not math.isfinite(part_s) or part_s < 0:
            raise ValueError(f"{name} is {part_s}: a part of a step takes zero seconds or more")
    travelling: list[Collective] = []
    if buckets:
        if curve is None:
            raise ValueError("a cost model is needed to simulate communication")
        earliest_s = backward_s if single_after_backward else 0.0
        travelling = transfers(gradients, buckets, curve, not_before_s=earliest_s)
    updates = _updates(travelling, backward_s, optimizer_s, early=early_update)
    free_since_s = [backward_s, *(end_s for _, end_s in updates)]
    exposed_s = sum(start_s - since_s for since_s, (start_s, _) in zip(free_since_s, updates, strict=False))
    timeline = Timeline(
        label="simulated",
        compute=[
            Slice(name="forward", start_s=0.0, end_s=forward_s),
            Slice(name="backward", start_s=forward_s, end_s=forward_s + backward_s),
            *(
                Slice(name="optimizer", start_s=forward_s + start_s, end_s=forward_s + end_s)
                for start_s, end_s in updates
            ),
        ],
        communication=[
            Slice(name=f"bucket {number}", start_s=forward_s + c.start_s, end_s=forward_s + c.end_s, nbytes=c.nbytes)
            for number, c in enumerate(travelling, start=1)
        ],
    )
    return Step(step_s=forward_s + updates[-1][1], exposed_s=exposed_s, timeline=timeline)


def _updates(
    travelling: Sequence[Collective], backward_s: float, optimizer_s: float, *, early: bool
) -> list[tuple[float, float]]:
    """When the optimizer works [s since the start of backward]: once at the end, or as buckets arrive."""
    whole = sum(collective.nbytes for collective in travelling)
    if not early or whole == 0:
        start_s = max([backward_s, *(collective.end_s for collective in travelling)])
        return [(start_s, start_s + optimizer_s)]
    updates: list[tuple[float, float]] = []
    free_s = backward_s
    for collective in travelling:
        start_s = max(free_s, collective.end_s)
        free_s = start_s + optimizer_s * (collective.nbytes / whole)
        if updates and updates[-1][1] == start_s:
            updates[-1] = (updates[-1][0], free_s)
        else:
            updates.append((start_s, free_s))
    return updates
