"""The exact optimum of a few jobs, by enumeration: what the lower bound and the policies are held to.

**The optimum** (`optimum_s`) ranges over all schedules, with any preemption and any change among allowed sizes at any
time. Between two events (arrivals, completions) a schedule is a mixture of *configurations*: sizes of the active jobs
that fit the cluster together. Only how long each configuration lasts affects the work done, not when. So for a given
order of events the optimum is a linear program over these times: each job's work is done by its completion, arrivals
are fixed, and the sum of completion times is minimal. The minimum over all orders of completion is exact. There are at
most (2n−1)!! orders, so n is small.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
from scipy.optimize import linprog

from xbench.cluster.bounds import best_paces, best_speed, sizes_of
from xbench.cluster.jobs import Job
from xbench.cluster.policy import Cluster

Events = tuple[tuple[str, int], ...]

SMALL = 4
"""Largest number of jobs: 105 linear programs."""


def optimum_s(jobs: Sequence[Job], cluster: Cluster) -> float:
    """The least mean JCT [s] of all schedules, restarts free. Raises ValueError for no jobs or more than `SMALL`."""
    if not 0 < len(jobs) <= SMALL:
        raise ValueError(f"{len(jobs)} jobs: the optimum is for 1 to {SMALL}")
    order = sorted(range(len(jobs)), key=lambda index: jobs[index].arrival_s)
    jobs = [jobs[index] for index in order]
    best_s = [job.work * best_paces(job, cluster)[0] for job in jobs]
    least_sum_s = min(_ordered_sum_s(jobs, cluster, events) for events in _event_orders(jobs, best_s))
    return (least_sum_s - sum(job.arrival_s for job in jobs)) / len(jobs)


def _event_orders(jobs: Sequence[Job], best_s: Sequence[float]) -> Iterator[Events]:
    """All orders of arrivals (in this order) and completions, without orders in which a job ends too soon."""

    def extend(events: Events, arrived: int, active: frozenset[int]) -> Iterator[Events]:
        if len(events) == 2 * len(jobs):
            yield events
        next_s = math.inf
        if arrived < len(jobs):
            next_s = jobs[arrived].arrival_s
            yield from extend((*events, ("arrives", arrived)), arrived + 1, active | {arrived})
        for job in sorted(active):
            if jobs[job].arrival_s + best_s[job] <= next_s * (1 + 1e-9):
                yield from extend((*events, ("ends", job)), arrived, active - {job})

    yield from extend((), 0, frozenset())


def _ordered_sum_s(jobs: Sequence[Job], cluster: Cluster, events: Events) -> float:
    """The least sum of completion times with the events in this order; inf without such a schedule."""
    active: set[int] = set()
    columns: list[tuple[int, dict[int, int]]] = []
    """(interval, GPUs of each active job)"""
    for interval, (_, job) in enumerate(events):
        columns += [(interval, config) for config in _configurations(jobs, cluster, sorted(active))]
        active ^= {job}
    ends = {job: index for index, (what, job) in enumerate(events) if what == "ends"}
    cost = np.array([sum(interval <= index for index in ends.values()) for interval, _ in columns], dtype=float)
    arrivals = np.array(
        [[interval <= index for interval, _ in columns] for index, (what, _) in enumerate(events) if what == "arrives"],
        dtype=float,
    )
    work = np.array(
        [
            [best_speed(jobs[job], config[job]) if config.get(job) else 0.0 for _, config in columns]
            for job in range(len(jobs))
        ]
    )
    solution = linprog(
        cost,
        A_ub=-work,
        b_ub=[-job.work for job in jobs],
        A_eq=arrivals,
        b_eq=[job.arrival_s for job in jobs],
        method="highs",
    )
    return float(solution.fun) if solution.fun is not None else math.inf


def _configurations(jobs: Sequence[Job], cluster: Cluster, active: Sequence[int]) -> Iterator[dict[int, int]]:
    """All combinations of sizes of the active jobs, including 0, that fit together."""
    for sizes in product(*((0, *sizes_of(jobs[job], cluster)) for job in active)):
        if sum(sizes) <= cluster.gpus:
            yield dict(zip(active, sizes, strict=True))
