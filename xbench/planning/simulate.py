"""One step of one job on a timeline: the device computes, and one link sends the buckets in plan order.

A bucket's collective starts when its last gradient is ready and the bucket before it has arrived. It takes T(bytes).
With `early_update` the optimizer updates a bucket's parameters as soon as backward is over and the bucket has arrived.
Its time is divided by bytes. docs/planner.md has the formulas.

Without a `contention`, launches cost nothing, and computation and communication do not slow each other down. With one,
they share the host as measured; `xbench.planning.contention` describes how.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from xbench.planning.contention import Contention
from xbench.planning.cost import CostCurve, CostFunction
from xbench.planning.periodic import Period, Task, Transfer, run
from xbench.planning.step import Gradient, StepModel
from xbench.records import Slice, Timeline

Buckets = list[list[int]]
"""Indices into the gradients in ready order; the outer list is in launch order."""


@dataclass(frozen=True)
class Step:
    """A simulated step. `exposed_s` is its time beyond compute, for which the optimizer waits for gradients.

    The timeline is drawn on first use, because a search simulates thousands of steps and shows one.
    """

    step_s: float
    exposed_s: float
    draw: Callable[[], Timeline] = field(repr=False, compare=False)

    @cached_property
    def timeline(self) -> Timeline:
        """Slices of the device and of the link."""
        return self.draw()


def last_arrival_s(gradients: Sequence[Gradient], buckets: Buckets, curve: CostFunction) -> float:
    """Arrival of the last bucket [s since backward's start], where communication slows nothing.

    Raises ValueError when a bucket is empty, or a gradient is missing, unknown or in two buckets.
    """
    took = curve(np.array(bucket_bytes(gradients, buckets), dtype=np.float64)).tolist()
    free_s = 0.0
    for bucket, transfer_s in zip(buckets, took, strict=True):
        free_s = max(free_s, max(gradients[index].ready_s for index in bucket)) + transfer_s
    return free_s


def share(
    complete_s: Sequence[float],
    nbytes: Sequence[int],
    curve: CostFunction,
    contention: Contention,
    *,
    backward_s: float,
    optimizer_s: float,
    early_update: bool,
) -> Period:
    """Simulate one backward pass with its collectives and its optimizer: the period of backward and of each update.

    `complete_s` [s of undisturbed backward] is when each bucket's last gradient is ready, in launch order. `nbytes` [B]
    has the same order. Launches delay them and backward, as `contention` says. With `early_update` the optimizer
    updates each bucket on arrival, with a share of its time by bytes. Otherwise it starts after all have arrived. An
    update is computation too: it and the collectives in flight slow each other down.
    """
    alone_s = curve(np.array(nbytes, dtype=np.float64)).tolist() if nbytes else []
    least_s = float(curve(np.ones(1))[0]) if nbytes else 0.0
    launched_s = contention.after_launches([max(0.0, at_s) for at_s in complete_s])
    released_s = itertools.accumulate(launched_s, max)
    backward_s += contention.launch_s * len(nbytes)
    parcels = [
        Transfer("", at_s, place, size, took_s, least_s)
        for place, (at_s, size, took_s) in enumerate(zip(released_s, nbytes, alone_s, strict=True))
    ]
    whole = sum(nbytes)
    if early_update and whole:
        updates = [
            Task("optimizer", optimizer_s * (size / whole), frozenset([place])) for place, size in enumerate(nbytes)
        ]
    else:
        updates = [Task("optimizer", optimizer_s, frozenset(range(len(nbytes))))]
    return run([Task("backward", backward_s), *updates], parcels, contention)


def simulate(
    step: StepModel,
    buckets: Buckets,
    curve: CostFunction | None,
    *,
    single_after_backward: bool = False,
    early_update: bool = False,
    contention: Contention | None = None,
) -> Step:
    """Simulate the step with these buckets. Without buckets it is compute alone, and `curve` may be None.

    With `single_after_backward`, no transfer starts before the end of backward. Raises ValueError for a part of the
    step that is negative or not finite, for buckets that are not a partition of its gradients, and for buckets without
    a curve.
    """
    for name, part_s in step.parts.items():
        if not math.isfinite(part_s) or part_s < 0:
            raise ValueError(f"{name} is {part_s}: a part of a step takes zero seconds or more")
    if not buckets:
        curve, contention = CostCurve.line(0.0, 0.0), None
    elif curve is None:
        raise ValueError("a cost model is needed to simulate communication")
    contention = contention or Contention.none()
    backward_s = step.backward_s + contention.hooks_s(step.gradients)
    nbytes = bucket_bytes(step.gradients, buckets) if buckets else []
    ready_s = contention.ready_s(step.gradients)
    complete_s = [backward_s if single_after_backward else max(ready_s[i] for i in bucket) for bucket in buckets]
    period = share(
        complete_s, nbytes, curve, contention,
        backward_s=backward_s, optimizer_s=step.optimizer_s, early_update=early_update,
    )  # fmt: skip
    return Step(step.ahead_s + period.end_s, period.waited_s, lambda: _timeline(period, nbytes, step))


def bucket_bytes(gradients: Sequence[Gradient], buckets: Buckets) -> list[int]:
    """Bytes of each bucket. Raises ValueError when one is empty, or a gradient is missing, unknown or in two."""
    placed = sorted(index for bucket in buckets for index in bucket)
    if placed != list(range(len(gradients))) or not all(buckets):
        raise ValueError(f"the buckets do not hold each of the {len(gradients)} gradients exactly once")
    return [sum(gradients[index].nbytes for index in bucket) for bucket in buckets]


def _timeline(period: Period, nbytes: Sequence[int], step: StepModel) -> Timeline:
    backward, *updates = period.computed
    ahead_s = step.ahead_s
    compute = [("input", -ahead_s, step.input_s - ahead_s)] if step.input_s else []
    if step.accumulate_s:
        compute.append(("accumulate", step.input_s - ahead_s, -step.forward_s))
    compute += [("forward", -step.forward_s, 0.0), ("backward", *backward)]
    for start_s, end_s in updates:  # updates without a gap are one span
        joined = compute[-1][0] == "optimizer" and compute[-1][2] == start_s
        compute.append(("optimizer", compute.pop()[1] if joined else start_s, end_s))
    return Timeline(
        label="simulated",
        compute=[Slice(name=n, start_s=ahead_s + start, end_s=ahead_s + end) for n, start, end in compute],
        communication=[
            Slice(name=f"bucket {at + 1}", start_s=ahead_s + start_s, end_s=ahead_s + end_s, nbytes=nbytes[at])
            for at, start_s, end_s in period.sent
        ],
    )
