"""Policies that know a job's attained service but not its length: `las` and `gittins` (Gu et al., Tiresias, NSDI 2019).

Attained service is GPUs × time in which the job computed, without starts and restarts: otherwise a job on many GPUs
would reach the first threshold before it has done anything. `thresholds` [GPU seconds] divide service into levels. A
job begins at level 0 and falls to the next as soon as it has attained the next threshold. A policy ranks the levels;
within a level, the job that came to it first runs first. (Levels instead of bare service keep equal jobs from taking
turns and paying a restart each.) `ordered` selects the jobs that run.

**Promotion** (the paper's PROMOTEKNOB) returns a job to the end of level 0 and resets its service. It happens when the
job's current wait exceeds `PROMOTE` times the time for which it has held GPUs since its last promotion. Here restarts
count: a promotion causes restarts, so it must be rarer if a restart takes longer.
"""

from __future__ import annotations

import heapq
import math
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from xbench.cluster.jobs import Job
from xbench.cluster.policies.ordered import Ordered
from xbench.cluster.policy import Active, Change, Cluster, due
from xbench.errors import SpecError

HOUR_S = 3600.0
QUARTERS_S = tuple(HOUR_S / 4 * 4**power for power in range(6))
FIRST_UPDATE = 8
PROMOTE = 8.0


class Attained(Ordered):
    """Base of these policies. Raises SpecError for thresholds that do not rise from above zero."""

    def __init__(self, thresholds: Sequence[float]) -> None:
        super().__init__()
        rising = all(low < high for low, high in zip((0.0, *thresholds), thresholds, strict=False))
        if not rising or not all(math.isfinite(value) for value in thresholds):
            written = "+".join(f"{value:g}" for value in thresholds)
            raise SpecError(f"the thresholds {written} [GPU s] do not rise from above zero", hint="write 3600+36000")
        self.thresholds = tuple(thresholds)
        self._level: dict[int, int] = {}
        self._arrival_order: dict[int, int] = {}
        """Number of each job in the order in which jobs came to their levels."""
        self._forgiven_s: dict[int, tuple[float, float]] = {}
        """GPU seconds, computed and held, before each job's last promotion."""
        self._begun: list[Active] = []
        """Jobs that have just started. The time from which they compute is known only after the grant."""
        self._arrivals = 0
        self._timers: list[tuple[float, int, Active]] = []
        self._timer: dict[int, int] = {}
        """The valid timer of each job, by number: to fall while it runs, to rise while it waits."""
        self._set_timers = 0

    @abstractmethod
    def rank(self, level: int) -> float:
        """Lower ranks run first."""

    def waiting_key(self, job: Active, now_s: float) -> float:
        """Rank of its level."""
        return self.rank(self._level[job.number])

    def tie(self, job: Active) -> int:
        """Number in the order of arrival at the level."""
        return self._arrival_order[job.number]

    def arrived(self, job: Active, now_s: float) -> None:
        """Put the job at the level of its service: 0, unless it ran before this policy began."""
        self._forgiven_s[job.number] = (0.0, 0.0)
        self._place_at(job, bisect_right(self.thresholds, job.computed_s(now_s)))
        super().arrived(job, now_s)

    def finished(self, job: Active, now_s: float) -> None:
        """Forget the job."""
        super().finished(job, now_s)
        for known in (self._level, self._arrival_order, self._forgiven_s, self._timer):
            known.pop(job.number, None)

    def started(self, job: Active, now_s: float) -> None:
        """Cancel its rise. Its fall is scheduled after the grant."""
        self._timer.pop(job.number, None)
        self._begun.append(job)

    def stopped(self, job: Active, now_s: float) -> None:
        """Schedule its rise after a long enough wait."""
        self._timer.pop(job.number, None)
        ran_s = (job.attained_s(now_s) - self._forgiven_s[job.number][1]) / job.job.gpus
        if self._level[job.number] and ran_s > 0:
            self._set(job, now_s + PROMOTE * ran_s)

    def decide(self, now_s: float) -> Iterator[Change]:
        """Apply due falls and rises, then walk."""
        while self._timers and due(self._timers[0][0], now_s):
            _, timer, job = heapq.heappop(self._timers)
            if self._timer.get(job.number) != timer:
                continue
            del self._timer[job.number]
            if job.number in self._line:
                if not due(self._falls_s(job, now_s), now_s):  # a real job that began later than expected
                    self._schedule_fall(job, now_s)
                    continue
                level = self._level[job.number]
                self._place_at(job, level + 1)
                self._leave(job)
                self._join(job, self.rank(level + 1))
                self._schedule_fall(job, now_s)
            else:
                self._forgiven_s[job.number] = (job.computed_s(now_s), job.attained_s(now_s))
                self._place_at(job, 0)
                self._push(job, self.rank(0))
        yield from super().decide(now_s)

    def look_again_s(self, now_s: float) -> float | None:
        """Time [s] of the next fall or rise."""
        for job in self._begun:
            if job.number in self._line:
                self._schedule_fall(job, now_s)
        self._begun.clear()
        while self._timers and self._timer.get(self._timers[0][2].number) != self._timers[0][1]:
            heapq.heappop(self._timers)
        return max(self._timers[0][0], math.nextafter(now_s, math.inf)) if self._timers else None

    def rank_anew(self) -> None:
        """Sort all jobs again after a change of ranks."""
        running = [entry[3] for entry in self._line.values()]
        waiting = [
            job for heap in self._waiting.values() for _, _, stamp, job in heap if self._stamp.get(job.number) == stamp
        ]
        self._waiting.clear()
        for job in waiting:
            self._push(job, self.rank(self._level[job.number]))
        for job in running:
            self._leave(job)
            self._join(job, self.rank(self._level[job.number]))

    def _place_at(self, job: Active, level: int) -> None:
        self._arrivals += 1
        self._level[job.number] = level
        self._arrival_order[job.number] = self._arrivals

    def _schedule_fall(self, job: Active, now_s: float) -> None:
        if self._level[job.number] < len(self.thresholds):
            self._set(job, self._falls_s(job, now_s))

    def _falls_s(self, job: Active, now_s: float) -> float:
        """Time [s] at which a running job will have attained the threshold of its level."""
        attained_s = job.computed_s(now_s) - self._forgiven_s[job.number][0]
        left_s = max(0.0, self.thresholds[self._level[job.number]] - attained_s)
        return max(now_s, job.ready_s) + left_s / job.job.gpus

    def _set(self, job: Active, at_s: float) -> None:
        self._set_timers += 1
        self._timer[job.number] = self._set_timers
        heapq.heappush(self._timers, (at_s, self._set_timers, job))


class Las(Attained):
    """Least attained service: the lower level runs first. By default a job falls after one and after ten GPU hours.

    (The authors' published simulator has 3250 and 7200 GPU seconds.)
    """

    def __init__(self, thresholds: Sequence[float] = (HOUR_S, 10 * HOUR_S)) -> None:
        super().__init__(thresholds)

    def rank(self, level: int) -> float:
        """The level itself."""
        return level


class Gittins(Attained):
    """The Gittins index of a level's lower end: the job likeliest to end soon runs first.

    On one machine, if only the distribution of services is known, no policy has a lower mean JCT (Gittins 1979). By
    default it is that of the whole trace, beforehand, as Tiresias uses the history of its cluster. With `learn` it is
    that of the jobs that have finished so far, updated whenever their number has doubled (8, 16, ...); until then the
    lower level runs first. By default six thresholds: 15 GPU minutes, and four times the one before.
    """

    def __init__(self, thresholds: Sequence[float] = QUARTERS_S, learn: bool = False) -> None:
        super().__init__(thresholds)
        self.learn = learn
        self._ranks = [float(level) for level in range(len(self.thresholds) + 1)]
        self._services_s: list[float] = []

    def begin(self, cluster: Cluster, jobs: Sequence[Job]) -> None:
        """See `Policy`."""
        super().begin(cluster, jobs)
        if not self.learn:
            self._set_distribution([job.service_s for job in jobs])

    def rank(self, level: int) -> float:
        """The negative index of a level."""
        return self._ranks[level]

    def finished(self, job: Active, now_s: float) -> None:
        """Learn the service of a finished job."""
        super().finished(job, now_s)
        self._services_s.append(job.job.service_s)
        count = len(self._services_s)
        if self.learn and count >= FIRST_UPDATE and count & (count - 1) == 0:
            self._set_distribution(self._services_s)
            self.rank_anew()

    def _set_distribution(self, services_s: Sequence[float]) -> None:
        ordered = np.sort(services_s)
        self._ranks = [-gittins_index(ordered, attained_s) for attained_s in (0.0, *self.thresholds)]


def gittins_index(services_s: NDArray[np.float64], attained_s: float) -> float:
    """Index of a job with that attained service a [GPU s], from an ascending sample of services S; 0 if none is longer.

    G(a) = max over b > a of P(S ≤ b | S > a) / E[min(S, b) − a | S > a]: the chance of completion over the service
    spent, for the best stretch. One of the services is the best b.
    """
    longer = services_s[np.searchsorted(services_s, attained_s, side="right") :] - attained_s
    if not len(longer):
        return 0.0
    done = np.arange(1, len(longer) + 1)
    spent_s = np.cumsum(longer) + (len(longer) - done) * longer
    return float(np.max(done / spent_s))
