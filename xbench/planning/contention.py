"""Contention model: how much computation and communication slow each other down, and a simulated step with both.

A collective needs a processor to launch it, to copy into and out of sockets, and to add the received data. When the
same processor computes, each slows the other down. The same holds for shared memory, and on a GPU for its
multiprocessors. Both slow-downs are measured, by size M of the collective and by the number in flight. A backend that
works on two collectives at once hides the latency of one behind the other.

    ρ(M) = time of one collective during computation / its time alone         (`collective_slowdown`)
    σ(M) = time of computation during collectives of M bytes / its time alone (`compute_slowdown`)

Two collectives in flight take another time even while nothing computes: they hide each other's latency, or compete for
one core. A third table holds that ratio: the time of each of the two over the time of one (`paired_quiet`).

The ranks also wait for each other once per step. The slowest rank, and the waking of threads that slept during the
computation, cost `meeting_s` beyond T, whatever the buckets are.

A link may have a burst allowance (a token bucket, a switch, a cloud network). T is measured with collectives soon after
one another. A collective after an idle link takes up to `rest_s` less. One second of idle time saves one second, and no
collective takes less than the smallest one.

`share` simulates one backward pass as a fluid. During a collective the computation proceeds at rate 1/σ. During
computation the collective proceeds at rate 1/(ρ·T). Collectives are served first in, first out. The events are: a
bucket is complete, a collective ends, backward ends, an update ends. Between two events all rates are constant, so the
timeline is exact for these rates. The host's cost of a launch (c0) is part of σ, because σ was measured with launches.
The hook of each gradient, and the copy into its bucket, delay backward separately.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from xbench import records
from xbench.planning.cost import CostFunction, FloatArray
from xbench.planning.gradients import Gradient

_EPSILON = 1e-12
_PER_OCTAVE = 4


@dataclass(frozen=True, eq=False)
class Contention:
    """ρ and σ by size for one and for two collectives in flight: linear in log M between the sizes, constant beyond.

    `log_sizes` (P,) ascends. `collective` and `compute` (2, P) are the slow-downs with one and with two in flight.
    """

    log_sizes: FloatArray
    collective: FloatArray
    compute: FloatArray
    hook_s: float = 0.0
    copy_s_per_byte: float = 0.0
    quiet: FloatArray | None = None
    """(2, P): time of a collective over its T while nothing computes, with one and two in flight; None: always T."""

    meeting_s: float = 0.0
    rest_s: float = 0.0
    """Largest time [s] that a collective saves after an idle link; the idle time must be at least as long."""

    @classmethod
    def of(cls, measured: records.Contention, transfer: CostFunction | None = None) -> Contention:
        """Build the tables from a record's points. Slow-downs with one in flight are at least 1: a speed-up is noise.

        With `transfer`, T [s] of sizes [B], the tables get many sizes between the measured ones. Times are interpolated
        linearly in M there, because latency and bytes are linear in M and their ratios to T are not. With one in
        flight, the time that computation adds is added to T, which was also measured with one in flight. With two in
        flight, the measured times are used, because the link is never idle in a queue.

        Sizes beyond the measured ones use the ratios of the largest size. Its base is its T or its own time alone,
        whichever is shorter. Otherwise a disturbance of one of the two measurements would make all larger sizes look
        faster.

        Without `transfer`, all ratios are to the times of one alone. Raises ValueError without a point or for a time
        that is not above zero.
        """
        by_size: dict[int, dict[int, records.ContentionPoint]] = {}
        for point in measured.points:
            if min(point.nbytes, point.alone_s, point.loaded_s, point.compute_slowdown) <= 0:
                raise ValueError(
                    f"a contention point of {point.nbytes} bytes has a size or time that is not above zero"
                )
            by_size.setdefault(point.nbytes, {})[point.in_flight] = point
        if not by_size:
            raise ValueError("there are no contention points")
        sizes = np.array(sorted(by_size), dtype=np.float64)
        # A size measured with only one of the two counts in flight uses its point for both.
        one = [found.get(1) or found[2] for _, found in sorted(by_size.items())]
        two = [found.get(2) or found[1] for _, found in sorted(by_size.items())]
        grid = _between(sizes) if transfer is not None else sizes

        def straight(values: Sequence[float]) -> FloatArray:
            return np.interp(grid, sizes, values)

        alone_s = straight([p.alone_s for p in one])
        if transfer is None:
            collective = [straight([p.loaded_s for p in one]) / alone_s, straight([p.loaded_s for p in two]) / alone_s]
            quiet = None
        else:
            grid = np.append(grid, grid[-1] * 2 ** (1 / _PER_OCTAVE))
            base_s = np.maximum(transfer(grid), 1e-9)
            base_s[-1] = min(base_s[-2], one[-1].alone_s)
            added_s = straight([p.loaded_s - p.alone_s for p in one])
            collective = [1.0 + added_s / base_s, straight([p.loaded_s for p in two]) / base_s]
            quiet = np.stack([np.ones(len(grid)), straight([p.alone_s for p in two]) / base_s])
        return cls(
            np.log(grid),
            np.stack([np.maximum(1.0, collective[0]), collective[1]]),
            np.maximum(
                1.0, np.stack([_logarithmic(grid, sizes, [p.compute_slowdown for p in row]) for row in (one, two)])
            ),
            measured.hook_s,
            measured.copy_s_per_byte,
            quiet,
            measured.meeting_s,
            measured.rest_s,
        )

    @classmethod
    def none(cls) -> Contention:
        """No contention: communication and computation do not slow each other down."""
        return cls(np.zeros(1), np.ones((2, 1)), np.ones((2, 1)))

    def amplified(self, factor: float) -> Contention:
        """The same contention with each cost multiplied by `factor`: ρ−1, σ−1, κ−1, hooks, copies and meetings."""
        return replace(
            self,
            collective=np.maximum(0.05, 1.0 + factor * (self.collective - 1.0)),
            compute=1.0 + factor * (self.compute - 1.0),
            hook_s=self.hook_s * factor,
            copy_s_per_byte=self.copy_s_per_byte * factor,
            quiet=np.maximum(0.05, 1.0 + factor * (self.quiet - 1.0)) if self.quiet is not None else None,
            meeting_s=self.meeting_s * factor,
        )

    def ready_s(self, gradients: Sequence[Gradient]) -> list[float]:
        """Ready time [s] of each gradient (in ready order), delayed by the hooks and copies up to it."""
        costs = (self.hook_s + self.copy_s_per_byte * gradient.nbytes for gradient in gradients)
        return [gradient.ready_s + late for gradient, late in zip(gradients, itertools.accumulate(costs), strict=True)]

    def hooks_s(self, gradients: Sequence[Gradient]) -> float:
        """Time [s] that all hooks and copies add to a backward pass."""
        return sum(self.hook_s + self.copy_s_per_byte * gradient.nbytes for gradient in gradients)

    def slowdowns(self, nbytes: FloatArray) -> tuple[list[list[float]], list[list[float]], list[list[float]]]:
        """ρ, σ and κ of K sizes [B], each of shape (2, K): with one and with two in flight."""
        tables = (self.collective_slowdown, self.compute_slowdown, self.paired_quiet)
        rho, sigma, kappa = (table(nbytes).tolist() for table in tables)
        return rho, sigma, kappa

    def collective_slowdown(self, nbytes: FloatArray) -> FloatArray:
        """ρ, of shape (2, K) for K sizes [B]: with one and with two in flight."""
        return self._at(self.collective, nbytes)

    def compute_slowdown(self, nbytes: FloatArray) -> FloatArray:
        """σ, of shape (2, K) for K sizes [B]: with one and with two in flight."""
        return self._at(self.compute, nbytes)

    def paired_quiet(self, nbytes: FloatArray) -> FloatArray:
        """κ of shape (2, K) for K sizes [B]: time over T while nothing computes, with one and with two in flight."""
        if self.quiet is None:
            return np.ones((2, len(nbytes)))
        return self._at(self.quiet, nbytes)

    def _at(self, table: FloatArray, nbytes: FloatArray) -> FloatArray:
        where = np.log(np.maximum(nbytes, 1.0))
        return np.stack([np.interp(where, self.log_sizes, row) for row in table])


def link_pace(measured: records.Contention | None) -> dict[str, float]:
    """Arguments of `bounds` that describe the link beyond T."""
    rest_s = measured.rest_s if measured is not None else 0.0
    return {"queue_s_per_byte": queue_s_per_byte(measured), "rest_s": rest_s}


def queue_s_per_byte(measured: records.Contention | None) -> float:
    """Fastest measured pace [s/B] of a queue of collectives while nothing computed; 0 where none was measured."""
    points = measured.points if measured is not None else []
    return min((point.alone_s / point.nbytes for point in points if point.in_flight > 1), default=0.0)


def _between(sizes: FloatArray) -> FloatArray:
    """The given sizes and sizes between them; neighbours differ by at most a factor of 2^(1/_PER_OCTAVE)."""
    found = [sizes[:1]]
    for low, high in itertools.pairwise(sizes.tolist()):
        found.append(np.geomspace(low, high, 1 + max(1, math.ceil(_PER_OCTAVE * math.log2(high / low))))[1:])
    return np.concatenate(found)


def _logarithmic(grid: FloatArray, sizes: FloatArray, values: Sequence[float]) -> FloatArray:
    return np.interp(np.log(grid), np.log(sizes), values)


@dataclass(frozen=True)
class Shared:
    """A simulated backward pass and the updates after it, times [s] since the start of backward.

    `sent`: (start, end) of each bucket on the link, in launch order. `backward_end_s`: end of the stretched backward
    pass. `updates`: spans of the optimizer's work. `end_s`: end of the step.
    """

    sent: list[tuple[float, float]]
    backward_end_s: float
    updates: list[tuple[float, float]]
    end_s: float


class TokenBucketCredit:
    """Burst credit [s] of an idle link: it grows by one second per second up to `most_s`, and is full at first."""

    def __init__(self, most_s: float) -> None:
        self._most_s = self._has_s = most_s
        self._since_s = 0.0

    def since(self, now_s: float) -> None:
        """Record that the link is idle from now on."""
        self._since_s = now_s

    def spent(self, now_s: float, most_s: float) -> float:
        """End the idle time. Return the time [s] that the next transfer saves, at most `most_s`."""
        if not self._most_s:
            return 0.0
        self._has_s = min(self._most_s, self._has_s + now_s - self._since_s)
        spent_s = min(self._has_s, max(0.0, most_s))
        self._has_s -= spent_s
        return spent_s


def share(
    complete_s: Sequence[float],
    nbytes: Sequence[int],
    curve: CostFunction,
    contention: Contention,
    *,
    backward_s: float,
    optimizer_s: float,
    early_update: bool,
) -> Shared:
    """Simulate one backward pass with its collectives and its optimizer.

    `complete_s` [s of undisturbed backward] is when each bucket's last gradient is ready, in launch order. `nbytes` [B]
    has the same order. With `early_update` the optimizer updates each bucket on arrival, with a share of its time by
    bytes. Otherwise it starts after all have arrived. An update is computation too: it and the collectives in flight
    slow each other down.
    """
    sizes = np.array(nbytes, dtype=np.float64)
    queue = _Queue(
        released_s=list(itertools.accumulate((max(0.0, at) for at in complete_s), max)),
        alone_s=curve(sizes).tolist() if nbytes else [],
        slowdowns=contention.slowdowns(sizes),
        update_s=_updates_s(nbytes, optimizer_s, early=early_update),
        least_s=float(curve(np.ones(1))[0]) if nbytes else 0.0,
        saved=TokenBucketCredit(contention.rest_s),
    )
    return _run(queue, backward_s, 0.0 if nbytes else optimizer_s)


@dataclass(frozen=True, eq=False)
class _Queue:
    """Buckets in launch order: release times, times alone, slow-downs, and the optimizer's work after each arrival."""

    released_s: list[float]
    alone_s: list[float]
    slowdowns: tuple[list[list[float]], list[list[float]], list[list[float]]]
    update_s: list[float]
    least_s: float
    saved: TokenBucketCredit

    def left(self, number: int, now_s: float) -> float:
        """Remaining share of a collective's T when it starts now, after the link's credit is subtracted."""
        alone_s = self.alone_s[number]
        spent_s = self.saved.spent(now_s, alone_s - self.least_s)
        return 1.0 - spent_s / alone_s if spent_s else 1.0


def _run(queue: _Queue, backward_s: float, pending: float) -> Shared:
    """Simulate from event to event. `pending` is the optimizer's work [s] that can be done from the start."""
    released, alone, update_s = queue.released_s, queue.alone_s, queue.update_s
    rho, sigma, kappa = queue.slowdowns
    count = len(alone)
    now = progress = started = 0.0
    queued = served = 0
    remaining = 1.0  # of the collective being served
    backward_end: float | None = None
    sent: list[tuple[float, float]] = []
    updates: list[tuple[float, float]] = []
    while True:
        if backward_end is None and progress >= backward_s - _EPSILON:
            backward_end, progress = now, math.inf  # buckets that were not complete before are complete now
        while queued < count and released[queued] <= progress + _EPSILON:
            if queued == served:
                started, remaining = now, queue.left(served, now)
            queued += 1
        busy, computing = queued > served, backward_end is None or pending > 0
        if not busy and not computing:
            break
        slot = 1 if queued - served > 1 else 0
        speed = 1.0 / sigma[slot][served] if busy else 1.0
        work = pending if backward_end is not None else min([backward_s, *released[queued : queued + 1]]) - progress
        compute_s = work / speed if computing else math.inf
        whole_s = alone[served] * (rho if computing else kappa)[slot][served] if busy else math.inf
        link_s = remaining * whole_s if busy else math.inf
        step = min(compute_s, link_s)
        if backward_end is None:
            progress = progress + work if compute_s <= link_s else progress + step * speed
        elif computing:
            pending = 0.0 if compute_s <= link_s else pending - step * speed
            _extend(updates, now, now + step)
        now += step
        if not busy:
            continue
        remaining = 0.0 if link_s <= compute_s else remaining - step / whole_s
        if remaining <= _EPSILON:
            sent.append((started, now))
            served += 1
            queue.saved.since(now)
            if queued > served:
                started, remaining = now, queue.left(served, now)
            pending += update_s[served - 1]
    return Shared(sent, backward_end if backward_end is not None else now, updates, now)


def _updates_s(nbytes: Sequence[int], optimizer_s: float, *, early: bool) -> list[float]:
    """The optimizer's work [s] that each bucket's arrival allows. Unless `early`, the last arrival allows all of it."""
    if not early:
        return [0.0] * (len(nbytes) - 1) + [optimizer_s]
    whole = sum(nbytes)
    return [optimizer_s * (size / whole) if whole > 0 else 0.0 for size in nbytes]


def _extend(spans: list[tuple[float, float]], start_s: float, end_s: float) -> None:
    """Add a span of time; extend the last span where the two meet."""
    if spans and spans[-1][1] == start_s:
        start_s, _ = spans.pop()
    spans.append((start_s, end_s))
