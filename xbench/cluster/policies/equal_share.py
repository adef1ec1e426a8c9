"""Everybody has the same number of GPUs, as far as jobs can use them and whole GPUs allow: max-min fairness.

Planned anew whenever a job comes or goes: the largest share s is found with which all jobs fit, where a job has the
largest number up to s that it may have. What is left raises jobs to their next number, in the order of arrival, round
after round, as far as it reaches. If not even everybody's least fits, the last arrivals wait.

**Restarts.** A running job that is to grow stays as it is when that would shorten it by less than the restart costs;
what that leaves lets jobs that were to shrink stay (`not_for_less`). `plain` switches this off.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from xbench.cluster.jobs import Job
from xbench.cluster.policies.rows import Rows, Whole, not_for_less
from xbench.cluster.policies.sizes import all_sizes, most_of, require_speeds
from xbench.cluster.policy import Active, Change, Cluster, Policy


class EqualShare(Policy):
    """See the module. `begin` raises SpecError for jobs without speeds."""

    elastic = True

    def __init__(self, plain: bool = False) -> None:
        self.plain = plain
        self._rows = Rows()
        self._known = False
        """Whether some jobs may have certain numbers alone."""
        self._share = 1

    def begin(self, cluster: Cluster, jobs: Iterable[Job]) -> None:
        """See `Policy`."""
        super().begin(cluster, jobs)
        jobs = list(jobs)
        require_speeds("equal-share", cluster, jobs)
        known = [len(job.speed.sizes) for job in jobs if job.speed.sizes is not None]
        self._known = bool(known)
        self._rows = Rows({"least": (0, int), "most": (0, int), "sizes": (max(known, default=1), int)})

    def arrived(self, job: Active, now_s: float) -> None:
        """One more to share with."""
        place = self._rows.append(job)
        sizes = all_sizes(job.job, self.cluster)
        self._rows["least"][place] = sizes[0]
        self._rows["most"][place] = most_of(job.job, self.cluster)
        if not isinstance(sizes, range):
            self._rows["sizes"][: len(sizes), place] = sizes

    def finished(self, job: Active, now_s: float) -> None:
        """One less."""
        self._rows.remove(job)

    def decide(self, now_s: float) -> Iterator[Change]:
        """Share anew."""
        rows = self._rows
        if not len(rows):
            return
        left = rows.remaining(now_s)
        gpus = np.zeros(len(rows), dtype=np.int64)
        served = int(np.searchsorted(np.cumsum(rows["least"]), self.cluster.gpus, side="right"))
        gpus[:served] = self._shares(served)
        if not self.plain and self.cluster.restart_s:
            gpus = not_for_less(rows, gpus, left, self.cluster.restart_s)
        yield from rows.changes(gpus)

    def _shares(self, served: int) -> Whole:
        """Of the first `served` rows."""
        low, high, step = 0, self.cluster.gpus + 1, max(1, self._share)
        while low + step < high:
            if self._up_to(low + step, served).sum() <= self.cluster.gpus:
                low, step = low + step, 1 if not low else 2 * step
            else:
                high, step = low + step, max(1, step // 2) if not low else 1
        self._share = low
        gpus = self._up_to(low, served)
        spare = self.cluster.gpus - int(gpus.sum())
        while spare:
            more = self._next(gpus, served) - gpus
            places = np.nonzero((more > 0) & (more <= spare))[0]
            if not len(places):
                break
            together = np.cumsum(more[places])
            fitting = int(np.searchsorted(together, spare, side="right"))
            gpus[places[:fitting]] += more[places[:fitting]]
            spare -= int(together[fitting - 1])
            for place in places[fitting:].tolist() if spare else ():
                if more[place] <= spare:
                    gpus[place] += more[place]
                    spare -= int(more[place])
        return gpus

    def _up_to(self, share: int, served: int) -> Whole:
        """The largest number up to a share that each may have, or its least."""
        least, most = self._rows["least"][:served], self._rows["most"][:served]
        if not self._known:
            shares: Whole = np.clip(share, least, most)
            return shares
        sizes = self._rows["sizes"][:, :served]
        known = np.where(sizes <= share, sizes, 0).max(axis=0)
        gpus: Whole = np.maximum(least, np.where(sizes[0] > 0, known, np.minimum(share, most)))
        return gpus

    def _next(self, gpus: Whole, served: int) -> Whole:
        """The next number that each may have, or the same if there is none."""
        most = self._rows["most"][:served]
        if not self._known:
            one_more: Whole = np.minimum(gpus + 1, most)
            return one_more
        sizes = self._rows["sizes"][:, :served]
        above = np.where(sizes > gpus, sizes, np.iinfo(np.int64).max).min(axis=0)
        above = np.where(above == np.iinfo(np.int64).max, gpus, above)
        return np.where(sizes[0] > 0, above, np.minimum(gpus + 1, most))
