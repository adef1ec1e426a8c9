"""Placement of ranks that another launcher started: the job, the rank in the job and the device of each.

Ranks are grouped by host; the ranks of a host are ordered by their numbers. Two jobs that share the devices alternate:
the 2i-th and the (2i+1)-th rank of a host share its device i, one for each job. Rank 0 is therefore always rank 0 of
job 0. A job's ranks keep their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xbench.errors import SpecError
from xbench.fabrics.cluster import undivided
from xbench.fabrics.cores import split_cores


@dataclass(frozen=True)
class RankInfo:
    """Description of a rank, which it sends at the rendezvous."""

    rank: int
    host: str
    """Identifier of the host, the same text on all its ranks."""
    name: str
    """Name of the host for messages."""
    address: str | None
    """Address of this host towards rank 0."""
    cores: tuple[int, ...]
    """Cores that the rank may run on."""


@dataclass(frozen=True)
class RankAssignment:
    """Job, rank in the job, host and device of one rank."""

    job: int
    rank: int
    """Rank within its job."""
    world_size: int
    host: int
    host_name: str
    device: int
    """Index of its device on its host, which is also its local rank within its job."""
    devices: int
    """Number of devices of its host, which is also the number of its job's ranks there."""
    leads: bool
    """True if it is the first rank of its host, which starts the processes that a host has once."""
    cores: tuple[int, ...]
    """Cores of the ranks of all jobs on this device; empty if nothing is shared."""


def seats(present: Sequence[RankInfo], jobs: int, engine: str) -> list[RankAssignment]:
    """Return the assignment of every rank, in the order of their numbers.

    Raises SpecError if a host's ranks cannot be divided among the jobs.
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
    """Return a device's cores: those that the launcher bound its ranks to, or an even share if it bound none."""
    everywhere = sorted({core for one in ranks for core in one.cores})
    if all(len(one.cores) == len(everywhere) for one in ranks):
        return tuple(split_cores(everywhere, 1, len(ranks) // jobs)[0][0][device])
    return tuple(sorted({core for one in ranks[device * jobs : (device + 1) * jobs] for core in one.cores}))
