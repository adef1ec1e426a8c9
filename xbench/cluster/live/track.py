"""One job of a live cluster, its speed, and the observations of its attempts."""

from __future__ import annotations

import math
from dataclasses import dataclass

from xbench.cluster.jobs import Job, Speed
from xbench.cluster.live.jobs_file import JobEntry
from xbench.cluster.live.ledger import Ending
from xbench.cluster.policy import Active

MIN_STEPS = 5
"""Fewest steps in a measurement of speed. With fewer, the times of observation dominate."""


class LearnedSpeed:
    """Steps a second on w workers: the measurement there, or else the declared speed times its error elsewhere.

    Without a declared speed it is that on the largest measured number below (so that a guess never promises a gain),
    and one step a second before any measurement. `sizes` are the declared ones, or else the caller's.
    """

    def __init__(self, declared: Speed | None, sizes: tuple[int, ...] | None = None) -> None:
        self.declared = declared
        self.seen: dict[int, float] = {}
        self._sizes = sizes

    @property
    def sizes(self) -> tuple[int, ...] | None:
        """See `Speed`."""
        return self._sizes if self.declared is None else self.declared.sizes

    def __call__(self, gpus: int) -> float:
        """See `Speed`."""
        if gpus in self.seen:
            return self.seen[gpus]
        if self.declared is not None:
            return self.declared(gpus) * self._correction()
        below = [size for size in self.seen if size < gpus]
        if below:
            return self.seen[max(below)]
        return self.seen[min(self.seen)] if self.seen else 1.0

    def _correction(self) -> float:
        """Geometric mean of measured over declared speeds; 1 without measurements."""
        assert self.declared is not None
        known = self.declared.sizes
        ratios = [
            math.log(speed / self.declared(size)) for size, speed in self.seen.items() if known is None or size in known
        ]
        return math.exp(math.fsum(ratios) / len(ratios)) if ratios else 1.0


@dataclass
class AttemptState:
    """One launch of a job. Times by the cluster's clock [s]; steps count from the job's beginning."""

    slots: tuple[int, ...]
    started_s: float
    from_steps: float
    first: tuple[float, float] | None = None
    """(time, steps) of the first observation of training; `last`: of the last one."""
    last: tuple[float, float] | None = None
    end_steps: float = 0.0
    stopping_s: float | None = None
    ended_s: float | None = None
    how: Ending | None = None

    @property
    def workers(self) -> int:
        """Number of workers, one per slot."""
        return len(self.slots)

    @property
    def measured(self) -> tuple[float, float] | None:
        """(steps, seconds) of the interval in which it was seen to train; None if that is too short."""
        if self.first is None or self.last is None:
            return None
        steps, seconds = self.last[1] - self.first[1], self.last[0] - self.first[0]
        return (steps, seconds) if steps >= MIN_STEPS and seconds > 0 else None

    @property
    def speed(self) -> float | None:
        """Steps a second, checkpoints included."""
        return self.measured[0] / self.measured[1] if self.measured is not None else None

    @property
    def overhead_s(self) -> float | None:
        """Time [s] from its launch to its end in which it did not train; None without a known speed."""
        if self.speed is None or self.ended_s is None:
            return None
        return self.ended_s - self.started_s - (self.end_steps - self.from_steps) / self.speed


class JobState:
    """One job: the policy's view of it, and its history."""

    def __init__(self, entry: JobEntry, number: int, learns: bool) -> None:
        self.entry = entry
        self.job = entry.live
        self.speed = LearnedSpeed(entry.speed, None if learns else (entry.gpus,))
        most = entry.batch_size if entry.most is None else min(entry.most, entry.batch_size)
        job = Job(entry.name, entry.arrival_s, entry.gpus, float(entry.steps), self.speed, entry.least, most)
        self.active = Active(job, number)
        self.attempts: list[AttemptState] = []
        self.arrived = False
        self.steps = 0.0
        """Completed steps as far as known. Steps lost in a crash are done again."""
        self.kept = 0.0
        self.lost_steps = 0.0
        self.crashes = 0
        self.retried = 0
        """Crashes since the limit on them was last set."""
        self.withheld = False
        """True while the policy does not know of it, because it does not fit the present slots."""
        self.finished_s: float | None = None
        self.gave_up: str | None = None
        """Reason."""
        self.learned = 0.0
        """Value of `steps` in the policy's view."""

    @property
    def name(self) -> str:
        """Name, unique in its cluster."""
        return self.entry.name

    @property
    def over(self) -> bool:
        """True once it has finished or was given up."""
        return self.finished_s is not None or self.gave_up is not None

    @property
    def attempt(self) -> AttemptState | None:
        """The attempt that runs, or None."""
        return self.attempts[-1] if self.attempts and self.attempts[-1].ended_s is None else None

    @property
    def present(self) -> AttemptState:
        """The attempt that runs, where one has to."""
        assert self.attempt is not None
        return self.attempt

    def speeds(self) -> dict[int, float]:
        """Steps a second by workers, over all its attempts."""
        sums: dict[int, tuple[float, float]] = {}
        for attempt in self.attempts:
            if attempt.measured is not None:
                steps, seconds = sums.get(attempt.workers, (0.0, 0.0))
                sums[attempt.workers] = steps + attempt.measured[0], seconds + attempt.measured[1]
        return {workers: steps / seconds for workers, (steps, seconds) in sorted(sums.items())}
