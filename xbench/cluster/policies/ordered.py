"""Policies that order jobs by a key: the base of preemptive ones, and `sjf`, `srtf` and `srsf`, which know durations.

A preemptive policy (`Ordered`) walks all jobs in the order of its key: a job that fits into the rest runs, another is
skipped, and a running job that the walk does not reach is stopped. The walk itself is never made. Its result is the
unique set of jobs in which each member fits behind the members before it, and no other job does. So it suffices to
correct the set of the last event: admit the first waiting job that fits behind the running jobs before it, stop jobs
from the far end until all fit, and repeat until no waiting job fits. Each round adds a job and removes only jobs behind
it, so the loop ends.

Waiting jobs are in one heap per size (only its first job can be the first that fits), running ones in one sorted list
per size. The keys of waiting jobs are constant. Those of running jobs may change, as long as their order within a size
does not: a list is sorted by `line_key`, and `key_now` is its present value. An event costs O(sizes² + changes·log).
"""

from __future__ import annotations

import heapq
from abc import abstractmethod
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence

from xbench.cluster.jobs import Job
from xbench.cluster.policy import Active, Change, Cluster, Grant, Policy

Entry = tuple[float, int, int, Active]
"""(key, tie, stamp, job). The stamp is unique and tells whether an entry in a heap is still valid."""


class Order(Policy):
    """An exclusive policy, which a sharing policy can use to choose the owners of GPUs.

    Under a sharing policy a job may run without its own GPUs, or slower than alone. The order is notified of that.
    """

    def __init__(self) -> None:
        self._free = 0

    def begin(self, cluster: Cluster, jobs: Sequence[Job]) -> None:
        """See `Policy`."""
        super().begin(cluster, jobs)
        self._free = cluster.gpus

    @abstractmethod
    def withdrawn(self, job: Active, now_s: float) -> None:
        """Forget a waiting job, which has finished on another job's GPUs."""

    def retimed(self, job: Active, now_s: float) -> None:
        """Update a job whose remaining work or speed changed because it shares GPUs, or did."""


class Ordered(Order):
    """Base of these policies."""

    def __init__(self) -> None:
        super().__init__()
        self._waiting: dict[int, list[Entry]] = {}
        self._running: dict[int, list[Entry]] = {}
        self._stamp: dict[int, int] = {}
        """Stamp of each job's entry, by number."""
        self._line: dict[int, Entry] = {}
        """Entry of each running job."""
        self._stamps = 0

    @abstractmethod
    def waiting_key(self, job: Active, now_s: float) -> float:
        """Key of a waiting job. It is constant until the job starts."""

    def running_key(self, job: Active, now_s: float) -> float:
        """Key of a running job whose time has changed."""
        return self.waiting_key(job, now_s)

    def line_key(self, key: float, gpus: int, now_s: float) -> float:
        """Constant sort key, in the list of running jobs of this size, that stands for this key now."""
        return key

    def key_now(self, line_key: float, gpus: int, now_s: float) -> float:
        """Key of a running job; the inverse of `line_key`."""
        return line_key

    def tie(self, job: Active) -> int:
        """Order among equal keys."""
        return job.number

    def started(self, job: Active, now_s: float) -> None:
        """Hook: the job is about to get GPUs."""

    def stopped(self, job: Active, now_s: float) -> None:
        """Hook: the job is about to lose its GPUs."""

    def arrived(self, job: Active, now_s: float) -> None:
        """Let the job wait."""
        self._push(job, self.waiting_key(job, now_s))

    def finished(self, job: Active, now_s: float) -> None:
        """Free its GPUs. (A real job may do its last step after it was told to stop: then it held none.)"""
        if job.number in self._line:
            self._leave(job)
        del self._stamp[job.number]

    def withdrawn(self, job: Active, now_s: float) -> None:
        """See `Order`. Its entry in the heap is void."""
        self.finished(job, now_s)

    def retimed(self, job: Active, now_s: float) -> None:
        """Update the job's key."""
        if job.number in self._line:
            self._leave(job)
            self._join(job, self.line_key(self.running_key(job, now_s), job.job.gpus, now_s))
        else:
            self._push(job, self.waiting_key(job, now_s))

    def decide(self, now_s: float) -> Iterator[Change]:
        """The changes from the last walk to this one."""
        touched: dict[int, Active] = {}
        shed: dict[int, float] = {}
        while (best := self._first_that_fits(now_s, shed)) is not None:
            _, _, _, job = heapq.heappop(self._waiting[best.job.gpus])
            line = shed.pop(job.number, None)
            if line is None:
                line = self.line_key(self.waiting_key(job, now_s), job.job.gpus, now_s)
            self._join(job, line)
            touched[job.number] = job
            while self._free < 0:
                last, line = self._last(now_s)
                self._leave(last)
                shed[last.number] = line
                self._push(last, self.key_now(line, last.job.gpus, now_s))
                touched[last.number] = last
        for number, job in touched.items():
            if number in self._line:
                if not job.gpus:
                    self.started(job, now_s)
                    yield job, Grant(job.job.gpus)
                continue
            if job.gpus:
                self.stopped(job, now_s)
            self._push(job, self.waiting_key(job, now_s))
            if job.gpus:
                yield job, Grant(0)

    def _first_that_fits(self, now_s: float, shed: dict[int, float]) -> Active | None:
        """The first waiting job that fits behind the running jobs before it."""
        best: tuple[float, int] | None = None
        first: Active | None = None
        tails: list[tuple[tuple[float, int], int]] | None = None
        for gpus, heap in self._waiting.items():
            while heap and self._stamp.get(heap[0][3].number) != heap[0][2]:
                heapq.heappop(heap)
            if not heap:
                continue
            key, tie, _, job = heap[0]
            line = shed.get(job.number)
            position = (self.key_now(self.line_key(key, gpus, now_s) if line is None else line, gpus, now_s), tie)
            if best is not None and position > best:
                continue
            if gpus > self._free:
                if tails is None:
                    tails = self._last_by_size(now_s)
                if not self._has_room(position, gpus - self._free, tails, now_s):
                    continue
            best, first = position, job
        return first

    def _last_by_size(self, now_s: float) -> list[tuple[tuple[float, int], int]]:
        """The last running job of each size: ((key, tie), size)."""
        return [
            ((self.key_now(line[-1][0], gpus, now_s), line[-1][1]), gpus)
            for gpus, line in self._running.items()
            if line
        ]

    def _has_room(
        self, position: tuple[float, int], needed: int, tails: list[tuple[tuple[float, int], int]], now_s: float
    ) -> bool:
        """True if the running jobs behind `at` hold `needed` GPUs. It looks at no more jobs than necessary."""
        for tail, gpus in tails:
            if tail <= position:
                continue
            for line_key, tie, _, _ in reversed(self._running[gpus]):
                if (self.key_now(line_key, gpus, now_s), tie) <= position:
                    break
                needed -= gpus
                if needed <= 0:
                    return True
        return False

    def _last(self, now_s: float) -> tuple[Active, float]:
        """The last running job in the order of the key, and its `line_key`."""
        _, gpus = max(self._last_by_size(now_s))
        entry = self._running[gpus][-1]
        return entry[3], entry[0]

    def _push(self, job: Active, key: float) -> None:
        """Let the job wait with this key. An earlier entry becomes void."""
        self._stamps += 1
        self._stamp[job.number] = self._stamps
        heapq.heappush(self._waiting.setdefault(job.job.gpus, []), (key, self.tie(job), self._stamps, job))

    def _join(self, job: Active, line_key: float) -> None:
        self._stamps += 1
        self._stamp[job.number] = self._stamps
        entry = (line_key, self.tie(job), self._stamps, job)
        self._line[job.number] = entry
        insort(self._running.setdefault(job.job.gpus, []), entry)
        self._free -= job.job.gpus

    def _leave(self, job: Active) -> None:
        line = self._running[job.job.gpus]
        del line[bisect_left(line, self._line.pop(job.number))]
        self._free += job.job.gpus


class Sjf(Order):
    """Shortest job first: whenever GPUs are free, the job starts that fits and is the shortest on the requested GPUs.

    No preemption; a job that does not fit is skipped.
    """

    def __init__(self) -> None:
        super().__init__()
        self._waiting: dict[int, list[tuple[float, int, Active]]] = {}

    def arrived(self, job: Active, now_s: float) -> None:
        """Put the job into the heap of its size."""
        heapq.heappush(self._waiting.setdefault(job.job.gpus, []), (job.job.duration_s, job.number, job))

    def finished(self, job: Active, now_s: float) -> None:
        """Free its GPUs."""
        self._free += job.job.gpus

    def withdrawn(self, job: Active, now_s: float) -> None:
        """See `Order`."""
        heap = self._waiting[job.job.gpus]
        heap[:] = [entry for entry in heap if entry[2] is not job]  # a real job may have another duration by now
        heapq.heapify(heap)

    def decide(self, now_s: float) -> Iterator[Change]:
        """Start the shortest job that fits, repeatedly."""
        while fitting := [heap for gpus, heap in self._waiting.items() if heap and gpus <= self._free]:
            _, _, job = heapq.heappop(min(fitting))
            self._free -= job.job.gpus
            yield job, Grant(job.job.gpus)


class Srtf(Ordered):
    """Shortest remaining time first. A running job's `line_key` is the time of its end, which is constant.

    The remaining time is that of the job's remaining work on the requested GPUs and, for a stopped job, of the restart:
    no job is stopped for a gain below a restart. On one GPU without restarts no schedule has a lower mean JCT (Schrage
    1968).
    """

    def waiting_key(self, job: Active, now_s: float) -> float:
        """Time [s] until its end."""
        restart_s = self.cluster.restart_s if job.began_s is not None else 0.0
        return self.running_key(job, now_s) + restart_s

    def running_key(self, job: Active, now_s: float) -> float:
        """Time [s] until its end, without a restart."""
        return job.remaining(now_s) / job.job.speed(job.job.gpus)

    def line_key(self, key: float, gpus: int, now_s: float) -> float:
        """Time [s] of its end."""
        return now_s + key

    def key_now(self, line_key: float, gpus: int, now_s: float) -> float:
        """Time [s] until that end."""
        return line_key - now_s


class Srsf(Srtf):
    """Shortest remaining service (time × GPUs) first (Tiresias, NSDI 2019).

    Running jobs of one size keep their order; those of different sizes do not.
    """

    def waiting_key(self, job: Active, now_s: float) -> float:
        """GPU seconds until its end."""
        return super().waiting_key(job, now_s) * job.job.gpus

    def line_key(self, key: float, gpus: int, now_s: float) -> float:
        """Time [s] of its end."""
        return now_s + key / gpus

    def key_now(self, line_key: float, gpus: int, now_s: float) -> float:
        """GPU seconds until that end."""
        return (line_key - now_s) * gpus
