"""First in, first out: jobs start in the order of arrival, on the requested GPUs, and run to their end.

A job that does not fit blocks all jobs behind it. No preemption.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from xbench.cluster.policies.order import Order
from xbench.cluster.policy import Active, Change, Grant


class Fifo(Order):
    """The policy."""

    def __init__(self) -> None:
        self._queue: deque[Active] = deque()
        self._held = 0

    def arrived(self, job: Active, now_s: float) -> None:
        """Append the job to the queue."""
        self._queue.append(job)

    def finished(self, job: Active, now_s: float) -> None:
        """Free its GPUs."""
        self._held -= job.job.gpus

    def withdrawn(self, job: Active, now_s: float) -> None:
        """See `Order`."""
        self._queue.remove(job)

    def decide(self, now_s: float) -> Iterator[Change]:
        """Start jobs from the head of the queue, as long as they fit."""
        while self._queue and self._held + self._queue[0].job.gpus <= self.cluster.gpus:
            job = self._queue.popleft()
            self._held += job.job.gpus
            yield job, Grant(job.job.gpus)
