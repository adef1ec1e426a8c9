"""Crossover: several jobs share one device in turns, and each one's gradients travel while the others compute.

After CrossoverScheduler (arXiv 2103.07974). The turn order is cyclic. A job takes its turn when its place in the
pattern has come, the device is free, and its own gradients of the step before have arrived. A turn lasts the job's
compute C; its gradients arrive M after the turn's end if nothing else is on the wire.

**The link is shared.** It serves jobs first in, first out in turn order, and a job's step keeps it busy for W seconds
(W ≥ M when part of it was overlapped by the job's own backward pass). So, for a turn of job j:

    start   = max(device free, arrival[j])
    device  = start + C
    arrival = link = max(start + C + M, link + W)

Only maxima and sums: one turn is a matrix in the max-plus algebra, a round the product of its turns', and the time of
a round in the steady state is that matrix's eigenvalue, the largest mean weight of a cycle (Cuninghame-Green 1979;
Baccelli et al., *Synchronization and Linearity*, 1992). It is exact: nothing is run until it settles.

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
"""What jobs are called, in patterns such as 'ABA'."""

_LONG_PATTERNS = 4
"""With more jobs than this only patterns of one turn each are tried: the others are too many."""

_MEAN_STEPS = 200
_SLOWEST_STEPS = 20


@dataclass(frozen=True)
class JobTimes:
    """One job's step: `compute_s` on the device, then `communication_s` until its gradients have arrived.

    `communication_s` is what its carrier leaves exposed: predicted step − compute. `samples` a step. `link_s` is how
    long a step keeps the link busy; None: as long as `communication_s`; 0: it does not queue for the link at all.
    Raises ValueError for numbers that are not finite, negative, or zero where there must be something.
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
        """One step with the device to itself [s]."""
        return self.compute_s + self.communication_s

    @property
    def busy_s(self) -> float:
        """How long a step keeps the link busy [s]."""
        return self.communication_s if self.link_s is None else self.link_s


@dataclass(frozen=True)
class Throughput:
    """Steps a second of each job, samples a second of all, and the weighted speed-up.

    `speedup` = Σ rate · time alone: how many devices' worth of work one device does; jobs one after the other make 1.
    """

    steps_per_s: tuple[float, ...]
    samples_per_s: float
    speedup: float


@dataclass(frozen=True)
class TurnPlan:
    """The turn order of a round, by job number, and what it yields."""

    pattern: tuple[int, ...]
    round_s: float
    samples_per_s: float
    speedup: float

    @property
    def text(self) -> str:
        """'ABA'."""
        return "".join(LETTERS[job] for job in self.pattern)


class Turn(NamedTuple):
    """One turn of a job [s]: it holds the device from `start_s` to `computed_s`, gradients arrive at `arrived_s`."""

    job: int
    start_s: float
    computed_s: float
    arrived_s: float


def run_turns(jobs: Sequence[JobTimes], pattern: Sequence[int], rounds: int) -> list[Turn]:
    """`rounds` rounds of `pattern` turn by turn, from a standing start at 0: the recurrence above as it is."""
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
    """The largest mean weight of a cycle of a max-plus matrix: what a round takes in the steady state, if it is one."""
    longest = -math.inf
    power = whole
    # A simple cycle visits each state once at most, so the mean weights of up to that many rounds are all there are.
    for rounds in range(1, len(whole) + 1):
        longest = max(longest, float(np.diagonal(power).max()) / rounds)
        power = after(whole, power)
    return longest


def best_pattern(jobs: Sequence[JobTimes], max_length: int = 8) -> TurnPlan:
    """The cyclic pattern of at most `max_length` turns, every job in it, with the best weighted speed-up.

    Patterns that are rotations of each other are one; the first in lexicographic order stands for them, and of equal
    speed-ups the shortest wins. Beyond four jobs each gets one turn a round, and the order is searched.
    Raises ValueError without jobs, or when `max_length` has no room for all of them.
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
    """Time [s] of one step of every job, or of the steps of one round of `pattern`, each with the device to itself."""
    return sum(jobs[job].alone_s for job in (range(len(jobs)) if pattern is None else pattern))


def predict_concurrent(jobs: Sequence[JobTimes]) -> Throughput:
    """What all jobs at once without turns would do, by a fluid model.

    Jobs that compute at the same time share the device equally and lose nothing by sharing; gradients queue for the
    link first in, first out as with turns. Real jobs also fight over caches, cores and memory, so read it as an upper
    limit. Rates are taken over the second half of a run of 200 steps a job on average and 20 of the slowest at least.
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
    """Steps a second over the later half."""
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
    """The max-plus product: first `earlier`, then `later`."""
    product: FloatArray = (later[:, :, None] + earlier[None, :, :]).max(axis=1)
    return product


def patterns(jobs: int, max_length: int) -> Iterator[tuple[int, ...]]:
    """Cyclic patterns with every job in them, each once, shortest first, none the repetition of a shorter one."""
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
