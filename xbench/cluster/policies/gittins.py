"""Discretised two-dimensional Gittins index (Gu et al., Tiresias, NSDI 2019): the job likeliest to end soon runs first.

With S the service [GPU s] that a job needs in all, a job that has attained a has the index

    G(a) = max over b > a of  P(S ≤ b | S > a) / E[min(S, b) − a | S > a]

the chance of completion over the service spent, for the best stretch. The highest index runs first. On one machine, if
only the distribution of S is known, no policy has a lower mean JCT (Gittins 1979). S is the empirical distribution of
services, for which one of them is the best b. A level has the index of its lower end (`attained` defines levels and
promotion).

**Source of the distribution.** By default it is the whole trace, beforehand, as Tiresias uses the history of its
cluster. The policy then knows the lengths, but not which job has which. With `learn` it is the jobs that have finished
so far, updated whenever their number has doubled (8, 16, ...). Until then the lower level runs first, as under `las`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from xbench.cluster.jobs import Job
from xbench.cluster.policies.attained import Attained
from xbench.cluster.policy import Active, Cluster

THRESHOLDS = tuple(900.0 * 4**power for power in range(6))
FIRST_UPDATE = 8


class Gittins(Attained):
    """The policy. `thresholds` and `promote` as under `las`. Raises SpecError, as `Attained` does."""

    def __init__(self, thresholds: Sequence[float] = THRESHOLDS, promote: float = 8.0, learn: bool = False) -> None:
        super().__init__(thresholds, promote)
        self.learn = learn
        self._ranks = [float(level) for level in range(len(self.thresholds) + 1)]
        self._services_s: list[float] = []
        self._next_update = FIRST_UPDATE

    def begin(self, cluster: Cluster, jobs: Iterable[Job]) -> None:
        """See `Policy`."""
        super().begin(cluster, jobs)
        if not self.learn:
            self._set_distribution(np.array([job.service_s for job in jobs]))

    def rank(self, level: int) -> float:
        """The negative index of a level."""
        return self._ranks[level]

    def finished(self, job: Active, now_s: float) -> None:
        """Learn the service of a finished job."""
        super().finished(job, now_s)
        if self.learn:
            self._services_s.append(job.job.service_s)
            if len(self._services_s) == self._next_update:
                self._next_update *= 2
                self._set_distribution(np.array(self._services_s))
                self.rank_anew()

    def _set_distribution(self, services_s: NDArray[np.float64]) -> None:
        ordered = np.sort(services_s)
        self._ranks = [-gittins_index(ordered, attained_s) for attained_s in (0.0, *self.thresholds)]


def gittins_index(services_s: NDArray[np.float64], attained_s: float) -> float:
    """Index of a job with that attained service [GPU s], from an ascending sample of services; 0 if none is longer."""
    longer = services_s[np.searchsorted(services_s, attained_s, side="right") :] - attained_s
    if not len(longer):
        return 0.0
    done = np.arange(1, len(longer) + 1)
    spent_s = np.cumsum(longer) + (len(longer) - done) * longer
    return float(np.max(done / spent_s))
