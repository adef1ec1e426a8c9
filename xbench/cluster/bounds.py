"""A limit that no policy can beat: a lower bound of the mean JCT.

It bounds the mean JCT of a trace on a cluster of G GPUs with free restarts and without sharing. Job j arrives at r(j),
has work W(j), and its speed on w GPUs is s(w): on hosts, that of its fastest placement. The bound (`lower_bound_s`) is
the largest of three. Let b(j) = min W(j)/s(w), its best time, and a(j) = min w·W(j)/s(w), its least GPU seconds.

1. *Alone*: no job is faster than b(j), so the mean JCT is at least the mean b(j).
2. *One fast machine*: under any schedule job j takes at least a(j) GPU seconds, and the cluster gives G a second. So a
   single machine on which j takes a(j)/G can finish every job no later. There, shortest remaining time first has the
   least mean JCT (Schrage 1968): its mean is a bound.
3. *Mean times of work*: let M(j) be the mean time at which j's work is done. At most 1/b(j) of it is done a second, so
   j ends at least b(j)/2 after M(j). M is no better than on the machine of 2, where Σ M(j) is least if the active job
   with the least *whole* a(j) always runs (the preemptive Smith rule, Goemans 1997). So Σ C(j) ≥ Σ M(j) + Σ b(j)/2.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from xbench.cluster.jobs import Job, PlacedSpeed
from xbench.cluster.policy import Cluster

QUICK_SPEEDS = 2_000_000
"""Largest number of speeds (jobs of different speeds × sizes) for which `lower_bound_s` takes a few seconds."""


def bound_s(jobs: Sequence[Job], cluster: Cluster) -> float | None:
    """The lower bound [s]; None if it would take many seconds to find."""
    speeds = sum(len(sizes_of(job, cluster)) for job in {_curve(job): job for job in jobs}.values())
    return lower_bound_s(jobs, cluster) if speeds <= QUICK_SPEEDS else None


def lower_bound_s(jobs: Sequence[Job], cluster: Cluster) -> float:
    """A lower bound of the mean JCT [s] of any schedule. O(n log n + n·sizes). Raises ValueError without jobs."""
    if not jobs:
        raise ValueError("no jobs have no mean JCT")
    paces: dict[Curve, tuple[float, float]] = {}
    for job in jobs:  # many jobs share one speed
        key = _curve(job)
        if key not in paces:
            paces[key] = best_paces(job, cluster)
    job_paces = [paces[_curve(job)] for job in jobs]
    best_s = [job.work * pace for job, (pace, _) in zip(jobs, job_paces, strict=True)]
    least_gpu_s = [job.work * pace for job, (_, pace) in zip(jobs, job_paces, strict=True)]
    machine_s = [gpu_s / cluster.gpus for gpu_s in least_gpu_s]
    arrivals_s = [job.arrival_s for job in jobs]
    fast = _machine(arrivals_s, machine_s, by_remaining=True)[0]
    mean_times_s = _machine(arrivals_s, machine_s, by_remaining=False)[1]
    arrived_s = sum(arrivals_s)
    return max(sum(best_s), fast - arrived_s, mean_times_s - arrived_s + sum(best_s) / 2) / len(jobs)


Curve = tuple[int, int, int | None, int]


def _curve(job: Job) -> Curve:
    """Key of a job's speed: jobs with equal keys have the same speed on the same sizes."""
    return id(job.speed), job.least, job.most, job.gpus


def sizes_of(job: Job, cluster: Cluster) -> Sequence[int]:
    """Sizes that a job may have, including the number that it requests, which rigid policies grant."""
    sizes = job.sizes_on(cluster.gpus)
    known = job.speed.sizes
    if job.gpus in sizes or job.gpus > cluster.gpus or (known is not None and job.gpus not in known):
        return sizes
    return sorted((*sizes, job.gpus))


def best_speed(job: Job, gpus: int) -> float:
    """Speed on the fastest placement."""
    return job.speed.fastest(gpus) if isinstance(job.speed, PlacedSpeed) else job.speed(gpus)


def best_paces(job: Job, cluster: Cluster) -> tuple[float, float]:
    """The least time [s] and the least GPU seconds of a unit of the job's work."""
    paces = [(1 / best_speed(job, size), size) for size in sizes_of(job, cluster)]
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
