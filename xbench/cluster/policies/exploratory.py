"""Doubling with speeds learned by trying (`exploratory` in Capes et al., arXiv 1908.08082).

A new job is run on 1, 2, 4, ... GPUs, up to `most`, for `trial_s` each, one after the other; each change costs a
restart as any does. Only then its speeds are known, and doubling decides, among the sizes that were tried. What is left
to do is known, as under `doubling`.

Trials come in the order of arrival, after everybody's first size and before any doubling. One that does not fit waits;
until it does, the job takes part in doubling with what is known so far. A job whose trial runs keeps its GPUs. When a
trial ends and the next one fits into GPUs that nobody holds, that job alone is moved; if it does not fit, the job stays
as it is until the next plan. All is planned anew when jobs come or go, and when a job's last trial ends.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator

import numpy as np

from xbench.cluster.policies.doubling import Doubling
from xbench.cluster.policies.rows import Whole
from xbench.cluster.policies.sizes import doubling_sizes
from xbench.cluster.policy import Active, Change, Grant, due
from xbench.errors import SpecError


class Exploratory(Doubling):
    """See the module. Raises SpecError for a trial of no length, or for less than one GPU."""

    name = "exploratory"

    def __init__(self, trial_s: float = 150.0, most: int = 8, plain: bool = False) -> None:
        super().__init__(plain)
        if not (math.isfinite(trial_s) and trial_s > 0):
            raise SpecError(f"exploratory: trials of {trial_s:g} s measure nothing", hint="write trial=150")
        if most < 1:
            raise SpecError(f"exploratory: most={most} GPUs are no cluster", hint="write most=8")
        self.trial_s = trial_s
        self.most = most
        self._known: dict[int, int] = {}
        """Of each job, by number: how many of its sizes have been tried."""
        self._to_try: dict[int, tuple[Active, tuple[int, ...]]] = {}
        """Jobs whose trials are not over, in the order of arrival, and the sizes to try."""
        self._on_trial: dict[int, int] = {}
        """Of each job whose trial runs: its size."""
        self._ends: list[tuple[float, int]] = []
        self._begun: list[Active] = []
        self._changed = False
        """Whether jobs have come or gone."""
        self._idle = 0

    def arrived(self, job: Active, now_s: float) -> None:
        """Nothing is known of it."""
        super().arrived(job, now_s)
        self._changed = True
        place = len(self._rows) - 1
        self._rows["helps"][:, place] = 0.0
        sizes = doubling_sizes(job.job, self.cluster)
        self._known[job.number] = 0
        self._to_try[job.number] = (job, tuple(size for size in sizes if size <= self.most) or sizes[:1])

    def finished(self, job: Active, now_s: float) -> None:
        """It is forgotten."""
        super().finished(job, now_s)
        self._changed = True
        self._to_try.pop(job.number, None)
        self._on_trial.pop(job.number, None)
        del self._known[job.number]

    def decide(self, now_s: float) -> Iterator[Change]:
        """End trials, begin others, and double with what remains."""
        ended = []
        while self._ends and due(self._ends[0][0], now_s):
            _, number = heapq.heappop(self._ends)
            if number not in self._on_trial:
                continue
            end_s = self._to_try[number][0].ready_s + self.trial_s
            if not due(end_s, now_s):  # a real job that began later than it was thought to
                heapq.heappush(self._ends, (end_s, number))
                continue
            self._end_trial(number)
            ended.append(number)
        if not self._changed and all(number in self._to_try for number in ended):
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
        """When the next trial ends. (Only now it is seen when those that have just begun will compute.)"""
        for job in self._begun:
            heapq.heappush(self._ends, (max(now_s, job.ready_s) + self.trial_s, job.number))
        self._begun.clear()
        return self._ends[0][0] if self._ends else None

    def plan(self, now_s: float) -> Whole:
        """What each row should hold."""
        first, least = self._rows["first"], self._rows["sizes"][0]
        served = int(np.searchsorted(np.cumsum(least), self.cluster.gpus, side="right"))
        spare = self.cluster.gpus - int(least[:served].sum()) - int((first - least).sum())
        last = int(self._rows["number"][served - 1]) if served and spare >= 0 else -1
        for number, (_, sizes) in self._to_try.items():
            if number > last:
                break
            if number not in self._on_trial and (more := sizes[self._known[number]] - sizes[0]) <= spare:
                spare -= more
                self._begin_trial(number)
        gpus = super().plan(now_s)
        self._idle = self.cluster.gpus - int(gpus.sum())
        return gpus

    def _begin_trial(self, number: int) -> int:
        """Of its next size, which it returns: the job has that, and is not doubled."""
        job, sizes = self._to_try[number]
        size = self._on_trial[number] = sizes[self._known[number]]
        place = self._place(number)
        self._rows["first"][place] = size
        self._rows["helps"][:, place] = 0.0
        self._begun.append(job)
        return size

    def _end_trial(self, number: int) -> None:
        """One size more is known."""
        del self._on_trial[number]
        known = self._known[number] = self._known[number] + 1
        place = self._place(number)
        job, sizes = self._to_try[number]
        self._rows["first"][place] = self._rows["sizes"][0, place]
        pace = np.array([1 / job.job.speed(size) for size in sizes[:known]])
        self._rows["helps"][1:known, place] = -np.diff(pace) / np.diff(sizes[:known])
        if known == len(sizes):
            del self._to_try[number]

    def _place(self, number: int) -> int:
        """The row of a job: rows are in the order of arrival, as numbers are."""
        return int(np.searchsorted(self._rows["number"], number))
