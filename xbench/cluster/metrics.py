"""What a simulated (or real) life of a cluster is judged by: from its finished jobs, and what it held.

**JCT**: from arrival to end. **Queueing delay**: from arrival to the first GPU. **Bounded slowdown** (Feitelson):
max(1, JCT / max(duration, 10 s)), with the duration on the GPUs that were asked for. **Finish-time fairness** (Themis):
ρ = JCT / (duration · contention), where a job that shared the cluster evenly with everybody has 1 and one that was
treated worse has more. **Makespan**: from the first arrival to the last end. **Useful** share: of the GPU seconds that
the jobs held, those in which they computed, times their rate where they shared. **Occupancy**: GPU seconds of the
cluster that were held, over all there were until the makespan. **Across**: of the GPU seconds that the jobs held, those
over several hosts; **lost** to placement: those that they would not have needed on the fewest hosts. **Unfinished**:
see `steady`.

Where only some jobs count, JCT, delay, slowdown, fairness, the useful share and restarts are theirs; all else is of the
whole trace.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from xbench.cluster.simulated import Finished, Simulated
from xbench.cluster.steady import unfinished

SHORTEST_S = 10.0
"""Below this a job's slowdown says nothing of its scheduler."""


class Metrics(NamedTuple):
    """Times [s]; shares between 0 and 1."""

    jobs: int
    jct_mean_s: float
    jct_p50_s: float
    jct_p95_s: float
    jct_p99_s: float
    queued_mean_s: float
    queued_p95_s: float
    slowdown_mean: float
    unfairness_p95: float
    makespan_s: float
    held_gpu_s: float
    useful_share: float
    occupancy: float
    restarts: int
    restart_gpu_s: float
    across_share: float
    lost_share: float
    decision_s: float
    """One decision of the policy, real time, on average."""
    unfinished_middle: float
    unfinished_end: float


def metrics(simulated: Simulated, counted: Collection[str] | None = None) -> Metrics:
    """Of the jobs that finished, or of those named in `counted`. Raises ValueError where none did."""
    finished = simulated.finished
    jobs = [one for one in finished if counted is None or one.job.name in counted]
    if not jobs:
        raise ValueError("no job finished, so there is nothing to judge")
    jct_s = np.array([job.jct_s for job in jobs])
    queued_s = np.array([job.queued_s for job in jobs])
    of_jobs_s = float(sum(job.held_gpu_s for job in jobs))
    of_all_s = float(sum(job.held_gpu_s for job in finished))
    held_s = simulated.held_gpu_s
    useful_s = float(sum(job.useful_gpu_s for job in jobs))
    began_s = min(job.job.arrival_s for job in finished)
    makespan_s = max(job.finished_s for job in finished) - began_s
    middle, end = unfinished(finished, max(job.job.arrival_s for job in jobs))
    p50, p95, p99 = (float(value) for value in np.percentile(jct_s, (50, 95, 99)))
    restarts = sum(job.restarts for job in jobs)
    return Metrics(
        jobs=len(jobs),
        jct_mean_s=float(jct_s.mean()),
        jct_p50_s=p50,
        jct_p95_s=p95,
        jct_p99_s=p99,
        queued_mean_s=float(queued_s.mean()),
        queued_p95_s=float(np.percentile(queued_s, 95)),
        slowdown_mean=float(np.mean(slowdowns(jobs))),
        unfairness_p95=float(np.percentile(unfairness(jobs), 95)),
        makespan_s=makespan_s,
        held_gpu_s=held_s,
        useful_share=useful_s / of_jobs_s if of_jobs_s > 0 else 1.0,
        occupancy=held_s / (simulated.cluster.gpus * makespan_s) if makespan_s > 0 else 1.0,
        restarts=restarts,
        restart_gpu_s=float(sum(job.restarting_gpu_s for job in jobs)),
        across_share=simulated.across_gpu_s / of_all_s if of_all_s > 0 else 0.0,
        lost_share=simulated.lost_gpu_s / of_all_s if of_all_s > 0 else 0.0,
        decision_s=simulated.deciding_s / max(1, simulated.decisions),
        unfinished_middle=middle,
        unfinished_end=end,
    )


def slowdowns(jobs: Sequence[Finished]) -> list[float]:
    """Bounded slowdown of each job."""
    return [max(1.0, job.jct_s / max(job.job.duration_s, SHORTEST_S)) for job in jobs]


def unfairness(jobs: Sequence[Finished]) -> list[float]:
    """Finish-time fairness ρ of each job: 1 is an even share of a crowded cluster."""
    return [job.jct_s / (job.job.duration_s * job.contention) for job in jobs]
