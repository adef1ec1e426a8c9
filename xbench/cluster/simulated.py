"""Results of a simulation: jobs, spans of held GPUs, instants, and totals.

`simulator` defines the terms.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from xbench.cluster.jobs import Job
from xbench.cluster.placement import Placed
from xbench.cluster.policy import Cluster


class Finished(NamedTuple):
    """Outcome of one job. Times [s] count from the beginning of the trace; the module defines useful GPU seconds."""

    job: Job
    began_s: float
    finished_s: float
    restarts: int
    held_gpu_s: float
    useful_gpu_s: float
    restarting_gpu_s: float
    """Part of `held_gpu_s` in which it restarted."""
    contention: float
    """Mean, over its life, of all active jobs' requested GPUs over those of the cluster; at least 1."""

    @property
    def jct_s(self) -> float:
        """Job completion time: from arrival to end."""
        return self.finished_s - self.job.arrival_s

    @property
    def queued_s(self) -> float:
        """Time [s] from arrival to its first GPU."""
        return self.began_s - self.job.arrival_s


class Span(NamedTuple):
    """An interval [s] in which a job held a constant number of GPUs."""

    job: str
    gpus: int
    from_s: float
    to_s: float
    gang: int | None
    hosts: Placed = ()
    """(host, GPUs on it) each; empty on a single host."""


class Moment(NamedTuple):
    """State of the cluster after all events of one instant [s]: GPUs held, jobs running, jobs waiting."""

    at_s: float
    held: int
    running: int
    waiting: int


@dataclass
class Simulated:
    """Result of one trace under one policy."""

    cluster: Cluster
    finished: list[Finished]
    """Jobs in the order of completion."""
    moments: list[Moment] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    """Spans, one a change; empty unless requested."""
    held_gpu_s: float = 0.0
    """GPU seconds of the cluster that were held, each GPU counted once."""
    shared: bool = False
    """True if jobs ever shared GPUs."""
    across_gpu_s: float = 0.0
    """GPU seconds that jobs held over several hosts."""
    lost_gpu_s: float = 0.0
    """Useful GPU seconds that jobs would not have needed on the fewest hosts, alone on their links."""
    decisions: int = 0
    deciding_s: float = 0.0
    """Real time [s] of all decisions of the policy together."""
