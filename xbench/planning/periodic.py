"""One period of a step: the device runs tasks, and the link sends transfers.

Tasks run one after the other. A task waits until all transfers that it needs have arrived. The first task is backward:
its progress releases transfers, and its end releases all the rest. Among the released transfers, the one with the least
rank is launched next, as long as the credit allows. Launched transfers are served first in, first out, and are never
cancelled.

Both proceed as a fluid, as in `planning.contention`. While a transfer is in service, the computation proceeds at rate
1/σ. The transfer proceeds at rate 1/(ρ·T) during computation, else at 1/(κ·T). Between two events all rates are
constant. Every event ends something (a stretch of backward, a task, a transfer), so the number of events is bounded.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from xbench.planning.contention import Contention, TokenBucketCredit


@dataclass(frozen=True)
class Transfer:
    """A transfer: released at `release_s` of backward's own progress, and launched in order of the least rank.

    It takes `alone_s`, or less after an idle link, but at least `least_s`.
    """

    name: str
    release_s: float
    rank: int
    nbytes: int
    alone_s: float
    least_s: float = 0.0


@dataclass(frozen=True)
class Task:
    """Computation that starts when the transfers `needs` have arrived and the task before it has ended."""

    name: str
    took_s: float
    needs: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Period:
    """Result of a simulation, times [s] since the start of the first task.

    `computed`: (start, end) of each task. `sent`: (transfer, start, end) in launch order.
    """

    end_s: float
    computed: list[tuple[float, float]]
    sent: list[tuple[int, float, float]]

    @property
    def waited_s(self) -> float:
        """Time [s] that the device waits for transfers."""
        return sum(start_s - end_s for (_, end_s), (start_s, _) in itertools.pairwise(self.computed))


class _Line:
    """Transfers in flight, first in, first out. The first is in service and takes `left_s` more without contention."""

    def __init__(self, parcels: Sequence[Transfer], saved: TokenBucketCredit) -> None:
        self.flying: deque[int] = deque()
        self.nbytes = 0
        self.left_s = 0.0
        self.sent: list[tuple[int, float, float]] = []
        self._parcels = parcels
        self._saved = saved
        self._since_s = 0.0

    def launch(self, at: int, now_s: float) -> None:
        """Put a transfer in flight."""
        self.flying.append(at)
        self.nbytes += self._parcels[at].nbytes
        if len(self.flying) == 1:
            self._serve(now_s)

    def arrive(self, now_s: float) -> int:
        """End the service of the first transfer and begin that of the next. Return the one that has arrived."""
        at = self.flying.popleft()
        self.nbytes -= self._parcels[at].nbytes
        self.sent.append((at, self._since_s, now_s))
        self._saved.since(now_s)
        if self.flying:
            self._serve(now_s)
        return at

    def _serve(self, now_s: float) -> None:
        first = self._parcels[self.flying[0]]
        self.left_s = first.alone_s - self._saved.spent(now_s, first.alone_s - first.least_s)
        self._since_s = now_s


def run(
    tasks: Sequence[Task], parcels: Sequence[Transfer], contention: Contention, *, credit_bytes: float = math.inf
) -> Period:
    """Simulate one period. At most `credit_bytes` [B] are in flight at once, but always one transfer is allowed."""
    sizes = np.array([parcel.nbytes for parcel in parcels], dtype=np.float64)
    rho, sigma, kappa = contention.slowdowns(sizes)
    coming = sorted(range(len(parcels)), key=lambda at: (parcels[at].release_s, parcels[at].rank))
    releases_s = [parcels[at].release_s for at in coming]
    missing = [len(task.needs) for task in tasks]
    waiters = _waiters(tasks, len(parcels))
    line = _Line(parcels, TokenBucketCredit(contention.rest_s))
    flying = line.flying
    now_s = progress_s = 0.0
    released = place = 0
    waiting: list[tuple[int, int]] = []  # (rank, transfer)
    since_s: float | None = None  # start of the current task; None while it waits
    computed: list[tuple[float, float]] = []
    while place < len(tasks):
        reached_s = progress_s if place == 0 else math.inf
        while released < len(coming) and releases_s[released] <= reached_s:
            heapq.heappush(waiting, (parcels[coming[released]].rank, coming[released]))
            released += 1
        while waiting and (not flying or line.nbytes + parcels[waiting[0][1]].nbytes <= credit_bytes):
            line.launch(heapq.heappop(waiting)[1], now_s)
        computing = missing[place] == 0
        if computing and since_s is None:
            since_s = now_s
        link_s = compute_s = math.inf
        slower = stretched = 1.0
        if flying:
            crowd, at = 1 if len(flying) > 1 else 0, flying[0]
            slower, stretched = (rho if computing else kappa)[crowd][at], sigma[crowd][at]
            link_s = line.left_s * slower
        mark_s = tasks[place].took_s
        if computing:
            if place == 0 and released < len(coming):
                mark_s = min(mark_s, releases_s[released])
            compute_s = max(0.0, mark_s - progress_s) * stretched
        passed_s = min(compute_s, link_s)
        if passed_s == math.inf:
            raise ValueError(f"{tasks[place].name!r} waits for what is never sent")
        now_s += passed_s
        if computing:
            progress_s = mark_s if compute_s <= link_s else progress_s + passed_s / stretched
        if flying and link_s <= compute_s:
            for waiter in waiters[line.arrive(now_s)]:
                missing[waiter] -= 1
        elif flying:
            line.left_s = max(0.0, line.left_s - passed_s / slower)
        if computing and compute_s <= link_s and mark_s == tasks[place].took_s:
            computed.append((since_s if since_s is not None else now_s, now_s))
            place, progress_s, since_s = place + 1, 0.0, None
    return Period(now_s, computed, line.sent)


def _waiters(tasks: Sequence[Task], parcels: int) -> list[list[int]]:
    """Positions of the tasks that need each transfer."""
    found: list[list[int]] = [[] for _ in range(parcels)]
    for place, task in enumerate(tasks):
        for at in task.needs:
            found[at].append(place)
    return found
