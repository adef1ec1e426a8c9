"""Rendezvous of ranks that another launcher started: a store at rank 0, the ranks present, and their assignments.

The store is torch.distributed's TCPStore: torchrun's own if its agents keep one, else rank 0's. Hosts need not share a
disk. So the store carries all data that passes through the launch's folder under our own launcher. A rank that cannot
take part (its workload does not build on its host) reports that here, so that no rank waits for it.

Ranks are grouped by host. The ranks of a host have its devices in the order of their numbers.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from xbench.errors import RankError, SpecError, XbenchError
from xbench.fabrics.cluster import ClusterRank, address_towards, chosen_interface, meeting_point

COME_S = 180.0
"""Time within which all ranks must join [s]. Interpreters and torch start slowly from a shared disk."""

TELL_S = 15.0
"""Time that a rank that cannot take part tries to report it [s]."""

POLL_S = 0.1
_INTERFACES = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


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


@dataclass(frozen=True)
class RankAssignment:
    """Host and device of one rank."""

    host: int
    host_name: str
    device: int
    """Index of its device on its host, which is also its local rank."""
    devices: int
    """Number of devices of its host, which is also the number of its ranks."""


def assignments(present: Sequence[RankInfo]) -> list[RankAssignment]:
    """Return the assignment of every rank, in the order of their numbers."""
    ordered = sorted(present, key=lambda each: each.rank)
    hosts: dict[str, list[RankInfo]] = {}
    for one in ordered:
        hosts.setdefault(one.host, []).append(one)
    numbers = {name: host for host, name in enumerate(hosts)}
    return [
        RankAssignment(numbers[one.host], one.name, hosts[one.host].index(one), len(hosts[one.host])) for one in ordered
    ]


def store_at(
    place: tuple[str, int], ours: ClusterRank, environ: Mapping[str, str], *, patience_s: float, serves: bool = False
) -> Any:
    """Connect to the store. With `serves`, serve it too, unless torchrun's agents keep one.

    Raises RankError if it cannot be reached, or its port is taken.
    """
    import torch.distributed as dist

    from xbench.rank.store import rank_store

    agents = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    here = serves and not agents
    try:
        one_host = ours.counted and ours.local_world_size == ours.world_size
        store = rank_store(*place, timedelta(seconds=patience_s), here, one_host=one_host, multi_tenant=True)
    except (OSError, RuntimeError, ValueError) as error:
        said = (str(error).splitlines() or [""])[0][:160]
        if here:
            raise RankError(
                f"rank 0 cannot listen on port {place[1]}: {said}", hint="set MASTER_PORT to one that is free"
            ) from None
        raise RankError(
            f"rank {ours.rank} cannot reach rank 0 at {place[0]}:{place[1]}: {said}",
            hint=ours.remedy or "is MASTER_ADDR rank 0's host, as this host reaches it?",
        ) from None
    return dist.PrefixStore(f"xbench/{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)  # type: ignore[attr-defined]


def join(store: Any, ours: ClusterRank, own: RankInfo, *, patience_s: float) -> list[RankAssignment]:
    """Register this rank, wait for the others, and return every rank's assignment.

    Raises RankError if a rank does not join or cannot take part, and SpecError on other ranks than 0.
    """
    store.set(f"here/{ours.rank}", json.dumps(asdict(own)))
    if ours.rank > 0:
        deadline = time.monotonic() + patience_s + TELL_S
        while not store.check(["seats"]):
            if time.monotonic() > deadline:
                raise RankError(f"rank 0 did not come within {patience_s + TELL_S:g} s", hint=ours.remedy)
            time.sleep(POLL_S)
        answer = json.loads(store.get("seats"))
        if isinstance(answer, str):
            raise SpecError(answer)
        return [RankAssignment(**seat) for seat in answer]
    try:
        present = _everybody(store, ours, patience_s)
        found = assignments(present)
    except XbenchError as error:
        store.set("seats", json.dumps(str(error)))
        raise
    store.set("seats", json.dumps([asdict(seat) for seat in found]))
    return found


def _everybody(store: Any, ours: ClusterRank, patience_s: float) -> list[RankInfo]:
    left = set(range(ours.world_size))
    deadline = time.monotonic() + patience_s
    while True:
        left = {rank for rank in left if not store.check([f"here/{rank}"])}
        if not left:
            break
        if time.monotonic() > deadline:
            who = f"rank {min(left)}" + (f" and {len(left) - 1} more" if len(left) > 1 else "")
            raise RankError(f"{who} of {ours.world_size} did not come within {patience_s:g} s", hint=ours.remedy)
        time.sleep(POLL_S)
    present = []
    for rank in range(ours.world_size):
        said = json.loads(store.get(f"here/{rank}"))
        if "cannot" in said:
            raise RankError(f"rank {rank} on {said['name']} cannot take part: {said['cannot']}", hint=said["hint"])
        present.append(RankInfo(**said))
    return present


def abort_join(ours: ClusterRank, error: XbenchError, environ: Mapping[str, str]) -> bool:
    """Report to rank 0 that this rank cannot take part, and why. Return whether the report was sent.

    Rank 0 may have ended for the same reason.
    """
    try:
        store = store_at(meeting_point(ours, environ), ours, environ, patience_s=TELL_S)
        said = {"cannot": str(error), "hint": error.hint, "name": socket.gethostname()}
        store.set(f"here/{ours.rank}", json.dumps(said))
        return True
    except Exception:
        return False


def local_info(ours: ClusterRank, place: tuple[str, int]) -> RankInfo:
    """Return this rank's description. The launcher's number identifies the host, else its name and boot id."""
    name = socket.gethostname()
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    host = str(ours.host) if ours.host is not None else f"{name} {boot}"
    return RankInfo(ours.rank, host, name, address_towards(place[0]))


def choose_interface(own: RankInfo, store: Any, world_size: int, environ: MutableMapping[str, str]) -> str | None:
    """Make Gloo use the interface that leads to the others, unless the user chose one.

    Return the interface that was set, or None. Call it after all ranks have joined.
    """
    if environ.get(_INTERFACES[0]):
        return None
    others: list[str] = []
    if own.rank == 0 or own.address is None or own.address.startswith("127."):
        said = [json.loads(store.get(f"here/{rank}")) for rank in range(world_size)]
        others = [one["address"] for one in said if one["host"] != own.host and one["address"]]
    chosen = chosen_interface(own.address, others)
    if chosen is not None:
        for name in _INTERFACES:
            environ.setdefault(name, chosen)
    return chosen
