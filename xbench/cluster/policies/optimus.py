"""Optimus (Peng et al., EuroSys 2018): greedy growth by marginal gain.

Every job has its least number of GPUs. While GPUs remain and help, the job whose remaining time falls most per added
GPU, (t(w) − t(w')) / (w' − w) for its next allowed number w', grows.

The plan starts from the last one: GPUs move from where they help least to where they help most, until no move pays. If
each further GPU helps less than the one before (t convex over sizes, all of them allowed), that is the greedy result
from scratch. Otherwise it is a plan that no move improves from the job that loses least to the one that gains most a
GPU. So an event costs a look at each job, and work for the moves.

**Restarts.** A running job does not grow if that would shorten it by less than the restart costs
(`without_small_gains`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from xbench.cluster.jobs import Job
from xbench.cluster.policies.rows import Columns, Elastic, Vector, Whole
from xbench.cluster.policy import Active, Cluster

TIE = 1.0 + 1e-9
"""Gains within this factor are equal. They differ by rounding, and moving a GPU to and fro would never end."""


class Optimus(Elastic):
    """The policy."""

    name = "optimus"

    def __init__(self) -> None:
        super().__init__()
        self._steps: dict[int, int] = {}
        """Index of each job's planned size, by number; -1: it waits."""
        self._free = 0

    def begin(self, cluster: Cluster, jobs: Sequence[Job]) -> None:
        """See `Policy`."""
        super().begin(cluster, jobs)
        self._free = cluster.gpus

    def columns(self, jobs: Sequence[Job]) -> Columns:
        """`up`: time that the next step saves per unit of work and GPU; `down`: that of the last step taken."""
        return dict.fromkeys(("planned", "least", "up_by", "down_by"), (0, int)) | dict.fromkeys(
            ("up", "down"), (0, float)
        )

    def arrived(self, job: Active, now_s: float) -> None:
        """Add the job without a plan."""
        row = self._rows.append(job)
        self._rows["least"][row] = job.job.sizes_on(self.cluster.gpus)[0]
        self._steps[job.number] = -1

    def finished(self, job: Active, now_s: float) -> None:
        """Free the planned GPUs."""
        self._free += int(self._rows["planned"][self._rows.jobs.index(job)])
        del self._steps[job.number]
        super().finished(job, now_s)

    def plan(self, now_s: float) -> Whole:
        """See `Elastic`. Updates the last plan."""
        left = self._rows.remaining(now_s)
        self._serve(left)
        self._balance(left)
        return self.without_small_gains(self._rows["planned"].copy(), left)

    def _serve(self, left: Vector) -> None:
        """Give every job its least, in the order of arrival, from the jobs that it helps least."""
        planned, leasts = self._rows["planned"], self._rows["least"]
        reserve = int((planned - leasts)[planned > 0].sum())
        for row in np.nonzero(planned == 0)[0].tolist():
            least = int(leasts[row])
            if least > self._free + reserve:
                return
            while least > self._free:
                before = self._free
                self._step(self._cheapest(left), -1)
                reserve -= self._free - before
            self._step(row, 1)

    def _balance(self, left: Vector) -> None:
        """Give out free GPUs, then move those that help more elsewhere."""
        up, down, up_by, down_by = (self._rows[name] for name in ("up", "down", "up_by", "down_by"))
        while True:
            gains = left * up
            fitting = np.where(up_by > self._free, 0.0, gains)
            best = int(np.argmax(fitting))
            if fitting[best] > 0:
                self._step(best, 1)
                continue
            best = int(np.argmax(gains))
            worst = self._cheapest(left, but=best)
            if gains[best] <= 0 or worst < 0:
                return
            loss = float(left[worst] * down[worst]) * int(down_by[worst])
            fits = self._free + int(down_by[worst]) >= int(up_by[best])
            if not fits or float(gains[best]) * int(up_by[best]) <= loss * TIE:
                return
            self._step(worst, -1)
            self._step(best, 1)

    def _cheapest(self, left: Vector, but: int = -1) -> int:
        """The row whose last step helps least; -1 if none has taken one."""
        losses = np.where(self._rows["down_by"] > 0, left * self._rows["down"], np.inf)
        if but >= 0:
            losses[but] = np.inf
        row = int(np.argmin(losses))
        return row if np.isfinite(losses[row]) else -1

    def _step(self, row: int, by: int) -> None:
        """Plan one size more or less for a row."""
        rows = self._rows
        job = rows.jobs[row]
        sizes = job.job.sizes_on(self.cluster.gpus)
        at = self._steps[job.number] = self._steps[job.number] + by
        size, speed = int(sizes[at]), job.job.speed
        self._free -= size - int(rows["planned"][row])
        rows["planned"][row] = size
        rows["up_by"][row] = rows["down_by"][row] = 0
        rows["up"][row] = rows["down"][row] = 0.0
        if at + 1 < len(sizes):
            more = int(sizes[at + 1])
            rows["up_by"][row] = more - size
            rows["up"][row] = (1 / speed(size) - 1 / speed(more)) / (more - size)
        if at:
            less = int(sizes[at - 1])
            rows["down_by"][row] = size - less
            rows["down"][row] = (1 / speed(less) - 1 / speed(size)) / (size - less)
