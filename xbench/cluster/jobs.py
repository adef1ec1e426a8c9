"""A training job as a cluster sees it: when it comes, how much it has to do, and how fast it goes on w GPUs.

Work is counted in whatever unit the job's speed is in: samples, steps, or, where a trace knows nothing but durations,
seconds on the GPUs that were asked for (`RigidSpeed`: one unit a second there, unknown anywhere else). A job that runs
on w GPUs from t to u does speed(w)·(u − t) of its work.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from xbench.errors import SpecError


class Speed(Protocol):
    """How fast a job is, by GPUs."""

    @property
    def sizes(self) -> tuple[int, ...] | None:
        """The numbers of GPUs it is known for, ascending; None: any."""

    def __call__(self, gpus: int) -> float:
        """Work a second on so many GPUs, above zero. Raises ValueError for a number it is not known for."""


@dataclass(frozen=True)
class RigidSpeed:
    """One unit of work a second on exactly the GPUs that were asked for: a trace of durations knows no more."""

    gpus: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """The one."""
        return (self.gpus,)

    def __call__(self, gpus: int) -> float:
        """See `Speed`."""
        if gpus != self.gpus:
            raise ValueError(f"a job that was only ever seen on {self.gpus} GPUs has no known speed on {gpus}")
        return 1.0


@dataclass(frozen=True)
class Job:
    """One job of a trace. Raises SpecError, naming the job and the field, for what no cluster could run.

    `gpus` is what it asked for, and what a rigid policy gives it; an elastic one gives `least` to `most`.
    """

    name: str
    arrival_s: float
    gpus: int
    work: float
    speed: Speed
    least: int = 1
    most: int | None = None
    """None: as many as the cluster has."""
    facts: Mapping[str, float | str] = field(default_factory=dict)
    """What policies beyond speeds need: 'exposed', 'application', 'memory_bytes', …"""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.arrival_s) and self.arrival_s >= 0):
            raise SpecError(f"job {self.name!r}: arrival_s = {self.arrival_s} is no time since the trace began")
        if not (math.isfinite(self.work) and self.work > 0):
            raise SpecError(f"job {self.name!r}: work = {self.work} is not above zero")
        if self.gpus < 1:
            raise SpecError(f"job {self.name!r}: gpus = {self.gpus} is less than one")
        if self.least < 1 or (self.most is not None and self.most < self.least):
            raise SpecError(f"job {self.name!r}: it takes {self.least} to {self.most} GPUs, which is no range")

    @property
    def rigid(self) -> bool:
        """Whether its speed is known for the GPUs that it asked for alone."""
        return self.speed.sizes == (self.gpus,)

    @property
    def duration_s(self) -> float:
        """On the GPUs that it asked for, undisturbed."""
        return self.work / self.speed(self.gpus)

    @property
    def service_s(self) -> float:
        """GPU seconds of that."""
        return self.gpus * self.duration_s
