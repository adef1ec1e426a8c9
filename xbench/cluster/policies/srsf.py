"""Shortest remaining service first (Tiresias, NSDI 2019): the job with the least remaining time × GPUs runs.

Preemptive.
As `srtf`, with the remaining time multiplied by the requested GPUs. Known durations are assumed.
"""

from __future__ import annotations

from xbench.cluster.policies.srtf import Srtf
from xbench.cluster.policy import Active


class Srsf(Srtf):
    """The policy. Running jobs of one size keep their order; those of different sizes do not."""

    def waiting_key(self, job: Active, now_s: float) -> float:
        """GPU seconds until its end."""
        return super().waiting_key(job, now_s) * job.job.gpus

    def line_key(self, key: float, gpus: int, now_s: float) -> float:
        """Time [s] of its end."""
        return now_s + key / gpus

    def key_now(self, line_key: float, gpus: int, now_s: float) -> float:
        """GPU seconds until that end."""
        return (line_key - now_s) * gpus
