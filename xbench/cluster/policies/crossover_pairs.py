"""Crossover pairs: two jobs on the same GPUs in turns, so that one computes while the other's gradients travel.

CrossoverScheduler (arXiv 2103.07974) brought to a cluster: `sharing` says who rides with whom and how pairs are
matched, `planning.turns` how fast a pair is: the steady state of the best turn order, exactly, in which a job computes
for `compute_s` and then waits `exposed_s` for its gradients over a link that the two share. A member's rate is its
steps a second there over those alone.

**Admission** is by exposed communication over compute, ρ. GPUs compute for 1/(1+ρ) of a job's time alone and no more
than always, so Σ rate/(1+ρ) ≤ 1 and Σ rates ≤ 1 + the larger ρ: two jobs that are both under `ratio` cannot gain more
than `ratio`, and are not tried. One that is under it may still fill the gaps of one that is not. A pair is let in if
its rates add up to 1 + `gain` at least. With known memory (`memory`: of a GPU [B]) both have to fit beside each other.

What is not in the model: what passing a turn costs, a link that other pairs use too, caches.
"""

from __future__ import annotations

from functools import lru_cache

from xbench.cluster.jobs import Job
from xbench.cluster.policies.sharing import Kind, Sharing
from xbench.cluster.step_times import step_times
from xbench.errors import SpecError
from xbench.planning.turns import JobTimes, best_pattern

LONGEST_PATTERN = 6
"""Turns in a round: up to five short steps of one job to a long one of the other."""


class CrossoverPairs(Sharing):
    """See the module. Raises SpecError for a ratio below zero, and as `Sharing` does."""

    name = "crossover-pairs"

    def __init__(
        self, order: str = "fifo-backfill", ratio: float = 0.1, gain: float = 0.1, memory: int | None = None
    ) -> None:
        if ratio < 0:
            raise SpecError(f"{self.name}: ratio={ratio:g} is below zero", hint="write ratio=0.1")
        super().__init__(order, gain, memory)
        self.ratio = ratio

    def times(self, job: Job) -> Kind:
        """Seconds of computation and of exposed communication."""
        found = step_times(job)
        assert found is not None  # `begin` asked for them
        return found

    def together(self, gpus: int, kinds: tuple[Kind, ...]) -> tuple[float, ...] | None:
        """By the best turn order."""
        jobs = [JobTimes(compute_s, exposed_s) for compute_s, exposed_s in kinds]
        if all(job.communication_s < self.ratio * job.compute_s for job in jobs):
            return None
        return pair_rates(*jobs)


@lru_cache(maxsize=1 << 16)
def pair_rates(*jobs: JobTimes) -> tuple[float, ...]:
    """Steps a second of each in the best turn order, over those alone."""
    plan = best_pattern(jobs, LONGEST_PATTERN)
    return tuple(plan.pattern.count(place) * job.alone_s / plan.round_s for place, job in enumerate(jobs))
