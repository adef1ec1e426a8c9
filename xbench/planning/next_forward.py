"""A step whose gradients may still travel while the next forward pass runs: DeAR, and priority scheduling.

Every other schedule waits for all gradients before the next forward pass. Here each layer of it waits for its own:

- `dear` (Zhang et al., DeAR, arXiv 2302.12445): an all-reduce is a reduce-scatter and an all-gather. The buckets'
  reduce-scatters overlap backward, in launch order; once all are done the all-gathers follow, in the order in which the
  next forward pass needs the buckets. Nothing is sent twice: the two halves together take T.
- `priority` (Jayarajan et al., P3, MLSys 2019; Peng et al., ByteScheduler, SOSP 2019): tensors are cut into parts of at
  most `partition_bytes`, each an all-reduce of its own. Of the parts whose gradient is ready, the one that the next
  forward pass needs first goes next. `credit_bytes` may be under way at once: a part once launched is not called back.

**The step in the steady state** goes from one start of backward to the next: backward, then for each layer in forward
order the update of its parameters (the optimizer's time, shared out by bytes) and its forward. A layer waits until all
that carries gradients of its own has arrived:

    start[l] = max(end[l−1], arrival[l])        end[l] = start[l] + update[l] + forward[l]        end[0] = backward

Backward follows the last layer, so when it starts everything has arrived and the link is idle. No step leaves anything
to the next one: one period is the steady state, exactly, and nothing is run until it settles.

**Bounds.** In a period the device does all of C = forward + backward + optimizer and the link all of ΣT, one thing at
a time: a step takes at least max(C, ΣT). Where the two do not slow each other down, `dear` takes at most as long as
sending the same buckets after backward. `priority` takes at most as long as sending the same parts in ready order: a
link that never rests while there is something to send empties its queue at the same time in any order. A faster link
never makes `dear` slower. It can make `priority` slower: the link may take up a large part that nobody waits for just
before an urgent one is ready.

With a `Contention`, computation and communication slow each other down as in `planning.contention`: hooks and copies
delay backward, what is in flight slows the computation, and that slows what is in flight. A half of an all-reduce is
taken to slow the computation as the whole does, for half as long.

Layers run forward in the reverse of the order in which their gradients become ready, which is what a profile tells.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from xbench.planning import merge
from xbench.planning.contention import Contention
from xbench.planning.cost import Curve, Transfer
from xbench.planning.simulate import Buckets, Step, bucket_bytes
from xbench.planning.step import StepModel
from xbench.records import CostModel, Layer, Slice, Timeline

PARTITION_BYTES = 4 * 1024 * 1024
"""What a priority plan cuts tensors into unless told otherwise."""

_PARTITIONS = (2**18, 2**20, PARTITION_BYTES, 2**24)
_UNIFORM = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


@dataclass(frozen=True)
class ForwardLayer:
    """A layer of the next forward pass: it waits for `gradients`, indices in ready order, and takes `forward_s`."""

    name: str
    forward_s: float
    gradients: tuple[int, ...]


@dataclass(frozen=True)
class NextForward:
    """The best found of a mode: its step, and what makes it (`buckets` of `dear`, `partition_bytes` of `priority`)."""

    mode: str
    name: str
    step: Step
    buckets: Buckets | None = None
    partition_bytes: int | None = None


@dataclass(frozen=True)
class _Parcel:
    """Something to send: no earlier than `release_s` of backward's own progress; of those waiting the least rank."""

    name: str
    release_s: float
    rank: int
    nbytes: int
    alone_s: float


@dataclass(frozen=True)
class _Task:
    """Computation that starts when the parcels `needs` have arrived and the task before it is done."""

    name: str
    took_s: float
    needs: frozenset[int] = frozenset()


def forward_layers(layers: Sequence[Layer], step: StepModel) -> list[ForwardLayer]:
    """The layers of a profile in forward order, their forward times scaled to make up `step.forward_s`.

    Raises ValueError when `step` has a gradient that no layer has: it is of another profile.
    """
    place = {gradient.name: index for index, gradient in enumerate(step.gradients)}
    missing = place.keys() - {tensor.name for layer in layers for tensor in layer.tensors}
    if missing:
        raise ValueError(f"gradient {min(missing)!r} is of no layer: step and layers are of different profiles")
    whole_s = sum(layer.forward_s for layer in layers)
    return [
        ForwardLayer(
            layer.name,
            step.forward_s * (layer.forward_s / whole_s if whole_s > 0 else 1 / len(layers)),
            tuple(place[tensor.name] for tensor in layer.tensors if tensor.name in place),
        )
        for layer in reversed(layers)
    ]


def dear(
    layers: Sequence[ForwardLayer],
    step: StepModel,
    buckets: Buckets,
    curve: Transfer,
    *,
    scatter_share: float = 0.5,
    contention: Contention | None = None,
) -> Step:
    """The steady-state step of `dear` with these buckets of `step.gradients`, in launch order.

    `curve` is T of a whole all-reduce [s] by size [B]; a reduce-scatter takes `scatter_share` of it and an all-gather
    the rest (in a ring each has half of the messages and half of the bytes). Times of the timeline count from the start
    of backward, and `exposed_s` is how long the device waits.
    Raises ValueError when buckets or layers do not hold each gradient exactly once, for a share that is not from 0 to
    1, and for a part of the step that is negative or not finite.
    """
    if not 0 <= scatter_share <= 1:
        raise ValueError(f"scatter_share is {scatter_share}: a reduce-scatter takes from 0 to 1 of an all-reduce")
    first_use = _first_use(layers, len(step.gradients))
    sizes = bucket_bytes(step.gradients, buckets)
    took = curve(np.array(sizes, dtype=np.float64)).tolist()
    ready_s, backward_s = _backward(step, contention)
    count = len(buckets)
    parcels: list[_Parcel] = []
    complete_s = 0.0
    for number, (bucket, nbytes, whole_s) in enumerate(zip(buckets, sizes, took, strict=True)):
        complete_s = max(complete_s, max(ready_s[index] for index in bucket))
        name = f"bucket {number + 1} reduce-scatter"
        parcels.append(_Parcel(name, complete_s, number, nbytes, whole_s * scatter_share))
    bucket_of = {index: number for number, bucket in enumerate(buckets) for index in bucket}
    needed_first = sorted(range(count), key=lambda number: min(first_use[index] for index in buckets[number]))
    gathers = {number: count + turn for turn, number in enumerate(needed_first)}
    for number in needed_first:
        name = f"bucket {number + 1} all-gather"
        rest_s = took[number] * (1 - scatter_share)
        parcels.append(_Parcel(name, complete_s, gathers[number], sizes[number], rest_s))
    needs = [frozenset(gathers[bucket_of[index]] for index in layer.gradients) for layer in layers]
    tasks = _tasks(layers, step, backward_s, needs)
    return _run(tasks, parcels, contention or Contention.none(), credit_bytes=math.inf)


def priority(
    layers: Sequence[ForwardLayer],
    step: StepModel,
    curve: Transfer,
    *,
    partition_bytes: float = PARTITION_BYTES,
    credit_bytes: float | None = None,
    contention: Contention | None = None,
) -> Step:
    """The steady-state step of `priority`: tensors in parts of at most `partition_bytes` (inf: whole tensors).

    `credit_bytes` [B] may be in flight; None: one part. One part at least always may. On one link more credit only
    makes preemption coarser, unless the contention says that two in flight are faster. Otherwise as `dear`.
    Raises ValueError when the layers do not hold each gradient exactly once, for a partition under a byte or a credit
    that is negative, and for a part of the step that is negative or not finite.
    """
    if not partition_bytes >= 1:
        raise ValueError(f"partition_bytes is {partition_bytes}: a part has at least one byte")
    credit = 0.0 if credit_bytes is None else credit_bytes
    if not credit >= 0:
        raise ValueError(f"credit_bytes is {credit_bytes}: bytes in flight are not below zero")
    first_use = _first_use(layers, len(step.gradients))
    ready_s, backward_s = _backward(step, contention)
    wanted: list[tuple[str, int, int]] = []  # name, gradient, bytes
    for index in sorted(range(len(first_use)), key=lambda index: first_use[index]):
        gradient = step.gradients[index]
        parts = _parts(gradient.nbytes, partition_bytes)
        for number, nbytes in enumerate(parts, start=1):
            part = f" {number} of {len(parts)}" if len(parts) > 1 else ""
            wanted.append((gradient.name + part, index, nbytes))
    took = curve(np.array([nbytes for _, _, nbytes in wanted], dtype=np.float64)).tolist()
    parcels = [
        _Parcel(name, ready_s[index], rank, nbytes, took[rank]) for rank, (name, index, nbytes) in enumerate(wanted)
    ]
    parts_of: list[set[int]] = [set() for _ in step.gradients]
    for rank, (_, index, _) in enumerate(wanted):
        parts_of[index].add(rank)
    needs = [frozenset(rank for index in layer.gradients for rank in parts_of[index]) for layer in layers]
    tasks = _tasks(layers, step, backward_s, needs)
    return _run(tasks, parcels, contention or Contention.none(), credit_bytes=credit)


def best_next_forward(
    layers: Sequence[Layer], step: StepModel, cost: CostModel, *, contention: Contention | None = None
) -> list[NextForward]:
    """The best `dear` and the best `priority` found for a profile, the faster first.

    `dear` tries the buckets of every schedule and uniform sizes (the paper tunes one size by Bayesian optimisation),
    `priority` a few sizes of parts. Where no contention was measured but ready times under traffic were, those count,
    as in every other prediction. Raises ValueError as `forward_layers`, and when gradients are not in ready order.
    """
    if contention is None and step.loaded is not None:
        step = replace(step, gradients=step.loaded, backward_s=max(step.backward_s, step.loaded[-1].ready_s))
    elif contention is not None:
        step = replace(step, forward_s=step.forward_s + contention.meeting_s)
    curve = Curve.of(cost)

    def charged(collectives: int) -> tuple[list[ForwardLayer], StepModel]:
        stalled_s = contention.stall_s(collectives) if contention is not None else 0.0
        slower = replace(step, forward_s=step.forward_s + stalled_s)
        return forward_layers(layers, slower), slower

    dears = [
        NextForward("dear", name, dear(*charged(len(buckets)), buckets, curve, contention=contention), buckets=buckets)
        for name, buckets in _families(step, cost, curve)
    ]
    priorities = [
        NextForward(
            "priority",
            f"parts of at most {size} bytes",
            priority(*charged(_count(step, size)), curve, partition_bytes=size, contention=contention),
            partition_bytes=size,
        )
        for size in _PARTITIONS
    ]
    best = [min(found, key=lambda one: one.step.step_s) for found in (dears, priorities)]
    return sorted(best, key=lambda one: one.step.step_s)


def _count(step: StepModel, partition_bytes: int) -> int:
    return sum(len(_parts(gradient.nbytes, partition_bytes)) for gradient in step.gradients)


def _families(step: StepModel, cost: CostModel, curve: Curve) -> Iterator[tuple[str, Buckets]]:
    """Buckets to try: fewer first, so that of equal steps the one with fewer launches is kept."""
    gradients = step.gradients
    yield "single", merge.single(gradients)
    for parts in _UNIFORM:
        limit = max(1, math.ceil(step.grad_bytes / parts))
        yield f"uniform in {parts}", merge.ddp_assignment(gradients, [limit])
    yield "ddp", merge.ddp(gradients)
    yield "optimal", merge.optimal(gradients, curve)
    yield "mgwfbp", merge.mgwfbp(gradients, cost.alpha_s, cost.beta_s_per_byte)
    yield "wfbp", merge.wfbp(gradients)


def _first_use(layers: Sequence[ForwardLayer], count: int) -> list[int]:
    """The place in forward order of each gradient's layer. Raises ValueError unless each gradient has exactly one."""
    found = {index: turn for turn, layer in enumerate(layers) for index in layer.gradients}
    if sum(len(layer.gradients) for layer in layers) != count or sorted(found) != list(range(count)):
        raise ValueError(f"the layers do not hold each of the {count} gradients exactly once")
    return [found[index] for index in range(count)]


def _backward(step: StepModel, contention: Contention | None) -> tuple[list[float], float]:
    """When each gradient is ready, and how long backward takes [s], hooks and copies included."""
    gradients = step.gradients if contention is None else contention.with_hooks(step.gradients)
    hooks_s = 0.0 if contention is None else contention.hooks_s(step.gradients)
    return [gradient.ready_s for gradient in gradients], step.backward_s + hooks_s


def _parts(nbytes: int, most: float) -> list[int]:
    """Sizes of a tensor's parts: full ones, then what is left. A tensor without bytes has no part."""
    if nbytes <= most:
        return [nbytes] if nbytes else []
    size = int(most)
    return [size] * (nbytes // size) + ([nbytes % size] if nbytes % size else [])


def _tasks(
    layers: Sequence[ForwardLayer], step: StepModel, backward_s: float, needs: Sequence[frozenset[int]]
) -> list[_Task]:
    """Backward, then each layer's update and forward. An optimizer without bytes to update works after backward."""
    for name, part_s in [("backward_s", backward_s), ("optimizer_s", step.optimizer_s)] + [
        (f"forward_s of {layer.name!r}", layer.forward_s) for layer in layers
    ]:
        if not math.isfinite(part_s) or part_s < 0:
            raise ValueError(f"{name} is {part_s}: a part of a step takes zero seconds or more")
    whole = step.grad_bytes
    tasks = [_Task("backward", backward_s)]
    if whole == 0 and step.optimizer_s:
        tasks.append(_Task("optimizer", step.optimizer_s))
    for layer, needed in zip(layers, needs, strict=True):
        own = sum(step.gradients[index].nbytes for index in layer.gradients)
        if own and step.optimizer_s:
            tasks.append(_Task("optimizer", step.optimizer_s * (own / whole), needed))
        tasks.append(_Task(f"forward {layer.name}", layer.forward_s, needed))
    return tasks


class _Link:
    """One link and what is to be sent over it; times [s]. Parcels that were launched are served first in, first out."""

    def __init__(self, parcels: Sequence[_Parcel], contention: Contention, credit_bytes: float) -> None:
        sizes = np.array([parcel.nbytes for parcel in parcels], dtype=np.float64)
        self.arrived: set[int] = set()
        self.sent: list[Slice] = []
        self._parcels = parcels
        self._credit_bytes = credit_bytes
        self._rho: list[list[float]] = contention.collective_slowdown(sizes).tolist()
        self._sigma: list[list[float]] = contention.compute_slowdown(sizes).tolist()
        self._quiet: list[list[float]] = contention.paired_quiet(sizes).tolist()
        self._coming = deque(sorted(range(len(parcels)), key=lambda at: (parcels[at].release_s, parcels[at].rank)))
        self._waiting: list[tuple[int, int]] = []  # (rank, parcel)
        self._flying: deque[int] = deque()
        self._flying_bytes = 0
        self._left_s = self._since_s = 0.0  # of the parcel in service: what is left of it alone, and its start

    @property
    def busy(self) -> bool:
        """Whether something is under way."""
        return bool(self._flying)

    @property
    def next_release_s(self) -> float:
        """At what progress of backward the next parcel is released; inf when all are."""
        return self._parcels[self._coming[0]].release_s if self._coming else math.inf

    def launch(self, progress_s: float, now_s: float) -> None:
        """Release what backward's progress has completed, and launch by rank what the credit allows."""
        while self._coming and self.next_release_s <= progress_s:
            at = self._coming.popleft()
            heapq.heappush(self._waiting, (self._parcels[at].rank, at))
        while self._waiting:
            at = self._waiting[0][1]
            if self._flying and self._flying_bytes + self._parcels[at].nbytes > self._credit_bytes:
                break
            heapq.heappop(self._waiting)
            self._flying.append(at)
            self._flying_bytes += self._parcels[at].nbytes
            if len(self._flying) == 1:
                self._left_s, self._since_s = self._parcels[at].alone_s, now_s

    def slowdowns(self) -> tuple[float, float, float]:
        """(ρ, σ, κ) of what is in service; ones when nothing is."""
        if not self._flying:
            return 1.0, 1.0, 1.0
        in_flight, at = 1 if len(self._flying) > 1 else 0, self._flying[0]
        return self._rho[in_flight][at], self._sigma[in_flight][at], self._quiet[in_flight][at]

    def left_s(self, slower: float) -> float:
        """Until the parcel in service arrives, at this slow-down; inf when there is none."""
        return self._left_s * slower if self._flying else math.inf

    def serve(self, alone_s: float) -> None:
        """Send for as long as would be so many seconds alone."""
        self._left_s = max(0.0, self._left_s - alone_s)

    def deliver(self, now_s: float) -> None:
        """The parcel in service has arrived."""
        at = self._flying.popleft()
        parcel = self._parcels[at]
        self._flying_bytes -= parcel.nbytes
        self.arrived.add(at)
        self.sent.append(Slice(name=parcel.name, start_s=self._since_s, end_s=now_s, nbytes=parcel.nbytes))
        if self._flying:
            self._left_s, self._since_s = self._parcels[self._flying[0]].alone_s, now_s


def _run(tasks: Sequence[_Task], parcels: Sequence[_Parcel], contention: Contention, *, credit_bytes: float) -> Step:
    """Tasks in order on the device, parcels on the link, both as a fluid: between two events all rates are constant.

    Every event ends something (a stretch of backward, a task, a parcel), so there are no more events than those. What
    is not released before backward ends is released by its end.
    """
    link = _Link(parcels, contention, credit_bytes)
    computed: list[Slice] = []
    now_s = 0.0
    for task in tasks:
        backward = not computed
        progress_s = 0.0
        since_s: float | None = None  # when the task started; None: it waits
        done = False
        while not done:
            link.launch(progress_s if backward else math.inf, now_s)
            if since_s is None and task.needs <= link.arrived:
                since_s = now_s
            computing = since_s is not None
            mark_s = min(task.took_s, link.next_release_s)  # after backward nothing is left to release
            rho, sigma, quiet = link.slowdowns()
            slower = rho if computing else quiet
            compute_s = (mark_s - progress_s) * sigma if computing else math.inf
            link_s = link.left_s(slower)
            passed_s = min(compute_s, link_s)
            now_s += passed_s
            if computing:
                progress_s = mark_s if compute_s <= link_s else progress_s + passed_s / sigma
                done = compute_s <= link_s and mark_s == task.took_s
            if link.busy and link_s <= compute_s:
                link.deliver(now_s)
            elif link.busy:
                link.serve(passed_s / slower)
        computed.append(Slice(name=task.name, start_s=since_s or 0.0, end_s=now_s))
    waited_s = sum(after.start_s - before.end_s for before, after in itertools.pairwise(computed))
    return Step(now_s, waited_s, Timeline(label="simulated", compute=computed, communication=link.sent))
