"""Discretised two-dimensional Gittins index (Gu et al., Tiresias, NSDI 2019): who is likeliest to be done soon.

With S the service [GPU s] that a job needs in all, a job that has attained a has the index

    G(a) = max over b > a of  P(S ≤ b | S > a) / E[min(S, b) − a | S > a]

chances of being done over service spent, for the best stretch to bet on; the highest index runs first. On one machine,
with S known as a distribution alone, no policy has a lower mean JCT (Gittins 1979). S is the empirical distribution of
services, for which some b among them is the best, and the index is that of a level's lower end (`attained` says what
levels and promotion are).

**Where the distribution comes from.** From all of the trace, beforehand (the default, and what Tiresias does with the
history of its cluster): it knows how long jobs are, not which. Or, with `learn`, from the jobs that have finished so
far, anew whenever their number has doubled (8, 16, ...); until then the lower level goes first, as under `las`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from xbench.cluster.jobs import Job
from xbench.cluster.policies.attained import Attained
from xbench.cluster.policy import Active, Cluster

THRESHOLDS = tuple(900.0 * 4**power for power in range(6))
FIRST_LESSON = 8


class Gittins(Attained):
    """See the module. `thresholds` and `promote` as under `las`. Raises SpecError, as `Attained` does."""

    def __init__(self, thresholds: Sequence[float] = THRESHOLDS, promote: float = 8.0, learn: bool = False) -> None:
        super().__init__(thresholds, promote)
        self.learn = learn
        self._ranks = [float(level) for level in range(len(self.thresholds) + 1)]
        self._services_s: list[float] = []
        self._lesson = FIRST_LESSON

    def begin(self, cluster: Cluster, jobs: Iterable[Job]) -> None:
        """See `Policy`."""
        super().begin(cluster, jobs)
        if not self.learn:
            self._know(np.array([job.service_s for job in jobs]))

    def rank(self, level: int) -> float:
        """Less than nothing, by the index."""
        return self._ranks[level]

    def finished(self, job: Active, now_s: float) -> None:
        """A service more is known."""
        super().finished(job, now_s)
        if self.learn:
            self._services_s.append(job.job.service_s)
            if len(self._services_s) == self._lesson:
                self._lesson *= 2
                self._know(np.array(self._services_s))
                self.rank_anew()

    def _know(self, services_s: NDArray[np.float64]) -> None:
        ordered = np.sort(services_s)
        self._ranks = [-gittins_index(ordered, attained_s) for attained_s in (0.0, *self.thresholds)]


def gittins_index(services_s: NDArray[np.float64], attained_s: float) -> float:
    """The index of a job that has attained so much [GPU s], by an ascending sample of services; 0 if none is longer."""
    longer = services_s[np.searchsorted(services_s, attained_s, side="right") :] - attained_s
    if not len(longer):
        return 0.0
    done = np.arange(1, len(longer) + 1)
    spent_s = np.cumsum(longer) + (len(longer) - done) * longer
    return float(np.max(done / spent_s))
