"""Crossover: several jobs take turns on one device, and each job's gradients are sent while the others compute.

The source is CrossoverScheduler (arXiv 2103.07974). A turn lasts the job's compute C. Its gradients arrive M after the
turn's end if the link, first in, first out, has no other transfer. A step keeps the link busy for W:

    start   = max(device free, arrival[j])
    device  = start + C
    arrival = link = max(start + C + M, link + W)

So one turn is a matrix in the max-plus algebra, and the time of a round in the steady state is the eigenvalue of the
product of its turns (docs/planner.md): exact, without simulation.

**Partial backpropagation** (`partial`, spatial variant): deep workers of one job fill idle time of another's shallow
ones. Let the forward pass take F and the full backward pass B. A worker of level i of k is busy for F + i/k·B, and idle
while the full-depth workers continue and while gradients are sent. Jobs take turns in the same order on every GPU, and
gradients arrive M after the *last* of the job's workers has finished. The state is then (GPUs, link, arrivals), and
GPUs with the same turns are one row. The first job's levels ascend over the GPUs. The deepest workers of each further
job go to the GPUs with the least work. With two equal jobs each GPU has 2F + (k+1)/k·B of work per round.
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

Loads = tuple[tuple[float, ...], ...]
"""Duration of a turn of each job [s], by kind of GPU."""


@dataclass(frozen=True)
class JobTimes:
    """One job's step: `compute_s` on the device, then `communication_s` until its gradients have arrived.

    `communication_s` is the exposed communication of its schedule: predicted step − compute. `link_s` is the time that
    a step keeps the link busy. None: as long as `communication_s`. 0: the job does not queue for the link. Raises
    ValueError for a number that is negative or not finite, and for `compute_s` of zero.
    """

    compute_s: float
    communication_s: float
    link_s: float | None = None

    def __post_init__(self) -> None:
        if not math.isfinite(self.compute_s) or self.compute_s <= 0:
            raise ValueError(f"a job's compute_s is {self.compute_s}: it must be above zero")
        _check_parts(communication_s=self.communication_s, link_s=self.busy_s)

    @property
    def alone_s(self) -> float:
        """Time of one step without other jobs on the device [s]."""
        return self.compute_s + self.communication_s

    @property
    def busy_s(self) -> float:
        """Time that a step keeps the link busy [s]."""
        return self.communication_s if self.link_s is None else self.link_s


@dataclass(frozen=True)
class SpatialJob:
    """A step: forward pass, backward pass of full depth, and exposed communication [s].

    Raises ValueError for a value that is not finite or below zero, and for a step without computation.
    """

    forward_s: float
    backward_s: float
    communication_s: float = 0.0

    def __post_init__(self) -> None:
        _check_parts(forward_s=self.forward_s, backward_s=self.backward_s, communication_s=self.communication_s)
        if self.forward_s + self.backward_s <= 0:
            raise ValueError("a job computes nothing")

    @property
    def alone_s(self) -> float:
        """Time of one step without other jobs on the GPUs [s], whatever the levels."""
        return self.forward_s + self.backward_s + self.communication_s

    @property
    def busy_s(self) -> float:
        """Time that a step keeps the link busy [s]."""
        return self.communication_s


def _check_parts(**parts_s: float) -> None:
    for name, part_s in parts_s.items():
        if not math.isfinite(part_s) or part_s < 0:
            raise ValueError(f"a job's {name} is {part_s}: it must not be below zero")


@dataclass(frozen=True)
class TurnPlan:
    """The turn order of a round, by job number, and the share of its speed alone that each job keeps."""

    pattern: tuple[int, ...]
    round_s: float
    rates: tuple[float, ...]

    @property
    def speedup(self) -> float:
        """Σ rates: the number of devices that would do the same work; jobs one after the other give 1."""
        return sum(self.rates)

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


def loads(jobs: Sequence[SpatialJob], workers: int, levels: int) -> Loads:
    """Duration of a turn of each job on each GPU [s], one entry per distinct GPU. The module states the placement.

    Raises ValueError without jobs, and for levels that are not 1 to `workers`.
    """
    if not jobs or not 1 <= levels <= workers:
        raise ValueError(f"{len(jobs)} jobs of {levels} levels do not go onto {workers} GPUs")
    depths = sorted(worker % levels + 1 for worker in range(workers))
    on_gpu: list[tuple[float, ...]] = [()] * workers
    for job in jobs:
        busiest_first = sorted(range(workers), key=lambda gpu: (-sum(on_gpu[gpu]), gpu))
        for gpu, depth in zip(busiest_first, depths, strict=True):
            on_gpu[gpu] += (job.forward_s + job.backward_s * depth / levels,)
    return tuple(dict.fromkeys(on_gpu))


def round_s(jobs: Sequence[JobTimes], pattern: Sequence[int]) -> float:
    """Steady-state time [s] of one round of `pattern`, exactly.

    Raises ValueError for an empty pattern or a job that does not exist.
    """
    return round_on_s(jobs, _one_device(jobs), pattern)


def round_on_s(jobs: Sequence[JobTimes | SpatialJob], on_gpu: Loads, pattern: Sequence[int]) -> float:
    """`round_s` on several GPUs, where turns take `on_gpu`."""
    if not pattern or not all(0 <= job < len(jobs) for job in pattern):
        raise ValueError(f"the pattern {tuple(pattern)} does not name jobs 0 to {len(jobs) - 1}")
    turns = [_turn(jobs, on_gpu, job) for job in range(len(jobs))]
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
    return _best(jobs, _one_device(jobs), max_length)


def pack(jobs: Sequence[SpatialJob], workers: int, levels: int, max_length: int = 6) -> TurnPlan:
    """`best_pattern` of jobs of partial backpropagation. Raises ValueError as it and `loads` do."""
    return _best(jobs, loads(jobs, workers, levels), max_length)


def _best(jobs: Sequence[JobTimes | SpatialJob], on_gpu: Loads, max_length: int) -> TurnPlan:
    if not jobs or max_length < len(jobs):
        raise ValueError(f"a pattern of at most {max_length} turns cannot hold {len(jobs)} jobs")
    best: TurnPlan | None = None
    for pattern in patterns(len(jobs), max_length):
        took_s = round_on_s(jobs, on_gpu, pattern)
        rates = tuple(pattern.count(place) * job.alone_s / took_s for place, job in enumerate(jobs))
        if best is None or sum(rates) > best.speedup * (1 + 1e-9):
            best = TurnPlan(pattern, took_s, rates)
    assert best is not None  # one turn each is always a pattern
    return best


def _one_device(jobs: Sequence[JobTimes]) -> Loads:
    return (tuple(job.compute_s for job in jobs),)


def _turn(jobs: Sequence[JobTimes | SpatialJob], on_gpu: Loads, job: int) -> FloatArray:
    """The max-plus matrix of one turn over the state (each kind of GPU free, link free, arrival of each job)."""
    gpus = len(on_gpu)
    link, own = gpus, gpus + 1 + job
    communication_s, busy_s = jobs[job].communication_s, jobs[job].busy_s
    matrix = np.full((gpus + 1 + len(jobs), gpus + 1 + len(jobs)), -np.inf)
    np.fill_diagonal(matrix, 0.0)
    for gpu, turns_s in enumerate(on_gpu):
        matrix[gpu, gpu] = matrix[gpu, own] = turns_s[job]
        matrix[own, gpu] = turns_s[job] + communication_s
    matrix[own, own] = max(turns_s[job] for turns_s in on_gpu) + communication_s
    if busy_s > 0:
        matrix[own, link] = busy_s
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
