"""Limits that no policy can beat: the exact optimum of small instances, and a lower bound of large ones.

All bound the mean JCT of a trace on a cluster of G GPUs with free restarts and without sharing (restarts can only make
it worse). Job j arrives at r(j), has work W(j), and its speed on w GPUs is s(w): on hosts, that of its fastest
placement. A job may have `least` to `most` GPUs and the number that it requests, so the bounds hold for rigid policies
too.

**The optimum** (`optimum_s`) ranges over all schedules, with any preemption and any change among allowed sizes at any
time. Between two events (arrivals, completions) a schedule is a mixture of *configurations*: sizes of the active jobs
that fit the cluster together. Only how long each configuration lasts affects the work done, not when. So for a given
order of events the optimum is a linear program over these times: each job's work is done by its completion, arrivals
are fixed, and the sum of completion times is minimal. The minimum over all orders of completion is exact. There are at
most (2n−1)!! orders, so n is small.

**The optimum without changes** (`moldable_s`): each job runs once, on one number of GPUs, to its end. For given sizes
and a given order of starts, it is best to start each job as soon as it fits, but not before its predecessor: the starts
of any schedule can be moved forward in that order to this one. So all orders and sizes are tried.

**The lower bound** (`lower_bound_s`) is the largest of three. Let b(j) = min W(j)/s(w), its best time, and a(j) = min
w·W(j)/s(w), its least GPU seconds.

1. *Alone*: no job is faster than b(j), so the mean JCT is at least the mean b(j).
2. *One fast machine*: under any schedule job j takes at least a(j) GPU seconds, and the cluster gives G a second. So a
   single machine on which j takes a(j)/G can finish every job no later (give it the share x/G of the machine while j
   holds x GPUs). There, shortest remaining time first has the least mean JCT (Schrage 1968): its mean is a bound.
3. *Mean times of work*: let M(j) be the mean time at which j's work is done. At most 1/b(j) of it is done a second, so
   j ends at least b(j)/2 after M(j). The GPU seconds of all work done in a second are at most G, so M is no better than
   on the machine of 2. There Σ M(j) is least if the active job with the least *whole* a(j) always runs (the preemptive
   Smith rule, Goemans 1997). So Σ C(j) ≥ Σ M(j) + Σ b(j)/2.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from itertools import permutations, product
from typing import NamedTuple, cast

import numpy as np
from scipy.optimize import linprog

from xbench.cluster.jobs import Job, PlacedSpeed
from xbench.cluster.policy import Cluster

Events = tuple[tuple[str, int], ...]

SMALL = 4
"""Largest number of jobs for which `optimum_s` is quick: 105 linear programs."""

QUICK_CONFIGURATIONS = 625
"""Largest number of size combinations of all jobs for which these programs take less than a second."""

QUICK_SPEEDS = 2_000_000
"""Largest number of speeds (jobs of different speeds × sizes) for which `lower_bound_s` takes a few seconds."""


class Bound(NamedTuple):
    """A mean JCT [s] that no schedule beats. `exact`: True if some schedule attains it."""

    jct_mean_s: float
    exact: bool


def bound(jobs: Sequence[Job], cluster: Cluster) -> Bound | None:
    """The optimum if it is quick to find, else the lower bound; None if even that would take many seconds."""
    if len(jobs) <= SMALL and math.prod(len(_sizes(job, cluster)) + 1 for job in jobs) <= QUICK_CONFIGURATIONS:
        return Bound(optimum_s(jobs, cluster), exact=True)
    speeds = sum(len(_sizes(job, cluster)) for job in {_curve(job): job for job in jobs}.values())
    return Bound(lower_bound_s(jobs, cluster), exact=False) if speeds <= QUICK_SPEEDS else None


def lower_bound_s(jobs: Sequence[Job], cluster: Cluster) -> float:
    """A lower bound of the mean JCT [s] of any schedule. O(n log n + n·sizes). Raises ValueError without jobs."""
    if not jobs:
        raise ValueError("no jobs have no mean JCT")
    paces: dict[Curve, tuple[float, float]] = {}
    for job in jobs:  # many jobs share one speed
        key = _curve(job)
        if key not in paces:
            paces[key] = _best_paces(job, cluster)
    job_paces = [paces[_curve(job)] for job in jobs]
    best_s = [job.work * pace for job, (pace, _) in zip(jobs, job_paces, strict=True)]
    least_gpu_s = [job.work * pace for job, (_, pace) in zip(jobs, job_paces, strict=True)]
    machine_s = [gpu_s / cluster.gpus for gpu_s in least_gpu_s]
    arrivals_s = [job.arrival_s for job in jobs]
    fast = _machine(arrivals_s, machine_s, by_remaining=True)[0]
    mean_times_s = _machine(arrivals_s, machine_s, by_remaining=False)[1]
    arrived_s = sum(arrivals_s)
    return max(sum(best_s), fast - arrived_s, mean_times_s - arrived_s + sum(best_s) / 2) / len(jobs)


def gap(jct_mean_s: float, bound_s: float) -> float:
    """Excess of a mean JCT over a bound, as a share: 0.05 is 5 % above it. Raises ValueError for a bound of 0 s."""
    if bound_s <= 0:
        raise ValueError(f"{bound_s} s bound nothing")
    return jct_mean_s / bound_s - 1


def optimum_s(jobs: Sequence[Job], cluster: Cluster) -> float:
    """The least mean JCT [s] of all schedules, restarts free. Raises ValueError for no jobs or more than `SMALL`."""
    if not 0 < len(jobs) <= SMALL:
        raise ValueError(f"{len(jobs)} jobs: the optimum is for 1 to {SMALL}")
    order = sorted(range(len(jobs)), key=lambda index: jobs[index].arrival_s)
    jobs = [jobs[index] for index in order]
    best_s = [job.work * _best_paces(job, cluster)[0] for job in jobs]
    least_sum_s = min(_ordered_sum_s(jobs, cluster, events) for events in _event_orders(jobs, best_s))
    return (least_sum_s - sum(job.arrival_s for job in jobs)) / len(jobs)


def moldable_s(jobs: Sequence[Job], cluster: Cluster) -> float:
    """The least mean JCT [s] if each job runs once, on one number of GPUs. Raises ValueError as `optimum_s` does."""
    if not 0 < len(jobs) <= SMALL:
        raise ValueError(f"{len(jobs)} jobs: the optimum is for 1 to {SMALL}")
    best_s = math.inf
    for gpus in product(*(_sizes(job, cluster) for job in jobs)):
        times_s = [job.work / _speed(job, size) for job, size in zip(jobs, gpus, strict=True)]
        for order in permutations(range(len(jobs))):
            best_s = min(best_s, _started_in_order_s(jobs, cluster, order, gpus, times_s))
    return best_s / len(jobs)


Curve = tuple[int, int, int | None, int]


def _curve(job: Job) -> Curve:
    """Key of a job's speed: jobs with equal keys have the same speed on the same sizes."""
    return id(job.speed), job.least, job.most, job.gpus


def _sizes(job: Job, cluster: Cluster) -> Sequence[int]:
    """Sizes that a job may have, including the number that it requests, which rigid policies grant."""
    sizes = job.sizes_on(cluster.gpus)
    known = job.speed.sizes
    if job.gpus in sizes or job.gpus > cluster.gpus or (known is not None and job.gpus not in known):
        return sizes
    return sorted((*sizes, job.gpus))


def _speed(job: Job, gpus: int) -> float:
    """Speed on the fastest placement."""
    return cast(PlacedSpeed, job.speed).fastest(gpus) if hasattr(job.speed, "fastest") else job.speed(gpus)


def _best_paces(job: Job, cluster: Cluster) -> tuple[float, float]:
    """The least time [s] and the least GPU seconds of a unit of the job's work."""
    paces = [(1 / _speed(job, size), size) for size in _sizes(job, cluster)]
    return min(pace for pace, _ in paces), min(pace * size for pace, size in paces)


def _machine(arrivals_s: Sequence[float], sizes_s: Sequence[float], *, by_remaining: bool) -> tuple[float, float]:
    """One preemptive machine: the sums of completion times and of mean times of work.

    The job with the least remaining size runs, or, without `by_remaining`, that with the least whole size.
    """
    order = sorted(range(len(sizes_s)), key=arrivals_s.__getitem__)
    active: list[tuple[float, int]] = []
    left = list(sizes_s)
    now_s = completions_s = mean_times_s = 0.0
    upcoming = 0
    while upcoming < len(order) or active:
        if not active:
            now_s = max(now_s, arrivals_s[order[upcoming]])
        while upcoming < len(order) and arrivals_s[order[upcoming]] <= now_s:
            heapq.heappush(active, (sizes_s[order[upcoming]], order[upcoming]))
            upcoming += 1
        key, index = active[0]
        next_s = arrivals_s[order[upcoming]] if upcoming < len(order) else math.inf
        end_s = min(now_s + left[index], next_s)
        done = end_s - now_s
        mean_times_s += (now_s + end_s) / 2 * done / sizes_s[index]
        if now_s + left[index] <= next_s:
            heapq.heappop(active)
            completions_s += end_s
        else:
            left[index] -= done
            if by_remaining:
                heapq.heapreplace(active, (key - done, index))
        now_s = end_s
    return completions_s, mean_times_s


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
            [_speed(jobs[job], config[job]) if config.get(job) else 0.0 for _, config in columns]
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
    for sizes in product(*((0, *_sizes(jobs[job], cluster)) for job in active)):
        if sum(sizes) <= cluster.gpus:
            yield dict(zip(active, sizes, strict=True))


def _started_in_order_s(
    jobs: Sequence[Job], cluster: Cluster, order: Sequence[int], gpus: Sequence[int], times_s: Sequence[float]
) -> float:
    """The sum of JCTs if jobs start in this order, each as soon as it fits."""
    running: list[tuple[float, int]] = []
    free, now_s, total_s = cluster.gpus, 0.0, 0.0
    for job in order:
        now_s = max(now_s, jobs[job].arrival_s)
        while running and (running[0][0] <= now_s or free < gpus[job]):
            end_s, freed = heapq.heappop(running)
            now_s, free = max(now_s, end_s), free + freed
        free -= gpus[job]
        end_s = now_s + times_s[job]
        heapq.heappush(running, (end_s, gpus[job]))
        total_s += end_s - jobs[job].arrival_s
    return total_s
