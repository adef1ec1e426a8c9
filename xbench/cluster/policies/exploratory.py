"""Doubling with speeds learned by trying (`exploratory` in Capes et al., arXiv 1908.08082).

A new job is run on 1, 2, 4, ... GPUs, up to `most`, for `trial_s` each, one after the other; each change costs a
restart as any does. Only then its speeds are known, and doubling decides, among the sizes that were tried. What is left
to do is known, as under `doubling`.

Trials come in the order of arrival, after everybody's first size and before any doubling. One that does not fit waits;
until it does, the job takes part in doubling with what is known so far. A job whose trial runs keeps its GPUs.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator

import numpy as np

from xbench.cluster.policies.doubling import Doubling
from xbench.cluster.policies.rows import Whole
from xbench.cluster.policies.sizes import doubling_sizes
from xbench.cluster.policy import Active, Change
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

    def arrived(self, job: Active, now_s: float) -> None:
        """Nothing is known of it."""
        super().arrived(job, now_s)
        sizes = doubling_sizes(job.job, self.cluster)
        self._known[job.number] = 0
        self._to_try[job.number] = (job, tuple(size for size in sizes if size <= self.most) or sizes[:1])

    def finished(self, job: Active, now_s: float) -> None:
        """It is forgotten."""
        super().finished(job, now_s)
        self._to_try.pop(job.number, None)
        self._on_trial.pop(job.number, None)
        del self._known[job.number]

    def decide(self, now_s: float) -> Iterator[Change]:
        """End trials, begin others, and double with what remains."""
        while self._ends and self._ends[0][0] <= now_s:
            _, number = heapq.heappop(self._ends)
            if number in self._on_trial:
                del self._on_trial[number]
                self._known[number] += 1
                if self._known[number] == len(self._to_try[number][1]):
                    del self._to_try[number]
        yield from super().decide(now_s)

    def look_again_s(self, now_s: float) -> float | None:
        """When the next trial ends. (Only now it is seen when those that have just begun will compute.)"""
        for job in self._begun:
            heapq.heappush(self._ends, (max(now_s, job.ready_s) + self.trial_s, job.number))
        self._begun.clear()
        return self._ends[0][0] if self._ends else None

    def plan(self, now_s: float) -> Whole:
        """What each row should hold."""
        rows = self._rows
        left = rows.remaining(now_s)
        first = rows["sizes"][0].copy()
        served = int(np.searchsorted(np.cumsum(first), self.cluster.gpus, side="right"))
        spare = self.cluster.gpus - int(first[:served].sum())
        places = {job.number: place for place, job in enumerate(rows.jobs)}
        known = np.array([self._known[job.number] for job in rows.jobs])
        for number, size in self._on_trial.items():
            spare -= size - int(first[places[number]])
            first[places[number]] = size
        for number, (job, sizes) in self._to_try.items():
            place = places[number]
            if number not in self._on_trial and place < served:
                size = sizes[self._known[number]]
                if size - first[place] <= spare:
                    spare -= size - int(first[place])
                    first[place] = size
                    self._on_trial[number] = size
                    self._begun.append(job)
        helps = rows["helps"].copy()
        helps[np.arange(len(helps))[:, None] >= known] = 0.0
        helps[:, [places[number] for number in self._on_trial]] = 0.0
        return self._doubled(left, first, helps)
