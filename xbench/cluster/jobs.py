"""Training jobs as a cluster sees them: arrival, amount of work, and speed on w GPUs.

Work has the unit of the job's speed: samples or steps. A trace of durations counts seconds on the requested GPUs
(`RigidSpeed`: one unit a second there, unknown elsewhere). A job that runs on w GPUs from t to u does speed(w)·(u − t)
of its work.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from xbench.errors import SpecError


class Speed(Protocol):
    """Speed of a job as a function of its GPUs."""

    @property
    def sizes(self) -> tuple[int, ...] | None:
        """The numbers of GPUs with a known speed, ascending; None: any number."""

    def __call__(self, gpus: int) -> float:
        """Work per second on `gpus` GPUs, above zero. Raises ValueError for a number without a known speed."""


@dataclass(frozen=True)
class RigidSpeed:
    """One unit of work a second on exactly the requested GPUs. A trace of durations knows no other speed."""

    gpus: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """The requested number alone."""
        return (self.gpus,)

    def __call__(self, gpus: int) -> float:
        """See `Speed`."""
        if gpus != self.gpus:
            raise ValueError(f"a job that was only ever seen on {self.gpus} GPUs has no known speed on {gpus}")
        return 1.0


@dataclass(frozen=True)
class Job:
    """One job of a trace.

    Raises SpecError, naming the job and the field, for a job that no cluster could run. `gpus` is the number that it
    requests. A rigid policy grants exactly that; an elastic policy grants `least` to `most`.
    """

    name: str
    arrival_s: float
    gpus: int
    work: float
    speed: Speed
    least: int = 1
    most: int | None = None
    """None: up to the size of the cluster."""
    facts: Mapping[str, float | str] = field(default_factory=dict)
    """Facts that some policies need beside speeds: 'exposed', 'application', 'memory_bytes', …"""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.arrival_s) and self.arrival_s >= 0):
            raise SpecError(f"job {self.name!r}: arrival_s = {self.arrival_s} is not a time since the trace began")
        if not (math.isfinite(self.work) and self.work > 0):
            raise SpecError(f"job {self.name!r}: work = {self.work} is not above zero")
        if self.gpus < 1:
            raise SpecError(f"job {self.name!r}: gpus = {self.gpus} is less than one")
        if self.least < 1 or (self.most is not None and self.most < self.least):
            raise SpecError(f"job {self.name!r}: it takes {self.least} to {self.most} GPUs, which is not a range")

    @property
    def rigid(self) -> bool:
        """True if the speed is known for the requested number of GPUs alone."""
        return self.speed.sizes == (self.gpus,)

    @property
    def duration_s(self) -> float:
        """Duration [s] on the requested GPUs, undisturbed."""
        return self.work / self.speed(self.gpus)

    @property
    def service_s(self) -> float:
        """GPU seconds of that duration."""
        return self.gpus * self.duration_s
