"""What computation and communication cost each other while both run, and a step in which they share.

A collective needs a processor: to launch it, to copy into and out of sockets, to add what arrives. Where the same
processor (or the same memory, on a GPU the same multiprocessors) computes, each slows the other. Both are measured, by
size M of the collective and by how many are in flight (a backend that works on two at once hides the latency of one
behind the other):

    ρ(M) = time of one collective beside computation / its time alone          (`collective_slowdown`)
    σ(M) = time of computation beside collectives of M bytes / its time alone  (`compute_slowdown`)

Collectives of which two are in flight take another time even while nothing computes (they hide each other's latency, or
fight for one core), so there is a third table: their time each over that of one (`paired_quiet`). And once a step the
ranks must meet: the slowest of them, and the waking of threads that slept through the computation, cost `meeting_s`
beyond T, whatever the buckets.

A link that rests may save up: a token bucket, a switch or a cloud lets a burst pass at once. T is of collectives soon
after one another. One that comes after a rest takes up to `rest_s` less, a second of rest saving a second, and never
less than the smallest takes.

`share` then runs one backward pass as a fluid: while a collective is under way the computation proceeds at 1/σ, and
while something computes the collective proceeds at 1/(ρ·T). Collectives are served first in, first out. Between two
events (a bucket is complete, a collective ends, backward ends, an update ends) all rates are constant, so the timeline
is exact for these rates. What a launch costs the host (c0) is inside σ: it was measured with the launches in it. The
hook of each gradient, and the copy into its bucket, delay backward by themselves.
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
    """ρ and σ by size for one and for two collectives in flight, linear in log M between these sizes, flat beyond.

    `log_sizes` (P,) ascending; `collective` and `compute` (2, P): the slow-downs with one and with two in flight.
    """

    log_sizes: FloatArray
    collective: FloatArray
    compute: FloatArray
    hook_s: float = 0.0
    copy_s_per_byte: float = 0.0
    quiet: FloatArray | None = None
    """(2, P): time of a collective, one and two in flight, while nothing computes, over its T; None: T always."""

    meeting_s: float = 0.0
    rest_s: float = 0.0
    """What a link saves for a collective, in a rest of so long [s] or longer."""

    @classmethod
    def of(cls, measured: records.Contention, transfer: CostFunction | None = None) -> Contention:
        """From a record's points. Neither slow-down of one at a time is below 1: a speed-up is noise.

        With `transfer`, T [s] of sizes [B], the tables have many sizes between those measured. There times go straight
        in M, as latency and bytes do, which their ratios to T do not. One at a time what computation adds is added to
        T, because that was measured one at a time too; of two in flight the times themselves are taken, because in a
        queue the link never rests. Sizes beyond those measured have the ratios of
        the largest to its T or to its own time alone, whichever is shorter: were one of the two disturbed while it was
        measured, all that is larger would be taken for so much faster. Without `transfer` all are ratios to the times
        of one alone. Raises ValueError without a point or for a time not above zero.
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
        # A size measured with only one count in flight stands for both.
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
        """Communication that is free for computation, and the other way round."""
        return cls(np.zeros(1), np.ones((2, 1)), np.ones((2, 1)))

    def amplified(self, factor: float) -> Contention:
        """The same with what each costs the other multiplied: ρ−1, σ−1, κ−1, hooks, copies and meetings."""
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
        """When each gradient (in ready order) is ready [s], with what each one's hook and copy cost from it on."""
        costs = (self.hook_s + self.copy_s_per_byte * gradient.nbytes for gradient in gradients)
        return [gradient.ready_s + late for gradient, late in zip(gradients, itertools.accumulate(costs), strict=True)]

    def hooks_s(self, gradients: Sequence[Gradient]) -> float:
        """What all hooks and copies add to a backward pass [s]."""
        return sum(self.hook_s + self.copy_s_per_byte * gradient.nbytes for gradient in gradients)

    def slowdowns(self, nbytes: FloatArray) -> tuple[list[list[float]], list[list[float]], list[list[float]]]:
        """ρ, σ and κ of K sizes [B], each (2, K): with one and with two in flight."""
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
        """Time over T while nothing computes, of shape (2, K) for K sizes [B]: with one and with two in flight."""
        if self.quiet is None:
            return np.ones((2, len(nbytes)))
        return self._at(self.quiet, nbytes)

    def _at(self, table: FloatArray, nbytes: FloatArray) -> FloatArray:
        where = np.log(np.maximum(nbytes, 1.0))
        return np.stack([np.interp(where, self.log_sizes, row) for row in table])


def link_pace(measured: records.Contention | None) -> dict[str, float]:
    """What `bounds` wants to know of a link beyond T."""
    rest_s = measured.rest_s if measured is not None else 0.0
    return {"queue_s_per_byte": queue_s_per_byte(measured), "rest_s": rest_s}


def queue_s_per_byte(measured: records.Contention | None) -> float:
    """The quickest pace [s/B] at which a queue of collectives was measured while nothing computed; 0 where none was."""
    points = measured.points if measured is not None else []
    return min((point.alone_s / point.nbytes for point in points if point.in_flight > 1), default=0.0)


def _between(sizes: FloatArray) -> FloatArray:
    """These sizes and others between them, no two further apart than a factor of 2^(1/_PER_OCTAVE)."""
    found = [sizes[:1]]
    for low, high in itertools.pairwise(sizes.tolist()):
        found.append(np.geomspace(low, high, 1 + max(1, math.ceil(_PER_OCTAVE * math.log2(high / low))))[1:])
    return np.concatenate(found)


def _logarithmic(grid: FloatArray, sizes: FloatArray, values: Sequence[float]) -> FloatArray:
    return np.interp(np.log(grid), np.log(sizes), values)


@dataclass(frozen=True)
class Shared:
    """A backward pass and what follows it, times [s] since the start of backward.

    `sent`: (start, end) of each bucket on the link, in launch order. `backward_end_s`: when the stretched backward pass
    ends. `updates`: when the optimizer works. `end_s`: when the step ends.
    """

    sent: list[tuple[float, float]]
    backward_end_s: float
    updates: list[tuple[float, float]]
    end_s: float


class TokenBucketCredit:
    """What a link has saved while it rested [s]: a second a second, up to `most_s`, which it has at first."""

    def __init__(self, most_s: float) -> None:
        self._most_s = self._has_s = most_s
        self._since_s = 0.0

    def since(self, now_s: float) -> None:
        """It rests from now on."""
        self._since_s = now_s

    def spent(self, now_s: float, most_s: float) -> float:
        """It stops resting, for something that can take this much less [s] at most: how much less it takes."""
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
    """Run one backward pass with its collectives and its optimizer.

    `complete_s` [s of undisturbed backward]: when each bucket's last gradient is ready, in launch order; `nbytes` [B]
    likewise. With `early_update` the optimizer works on what has arrived, by bytes; else once everything has. An
    update is computation too: it slows collectives that are still under way, and they slow it.
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
    """Buckets in launch order: when each is complete, what it takes, and the optimizer's work once it has arrived."""

    released_s: list[float]
    alone_s: list[float]
    slowdowns: tuple[list[list[float]], list[list[float]], list[list[float]]]
    update_s: list[float]
    least_s: float
    saved: TokenBucketCredit

    def left(self, number: int, now_s: float) -> float:
        """The share of a collective's T that it takes when it starts now."""
        alone_s = self.alone_s[number]
        spent_s = self.saved.spent(now_s, alone_s - self.least_s)
        return 1.0 - spent_s / alone_s if spent_s else 1.0


def _run(queue: _Queue, backward_s: float, pending: float) -> Shared:
    """From event to event, see the module; `pending` is the optimizer's work [s] that can be done from the start."""
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
            backward_end, progress = now, math.inf  # whatever was not complete before is complete now
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
    """The optimizer's work [s] that can be done once each bucket has arrived; all after the last one unless `early`."""
    if not early:
        return [0.0] * (len(nbytes) - 1) + [optimizer_s]
    whole = sum(nbytes)
    return [optimizer_s * (size / whole) if whole > 0 else 0.0 for size in nbytes]


def _extend(spans: list[tuple[float, float]], start_s: float, end_s: float) -> None:
    """Add a span of time, to the last one where that ends as this one starts."""
    if spans and spans[-1][1] == start_s:
        start_s, _ = spans.pop()
    spans.append((start_s, end_s))
