"""Shortest job first: whenever GPUs are free, the shortest job that fits starts. No preemption.

The duration is that on the requested GPUs, and is known. A job that does not fit is skipped. Waiting jobs are in one
heap per size, so an event costs O(sizes + starts·log).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

from xbench.cluster.jobs import Job
from xbench.cluster.policies.order import Order
from xbench.cluster.policy import Active, Change, Cluster, Grant


class Sjf(Order):
    """The policy."""

    def __init__(self) -> None:
        self._waiting: dict[int, list[tuple[float, int, Active]]] = {}
        self._free = 0

    def begin(self, cluster: Cluster, jobs: Iterable[Job]) -> None:
        """See `Policy`."""
        super().begin(cluster, jobs)
        self._free = cluster.gpus

    def arrived(self, job: Active, now_s: float) -> None:
        """Put the job into the heap of its size."""
        heapq.heappush(self._waiting.setdefault(job.job.gpus, []), (job.job.duration_s, job.number, job))

    def finished(self, job: Active, now_s: float) -> None:
        """Free its GPUs."""
        self._free += job.job.gpus

    def withdrawn(self, job: Active, now_s: float) -> None:
        """See `Order`."""
        heap = self._waiting[job.job.gpus]
        heap.remove((job.job.duration_s, job.number, job))
        heapq.heapify(heap)

    def decide(self, now_s: float) -> Iterator[Change]:
        """Start the shortest job that fits, repeatedly."""
        while self._free:
            fitting = [heap for gpus, heap in self._waiting.items() if heap and gpus <= self._free]
            if not fitting:
                return
            _, _, job = heapq.heappop(min(fitting))
            self._free -= job.job.gpus
            yield job, Grant(job.job.gpus)
