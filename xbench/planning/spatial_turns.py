"""Turns of jobs of spatial partial backpropagation: deep workers of one job fill idle time of another's shallow ones.

With k levels, worker r of a job backpropagates through (r mod k)+1 of k bands (`partial`). Let the forward pass take F
seconds and the full backward pass B. A worker of level i is busy for F + i/k·B. It is idle for B − i/k·B, while the
full-depth workers continue, and for M, while gradients are sent. A step takes F + B + M whatever the other levels are:
**alone, the job gains nothing.**

**Together**, jobs take turns as in crossover (`turns`), in the same order on every GPU. On GPU g a turn of job j lasts
busy[g][j]. It may start when that GPU is free and the job's gradients of the step before have arrived. They arrive M
after the *last* of its workers has finished, over a link that serves first in, first out:

    start[g] = max(free[g], arrival[j])         free[g] = start[g] + busy[g][j]
    arrival[j] = link = max(max over g of free[g] + M, link + M)

One turn is a matrix in the max-plus algebra, over (GPUs, link, arrivals). The time of a round in the steady state is
the eigenvalue of the product of its turns, and it is exact. GPUs with the same turns are one row. With one level this
is `turns.round_s`.

**Placement of levels.** Every replica holds the whole model, so any worker can have any level, at any step, at no cost.
The first job's levels ascend over the GPUs. The deepest workers of each further job go to the GPUs with the least work.
So a second job's levels descend, and with two equal jobs each GPU has 2F + (k+1)/k·B of work per round.

**Possible gain.** A GPU is busy for f + (1−f)·(k+1)/2k of C = F + B in the mean, where f = F/C, and at most all the
time. So the speed-up is at most (1 + M/C) / (f + (1−f)·(k+1)/2k) over one job alone. With f = 1/3 and M = 0 the bound
is 1.20 for k = 2, 1.29 for k = 3, 1.33 for k = 4, and approaches 1.5 as k grows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from xbench.planning.cost import FloatArray
from xbench.planning.turns import LETTERS, after, eigenvalue, patterns

Loads = tuple[tuple[float, ...], ...]
"""Duration of a turn of each job [s], by kind of GPU."""


@dataclass(frozen=True)
class SpatialJob:
    """A step: forward pass, backward pass of full depth, and exposed communication [s].

    Raises ValueError for a value that is not finite or below zero, and for a step without computation.
    """

    forward_s: float
    backward_s: float
    communication_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("forward_s", "backward_s", "communication_s"):
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0:
                raise ValueError(f"a job's {name} is {value}: it must not be below zero")
        if self.forward_s + self.backward_s <= 0:
            raise ValueError("a job computes nothing")

    @property
    def alone_s(self) -> float:
        """Time of one step without other jobs on the GPUs [s], whatever the levels."""
        return self.forward_s + self.backward_s + self.communication_s

    def busy_s(self, level: int, levels: int) -> float:
        """Compute time of a worker of that level [s]."""
        return self.forward_s + self.backward_s * level / levels


@dataclass(frozen=True)
class Packing:
    """The turn order of a round, by job number, and the share of its speed alone that each job keeps."""

    pattern: tuple[int, ...]
    round_s: float
    rates: tuple[float, ...]

    @property
    def speedup(self) -> float:
        """Σ rates: the number of jobs alone whose steps the GPUs do in the same time."""
        return sum(self.rates)

    @property
    def text(self) -> str:
        """The pattern in letters, such as 'AB'."""
        return "".join(LETTERS[job] for job in self.pattern)


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
            on_gpu[gpu] += (job.busy_s(depth, levels),)
    return tuple(dict.fromkeys(on_gpu))


def round_s(jobs: Sequence[SpatialJob], on_gpu: Loads, pattern: Sequence[int]) -> float:
    """Steady-state time [s] of one round of `pattern`, exactly. Raises ValueError for a job that does not exist."""
    if not pattern or not all(0 <= job < len(jobs) for job in pattern):
        raise ValueError(f"the pattern {tuple(pattern)} does not name jobs 0 to {len(jobs) - 1}")
    turns = [_turn(jobs, on_gpu, job) for job in range(len(jobs))]
    whole = turns[pattern[0]]
    for job in pattern[1:]:
        whole = after(turns[job], whole)
    return eigenvalue(whole)


def pack(jobs: Sequence[SpatialJob], workers: int, levels: int, max_length: int = 6) -> Packing:
    """The turn order with the highest speed-up that contains every job. Among equal ones the shortest wins.

    A pattern has at most `max_length` turns. Raises ValueError as `loads` does, and where there are more jobs than
    turns.
    """
    if max_length < len(jobs):
        raise ValueError(f"a pattern of at most {max_length} turns cannot hold {len(jobs)} jobs")
    on_gpu = loads(jobs, workers, levels)
    best: Packing | None = None
    for pattern in patterns(len(jobs), max_length):
        took_s = round_s(jobs, on_gpu, pattern)
        rates = tuple(pattern.count(place) * job.alone_s / took_s for place, job in enumerate(jobs))
        if best is None or sum(rates) > best.speedup * (1 + 1e-9):
            best = Packing(pattern, took_s, rates)
    assert best is not None  # one turn each is always a pattern
    return best


def _turn(jobs: Sequence[SpatialJob], on_gpu: Loads, job: int) -> FloatArray:
    """The max-plus matrix of one turn over the state (each kind of GPU free, link free, arrival of each job)."""
    gpus = len(on_gpu)
    link, own = gpus, gpus + 1 + job
    communication_s = jobs[job].communication_s
    matrix = np.full((gpus + 1 + len(jobs), gpus + 1 + len(jobs)), -np.inf)
    np.fill_diagonal(matrix, 0.0)
    for gpu, turns_s in enumerate(on_gpu):
        matrix[gpu, gpu] = matrix[gpu, own] = turns_s[job]
        matrix[own, gpu] = turns_s[job] + communication_s
    matrix[own, own] = max(turns_s[job] for turns_s in on_gpu) + communication_s
    if communication_s > 0:
        matrix[own, link] = communication_s
        matrix[link] = matrix[own]
    return matrix
