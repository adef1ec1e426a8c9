"""How fast a job is on GPUs that lie on several hosts.

On a cluster of several hosts a job's speed on w GPUs, as policies know it, is that on the fewest hosts that hold w, and
`placed` is what it is where its GPUs really are. What a speed knows of hosts:

| speed | on several hosts |
| --- | --- |
| `RingSpeed` with `across` | a ring goes at the pace of its slowest link: θ1 and θ2 of the links between hosts |
| `HostTable` | what was measured on such hosts (Pollux's steps, on hosts of 4 GPUs) |
| any other | `across` of the speed on as few hosts as possible; it has to be said, for nothing tells it |

A record of durations says how long a job took where it was placed then. It is taken for the time on the fewest hosts,
so the last row slows only jobs on more of them, and knows nothing of who else uses the links.

`rings`: how many rings share the link that a job's ring is slowest on, its own among them; see `placement`.
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
    """A speed on a cluster of hosts; called, it answers for the fewest hosts."""

    def placed(self, hosts: tuple[int, ...], rings: int) -> float:
        """Work a second with so many GPUs on each host, ascending. Raises ValueError as a call does."""

    def fastest(self, gpus: int) -> float:
        """Work a second where that is most, alone on its links."""


@runtime_checkable
class KnowsHosts(Protocol):
    """A speed that may know of hosts."""

    def on_hosts(self, gpus_per_host: int) -> PlacedSpeed | None:
        """Its speed on hosts of so many GPUs; None where it knows none. Raises SpecError where it knows other hosts."""


def fewest_hosts(gpus: int, gpus_per_host: int) -> tuple[int, ...]:
    """GPUs on each of the fewest hosts that hold so many, ascending: all but one are full."""
    full, rest = divmod(gpus, gpus_per_host)
    return (*((rest,) if rest else ()), *([gpus_per_host] * full))


@dataclass(frozen=True)
class SlowerAcross:
    """A speed that knows nothing of hosts: `across` of it on more hosts than it needs."""

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
    """What `RingOnHosts` needs of a ring."""

    def step_s(self, gpus: int, rings: int = 0) -> float:
        """A step [s]; `rings`: 0 where it is within a host, else how many share the slowest link."""


@dataclass(frozen=True)
class RingOnHosts:
    """A ring on hosts of so many GPUs."""

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
    """The jobs with speeds that know of hosts of so many GPUs.

    Raises SpecError for speeds that know nothing of hosts where `across` is not given (jobs that are never on more than
    one GPU need none), for an `across` that no speed needs, and for one that is no share of a speed.
    """
    if across is not None and not (math.isfinite(across) and 0 < across <= 1):
        raise SpecError(f"{across:g} is no share of a speed", hint="0.8 is 80 % of the speed on fewer hosts")
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
        raise SpecError("the speeds of all jobs know of hosts, and need no factor", hint="leave --across-hosts out")
    return tuple(replace(job, speed=made[id(job.speed)]) for job in jobs)


def _may_span(job: Job) -> bool:
    """Whether any policy could give it more than one GPU."""
    sizes: Iterable[int] = (job.gpus,) if job.speed.sizes is None else (job.gpus, *job.speed.sizes)
    return job.most != 1 and (job.speed.sizes is None or max(sizes) > 1)
