"""Preemptive policies with one rule: walk all jobs in the order of a key; each that fits into what is left runs.

A job that does not fit is passed over, so GPUs are not left idle for it, and it may wait long. Whoever runs and is not
reached by the walk is stopped. Subclasses say what the key is.

The walk is never walked. Its outcome is the one set of jobs in which each member fits behind the members before it, and
nobody outside does. So it is enough to mend the set of the last event: admit the first waiting job that fits behind the
running jobs before it, stop jobs from the far end until all fits, and again, until no waiting job fits. Each round puts
a job in and takes out only jobs behind it, so the set grows in the order of the key, and that ends.

Waiting jobs stand in one heap a size (only its first can be the first that fits), running ones in one sorted list a
size. The keys of waiting jobs stand still. Those of running jobs may move, as long as their order within a size does
not: `line_key` is what a list is sorted by, and `key_now` what that means now. An event costs O(sizes² + changes·log).
"""

from __future__ import annotations

import heapq
from abc import abstractmethod
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator

from xbench.cluster.jobs import Job
from xbench.cluster.policies.order import Order
from xbench.cluster.policy import Active, Change, Cluster, Grant

Entry = tuple[float, int, int, Active]
"""(key, tie, stamp, job): the stamp is unique, and says whether an entry in a heap still holds."""


class Ordered(Order):
    """See the module."""

    def __init__(self) -> None:
        self._waiting: dict[int, list[Entry]] = {}
        self._running: dict[int, list[Entry]] = {}
        self._stamp: dict[int, int] = {}
        """Of each job, by number: the stamp of its entry."""
        self._line: dict[int, Entry] = {}
        """Of each running job: its entry."""
        self._stamps = 0
        self._free = 0

    def begin(self, cluster: Cluster, jobs: Iterable[Job]) -> None:
        """See `Policy`."""
        super().begin(cluster, jobs)
        self._free = cluster.gpus

    @abstractmethod
    def waiting_key(self, job: Active, now_s: float) -> float:
        """The key of a job that waits, and until it is started."""

    def running_key(self, job: Active, now_s: float) -> float:
        """The key of a job that runs, where it is looked at again."""
        return self.waiting_key(job, now_s)

    def line_key(self, key: float, gpus: int, now_s: float) -> float:
        """What stands for this key, now, in the list of running jobs of this size."""
        return key

    def key_now(self, line_key: float, gpus: int, now_s: float) -> float:
        """The key of a running job; the inverse of `line_key`."""
        return line_key

    def tie(self, job: Active) -> int:
        """Who is first among equal keys."""
        return job.number

    def started(self, job: Active, now_s: float) -> None:
        """A hook: it is about to hold GPUs."""

    def stopped(self, job: Active, now_s: float) -> None:
        """A hook: it is about to lose them."""

    def arrived(self, job: Active, now_s: float) -> None:
        """It waits."""
        self._push(job, self.waiting_key(job, now_s))

    def finished(self, job: Active, now_s: float) -> None:
        """Its GPUs are free. (A real job may do its last step after it was told to stop: then it held none.)"""
        if job.number in self._line:
            self._leave(job)
        del self._stamp[job.number]

    def withdrawn(self, job: Active, now_s: float) -> None:
        """See `Order`. Its entry in the heap is void."""
        del self._stamp[job.number]

    def retimed(self, job: Active, now_s: float) -> None:
        """Its key is looked at again."""
        if job.number in self._line:
            self._leave(job)
            self._join(job, self.line_key(self.running_key(job, now_s), job.job.gpus, now_s))
        else:
            self._push(job, self.waiting_key(job, now_s))

    def decide(self, now_s: float) -> Iterator[Change]:
        """The changes between this walk and the last one."""
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
        found: Active | None = None
        tails: list[tuple[tuple[float, int], int]] | None = None
        for gpus, heap in self._waiting.items():
            while heap and self._stamp.get(heap[0][3].number) != heap[0][2]:
                heapq.heappop(heap)
            if not heap:
                continue
            key, tie, _, job = heap[0]
            line = shed.get(job.number)
            at = (self.key_now(self.line_key(key, gpus, now_s) if line is None else line, gpus, now_s), tie)
            if best is not None and at > best:
                continue
            if gpus > self._free:
                if tails is None:
                    tails = self._tails(now_s)
                if not self._room(at, gpus - self._free, tails, now_s):
                    continue
            best, found = at, job
        return found

    def _tails(self, now_s: float) -> list[tuple[tuple[float, int], int]]:
        """Of each size that runs, the last job: ((key, tie), size)."""
        return [
            ((self.key_now(line[-1][0], gpus, now_s), line[-1][1]), gpus)
            for gpus, line in self._running.items()
            if line
        ]

    def _room(
        self, at: tuple[float, int], needed: int, tails: list[tuple[tuple[float, int], int]], now_s: float
    ) -> bool:
        """Whether the running jobs behind `at` hold as many GPUs as are needed. At most `needed` of them are seen."""
        for tail, gpus in tails:
            if tail <= at:
                continue
            for line_key, tie, _, _ in reversed(self._running[gpus]):
                if (self.key_now(line_key, gpus, now_s), tie) <= at:
                    break
                needed -= gpus
                if needed <= 0:
                    return True
        return False

    def _last(self, now_s: float) -> tuple[Active, float]:
        """The running job at the far end, and its `line_key`."""
        _, gpus = max(self._tails(now_s))
        entry = self._running[gpus][-1]
        return entry[3], entry[0]

    def _push(self, job: Active, key: float) -> None:
        """It waits with this key, whatever it had before."""
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
