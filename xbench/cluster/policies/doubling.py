"""Doubling (Capes, Raheja, Kemertas and Mohomed, arXiv 1908.08082), with speeds that are known beforehand.

Every job starts at one GPU (or the least that it may have). Again and again the job whose remaining time t falls most
per added GPU, gain(w) = (t(w) − t(2w)) / w, is doubled, while GPUs remain and a doubling helps. A doubling that does
not fit is passed over. Planned anew whenever a job comes or goes; if not even everybody's first size fits, the last
arrivals wait. The paper calls it `precompute`; rings want powers of two, and so a job has 1, 2, 4, ... GPUs.

**Restarts.** t(w) holds the restart that w would cost: none on the GPUs that a job holds already, and `restart_s` on
any other number. So a job is moved for no less than its restart, and a doubling that it has already counts for more
than one it would have to restart for. `plain` leaves restarts out of t: the paper's rule.

**Cost.** Which doublings the greedy takes is found without walking: a doubling is taken when every earlier one of its
job has been, so what decides is the least of the gains so far, and all above some threshold are taken. The threshold
moves little from plan to plan, so only doublings near the last one are sorted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from xbench.cluster.jobs import Job
from xbench.cluster.policies.rows import Rows, Vector, Whole
from xbench.cluster.policies.sizes import doubling_sizes, require_speeds
from xbench.cluster.policy import Active, Change, Cluster, Policy

NEAR = 1.25
"""How far around the last threshold doublings are sorted, at first."""


class Doubling(Policy):
    """See the module. `begin` raises SpecError for jobs without speeds."""

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
        """By step: the size; GPUs that it adds; how much a unit of work gets faster by it, per added GPU. `first`: what
        doubling starts from."""

    def arrived(self, job: Active, now_s: float) -> None:
        """Its sizes and speeds."""
        place = self._rows.append(job)
        sizes = doubling_sizes(job.job, self.cluster)
        self._rows["number"][place] = job.number
        self._rows["first"][place] = sizes[0]
        self._rows["sizes"][: len(sizes), place] = sizes
        added = np.diff(sizes)
        self._rows["added"][1 : len(sizes), place] = added
        pace = np.array([1 / job.job.speed(size) for size in sizes])
        self._rows["helps"][1 : len(sizes), place] = -np.diff(pace) / added

    def finished(self, job: Active, now_s: float) -> None:
        """It is forgotten."""
        self._rows.remove(job)

    def decide(self, now_s: float) -> Iterator[Change]:
        """Plan anew."""
        if len(self._rows):
            yield from self._rows.changes(self.plan(now_s))

    def plan(self, now_s: float) -> Whole:
        """What each row should hold."""
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
        """A restart for every size but the one that a job holds: the step there gains it, the next one loses it."""
        held, sizes = self._rows.held[:served], self._rows["sizes"][:, :served]
        here = (sizes == held) & (held > 0)
        there = here[1:]
        gains[there] += self.cluster.restart_s / added[there]
        beyond = here[:-1] & (added > 0)
        gains[beyond] -= self.cluster.restart_s / added[beyond]


def take(gains: Vector, added: Vector, spare: float, near: float) -> tuple[Whole, float]:
    """How many steps of each column a greedy takes, and the gain below which it stopped.

    `gains` (steps × columns) do not rise within a column. Steps above zero are taken by gain, then column, as long as
    what they add fits; one that does not fit is passed over, and so are all that follow it in its column.
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
            for place in order.tolist():
                step, column = window[0][place], window[1][place]
                if step != taken[column] or added[step, column] > spare:
                    continue
                spare -= added[step, column]
                taken[column] += 1
                threshold = float(values[place])
                if not spare:
                    break
        if not np.any(helping & (gains <= low)):
            break
        high, low = low, low / NEAR**8 if low > 1e-300 else 0.0
    return taken, threshold
