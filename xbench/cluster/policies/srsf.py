"""Shortest remaining service first (Tiresias, NSDI 2019): remaining time × GPUs decides. Preemptive.

As `srtf`, with the time until a job would be done times the GPUs that it asked for: what it still takes from the
others. Known durations are assumed.
"""

from __future__ import annotations

from xbench.cluster.policies.srtf import Srtf
from xbench.cluster.policy import Active


class Srsf(Srtf):
    """See the module. Running jobs of one size keep their order; those of different sizes do not."""

    def waiting_key(self, job: Active, now_s: float) -> float:
        """GPU seconds until it would be done."""
        return super().waiting_key(job, now_s) * job.job.gpus

    def line_key(self, key: float, gpus: int, now_s: float) -> float:
        """When it will be done."""
        return now_s + key / gpus

    def key_now(self, line_key: float, gpus: int, now_s: float) -> float:
        """GPU seconds until then."""
        return (line_key - now_s) * gpus
