"""Speed of a job whose GPUs are spread over several hosts.

Policies know a job's speed on w GPUs as that on the fewest hosts that hold w. `placed` is the speed on the actual
hosts. Each kind of speed models hosts differently:

| speed | on several hosts |
| --- | --- |
| `RingSpeed` with `across` | a ring runs at the pace of its slowest link: θ1 and θ2 of the links between hosts |
| `HostTable` | measurements on such hosts (Pollux's steps, on hosts of 4 GPUs) |
| any other | the factor `across` of the speed on the fewest hosts; the user gives it, because no data do |

A record of durations says how long a job took where it was placed. It counts as the time on the fewest hosts. So the
factor slows only jobs on more hosts than that, and ignores other users of the links.

`rings` is the number of rings that share the slowest link of a job's ring, including that ring; see `placement`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

from xbench.cluster.jobs import Job, Speed
from xbench.errors import SpecError


@runtime_checkable
class PlacedSpeed(Speed, Protocol):
    """A speed on a cluster of hosts. A call answers for the fewest hosts."""

    def placed(self, hosts: tuple[int, ...], rings: int) -> float:
        """Work per second with `hosts[i]` GPUs on host i, ascending. Raises ValueError as a call does."""

    def fastest(self, gpus: int) -> float:
        """Work per second on the fastest placement, alone on its links."""


@runtime_checkable
class KnowsHosts(Protocol):
    """A speed that may depend on hosts."""

    def on_hosts(self, gpus_per_host: int) -> PlacedSpeed | None:
        """Speed on hosts of `gpus_per_host` GPUs; None if unknown.

        Raises SpecError if it was measured on other hosts.
        """


def fewest_hosts(gpus: int, gpus_per_host: int) -> tuple[int, ...]:
    """GPUs on each of the fewest hosts that hold `gpus`, ascending: all hosts but one are full."""
    full, rest = divmod(gpus, gpus_per_host)
    return (*((rest,) if rest else ()), *([gpus_per_host] * full))


@dataclass(frozen=True)
class SlowerAcross:
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

    def fastest(self, gpus: int) -> float:
        """See `PlacedSpeed`."""
        return self.speed(gpus)


class Ring(Speed, Protocol):
    """The step time that `RingOnHosts` needs of a ring."""

    def step_s(self, gpus: int, rings: int = 0) -> float:
        """Step time [s]. `rings`: 0 within a host, else the number of rings that share the slowest link."""


@dataclass(frozen=True)
class RingOnHosts:
    """A ring on hosts of `gpus_per_host` GPUs each."""

    ring: Ring
    gpus_per_host: int
    _known: dict[int, float] = field(default_factory=dict, repr=False, compare=False)

    @property
    def sizes(self) -> tuple[int, ...] | None:
        """See `Speed`."""
        return self.ring.sizes

    def __call__(self, gpus: int) -> float:
        """See `Speed`."""
        known = self._known.get(gpus)
        if known is None:
            known = self._known[gpus] = 1.0 / self.ring.step_s(gpus, int(gpus > self.gpus_per_host))
        return known

    def placed(self, hosts: tuple[int, ...], rings: int) -> float:
        """See `PlacedSpeed`."""
        return 1.0 / self.ring.step_s(sum(hosts), rings if len(hosts) > 1 else 0)

    def fastest(self, gpus: int) -> float:
        """See `PlacedSpeed`. No link between hosts is faster than one within."""
        return self(gpus)


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
        known = job.speed.on_hosts(gpus_per_host) if isinstance(job.speed, KnowsHosts) else None
        if known is None:
            lacking.append(job)
            known = SlowerAcross(job.speed, gpus_per_host, 1.0 if across is None else across)
        made[id(job.speed)] = known
    unknown = {id(job.speed) for job in lacking}
    needing = [job for job in jobs if id(job.speed) in unknown and _may_span(job)]
    if needing and across is None:
        others = f" and {len(needing) - 1} others" if len(needing) > 1 else ""
        raise SpecError(
            f"how fast job {needing[0].name!r}{others} would be over several hosts is not known",
            hint="--across-hosts 0.8 says 80 % of the speed on fewer",
        )
    if across is not None and not lacking:
        raise SpecError("the speeds of all jobs include hosts, and need no factor", hint="leave --across-hosts out")
    return tuple(replace(job, speed=made[id(job.speed)]) for job in jobs)


def _may_span(job: Job) -> bool:
    """True if some policy could give the job more than one GPU."""
    sizes: Iterable[int] = (job.gpus,) if job.speed.sizes is None else (job.gpus, *job.speed.sizes)
    return job.most != 1 and (job.speed.sizes is None or max(sizes) > 1)
