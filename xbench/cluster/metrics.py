"""Results of a simulated or real cluster, and statistics of its finished jobs and the GPUs that they held.

The fields of `records.ClusterRun` say what each statistic is. Bounded slowdown is Feitelson's, finish-time fairness
that of Themis: ρ = JCT / (duration · contention).

**Growth.** A mean over a trace describes a policy only if it does not depend on the trace's length. If jobs come faster
than a policy serves them, the number of unfinished jobs grows as long as they come, and so does the mean. It grows at
first under every policy, because the cluster is empty when the trace begins. So unfinished jobs are averaged over the
middle fifth and over the last fifth of the time in which jobs come. If the queue grows in proportion to time, the
second mean is 1.8 times the first. From `GROWN` on the queue counts as growing.

**Window.** Averages may cover only the jobs A to B by arrival, without the filling at the beginning and the emptying at
the end. All jobs are still simulated; makespan, occupancy and hosts describe the whole trace.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from xbench.cluster.jobs import Job
from xbench.cluster.placement import Placed
from xbench.cluster.policy import Cluster
from xbench.errors import SpecError
from xbench.records import ClusterRun

Window = tuple[int, int]
"""The first and the last job that count, by arrival, from 1 on."""

GROWN = 1.5
"""Ratio of unfinished jobs at the end to those in the middle, from which the queue counts as growing."""

MIN_GROWTH = 5.0
"""Least difference of these numbers. Below it, a ratio of small numbers says nothing."""

MIN_S = 10.0
"""Shortest duration [s] in a slowdown. The slowdown of a shorter job says nothing about its scheduler."""


class Finished(NamedTuple):
    """Outcome of one job. Times [s] count from the beginning of the trace; `simulator` defines useful GPU seconds."""

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


class ClusterMoment(NamedTuple):
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
    moments: list[ClusterMoment] = field(default_factory=list)
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


def metrics(
    simulated: Simulated,
    counted: Collection[str] | None = None,
    *,
    policy: str = "",
    seed: int | None = None,
    bound_s: float | None = None,
) -> ClusterRun:
    """Statistics of the jobs that finished, or of those named in `counted`. Raises ValueError without any.

    A bound is left out if jobs shared GPUs.
    """
    finished = simulated.finished
    jobs = [job for job in finished if counted is None or job.job.name in counted]
    if not jobs:
        raise ValueError("no job finished, so there is nothing to judge")
    jct_s = np.array([job.jct_s for job in jobs])
    queued_s = np.array([job.queued_s for job in jobs])
    counted_held_s = sum(job.held_gpu_s for job in jobs)
    all_held_s = sum(job.held_gpu_s for job in finished)
    makespan_s = max(job.finished_s for job in finished) - min(job.job.arrival_s for job in finished)
    middle, end = unfinished(finished, max(job.job.arrival_s for job in jobs))
    p50, p95, p99 = (float(value) for value in np.percentile(jct_s, (50, 95, 99)))
    cluster = simulated.cluster
    return ClusterRun(
        policy=policy,
        restart_s=cluster.restart_s,
        placement=None if cluster.gpus_per_host is None else cluster.placement,
        seed=seed,
        jobs=len(jobs),
        jct_mean_s=float(jct_s.mean()),
        jct_p50_s=p50,
        jct_p95_s=p95,
        jct_p99_s=p99,
        queued_mean_s=float(queued_s.mean()),
        queued_p95_s=float(np.percentile(queued_s, 95)),
        slowdown_mean=float(np.mean([max(1.0, job.jct_s / max(job.job.duration_s, MIN_S)) for job in jobs])),
        unfairness_p95=float(np.percentile([job.jct_s / (job.job.duration_s * job.contention) for job in jobs], 95)),
        makespan_s=makespan_s,
        held_gpu_s=simulated.held_gpu_s,
        useful_share=sum(job.useful_gpu_s for job in jobs) / counted_held_s if counted_held_s > 0 else 1.0,
        occupancy=simulated.held_gpu_s / (cluster.gpus * makespan_s) if makespan_s > 0 else 1.0,
        restarts=sum(job.restarts for job in jobs),
        restart_gpu_s=sum(job.restarting_gpu_s for job in jobs),
        across_share=simulated.across_gpu_s / all_held_s if all_held_s > 0 else 0.0,
        lost_share=simulated.lost_gpu_s / all_held_s if all_held_s > 0 else 0.0,
        decision_s=simulated.deciding_s / max(1, simulated.decisions),
        unfinished_middle=middle,
        unfinished_end=end,
        bound_s=None if simulated.shared else bound_s,
    )


def parse_window(text: str) -> Window:
    """A window from '1001-2000'. Raises SpecError for invalid text."""
    match = re.fullmatch(r"\s*(\d{1,9})\s*-\s*(\d{1,9})\s*", text)
    if match is None:
        raise SpecError(f"{text!r} is not a window of jobs", hint="write 1001-2000, numbers of jobs by arrival")
    first, last = int(match[1]), int(match[2])
    if first < 1:
        raise SpecError(f"{text!r} begins before the first job", hint=f"write 1-{max(1, last)}")
    if last < first:
        raise SpecError(f"{text!r} ends before it begins", hint=f"write {last}-{first}")
    return first, last


def check_window(window: Window, jobs: int) -> None:
    """Raise SpecError for a window beyond a trace of `jobs` jobs."""
    first, last = window
    if last > jobs:
        raise SpecError(
            f"the window {first}-{last} ends after the last of {jobs} jobs",
            hint=f"write {first if first <= jobs else 1}-{jobs}",
        )


def unfinished(finished: Sequence[Finished], last_s: float) -> tuple[float, float]:
    """Mean numbers of unfinished jobs in the middle and in the last fifth of the arrivals until `last_s` [s].

    Zeros if all jobs come at once.
    """
    arrivals_s = np.array([job.job.arrival_s for job in finished])
    ends_s = np.array([job.finished_s for job in finished])
    first_s = float(arrivals_s.min())
    span_s = last_s - first_s
    if span_s <= 0:
        return 0.0, 0.0

    def mean(low: float, high: float) -> float:
        from_s, to_s = first_s + low * span_s, first_s + high * span_s
        there_s = np.clip(ends_s, from_s, to_s) - np.clip(arrivals_s, from_s, to_s)
        return float(there_s.sum()) / (to_s - from_s)

    return mean(0.4, 0.6), mean(0.8, 1.0)


def grows(middles: Sequence[float], ends: Sequence[float]) -> bool:
    """True if the queue still grows, from `unfinished` of each seed."""
    middle, end = sum(middles), sum(ends)
    return end >= GROWN * middle and end - middle >= MIN_GROWTH * len(ends)
