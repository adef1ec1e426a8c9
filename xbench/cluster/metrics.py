"""Statistics of a simulated or real cluster, computed from its finished jobs and the GPUs that they held.

| statistic | definition |
| --- | --- |
| JCT | time from arrival to end |
| queueing delay | time from arrival to the first GPU |
| bounded slowdown (Feitelson) | max(1, JCT / max(duration, 10 s)), with the duration on the requested GPUs |
| finish-time fairness (Themis) | ρ = JCT / (duration · contention): 1 for an even share, more for a worse one |
| makespan | time from the first arrival to the last end |
| useful share | GPU seconds in which jobs computed, times their rate, over the GPU seconds that jobs held |
| occupancy | GPU seconds of the cluster that were held, over those that existed until the makespan |
| across | share of the jobs' GPU seconds that were held over several hosts |
| lost | share of the jobs' GPU seconds that the fewest hosts would not have needed |
| unfinished | see `steady` |

If only some jobs count, JCT, delay, slowdown, fairness, useful share and restarts are theirs. All else describes the
whole trace.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from xbench.cluster.simulated import Finished, Simulated
from xbench.cluster.steady import unfinished

MIN_S = 10.0
"""Shortest duration [s] in a slowdown. The slowdown of a shorter job says nothing about its scheduler."""


class Metrics(NamedTuple):
    """Statistics of one simulation. Times [s]; shares between 0 and 1."""

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
    """Mean real time [s] of one decision of the policy."""
    unfinished_middle: float
    unfinished_end: float


def metrics(simulated: Simulated, counted: Collection[str] | None = None) -> Metrics:
    """Statistics of the jobs that finished, or of those named in `counted`. Raises ValueError without any."""
    finished = simulated.finished
    jobs = [job for job in finished if counted is None or job.job.name in counted]
    if not jobs:
        raise ValueError("no job finished, so there is nothing to judge")
    jct_s = np.array([job.jct_s for job in jobs])
    queued_s = np.array([job.queued_s for job in jobs])
    counted_held_s = float(sum(job.held_gpu_s for job in jobs))
    all_held_s = float(sum(job.held_gpu_s for job in finished))
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
        useful_share=useful_s / counted_held_s if counted_held_s > 0 else 1.0,
        occupancy=held_s / (simulated.cluster.gpus * makespan_s) if makespan_s > 0 else 1.0,
        restarts=restarts,
        restart_gpu_s=float(sum(job.restarting_gpu_s for job in jobs)),
        across_share=simulated.across_gpu_s / all_held_s if all_held_s > 0 else 0.0,
        lost_share=simulated.lost_gpu_s / all_held_s if all_held_s > 0 else 0.0,
        decision_s=simulated.deciding_s / max(1, simulated.decisions),
        unfinished_middle=middle,
        unfinished_end=end,
    )


def slowdowns(jobs: Sequence[Finished]) -> list[float]:
    """Bounded slowdown of each job."""
    return [max(1.0, job.jct_s / max(job.job.duration_s, MIN_S)) for job in jobs]


def unfairness(jobs: Sequence[Finished]) -> list[float]:
    """Finish-time fairness ρ of each job: 1 is an even share of a crowded cluster."""
    return [job.jct_s / (job.job.duration_s * job.contention) for job in jobs]
