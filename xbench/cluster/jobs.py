"""Training jobs as a cluster sees them: arrival, amount of work, and speed on w GPUs.

Work has the unit of the job's speed: samples or steps. A trace of durations counts seconds on the requested GPUs
(`RigidSpeed`: one unit a second there, unknown elsewhere). A job that runs on w GPUs from t to u does speed(w)·(u − t)
of its work.

**Hosts.** Policies know a job's speed on w GPUs as that on the fewest hosts that hold w. `placed` is the speed on the
actual hosts: of `RingSpeed` a formula, of `HostTable` measurements, of any other the factor `across`, which the user
gives. A record of durations counts as the time on the fewest hosts, so the factor slows only jobs on more hosts than
that, and ignores other users of the links.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from xbench.errors import SpecError
from xbench.text import counted


class Speed(ABC):
    """Speed of a job as a function of its GPUs."""

    @property
    def sizes(self) -> tuple[int, ...] | None:
        """The numbers of GPUs with a known speed, ascending; None: any number."""
        return None

    @abstractmethod
    def __call__(self, gpus: int) -> float:
        """Work per second on `gpus` GPUs, above zero. Raises ValueError for a number without a known speed."""

    def on_hosts(self, gpus_per_host: int) -> PlacedSpeed | None:
        """The speed on hosts; None if nothing is known. Raises SpecError if it was measured on other hosts."""
        return None


@dataclass(frozen=True)
class RigidSpeed(Speed):
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

    @property
    def may_span(self) -> bool:
        """True if some policy could give the job more than one GPU."""
        sizes = self.speed.sizes
        return self.most != 1 and (sizes is None or max(self.gpus, *sizes) > 1)

    def most_on(self, gpus: int) -> int:
        """The largest number of GPUs that the job may have on a cluster of `gpus`."""
        return gpus if self.most is None else min(self.most, gpus)

    def sizes_on(self, gpus: int) -> Sequence[int]:
        """Every allowed number of GPUs on a cluster of `gpus`, ascending."""
        most = self.most_on(gpus)
        if self.speed.sizes is None:
            return range(self.least, most + 1)
        return tuple(size for size in self.speed.sizes if self.least <= size <= most)


def first_of(jobs: Sequence[Job]) -> str:
    """Jobs in a message: 'a' or 'a' and 3 others."""
    return f"{jobs[0].name!r}" + (f" and {counted(len(jobs) - 1, 'other')}" if len(jobs) > 1 else "")


class PlacedSpeed(Speed):
    """A speed on a cluster of hosts. A call answers for the fewest hosts."""

    @abstractmethod
    def placed(self, hosts: tuple[int, ...], rings: int) -> float:
        """Work per second with `hosts[i]` GPUs on host i, ascending. Raises ValueError as a call does.

        `rings`: number of rings that share the slowest link of the job's ring, including that ring; see `placement`.
        """

    def fastest(self, gpus: int) -> float:
        """Work per second on the fastest placement, alone on its links: by default on the fewest hosts."""
        return self(gpus)


def fewest_hosts(gpus: int, gpus_per_host: int) -> tuple[int, ...]:
    """GPUs on each of the fewest hosts that hold `gpus`, ascending: all hosts but one are full."""
    full, rest = divmod(gpus, gpus_per_host)
    return (*((rest,) if rest else ()), *([gpus_per_host] * full))


@dataclass(frozen=True)
class SlowerAcross(PlacedSpeed):
    """A speed without data on hosts. On more hosts than needed it is multiplied by `across`."""

    speed: Speed
    gpus_per_host: int
    across: float

    @property
    def sizes(self) -> tuple[int, ...] | None:
        """See `Speed`."""
        return self.speed.sizes

    def __call__(self, gpus: int) -> float:
        """See `Speed`."""
        return self.speed(gpus)

    def placed(self, hosts: tuple[int, ...], rings: int) -> float:
        """See `PlacedSpeed`."""
        gpus = sum(hosts)
        needed = -(-gpus // self.gpus_per_host)
        return self.speed(gpus) * (self.across if len(hosts) > needed else 1.0)


def on_hosts(jobs: Sequence[Job], gpus_per_host: int, across: float | None = None) -> tuple[Job, ...]:
    """The jobs with speeds on hosts of `gpus_per_host` GPUs.

    Raises SpecError if `across` is missing for a speed without data on hosts, if no speed needs `across`, and if it is
    outside (0, 1]. Jobs that never get more than one GPU need no `across`.
    """
    if across is not None and not (math.isfinite(across) and 0 < across <= 1):
        raise SpecError(f"{across:g} is not a share of a speed", hint="0.8 is 80 % of the speed on fewer hosts")
    made: dict[int, PlacedSpeed] = {}
    lacking: list[Job] = []
    for job in jobs:
        if id(job.speed) in made:
            continue
        known = job.speed.on_hosts(gpus_per_host)
        if known is None:
            lacking.append(job)
            known = SlowerAcross(job.speed, gpus_per_host, 1.0 if across is None else across)
        made[id(job.speed)] = known
    unknown = {id(job.speed) for job in lacking}
    needing = [job for job in jobs if id(job.speed) in unknown and job.may_span]
    if needing and across is None:
        raise SpecError(
            f"how fast job {first_of(needing)} would be over several hosts is not known",
            hint="--across-hosts 0.8 says 80 % of the speed on fewer",
        )
    if across is not None and not lacking:
        raise SpecError("the speeds of all jobs include hosts, and need no factor", hint="leave --across-hosts out")
    return tuple(replace(job, speed=made[id(job.speed)]) for job in jobs)
