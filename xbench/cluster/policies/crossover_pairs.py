"""Crossover pairs: two jobs take turns on the same GPUs, so that one computes while the other communicates.

This brings CrossoverScheduler (arXiv 2103.07974) to a cluster. `sharing` matches the pairs, and `planning.turns`
predicts their speed exactly: the steady state of the best turn order, in which a job computes for `compute_s` and then
waits `exposed_s` for its gradients over a shared link. A member's rate is its steps a second there over those alone.

**Admission** uses ρ, exposed communication over compute. GPUs compute for 1/(1+ρ) of a job's time alone and no more
than always, so Σ rate/(1+ρ) ≤ 1 and Σ rates ≤ 1 + the larger ρ. Two jobs below `ratio` cannot gain more than `ratio`,
and are not paired. A job below it may still fill the gaps of one above. A pair is admitted if its rates add up to at
least 1 + `gain`. With known memory (`memory`: of a GPU [B]) both jobs have to fit together.

The model ignores the cost of passing a turn, other pairs on the same link, and caches.
"""

from __future__ import annotations

from functools import lru_cache

from xbench.cluster.jobs import Job
from xbench.cluster.policies.sharing import Kind, Sharing
from xbench.cluster.speeds import step_times
from xbench.errors import SpecError
from xbench.planning.turns import JobTimes, best_pattern

MAX_PATTERN = 6
"""Largest number of turns in a round: up to five short steps of one job to a long one of the other."""


class CrossoverPairs(Sharing):
    """The policy. Raises SpecError for a ratio below zero, and as `Sharing` does."""

    name = "crossover-pairs"

    def __init__(
        self, order: str = "fifo-backfill", ratio: float = 0.1, gain: float = 0.1, memory: int | None = None
    ) -> None:
        if ratio < 0:
            raise SpecError(f"{self.name}: ratio={ratio:g} is below zero", hint="write ratio=0.1")
        super().__init__(order, gain, memory)
        self.ratio = ratio

    def times(self, job: Job) -> Kind:
        """Time [s] of computation and of exposed communication."""
        step = step_times(job)
        assert step is not None  # checked by `begin`
        return step

    def together(self, gpus: int, kinds: tuple[Kind, ...]) -> tuple[float, ...] | None:
        """Rates in the best turn order."""
        jobs = [JobTimes(compute_s, exposed_s) for compute_s, exposed_s in kinds]
        if all(job.communication_s < self.ratio * job.compute_s for job in jobs):
            return None
        return pair_rates(*jobs)


@lru_cache(maxsize=1 << 16)
def pair_rates(*jobs: JobTimes) -> tuple[float, ...]:
    """Steps a second of each job in the best turn order, over those alone."""
    plan = best_pattern(jobs, MAX_PATTERN)
    return tuple(plan.pattern.count(index) * job.alone_s / plan.round_s for index, job in enumerate(jobs))
