"""Fixed size: every job gets the same number of GPUs, whatever it requests, first in, first out, without preemption.

This models a static cluster, the baseline of elastic policies. A job that does not allow that number gets its largest
allowed number below, or else its least.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from xbench.cluster.jobs import Job
from xbench.cluster.policies.sizes import all_sizes, require_speeds
from xbench.cluster.policy import Active, Change, Cluster, Grant, Policy
from xbench.errors import SpecError


class Fixed(Policy):
    """The policy. Raises SpecError for less than one GPU, and in `begin` for jobs without speeds."""

    elastic = True

    def __init__(self, gpus: int = 1) -> None:
        if gpus < 1:
            raise SpecError(f"fixed: {gpus} GPUs a job run nothing", hint="write fixed-1")
        self.gpus = gpus
        self._queue: deque[Active] = deque()
        self._free = 0

    def begin(self, cluster: Cluster, jobs: Iterable[Job]) -> None:
        """See `Policy`."""
        super().begin(cluster, jobs)
        require_speeds(f"fixed-{self.gpus}", cluster, jobs)
        self._free = cluster.gpus

    def arrived(self, job: Active, now_s: float) -> None:
        """Append the job to the queue."""
        self._queue.append(job)

    def finished(self, job: Active, now_s: float) -> None:
        """Free its GPUs."""
        self._free += self.size(job.job)

    def decide(self, now_s: float) -> Iterator[Change]:
        """Start jobs from the head of the queue, as long as they fit."""
        while self._queue and (gpus := self.size(self._queue[0].job)) <= self._free:
            self._free -= gpus
            yield self._queue.popleft(), Grant(gpus)

    def size(self, job: Job) -> int:
        """GPUs that the job gets."""
        sizes = all_sizes(job, self.cluster)
        if isinstance(sizes, range):
            return min(max(self.gpus, sizes[0]), sizes[-1])
        return max((size for size in sizes if size <= self.gpus), default=sizes[0])
