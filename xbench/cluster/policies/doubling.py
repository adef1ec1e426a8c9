"""Doubling (Capes, Raheja, Kemertas and Mohomed, arXiv 1908.08082): `doubling` with known speeds, and `exploratory`.

Every job starts at one GPU (or its least number). While GPUs remain and a doubling helps, the job whose remaining time
t falls most per added GPU, gain(w) = (t(w) − t(2w)) / w, is doubled. A doubling that does not fit is skipped. The paper
calls this `precompute`. Rings want powers of two, so a job has 1, 2, 4, ... GPUs.

**Restarts.** t(w) includes the restart that w would cost: none on the GPUs that a job already holds, and `restart_s` on
any other number. So a job moves only for a gain above the cost of its restart. (The paper's rule leaves restarts out.)

A doubling is taken only after all earlier ones of its job, so its effective gain is the least of these gains.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence

import numpy as np

from xbench.cluster.jobs import Job
from xbench.cluster.policies.elastic import Columns, Elastic, Vector, Whole
from xbench.cluster.policy import Active, Change, Cluster, Grant, due
from xbench.errors import SpecError


def doubling_sizes(job: Job, cluster: Cluster) -> tuple[int, ...]:
    """The allowed powers of two times the least allowed number; () if there is none.

    If the speed is known for some sizes alone, it starts from the least of these, and has only these.
    """
    allowed = job.sizes_on(cluster.gpus)
    if not allowed:
        return ()
    doubled = (allowed[0] << power for power in range((allowed[-1] // allowed[0]).bit_length()))
    return tuple(size for size in doubled if size in allowed)


class Doubling(Elastic):
    """Doubling with known speeds."""

    name = "doubling"

    def columns(self, jobs: Sequence[Job]) -> Columns:
        """By step: `sizes`; `added` GPUs; `helps`: time saved per unit of work and added GPU. `first`: initial size."""
        steps = max((len(doubling_sizes(job, self.cluster)) for job in jobs), default=1)
        return {"sizes": (steps, int), "added": (steps, float), "helps": (steps, float), "first": (0, int)}

    def arrived(self, job: Active, now_s: float) -> None:
        """Add the job's sizes and speeds."""
        rows, row = self._rows, self._rows.append(job)
        sizes = doubling_sizes(job.job, self.cluster)
        rows["first"][row] = sizes[0]
        rows["sizes"][: len(sizes), row] = sizes
        rows["added"][1 : len(sizes), row] = np.diff(sizes)
        rows["helps"][1 : len(sizes), row] = _helps(job.job, sizes)

    def plan(self, now_s: float) -> Whole:
        """See `Elastic`."""
        left = self._rows.remaining(now_s)
        first, helps = self._rows["first"], self._rows["helps"]
        gpus = np.zeros(len(left), dtype=np.int64)
        served = self.served(first)
        gpus[:served] = first[:served]
        spare = self.cluster.gpus - int(first[:served].sum())
        if spare and len(helps) > 1:
            added, sizes = self._rows["added"][1:, :served], self._rows["sizes"][:, :served]
            gains = helps[1:, :served] * left[:served]
            if self.cluster.restart_s:
                self._charge(gains, added, served)
                gains[helps[1:, :served] == 0.0] = 0.0
            for step in range(1, len(gains)):
                np.minimum(gains[step], gains[step - 1], out=gains[step])
            taken = take(gains, added, spare)
            gpus[:served] = np.where(taken > 0, sizes[taken, np.arange(served)], first[:served])
        return gpus

    def _charge(self, gains: Vector, added: Vector, served: int) -> None:
        """Charge a restart for every size but the current one: the step to it gains it, the next step loses it."""
        held, sizes = self._rows["held"][:served], self._rows["sizes"][:, :served]
        is_held = (sizes == held) & (held > 0)
        reached = is_held[1:]
        gains[reached] += self.cluster.restart_s / added[reached]
        beyond = is_held[:-1] & (added > 0)
        gains[beyond] -= self.cluster.restart_s / added[beyond]


def _helps(job: Job, sizes: Sequence[int]) -> Vector:
    """Time saved per unit of work and added GPU, from each size to the next."""
    pace = np.array([1 / job.speed(size) for size in sizes])
    helps: Vector = -np.diff(pace) / np.diff(sizes)
    return helps


def take(gains: Vector, added: Vector, spare: float) -> Whole:
    """Number of steps of each column that a greedy selection takes.

    `gains` (steps × columns) do not rise within a column. Steps above zero are taken by gain, then column, as long as
    their GPUs fit. A step that does not fit is skipped, and so are all later steps of its column.
    """
    taken = np.zeros(gains.shape[1], dtype=np.int64)
    steps, columns = np.nonzero(gains > 0)
    order = np.lexsort((steps, columns, -gains[steps, columns]))
    for step, column in zip(steps[order].tolist(), columns[order].tolist(), strict=True):
        if step == taken[column] and added[step, column] <= spare:
            taken[column] += 1
            spare -= added[step, column]
            if not spare:
                break
    return taken


MIN_TRIAL_S = 1e-3
"""Shortest trial [s]. Late in a simulation, shorter ones would end at the time at which they began."""

MOST_TRIED = 8
"""Most GPUs of a trial."""


class Exploratory(Doubling):
    """Doubling with speeds learned by trials, among the tried sizes. Raises SpecError for a trial under 1 ms.

    A new job runs on 1, 2, 4, ... GPUs, up to `MOST_TRIED`, for `trial_s` each, and keeps them during a trial. Trials
    come in the order of arrival, after every job's first size and before any doubling. A trial that does not fit
    waits, and its job takes part in doubling with the speeds known so far. When a trial ends and the next one fits into
    free GPUs, only that job changes. A new plan is made when jobs come or go, and when a job's last trial ends.
    """

    name = "exploratory"

    def __init__(self, trial_s: float = 150.0) -> None:
        super().__init__()
        if not (math.isfinite(trial_s) and trial_s >= MIN_TRIAL_S):
            raise SpecError(f"exploratory: trials of {trial_s:g} s measure nothing", hint="write trial=150")
        self.trial_s = trial_s
        self._known: dict[int, int] = {}
        """Number of tried sizes of each job, by number."""
        self._to_try: dict[int, tuple[Active, tuple[int, ...]]] = {}
        """Jobs with trials left, in the order of arrival, and the sizes to try."""
        self._on_trial: dict[int, int] = {}
        """Size of each job whose trial runs."""
        self._ends: list[tuple[float, int]] = []
        self._begun: list[Active] = []
        self._changed = False
        """True if jobs have come or gone since the last plan."""
        self._idle = 0

    def arrived(self, job: Active, now_s: float) -> None:
        """Add the job without known speeds."""
        super().arrived(job, now_s)
        self._changed = True
        row = len(self._rows) - 1
        self._rows["helps"][:, row] = 0.0
        sizes = doubling_sizes(job.job, self.cluster)
        self._known[job.number] = 0
        self._to_try[job.number] = (job, tuple(size for size in sizes if size <= MOST_TRIED) or sizes[:1])

    def finished(self, job: Active, now_s: float) -> None:
        """Forget the job."""
        super().finished(job, now_s)
        self._changed = True
        self._to_try.pop(job.number, None)
        self._on_trial.pop(job.number, None)
        del self._known[job.number]

    def decide(self, now_s: float) -> Iterator[Change]:
        """End trials, begin others, and double with the rest."""
        ended = []
        while self._ends and due(self._ends[0][0], now_s):
            _, number = heapq.heappop(self._ends)
            if number not in self._on_trial:
                continue
            end_s = self._to_try[number][0].ready_s + self.trial_s
            if not due(end_s, now_s):  # a real job that began later than expected
                heapq.heappush(self._ends, (end_s, number))
                continue
            self._end_trial(number)
            ended.append(number)
        all_hold = all(job.gpus for job in self._rows.jobs)  # first sizes come before further trials
        if not self._changed and all_hold and all(number in self._to_try for number in ended):
            for number in ended:
                job, sizes = self._to_try[number]
                more = sizes[self._known[number]] - job.gpus
                if more <= self._idle:
                    self._idle -= more
                    yield job, Grant(self._begin_trial(number))
            return
        self._changed = False
        yield from super().decide(now_s)

    def look_again_s(self, now_s: float) -> float | None:
        """Time [s] of the next end of a trial. (Only now it is known when jobs that have just begun will compute.)"""
        for job in self._begun:
            heapq.heappush(self._ends, (max(now_s, job.ready_s) + self.trial_s, job.number))
        self._begun.clear()
        return self._ends[0][0] if self._ends else None

    def plan(self, now_s: float) -> Whole:
        """See `Elastic`. Begins the trials that fit."""
        first, least = self._rows["first"], self._rows["sizes"][0]
        served = self.served(least)
        spare = self.cluster.gpus - int(least[:served].sum()) - int((first - least).sum())
        served_jobs = {job.number for job in self._rows.jobs[: served if spare >= 0 else 0]}
        for number, (_, sizes) in self._to_try.items():
            if number not in served_jobs:
                break
            if number not in self._on_trial and (more := sizes[self._known[number]] - sizes[0]) <= spare:
                spare -= more
                self._begin_trial(number)
        gpus = super().plan(now_s)
        self._idle = self.cluster.gpus - int(gpus.sum())
        return gpus

    def _begin_trial(self, number: int) -> int:
        """Begin the trial of the next size, which it returns. The job holds that size and is not doubled."""
        job, sizes = self._to_try[number]
        size = self._on_trial[number] = sizes[self._known[number]]
        row = self._row(job)
        self._rows["first"][row] = size
        self._rows["helps"][:, row] = 0.0
        self._begun.append(job)
        return size

    def _end_trial(self, number: int) -> None:
        """Learn the speed on the tried size."""
        del self._on_trial[number]
        known = self._known[number] = self._known[number] + 1
        job, sizes = self._to_try[number]
        row = self._row(job)
        self._rows["first"][row] = self._rows["sizes"][0, row]
        self._rows["helps"][1:known, row] = _helps(job.job, sizes[:known])
        if known == len(sizes):
            del self._to_try[number]

    def _row(self, job: Active) -> int:
        """Row of a job. Its number says nothing about it: a job that is tried again gets a new row at the end."""
        return self._rows.jobs.index(job)
