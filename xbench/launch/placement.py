"""Who does what among ranks that were started around us: which job, which of its ranks, which device.

Ranks are told apart by host; the ranks of a host are taken in the order of their numbers. Two jobs that share the
devices take turns in it: the 2i-th and the (2i+1)-th rank of a host share its device i, one for each job. Rank 0 is so
always rank 0 of job 0. A job's ranks keep their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xbench.errors import SpecError
from xbench.fabrics.cluster import undivided
from xbench.fabrics.cores import split_cores


@dataclass(frozen=True)
class RankInfo:
    """What a rank says of itself when it comes."""

    rank: int
    host: str
    """The same text on all ranks of a host."""
    name: str
    """The host's name, for people."""
    address: str | None
    """Of this host, on the way to rank 0."""
    cores: tuple[int, ...]
    """Which it may run on."""


@dataclass(frozen=True)
class RankAssignment:
    """A rank's place."""

    job: int
    rank: int
    """Among the ranks of its job."""
    world_size: int
    host: int
    host_name: str
    device: int
    """Which device of its host; also its local rank within its job."""
    devices: int
    """Of its host; also its job's ranks there."""
    leads: bool
    """Whether it is the first rank of its host, and starts what a host has one of."""
    cores: tuple[int, ...]
    """For the ranks of all jobs on this device; empty where nothing is shared."""


def seats(present: Sequence[RankInfo], jobs: int, engine: str) -> list[RankAssignment]:
    """The seat of every rank, in the order of their numbers.

    Raises SpecError when a host's ranks cannot be divided among the jobs.
    """
    hosts: dict[str, list[RankInfo]] = {}
    for one in sorted(present, key=lambda each: each.rank):
        hosts.setdefault(one.host, []).append(one)
    for ranks in hosts.values():
        if len(ranks) % jobs:
            raise SpecError(
                undivided(f"{len(ranks)} on {ranks[0].name}", jobs, engine),
                hint="start an even number of ranks on each host",
            )
    number = {one.rank: place for ranks in hosts.values() for place, one in enumerate(ranks)}
    order = {one.rank: host for host, ranks in enumerate(hosts.values()) for one in ranks}
    within: dict[int, int] = {}
    counted = [0] * jobs
    for rank in sorted(number):
        job = number[rank] % jobs
        within[rank] = counted[job]
        counted[job] += 1
    found = []
    for one in sorted(present, key=lambda each: each.rank):
        ranks = hosts[one.host]
        device = number[one.rank] // jobs
        found.append(
            RankAssignment(
                job=number[one.rank] % jobs,
                rank=within[one.rank],
                world_size=len(present) // jobs,
                host=order[one.rank],
                host_name=one.name,
                device=device,
                devices=len(ranks) // jobs,
                leads=number[one.rank] == 0,
                cores=_shared_cores(ranks, device, jobs) if jobs > 1 else (),
            )
        )
    return found


def _shared_cores(ranks: Sequence[RankInfo], device: int, jobs: int) -> tuple[int, ...]:
    """Cores of a device: the engine's own choice for its ranks, or an even share where it let all run everywhere."""
    everywhere = sorted({core for one in ranks for core in one.cores})
    if all(len(one.cores) == len(everywhere) for one in ranks):
        return tuple(split_cores(everywhere, 1, len(ranks) // jobs)[0][0][device])
    return tuple(sorted({core for one in ranks[device * jobs : (device + 1) * jobs] for core in one.cores}))
