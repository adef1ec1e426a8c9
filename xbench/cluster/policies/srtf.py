"""Shortest remaining time first: whoever would be done first, if it ran from now on, runs. Preemptive.

The time that counts is the time until a job would be done: its remaining work on the GPUs that it asked for and, for a
job that was stopped, the restart. A stopped job is therefore behind a running one with as much work: nobody is stopped
for less than a restart. Known durations are assumed.

On one GPU without restarts no schedule has a lower mean JCT (Schrage 1968). `ordered` says who runs where jobs differ
in size.
"""

from __future__ import annotations

from xbench.cluster.policies.ordered import Ordered
from xbench.cluster.policy import Active


class Srtf(Ordered):
    """See the module. A running job's `line_key` is the time of its end, which stands still."""

    def waiting_key(self, job: Active, now_s: float) -> float:
        """Seconds until it would be done."""
        restart_s = self.cluster.restart_s if job.began_s is not None else 0.0
        return self.running_key(job, now_s) + restart_s

    def running_key(self, job: Active, now_s: float) -> float:
        """Without a restart."""
        return job.remaining(now_s) / job.job.speed(job.job.gpus)

    def line_key(self, key: float, gpus: int, now_s: float) -> float:
        """When it will be done."""
        return now_s + key

    def key_now(self, line_key: float, gpus: int, now_s: float) -> float:
        """Seconds until then."""
        return line_key - now_s
