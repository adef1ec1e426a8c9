"""Policies that know nothing of a job's length, only how much service it has attained (Gu et al., Tiresias, NSDI 2019).

Attained service is GPUs × time in which the job computed. Starting and restarting are no service: a job on many GPUs
would otherwise attain the first threshold before it has done anything. `thresholds` [GPU seconds] cut service into
levels; a job begins at level 0 and falls to the next as soon as it has attained the next threshold. A policy ranks the
levels; within a level, first come, first served, by when a job came to the level (levels instead of the bare service,
so that equal jobs do not take turns and pay a restart each). `ordered` says who runs.

**Promotion** (the paper's PROMOTEKNOB): a job that has waited at a stretch for `promote` times as long as it has held
GPUs since it last was promoted goes back to level 0, at its end, and its service counts from zero. 0: never. Here
restarting counts: a promotion makes jobs restart, so it has to come more rarely the longer a restart takes.
"""

from __future__ import annotations

import heapq
import math
from abc import abstractmethod
from bisect import bisect_right, insort
from collections.abc import Iterator, Sequence

from xbench.cluster.policies.ordered import Ordered
from xbench.cluster.policy import Active, Change, due
from xbench.errors import SpecError


class Attained(Ordered):
    """See the module. Raises SpecError for thresholds that do not rise from above zero, or a negative `promote`."""

    def __init__(self, thresholds: Sequence[float], promote: float) -> None:
        super().__init__()
        rising = all(low < high for low, high in zip((0.0, *thresholds), thresholds, strict=False))
        if not rising or not all(math.isfinite(value) for value in thresholds):
            said = "+".join(f"{value:g}" for value in thresholds)
            raise SpecError(f"the thresholds {said} [GPU s] do not rise from above zero", hint="write 3600+36000")
        if not (math.isfinite(promote) and promote >= 0):
            raise SpecError(f"promote={promote:g} is no share of the time that a job ran", hint="write promote=8, or 0")
        self.thresholds = tuple(thresholds)
        self.promote = promote
        self._level: dict[int, int] = {}
        self._came: dict[int, int] = {}
        """In which order jobs came to the levels they are at."""
        self._forgiven_s: dict[int, tuple[float, float]] = {}
        """GPU seconds before a job's last promotion: computed, and held."""
        self._begun: list[Active] = []
        """Jobs that have just been started: only after the grant it is known when they will compute."""
        self._comings = 0
        self._timers: list[tuple[float, int, Active]] = []
        self._timer: dict[int, int] = {}
        """Of each job, by number, the one timer that holds: to fall, where it runs; to rise, where it waits."""
        self._set_timers = 0

    @abstractmethod
    def rank(self, level: int) -> float:
        """Lower ranks run first."""

    def level(self, job: Active) -> int:
        """Where it is."""
        return self._level[job.number]

    def waiting_key(self, job: Active, now_s: float) -> float:
        """Its level's rank."""
        return self.rank(self._level[job.number])

    def tie(self, job: Active) -> int:
        """Who came to the level first."""
        return self._came[job.number]

    def arrived(self, job: Active, now_s: float) -> None:
        """At the level of its service: 0, unless it ran before this policy was told of it."""
        self._forgiven_s[job.number] = (0.0, 0.0)
        self._place_at(job, bisect_right(self.thresholds, job.computed_s(now_s)))
        super().arrived(job, now_s)

    def finished(self, job: Active, now_s: float) -> None:
        """It is forgotten."""
        super().finished(job, now_s)
        for known in (self._level, self._came, self._forgiven_s, self._timer):
            known.pop(job.number, None)

    def started(self, job: Active, now_s: float) -> None:
        """It will fall when it has attained the next threshold, and does not rise any more."""
        self._timer.pop(job.number, None)
        self._begun.append(job)

    def stopped(self, job: Active, now_s: float) -> None:
        """It will rise when it has waited long enough."""
        self._timer.pop(job.number, None)
        ran_s = (job.attained_s(now_s) - self._forgiven_s[job.number][1]) / job.job.gpus
        if self.promote and self._level[job.number] and ran_s > 0:
            self._set(job, now_s + self.promote * ran_s)

    def decide(self, now_s: float) -> Iterator[Change]:
        """Who falls and rises first, then the walk."""
        while self._timers and due(self._timers[0][0], now_s):
            _, timer, job = heapq.heappop(self._timers)
            if self._timer.get(job.number) != timer:
                continue
            del self._timer[job.number]
            if job.number in self._line:
                if not due(self._falls_s(job, now_s), now_s):  # a real job that began later than it was thought to
                    self._fall_later(job, now_s)
                    continue
                level = self._level[job.number]
                self._place_at(job, level + 1)
                self._leave(job)
                self._join(job, self.rank(level + 1))
                self._fall_later(job, now_s)
            else:
                self._forgiven_s[job.number] = (job.computed_s(now_s), job.attained_s(now_s))
                self._place_at(job, 0)
                self._push(job, self.rank(0))
        yield from super().decide(now_s)

    def look_again_s(self, now_s: float) -> float | None:
        """When the next job falls or rises."""
        for job in self._begun:
            if job.number in self._line:
                self._fall_later(job, now_s)
        self._begun.clear()
        while self._timers and self._timer.get(self._timers[0][2].number) != self._timers[0][1]:
            heapq.heappop(self._timers)
        return max(self._timers[0][0], math.nextafter(now_s, math.inf)) if self._timers else None

    def rank_anew(self) -> None:
        """All ranks have changed: sort everybody again."""
        for heap in self._waiting.values():
            held = [entry for entry in heap if self._stamp.get(entry[3].number) == entry[2]]
            heap[:] = [(self.rank(self._level[job.number]), tie, stamp, job) for _, tie, stamp, job in held]
            heapq.heapify(heap)
        for gpus, line in self._running.items():
            self._running[gpus] = []
            for _, tie, stamp, job in line:
                entry = (self.rank(self._level[job.number]), tie, stamp, job)
                self._line[job.number] = entry
                insort(self._running[gpus], entry)

    def _place_at(self, job: Active, level: int) -> None:
        self._comings += 1
        self._level[job.number] = level
        self._came[job.number] = self._comings

    def _fall_later(self, job: Active, now_s: float) -> None:
        if self._level[job.number] < len(self.thresholds):
            self._set(job, self._falls_s(job, now_s))

    def _falls_s(self, job: Active, now_s: float) -> float:
        """When a running job will have attained the threshold of its level."""
        attained_s = job.computed_s(now_s) - self._forgiven_s[job.number][0]
        left_s = max(0.0, self.thresholds[self._level[job.number]] - attained_s)
        return max(now_s, job.ready_s) + left_s / job.job.gpus

    def _set(self, job: Active, at_s: float) -> None:
        self._set_timers += 1
        self._timer[job.number] = self._set_timers
        heapq.heappush(self._timers, (at_s, self._set_timers, job))
