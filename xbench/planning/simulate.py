"""One step of one job on a timeline: the device computes, and one link sends the buckets in plan order.

A bucket's collective starts when its last gradient is ready and the bucket before it has arrived. It takes T(bytes):

    start[k] = max(ready of k's members, end[k−1])        end[k] = start[k] + T(bytes of k)
    step     = forward + max(backward, end[last]) + optimizer

With `early_update` the optimizer updates a bucket's parameters as soon as backward is over and the bucket has arrived.
Its time is divided by bytes. Later buckets may still be in flight, so only the last bucket's update follows the link:

    done[0] = backward        done[k] = max(done[k−1], end[k]) + optimizer · bytes of k / bytes of all
    step    = forward + done[last]

Without a `contention`, launches cost nothing, and computation and communication do not slow each other down. With one,
they share the host as measured; `xbench.planning.contention` describes how.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from xbench.planning.contention import Contention, Shared, share
from xbench.planning.cost import CostFunction
from xbench.planning.gradients import Gradient
from xbench.planning.step import StepModel
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


@dataclass(frozen=True)
class Collective:
    """One bucket's transfer on the link; times [s] since the start of backward."""

    start_s: float
    end_s: float
    nbytes: int


def transfers(
    gradients: Sequence[Gradient], buckets: Buckets, curve: CostFunction, *, not_before_s: float = 0.0
) -> list[Collective]:
    """Transfer times of each bucket, in launch order; none starts before `not_before_s` [s since backward's start].

    Raises ValueError when a bucket is empty, or a gradient is missing, unknown or in two buckets.
    """
    sizes = bucket_bytes(gradients, buckets)
    took = curve(np.array(sizes, dtype=np.float64)).tolist()
    found: list[Collective] = []
    free_s = not_before_s
    for bucket, nbytes, transfer_s in zip(buckets, sizes, took, strict=True):
        start_s = max(free_s, max(gradients[index].ready_s for index in bucket))
        free_s = start_s + transfer_s
        found.append(Collective(start_s, free_s, nbytes))
    return found


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
    gradients, backward_s, optimizer_s = step.gradients, step.backward_s, step.optimizer_s
    for name, part_s in step.parts.items():
        if not math.isfinite(part_s) or part_s < 0:
            raise ValueError(f"{name} is {part_s}: a part of a step takes zero seconds or more")
    shared = Shared([], backward_s, [(backward_s, backward_s + optimizer_s)], backward_s + optimizer_s)
    nbytes: list[int] = []
    if buckets:
        if curve is None:
            raise ValueError("a cost model is needed to simulate communication")
        sizes = bucket_bytes(gradients, buckets)
        if contention is None:
            earliest_s = backward_s if single_after_backward else 0.0
            travelling = transfers(gradients, buckets, curve, not_before_s=earliest_s)
            updates = _updates(travelling, backward_s, optimizer_s, early=early_update)
            shared = Shared([(c.start_s, c.end_s) for c in travelling], backward_s, updates, updates[-1][1])
        else:
            length_s = backward_s + contention.hooks_s(gradients)
            ready_s = contention.ready_s(gradients)
            complete = [length_s if single_after_backward else max(ready_s[i] for i in b) for b in buckets]
            shared = share(
                complete, sizes, curve, contention,
                backward_s=length_s, optimizer_s=optimizer_s, early_update=early_update,
            )  # fmt: skip
        nbytes = sizes
    return Step(step.forward_s + shared.end_s, _waited(shared), lambda: _timeline(shared, nbytes, step.forward_s))


def bucket_bytes(gradients: Sequence[Gradient], buckets: Buckets) -> list[int]:
    """Bytes of each bucket. Raises ValueError when one is empty, or a gradient is missing, unknown or in two."""
    placed = sorted(index for bucket in buckets for index in bucket)
    if placed != list(range(len(gradients))) or not all(buckets):
        raise ValueError(f"the buckets do not hold each of the {len(gradients)} gradients exactly once")
    return [sum(gradients[index].nbytes for index in bucket) for bucket in buckets]


def _waited(shared: Shared) -> float:
    """Idle time of the device after the end of backward [s]."""
    free_since_s = [shared.backward_end_s, *(end_s for _, end_s in shared.updates)]
    return sum(start_s - since_s for since_s, (start_s, _) in zip(free_since_s, shared.updates, strict=False))


def _timeline(shared: Shared, nbytes: Sequence[int], forward_s: float) -> Timeline:
    compute = [("forward", -forward_s, 0.0), ("backward", 0.0, shared.backward_end_s)]
    compute += [("optimizer", start_s, end_s) for start_s, end_s in shared.updates]
    return Timeline(
        label="simulated",
        compute=[Slice(name=n, start_s=forward_s + start, end_s=forward_s + end) for n, start, end in compute],
        communication=[
            Slice(name=f"bucket {number}", start_s=forward_s + start_s, end_s=forward_s + end_s, nbytes=size)
            for number, ((start_s, end_s), size) in enumerate(zip(shared.sent, nbytes, strict=True), start=1)
        ],
    )


def _updates(
    travelling: Sequence[Collective], backward_s: float, optimizer_s: float, *, early: bool
) -> list[tuple[float, float]]:
    """Spans of the optimizer's work [s since the start of backward]: one at the end, or one per arrival of a bucket."""
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
