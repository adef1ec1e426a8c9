"""Crossover: several jobs take turns on one device, and each job's gradients are sent while the others compute.

The source is CrossoverScheduler (arXiv 2103.07974). The turn order is cyclic. A job takes its turn when three things
hold: its place in the pattern is next, the device is free, and its gradients of the step before have arrived. A turn
lasts the job's compute C. Its gradients arrive M after the turn's end if the link has no other transfer.

**The link is shared.** It serves jobs first in, first out in turn order, and a job's step keeps it busy for W seconds
(W ≥ M when the job's own backward pass overlapped part of it). So, for a turn of job j:

    start   = max(device free, arrival[j])
    device  = start + C
    arrival = link = max(start + C + M, link + W)

These are only maxima and sums. So one turn is a matrix in the max-plus algebra, and a round is the product of its
turns. The time of a round in the steady state is that matrix's eigenvalue, the largest mean weight of a cycle
(Cuninghame-Green 1979; Baccelli et al., *Synchronization and Linearity*, 1992). It is exact, without simulation.

Two equal jobs: a round takes max(2C, C+M, 2W), which is max(2C, C+M) as long as the link is not saturated.
"""

from __future__ import annotations

import itertools
import math
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from xbench.planning.cost import FloatArray

LETTERS = string.ascii_uppercase
"""Letters of the jobs in patterns such as 'ABA'."""

_LONG_PATTERNS = 4
"""With more jobs than this, only patterns of one turn per job are tried: there are too many others."""

_MEAN_STEPS = 200
_SLOWEST_STEPS = 20


@dataclass(frozen=True)
class JobTimes:
    """One job's step: `compute_s` on the device, then `communication_s` until its gradients have arrived.

    `communication_s` is the exposed communication of its schedule: predicted step − compute. `samples` is per step.
    `link_s` is the time that a step keeps the link busy. None: as long as `communication_s`. 0: the job does not queue
    for the link. Raises ValueError for a number that is negative or not finite, and for `compute_s` or `samples` of
    zero.
    """

    compute_s: float
    communication_s: float
    samples: float = 1.0
    link_s: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("compute_s", self.compute_s), ("samples", self.samples)):
            if not math.isfinite(value) or value <= 0:
                raise ValueError(f"a job's {name} is {value}: it must be above zero")
        for name, value in (("communication_s", self.communication_s), ("link_s", self.busy_s)):
            if not math.isfinite(value) or value < 0:
                raise ValueError(f"a job's {name} is {value}: it must not be below zero")

    @property
    def alone_s(self) -> float:
        """Time of one step without other jobs on the device [s]."""
        return self.compute_s + self.communication_s

    @property
    def busy_s(self) -> float:
        """Time that a step keeps the link busy [s]."""
        return self.communication_s if self.link_s is None else self.link_s


@dataclass(frozen=True)
class Throughput:
    """Steps per second of each job, samples per second of all, and the weighted speed-up.

    `speedup` = Σ rate · time alone. It counts the devices that would do the same work; jobs one after the other give 1.
    """

    steps_per_s: tuple[float, ...]
    samples_per_s: float
    speedup: float


@dataclass(frozen=True)
class TurnPlan:
    """The turn order of a round, by job number, and its predicted throughput."""

    pattern: tuple[int, ...]
    round_s: float
    samples_per_s: float
    speedup: float

    @property
    def text(self) -> str:
        """The pattern in letters, such as 'ABA'."""
        return "".join(LETTERS[job] for job in self.pattern)


class Turn(NamedTuple):
    """One turn of a job [s]: it holds the device from `start_s` to `computed_s`; gradients arrive at `arrived_s`."""

    job: int
    start_s: float
    computed_s: float
    arrived_s: float


def run_turns(jobs: Sequence[JobTimes], pattern: Sequence[int], rounds: int) -> list[Turn]:
    """Simulate `rounds` rounds of `pattern` from time 0, by the recurrence of the module."""
    device = link = 0.0
    arrival = [0.0] * len(jobs)
    taken: list[Turn] = []
    for job in itertools.chain.from_iterable(itertools.repeat(pattern, rounds)):
        times = jobs[job]
        start_s = max(device, arrival[job])
        device = start_s + times.compute_s
        arrival[job] = start_s + times.alone_s
        if times.busy_s > 0:
            arrival[job] = link = max(arrival[job], link + times.busy_s)
        taken.append(Turn(job, start_s, device, arrival[job]))
    return taken


def round_s(jobs: Sequence[JobTimes], pattern: Sequence[int]) -> float:
    """Steady-state time [s] of one round of `pattern`, exactly.

    Raises ValueError for an empty pattern or a job that does not exist.
    """
    if not pattern or not all(0 <= job < len(jobs) for job in pattern):
        raise ValueError(f"the pattern {tuple(pattern)} does not name jobs 0 to {len(jobs) - 1}")
    turns = [_turn(jobs, job) for job in range(len(jobs))]
    whole = turns[pattern[0]]
    for job in pattern[1:]:
        whole = after(turns[job], whole)
    return eigenvalue(whole)


def eigenvalue(whole: FloatArray) -> float:
    """The largest mean weight of a cycle of a max-plus matrix: the steady-state time of a round."""
    longest = -math.inf
    power = whole
    # A simple cycle visits each state at most once, so cycles of at most that many rounds are enough.
    for rounds in range(1, len(whole) + 1):
        longest = max(longest, float(np.diagonal(power).max()) / rounds)
        power = after(whole, power)
    return longest


def best_pattern(jobs: Sequence[JobTimes], max_length: int = 8) -> TurnPlan:
    """The cyclic pattern with the best weighted speed-up that contains every job in at most `max_length` turns.

    Rotations of a pattern count as one, the first in lexicographic order. Among equal speed-ups the shortest wins. With
    more than four jobs, each gets one turn per round, and only the order is searched. Raises ValueError without jobs,
    or when `max_length` is less than their number.
    """
    if not jobs or max_length < len(jobs):
        raise ValueError(f"a pattern of at most {max_length} turns cannot hold {len(jobs)} jobs")
    best: TurnPlan | None = None
    for pattern in patterns(len(jobs), max_length):
        took_s = round_s(jobs, pattern)
        steps = [pattern.count(job) / took_s for job in range(len(jobs))]
        found = _throughput(jobs, steps)
        if best is None or found.speedup > best.speedup * (1 + 1e-9):
            best = TurnPlan(pattern, took_s, found.samples_per_s, found.speedup)
    assert best is not None  # the identity is always a pattern
    return best


def sequential_s(jobs: Sequence[JobTimes], pattern: Sequence[int] | None = None) -> float:
    """Time [s] of one step of every job, or of the steps of one round of `pattern`, each job alone on the device."""
    return sum(jobs[job].alone_s for job in (range(len(jobs)) if pattern is None else pattern))


def predict_concurrent(jobs: Sequence[JobTimes]) -> Throughput:
    """Predicted throughput of all jobs at once without turns, by a fluid model.

    Jobs that compute at the same time share the device equally and without loss. Gradients queue for the link first in,
    first out, as with turns. Real jobs also compete for caches, cores and memory, so the result is an upper limit.
    Rates are taken over the second half of a run, of 200 steps per job on average and at least 20 of the slowest job.

    Raises ValueError without jobs.
    """
    if not jobs:
        raise ValueError("there are no jobs")
    left = [job.compute_s for job in jobs]
    arrival = [0.0] * len(jobs)
    done: list[list[float]] = [[] for _ in jobs]
    now = link = 0.0
    while min(map(len, done)) < _SLOWEST_STEPS or sum(map(len, done)) < _MEAN_STEPS * len(jobs):
        active = [job for job in range(len(jobs)) if arrival[job] <= now]
        waiting = [arrival[job] for job in range(len(jobs)) if arrival[job] > now]
        if not active:
            now = min(waiting)
            continue
        first = min(active, key=lambda job: left[job])
        finish = now + left[first] * len(active)
        until = min([finish, *waiting])
        for job in active:
            left[job] -= (until - now) / len(active)
        now = until
        if until == finish:
            done[first].append(now)
            left[first] = jobs[first].compute_s
            arrival[first] = now + jobs[first].communication_s
            if jobs[first].busy_s > 0:
                arrival[first] = link = max(arrival[first], link + jobs[first].busy_s)
    return _throughput(jobs, [_rate(times) for times in done])


def _rate(times: list[float]) -> float:
    """Steps per second over the second half."""
    middle = len(times) // 2 - 1
    return (len(times) - 1 - middle) / (times[-1] - times[middle])


def _throughput(jobs: Sequence[JobTimes], steps_per_s: Sequence[float]) -> Throughput:
    return Throughput(
        steps_per_s=tuple(steps_per_s),
        samples_per_s=sum(rate * job.samples for rate, job in zip(steps_per_s, jobs, strict=True)),
        speedup=sum(rate * job.alone_s for rate, job in zip(steps_per_s, jobs, strict=True)),
    )


def _turn(jobs: Sequence[JobTimes], job: int) -> FloatArray:
    """The max-plus matrix of one turn over the state (device free, link free, arrival of each job)."""
    device, link, own = 0, 1, 2 + job
    matrix = np.full((2 + len(jobs), 2 + len(jobs)), -np.inf)
    np.fill_diagonal(matrix, 0.0)
    times = jobs[job]
    for before in (device, own):
        matrix[device, before] = times.compute_s
        matrix[own, before] = times.alone_s
    if times.busy_s > 0:
        matrix[own, link] = times.busy_s
        matrix[link] = matrix[own]
    return matrix


def after(later: FloatArray, earlier: FloatArray) -> FloatArray:
    """The max-plus product of `earlier` and then `later`."""
    product: FloatArray = (later[:, :, None] + earlier[None, :, :]).max(axis=1)
    return product


def patterns(jobs: int, max_length: int) -> Iterator[tuple[int, ...]]:
    """Distinct cyclic patterns that contain every job, shortest first, without repetitions of a shorter one."""
    for order in itertools.permutations(range(1, jobs)):
        yield (0, *order)
    if jobs > _LONG_PATTERNS:
        return
    for length in range(jobs + 1, max_length + 1):
        for tail in itertools.product(range(jobs), repeat=length - 1):
            pattern = (0, *tail)
            if len(set(pattern)) == jobs and all(
                pattern < pattern[turn:] + pattern[:turn] for turn in range(1, length)
            ):  # fmt: skip
                yield pattern
