"""Equal share (max-min fairness): every job has the same number of GPUs, as far as its sizes and whole GPUs allow.

A new plan uses the largest share s with which all jobs fit, where a job gets its largest allowed number up to s.
Remaining GPUs raise jobs to their next number, in the order of arrival, round after round, as long as they suffice.

**Restarts.** A running job does not grow if that would shorten it by less than the restart costs
(`without_small_gains`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from xbench.cluster.jobs import Job
from xbench.cluster.policies.rows import Columns, Elastic, Whole
from xbench.cluster.policy import Active

_NONE = np.iinfo(np.int64).max


class EqualShare(Elastic):
    """The policy."""

    name = "equal-share"

    def __init__(self) -> None:
        super().__init__()
        self._restricted = False
        """True if some jobs allow only certain numbers of GPUs."""

    def columns(self, jobs: Sequence[Job]) -> Columns:
        """The `least` and the `most` GPUs, and the `sizes` of jobs that allow only certain numbers."""
        known = [len(job.speed.sizes) for job in jobs if job.speed.sizes is not None]
        self._restricted = bool(known)
        return {"least": (0, int), "most": (0, int), "sizes": (max(known, default=1), int)}

    def arrived(self, job: Active, now_s: float) -> None:
        """Add a job."""
        row = self._rows.append(job)
        sizes = job.job.sizes_on(self.cluster.gpus)
        self._rows["least"][row] = sizes[0]
        self._rows["most"][row] = job.job.most_on(self.cluster.gpus)
        if not isinstance(sizes, range):
            self._rows["sizes"][: len(sizes), row] = sizes

    def plan(self, now_s: float) -> Whole:
        """See `Elastic`."""
        left = self._rows.remaining(now_s)
        gpus = np.zeros(len(left), dtype=np.int64)
        served = self.served(self._rows["least"])
        gpus[:served] = self._shares(served)
        return self.without_small_gains(gpus, left)

    def _shares(self, served: int) -> Whole:
        """GPUs of the first `served` rows."""
        low, high = 0, self.cluster.gpus + 1
        while high - low > 1:
            share = (low + high) // 2
            low, high = (share, high) if self._up_to(share, served).sum() <= self.cluster.gpus else (low, share)
        gpus = self._up_to(low, served)
        spare = self.cluster.gpus - int(gpus.sum())
        while spare:
            more = self._next(gpus, served) - gpus
            growing = np.nonzero((more > 0) & (more <= spare))[0]
            if not len(growing):
                break
            for row, by in zip(growing.tolist(), more[growing].tolist(), strict=True):
                if by <= spare:
                    gpus[row] += by
                    spare -= by
        return gpus

    def _up_to(self, share: int, served: int) -> Whole:
        """The largest allowed number of each row up to a share, or its least."""
        least, most = self._rows["least"][:served], self._rows["most"][:served]
        any_size: Whole = np.clip(share, least, most)
        if not self._restricted:
            return any_size
        sizes = self._rows["sizes"][:, :served]
        known = np.where(sizes <= share, sizes, 0).max(axis=0)
        return np.where(sizes[0] > 0, np.maximum(least, known), any_size)

    def _next(self, gpus: Whole, served: int) -> Whole:
        """The next allowed number of each row, or the same if there is none."""
        one_more: Whole = np.minimum(gpus + 1, self._rows["most"][:served])
        if not self._restricted:
            return one_more
        sizes = self._rows["sizes"][:, :served]
        above = np.where(sizes > gpus, sizes, _NONE).min(axis=0)
        return np.where(sizes[0] > 0, np.where(above == _NONE, gpus, above), one_more)
