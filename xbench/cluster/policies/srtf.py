"""Shortest remaining time first: the job that would end first runs. Preemptive.

The remaining time is that of the job's remaining work on the requested GPUs and, for a stopped job, of the restart. So
a stopped job comes after a running one with as much work, and no job is stopped for a gain below a restart. Known
durations are assumed.

On one GPU without restarts no schedule has a lower mean JCT (Schrage 1968). `ordered` selects the jobs that run if jobs
differ in size.
"""

from __future__ import annotations

from xbench.cluster.policies.ordered import Ordered
from xbench.cluster.policy import Active


class Srtf(Ordered):
    """The policy. A running job's `line_key` is the time of its end, which is constant."""

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
