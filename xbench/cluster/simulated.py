"""Results of a simulation: of each job, of each span of GPUs held, of each instant, and all together.

`simulator` says what the words mean.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from xbench.cluster.jobs import Job
from xbench.cluster.placement import Placed
from xbench.cluster.policy import Cluster


class Finished(NamedTuple):
    """Outcome of one job. Times since the trace began [s]; GPU seconds held, and useful ones (see the module)."""

    job: Job
    began_s: float
    finished_s: float
    restarts: int
    held_gpu_s: float
    useful_gpu_s: float
    restarting_gpu_s: float
    """Part of `held_gpu_s` in which it restarted."""
    contention: float
    """The mean, over its life, of what all active jobs asked for over what there is; at least 1."""

    @property
    def jct_s(self) -> float:
        """Job completion time: from arrival to end."""
        return self.finished_s - self.job.arrival_s

    @property
    def queued_s(self) -> float:
        """Time [s] from arrival to its first GPU."""
        return self.began_s - self.job.arrival_s


class Span(NamedTuple):
    """A job held so many GPUs from here to there [s]."""

    job: str
    gpus: int
    from_s: float
    to_s: float
    gang: int | None
    hosts: Placed = ()
    """(host, GPUs on it) each; empty where there is one host."""


class Moment(NamedTuple):
    """The cluster after everything of one instant [s]: GPUs held, jobs that run and jobs that wait."""

    at_s: float
    held: int
    running: int
    waiting: int


@dataclass
class Simulated:
    """One trace under one policy."""

    cluster: Cluster
    finished: list[Finished]
    """In the order of completion."""
    moments: list[Moment] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    """Only where they were asked for: there are as many as changes."""
    held_gpu_s: float = 0.0
    """GPU seconds of the cluster that somebody held, each GPU once."""
    shared: bool = False
    """True if jobs ever shared GPUs."""
    across_gpu_s: float = 0.0
    """GPU seconds that jobs held over several hosts."""
    lost_gpu_s: float = 0.0
    """Useful GPU seconds that jobs would not have needed on the fewest hosts, alone on their links."""
    decisions: int = 0
    deciding_s: float = 0.0
    """Real seconds that the policy took, all together."""
