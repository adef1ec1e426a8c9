"""Shortest first, with known durations: `sjf`, `srtf` and `srsf`.

**sjf**, shortest job first: whenever GPUs are free, the shortest job that fits starts. No preemption. The duration is
that on the requested GPUs. A job that does not fit is skipped. Waiting jobs are in one heap per size, so an event costs
O(sizes + starts·log).

**srtf**, shortest remaining time first: the job that would end first runs. Preemptive; `ordered` selects the jobs that
run if jobs differ in size. The remaining time is that of the job's remaining work on the requested GPUs and, for a
stopped job, of the restart. So a stopped job comes after a running one with as much work, and no job is stopped for a
gain below a restart. On one GPU without restarts no schedule has a lower mean JCT (Schrage 1968).

**srsf**, shortest remaining service first (Tiresias, NSDI 2019): the remaining time is multiplied by the GPUs.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from xbench.cluster.policies.ordered import Order, Ordered
from xbench.cluster.policy import Active, Change, Grant


class Sjf(Order):
    """Shortest job first."""

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
    """Shortest remaining time first. A running job's `line_key` is the time of its end, which is constant."""

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
    """Shortest remaining service first. Running jobs of one size keep their order; those of different sizes do not."""

    def waiting_key(self, job: Active, now_s: float) -> float:
        """GPU seconds until its end."""
        return super().waiting_key(job, now_s) * job.job.gpus

    def line_key(self, key: float, gpus: int, now_s: float) -> float:
        """Time [s] of its end."""
        return now_s + key / gpus

    def key_now(self, line_key: float, gpus: int, now_s: float) -> float:
        """GPU seconds until that end."""
        return (line_key - now_s) * gpus
