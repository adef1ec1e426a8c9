"""First in, first out, without preemption: `fifo`, `fifo-backfill` and `fixed`.

**fifo-backfill** is EASY (Lifka 1995): a job that does not delay the head of the queue may pass it. The first job that
does not fit has a reservation: the earliest time by which running jobs will have left it enough GPUs. GPUs that will be
free then beyond its need are extra. A job behind it starts now if it fits now, and either ends by the time of the
reservation or needs no more than the extra GPUs. Jobs are tried in the order of arrival. Durations (on the requested
GPUs) are known exactly; in reality users guess them, mostly too long.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Iterator, Sequence

from xbench.cluster.jobs import Job
from xbench.cluster.policies.elastic import require_speeds
from xbench.cluster.policies.ordered import Order
from xbench.cluster.policy import Active, Change, Cluster, Grant
from xbench.errors import SpecError


class Fifo(Order):
    """First in, first out, on the requested GPUs. A job that does not fit blocks all jobs behind it."""

    def __init__(self) -> None:
        super().__init__()
        self._queue: deque[Active] = deque()

    def arrived(self, job: Active, now_s: float) -> None:
        """Append the job to the queue."""
        self._queue.append(job)

    def finished(self, job: Active, now_s: float) -> None:
        """Free its GPUs."""
        self._free += self.size(job.job)

    def withdrawn(self, job: Active, now_s: float) -> None:
        """See `Order`."""
        self._queue.remove(job)

    def decide(self, now_s: float) -> Iterator[Change]:
        """Start jobs from the head of the queue, as long as they fit."""
        while self._queue and (gpus := self.size(self._queue[0].job)) <= self._free:
            self._free -= gpus
            yield self._queue.popleft(), Grant(gpus)

    def size(self, job: Job) -> int:
        """GPUs that the job gets."""
        return job.gpus


class Fixed(Fifo):
    """A fixed size, whatever jobs request: a static cluster, the baseline of elastic policies.

    Raises SpecError for less than one GPU, and in `begin` for jobs without speeds.
    """

    elastic = True

    def __init__(self, gpus: int = 1) -> None:
        super().__init__()
        if gpus < 1:
            raise SpecError(f"fixed: {gpus} GPUs a job run nothing", hint="write fixed-1")
        self.gpus = gpus

    def begin(self, cluster: Cluster, jobs: Sequence[Job]) -> None:
        """See `Policy`."""
        super().begin(cluster, jobs)
        require_speeds(f"fixed-{self.gpus}", cluster, jobs)

    def size(self, job: Job) -> int:
        """The fixed number, or the nearest allowed one."""
        sizes = job.sizes_on(self.cluster.gpus)
        if isinstance(sizes, range):
            return min(max(self.gpus, sizes[0]), sizes[-1])
        return max((size for size in sizes if size <= self.gpus), default=sizes[0])


class FifoBackfill(Order):
    """EASY backfilling."""

    def __init__(self) -> None:
        super().__init__()
        self._queue: deque[Active] = deque()
        self._gone: Counter[int] = Counter()
        """By job: its void entries in the queue, all ahead of a valid one.

        An entry is void once the job has started or was withdrawn.
        """
        self._sizes: dict[int, _Queue] = {}
        self._ends: list[tuple[float, int, int]] = []
        """(time, number, GPUs) of all running jobs, in order."""
        self._end_of: dict[int, tuple[float, int, int]] = {}

    def arrived(self, job: Active, now_s: float) -> None:
        """Append the job to the queue."""
        self._queue.append(job)
        self._sizes.setdefault(job.job.gpus, _Queue()).append(job)

    def finished(self, job: Active, now_s: float) -> None:
        """Free its GPUs."""
        self._free += job.job.gpus
        del self._ends[bisect_left(self._ends, self._end_of.pop(job.number))]

    def withdrawn(self, job: Active, now_s: float) -> None:
        """See `Order`."""
        self._sizes[job.job.gpus].remove(job)
        self._gone[job.number] += 1

    def retimed(self, job: Active, now_s: float) -> None:
        """Update the end of a running job. (A waiting job counts with its whole duration.)"""
        end = self._end_of.get(job.number)
        if end is not None:
            del self._ends[bisect_left(self._ends, end)]
            self._set_end(job, now_s + job.remaining(now_s) / job.speed)

    def decide(self, now_s: float) -> Iterator[Change]:
        """Start jobs from the head while they fit, then jobs that do not delay the first that does not fit."""
        while self._queue:
            head = self._queue[0]
            if self._gone[head.number]:
                self._gone[head.number] -= 1
            elif head.job.gpus <= self._free:
                yield self._start(head, now_s)
            else:
                break
            self._queue.popleft()
        else:
            return
        if not self._free:
            return
        reserved_s, extra = self._reservation(head)
        while (job := self._first(reserved_s - now_s, extra)) is not None:
            if job.job.duration_s > reserved_s - now_s:
                extra -= job.job.gpus
            self._gone[job.number] += 1
            yield self._start(job, now_s)

    def _reservation(self, head: Active) -> tuple[float, int]:
        """Time [s] at which enough GPUs are free for the head, and the number of extra GPUs then."""
        free, reserved_s = self._free, 0.0
        for end_s, _, gpus in self._ends:
            if free >= head.job.gpus and end_s > reserved_s:
                break
            free, reserved_s = free + gpus, end_s
        return reserved_s, free - head.job.gpus

    def _first(self, window_s: float, extra: int) -> Active | None:
        """The first job that may pass the head."""
        firsts = [
            queue.first(math.inf if gpus <= extra else window_s)
            for gpus, queue in self._sizes.items()
            if gpus <= self._free
        ]
        return min((job for job in firsts if job is not None), key=lambda job: job.number, default=None)

    def _start(self, job: Active, now_s: float) -> Change:
        self._sizes[job.job.gpus].remove(job)
        self._set_end(job, now_s + job.job.duration_s)
        self._free -= job.job.gpus
        return job, Grant(job.job.gpus)

    def _set_end(self, job: Active, end_s: float) -> None:
        end = self._end_of[job.number] = (end_s, job.number, job.job.gpus)
        insort(self._ends, end)


class _Queue:
    """Jobs in the order of arrival, as a tree in which the first that is short enough is found in O(log n).

    Node i has the children 2i and 2i + 1, and the least of the durations below it; the leaves are the durations.
    """

    def __init__(self) -> None:
        self._jobs: list[Active] = []
        self._index: dict[int, int] = {}
        self._capacity = 1
        self._least_s = [math.inf, math.inf]

    def append(self, job: Active) -> None:
        """Add a job at the end."""
        index = len(self._jobs)
        self._jobs.append(job)
        self._index[job.number] = index
        if index == self._capacity:
            leaves = self._least_s[self._capacity :] + [math.inf] * self._capacity
            self._capacity *= 2
            self._least_s = [math.inf] * self._capacity + leaves
            for node in range(self._capacity - 1, 0, -1):
                self._least_s[node] = min(self._least_s[2 * node], self._least_s[2 * node + 1])
        self._set(index, job.job.duration_s)

    def remove(self, job: Active) -> None:
        """Remove a job."""
        self._set(self._index.pop(job.number), math.inf)

    def first(self, at_most_s: float) -> Active | None:
        """The first job that takes at most that long."""
        least_s = self._least_s
        if least_s[1] > at_most_s or math.isinf(least_s[1]):
            return None
        node = 1
        while node < self._capacity:
            node *= 2
            if least_s[node] > at_most_s or math.isinf(least_s[node]):
                node += 1
        return self._jobs[node - self._capacity]

    def _set(self, index: int, duration_s: float) -> None:
        least_s, node = self._least_s, index + self._capacity
        least_s[node] = duration_s
        while node > 1:
            node //= 2
            least_s[node] = min(least_s[2 * node], least_s[2 * node + 1])
