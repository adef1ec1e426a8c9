"""Equal share (max-min fairness): every job has the same number of GPUs, as far as its sizes and whole GPUs allow.

A new plan is made whenever a job comes or goes. It uses the largest share s with which all jobs fit, where a job gets
its largest allowed number up to s. Remaining GPUs raise jobs to their next number, in the order of arrival, round after
round, as long as they suffice. If not even the least of all jobs fits, the last arrivals wait.

**Restarts.** A running job does not grow if that would shorten it by less than the restart costs. The GPUs that this
leaves let shrinking jobs stay as they are (`not_for_less`). `plain` switches this off.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from xbench.cluster.jobs import Job
from xbench.cluster.policies.rows import Rows, Whole, not_for_less
from xbench.cluster.policies.sizes import all_sizes, most_of, require_speeds
from xbench.cluster.policy import Active, Change, Cluster, Policy


class EqualShare(Policy):
    """The policy. `begin` raises SpecError for jobs without speeds."""

    elastic = True

    def __init__(self, plain: bool = False) -> None:
        self.plain = plain
        self._rows = Rows()
        self._restricted = False
        """True if some jobs allow only certain numbers of GPUs."""
        self._share = 1

    def begin(self, cluster: Cluster, jobs: Iterable[Job]) -> None:
        """See `Policy`."""
        super().begin(cluster, jobs)
        jobs = list(jobs)
        require_speeds("equal-share", cluster, jobs)
        known = [len(job.speed.sizes) for job in jobs if job.speed.sizes is not None]
        self._restricted = bool(known)
        self._rows = Rows({"least": (0, int), "most": (0, int), "sizes": (max(known, default=1), int)})

    def arrived(self, job: Active, now_s: float) -> None:
        """Add a job."""
        row = self._rows.append(job)
        sizes = all_sizes(job.job, self.cluster)
        self._rows["least"][row] = sizes[0]
        self._rows["most"][row] = most_of(job.job, self.cluster)
        if not isinstance(sizes, range):
            self._rows["sizes"][: len(sizes), row] = sizes

    def finished(self, job: Active, now_s: float) -> None:
        """Remove a job."""
        self._rows.remove(job)

    def decide(self, now_s: float) -> Iterator[Change]:
        """Make a new plan."""
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
        """GPUs of the first `served` rows."""
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
            growing = np.nonzero((more > 0) & (more <= spare))[0]
            if not len(growing):
                break
            needed = np.cumsum(more[growing])
            fitting = int(np.searchsorted(needed, spare, side="right"))
            gpus[growing[:fitting]] += more[growing[:fitting]]
            spare -= int(needed[fitting - 1])
            for row in growing[fitting:].tolist() if spare else ():
                if more[row] <= spare:
                    gpus[row] += more[row]
                    spare -= int(more[row])
        return gpus

    def _up_to(self, share: int, served: int) -> Whole:
        """The largest allowed number of each row up to a share, or its least."""
        least, most = self._rows["least"][:served], self._rows["most"][:served]
        if not self._restricted:
            shares: Whole = np.clip(share, least, most)
            return shares
        sizes = self._rows["sizes"][:, :served]
        known = np.where(sizes <= share, sizes, 0).max(axis=0)
        gpus: Whole = np.maximum(least, np.where(sizes[0] > 0, known, np.minimum(share, most)))
        return gpus

    def _next(self, gpus: Whole, served: int) -> Whole:
        """The next allowed number of each row, or the same if there is none."""
        most = self._rows["most"][:served]
        if not self._restricted:
            one_more: Whole = np.minimum(gpus + 1, most)
            return one_more
        sizes = self._rows["sizes"][:, :served]
        above = np.where(sizes > gpus, sizes, np.iinfo(np.int64).max).min(axis=0)
        above = np.where(above == np.iinfo(np.int64).max, gpus, above)
        return np.where(sizes[0] > 0, above, np.minimum(gpus + 1, most))
