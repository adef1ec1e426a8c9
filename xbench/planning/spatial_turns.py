"""Jobs of spatial partial backpropagation on the same GPUs: deep workers of one fill gaps of another's shallow ones.

With k levels, worker r of a job backpropagates through (r mod k)+1 of k bands (`partial`): with F seconds of forward
and B of backward pass it is busy for F + i/k·B at level i, and idle while the full-depth workers go on, B − i/k·B, and
while gradients travel, M. A step takes F + B + M however shallow the others are: **alone, the job gains nothing.**

**Together**, jobs take turns as in crossover (`turns`), in the same order on every GPU. On GPU g a turn of job j lasts
busy[g][j]. It may start when that GPU is free and the job's gradients of the step before have arrived; they arrive M
after the *last* of its workers is done, over a link that serves first in, first out:

    start[g] = max(free[g], arrival[j])         free[g] = start[g] + busy[g][j]
    arrival[j] = link = max(max over g of free[g] + M, link + M)

One turn is again a matrix in the max-plus algebra, over (GPUs, link, arrivals), and the time of a round in the steady
state is the eigenvalue of the product of its turns: exact. GPUs with the same turns are one row. With one level this is
`turns.round_s`.

**Which worker where.** Every replica holds the whole model, so any worker can have any level, at any step, for nothing.
The first job's levels ascend over the GPUs; of each further one the deepest workers go to the GPUs that have least to
do. So a second job's levels descend, and of two equal jobs each GPU has 2F + (k+1)/k·B to do a round.

**What it can gain.** A GPU is busy for f + (1−f)·(k+1)/2k of C = F + B in the mean, f = F/C, and no longer than always:
so at most (1 + M/C) / (f + (1−f)·(k+1)/2k) steps for one of a job alone. With f = 1/3 and M = 0: 1.20 for k = 2, 1.29
for k = 3, 1.33 for k = 4, 1.5 for ever more levels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from xbench.planning.cost import FloatArray
from xbench.planning.turns import LETTERS, after, eigenvalue, patterns

Loads = tuple[tuple[float, ...], ...]
"""By kind of GPU: how long a turn of each job lasts there [s]."""


@dataclass(frozen=True)
class SpatialJob:
    """A step: forward pass, backward pass of full depth, and exposed communication [s].

    Raises ValueError for what is not finite or below zero, and for a step without computation.
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
        """One step with the GPUs to itself [s], whatever the levels."""
        return self.forward_s + self.backward_s + self.communication_s

    def busy_s(self, level: int, levels: int) -> float:
        """How long a worker of that level computes [s]."""
        return self.forward_s + self.backward_s * level / levels


@dataclass(frozen=True)
class Packing:
    """The turn order of a round, by job number, and what each job keeps of its speed alone."""

    pattern: tuple[int, ...]
    round_s: float
    rates: tuple[float, ...]

    @property
    def speedup(self) -> float:
        """Σ rates: how many jobs' worth of steps the GPUs do."""
        return sum(self.rates)

    @property
    def text(self) -> str:
        """'AB'."""
        return "".join(LETTERS[job] for job in self.pattern)


def loads(jobs: Sequence[SpatialJob], workers: int, levels: int) -> Loads:
    """How long a turn of each job lasts on each GPU [s], each different GPU once. See the module for who is where.

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
    """The turn order of at most `max_length` turns, every job in it, that does most. Of equals the shortest.

    Raises ValueError as `loads` does, and where the jobs are more than turns.
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
