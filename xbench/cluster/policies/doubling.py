"""Doubling (Capes, Raheja, Kemertas and Mohomed, arXiv 1908.08082), with known speeds.

Every job starts at one GPU (or its least number). While GPUs remain and a doubling helps, the job whose remaining time
t falls most per added GPU, gain(w) = (t(w) − t(2w)) / w, is doubled. A doubling that does not fit is skipped. A new
plan is made whenever a job comes or goes. If not even the first sizes of all jobs fit, the last arrivals wait. The
paper calls this `precompute`. Rings want powers of two, so a job has 1, 2, 4, ... GPUs.

**Restarts.** t(w) includes the restart that w would cost: none on the GPUs that a job already holds, and `restart_s` on
any other number. So a job moves only for a gain above the cost of its restart. `plain` leaves restarts out of t: the
paper's rule.

**Cost.** The greedy selection is found without a walk. A doubling is taken only after all earlier ones of its job, so
its effective gain is the least of these gains, and all above some threshold are taken. The threshold moves little from
plan to plan, so only doublings near the last one are sorted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from xbench.cluster.jobs import Job
from xbench.cluster.policies.rows import Rows, Vector, Whole
from xbench.cluster.policies.sizes import doubling_sizes, require_speeds
from xbench.cluster.policy import Active, Change, Cluster, Policy

NEAR = 1.25
"""Initial factor around the last threshold within which doublings are sorted."""


class Doubling(Policy):
    """The policy. `begin` raises SpecError for jobs without speeds."""

    name = "doubling"
    elastic = True

    def __init__(self, plain: bool = False) -> None:
        self.plain = plain
        self._rows = Rows()
        self._threshold = 1.0

    def begin(self, cluster: Cluster, jobs: Iterable[Job]) -> None:
        """See `Policy`."""
        super().begin(cluster, jobs)
        jobs = list(jobs)
        require_speeds(self.name, cluster, jobs)
        steps = max((len(doubling_sizes(job, cluster)) for job in jobs), default=1)
        self._rows = Rows({"sizes": (steps, int), "added": (steps, float), "helps": (steps, float),
                           "first": (0, int), "number": (0, int)})  # fmt: skip
        """By step: `sizes`; `added` GPUs; `helps`: time saved per unit of work and added GPU.

        `first`: the initial size.
        """

    def arrived(self, job: Active, now_s: float) -> None:
        """Add the job's sizes and speeds."""
        row = self._rows.append(job)
        sizes = doubling_sizes(job.job, self.cluster)
        self._rows["number"][row] = job.number
        self._rows["first"][row] = sizes[0]
        self._rows["sizes"][: len(sizes), row] = sizes
        added = np.diff(sizes)
        self._rows["added"][1 : len(sizes), row] = added
        pace = np.array([1 / job.job.speed(size) for size in sizes])
        self._rows["helps"][1 : len(sizes), row] = -np.diff(pace) / added

    def finished(self, job: Active, now_s: float) -> None:
        """Forget the job."""
        self._rows.remove(job)

    def decide(self, now_s: float) -> Iterator[Change]:
        """Make a new plan."""
        if len(self._rows):
            yield from self._rows.changes(self.plan(now_s))

    def plan(self, now_s: float) -> Whole:
        """GPUs of each row."""
        left = self._rows.remaining(now_s)
        first, helps = self._rows["first"], self._rows["helps"]
        gpus = np.zeros(len(left), dtype=np.int64)
        served = int(np.searchsorted(np.cumsum(first), self.cluster.gpus, side="right"))
        gpus[:served] = first[:served]
        spare = self.cluster.gpus - int(first[:served].sum())
        if spare and len(helps) > 1:
            added, sizes = self._rows["added"][1:, :served], self._rows["sizes"][:, :served]
            gains = helps[1:, :served] * left[:served]
            if not self.plain and self.cluster.restart_s:
                self._charge(gains, added, served)
                gains[helps[1:, :served] == 0.0] = 0.0
            for step in range(1, len(gains)):
                np.minimum(gains[step], gains[step - 1], out=gains[step])
            taken, self._threshold = take(gains, added, spare, self._threshold)
            gpus[:served] = np.where(taken > 0, sizes[taken, np.arange(served)], first[:served])
        return gpus

    def _charge(self, gains: Vector, added: Vector, served: int) -> None:
        """Charge a restart for every size but the current one: the step to it gains it, the next step loses it."""
        held, sizes = self._rows.held[:served], self._rows["sizes"][:, :served]
        is_held = (sizes == held) & (held > 0)
        reached = is_held[1:]
        gains[reached] += self.cluster.restart_s / added[reached]
        beyond = is_held[:-1] & (added > 0)
        gains[beyond] -= self.cluster.restart_s / added[beyond]


def take(gains: Vector, added: Vector, spare: float, near: float) -> tuple[Whole, float]:
    """Number of steps of each column that a greedy selection takes, and the gain below which it stopped.

    `gains` (steps × columns) do not rise within a column. Steps above zero are taken by gain, then column, as long as
    their GPUs fit. A step that does not fit is skipped, and so are all later steps of its column.
    """
    helping = gains > 0
    total = float(np.vdot(helping, added))
    if total <= spare:
        return helping.sum(axis=0), near
    high = near * NEAR
    while (spent := float(np.vdot(gains > high, added))) > spare:
        high *= NEAR * NEAR
    above = gains > high
    taken = above.sum(axis=0)
    spare -= spent
    low = near / NEAR
    threshold = near
    while spare > 0:
        window = np.nonzero(helping & (gains <= high) & (gains > low) & (added <= spare))
        if len(window[0]):
            values = gains[window]
            order = np.lexsort((window[0], window[1], -values))
            for index in order.tolist():
                step, column = window[0][index], window[1][index]
                if step != taken[column] or added[step, column] > spare:
                    continue
                spare -= added[step, column]
                taken[column] += 1
                threshold = float(values[index])
                if not spare:
                    break
        if not np.any(helping & (gains <= low)):
            break
        high, low = low, low / NEAR**8 if low > 1e-300 else 0.0
    return taken, threshold
