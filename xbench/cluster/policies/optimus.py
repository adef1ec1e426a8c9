"""One GPU more for whom it helps most (Peng et al., Optimus, EuroSys 2018): greedy by marginal gain.

Every job has its least number of GPUs; again and again the job whose remaining time falls most per added GPU,
(t(w) − t(w')) / (w' − w) for the next number w' that it may have, gets it, while GPUs remain and help. Planned anew
whenever a job comes or goes; if not even everybody's least fits, the last arrivals wait.

The plan starts from the last one: GPUs move from where they help least to where they help most until none is worth
moving. Where each GPU more helps less than the one before (t convex over sizes, all of them allowed) that is where the
greedy ends when it starts anew; else it is a plan that no single move improves. So an event costs a look at each job,
and work for what moves.

**Restarts.** A running job that is to grow stays as it is when that would shorten it by less than the restart costs;
what that leaves lets jobs that were to shrink stay (`not_for_less`). `plain` switches this off.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from xbench.cluster.jobs import Job
from xbench.cluster.policies.rows import Rows, Vector, not_for_less
from xbench.cluster.policies.sizes import all_sizes, require_speeds
from xbench.cluster.policy import Active, Change, Cluster, Policy

TIE = 1.0 + 1e-9
"""Gains within this factor are equal: they differ by rounding, and moving a GPU to and fro would never end."""


class Optimus(Policy):
    """See the module. `begin` raises SpecError for jobs without speeds."""

    elastic = True

    def __init__(self, plain: bool = False) -> None:
        self.plain = plain
        self._rows = Rows({"planned": (0, int), "up": (0, float), "down": (0, float), "up_by": (0, int),
                           "down_by": (0, int), "least": (0, int)})  # fmt: skip
        """`up`: how much a unit of work gets faster by the next step, per GPU; `down`: by the last one taken."""
        self._steps: dict[int, int] = {}
        """Of each job, by number: at which of its sizes the plan has it; -1: it waits."""
        self._free = 0

    def begin(self, cluster: Cluster, jobs: Iterable[Job]) -> None:
        """See `Policy`."""
        super().begin(cluster, jobs)
        require_speeds("optimus", cluster, jobs)
        self._free = cluster.gpus

    def arrived(self, job: Active, now_s: float) -> None:
        """Nothing is planned for it yet."""
        place = self._rows.append(job)
        self._rows["least"][place] = all_sizes(job.job, self.cluster)[0]
        self._steps[job.number] = -1

    def finished(self, job: Active, now_s: float) -> None:
        """What was planned for it is free."""
        place = self._rows.jobs.index(job)
        self._free += int(self._rows["planned"][place])
        self._rows.remove(job)
        del self._steps[job.number]

    def decide(self, now_s: float) -> Iterator[Change]:
        """Mend the plan, and do what is worth it."""
        rows = self._rows
        if not len(rows):
            return
        left = rows.remaining(now_s)
        self._serve(left)
        self._balance(left)
        gpus = rows["planned"].copy()
        if not self.plain and self.cluster.restart_s:
            gpus = not_for_less(rows, gpus, left, self.cluster.restart_s)
        yield from rows.changes(gpus)

    def _serve(self, left: Vector) -> None:
        """Everybody's least, in the order of arrival, taken from whom it helps least."""
        planned, leasts = self._rows["planned"], self._rows["least"]
        reserve = int((planned - leasts)[planned > 0].sum())
        for place in np.nonzero(planned == 0)[0].tolist():
            least = int(leasts[place])
            if least > self._free + reserve:
                return
            while least > self._free:
                before = self._free
                self._step(self._cheapest(left), -1)
                reserve -= self._free - before
            self._step(place, 1)

    def _balance(self, left: Vector) -> None:
        """Give what is free, then move what helps more elsewhere."""
        rows = self._rows
        up, up_by = rows["up"], rows["up_by"]
        down_by = rows["down_by"]
        while True:
            gains = left * up
            gains[up_by > self._free] = 0.0
            best = int(np.argmax(gains))
            if gains[best] > 0:
                self._step(best, 1)
                continue
            gains = left * up
            best = int(np.argmax(gains))
            worst = self._cheapest(left, but=best)
            if gains[best] <= 0 or worst < 0:
                return
            loss = float(left[worst] * rows["down"][worst]) * int(down_by[worst])
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
        place = int(np.argmin(losses))
        return place if np.isfinite(losses[place]) else -1

    def _step(self, place: int, by: int) -> None:
        """Plan one size more or less for a row."""
        rows = self._rows
        job = rows.jobs[place]
        sizes = all_sizes(job.job, self.cluster)
        at = self._steps[job.number] = self._steps[job.number] + by
        size, speed = int(sizes[at]), job.job.speed
        self._free -= size - int(rows["planned"][place])
        rows["planned"][place] = size
        rows["up_by"][place] = rows["down_by"][place] = 0
        rows["up"][place] = rows["down"][place] = 0.0
        if at + 1 < len(sizes):
            more = int(sizes[at + 1])
            rows["up_by"][place] = more - size
            rows["up"][place] = (1 / speed(size) - 1 / speed(more)) / (more - size)
        if at:
            less = int(sizes[at - 1])
            rows["down_by"][place] = size - less
            rows["down"][place] = (1 / speed(less) - 1 / speed(size)) / (size - less)
