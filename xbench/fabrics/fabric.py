"""Base class of all fabrics, which are hosts for ranks and facts about the links between them, and the local fabric.

A fabric exists from its construction until `close`, whatever happens in between. It starts no ranks: `launch.launcher`
puts a `HostSlot`'s `prefix` before a command and adds its `env`, and the command then runs on that host. A new fabric
is one file with a subclass of `Fabric`, and one line in `xbench.fabrics.FABRICS`.

Ranks on one machine must not share cores by chance. A rank that loses its core to a neighbour is late to every
collective, and then a comparison measures the kernel's scheduler. So every rank gets the same number of cores, none
shared while there are enough, and the hyper-threads of a physical core stay with one rank. Cores left over after an
even split stay free for the kernel's network work and for the parent.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import ClassVar

from xbench.environment import cpu_quota
from xbench.records import EmulatedLink, FabricRecord, Label
from xbench.spec import DeviceType, FabricSpec, known_options, parse_int
from xbench.text import counted
from xbench.units import parse_rate

MAX_RANKS = 16
Cores = tuple[tuple[int, ...], ...]
"""Cores of each rank of one host; empty if ranks are not pinned."""

_TOPOLOGY = Path("/sys/devices/system/cpu")


@dataclass(frozen=True)
class HostSlot:
    """One host of a fabric, as a launcher needs it."""

    index: int
    """Index from 0; host 0 holds the rendezvous."""
    name: str
    """Name for people and tools: the namespace's name on a shaped fabric."""
    prefix: tuple[str, ...]
    """Prefix of a command's argv that runs it on this host, on this host's cores."""
    address: str
    """Address at which the other hosts reach it."""
    interface: str
    """Network device that collectives use."""
    cores: Cores
    env: dict[str, str] = field(default_factory=dict)
    """Environment of every rank on this host, in addition to the parent's."""


class Fabric(ABC):
    """Hosts joined by links, while it is open. Use it as a context manager; `close` may be called again."""

    label: ClassVar[Label] = "real"

    def __init__(self, spec: FabricSpec, run_id: str, device: DeviceType = "cpu") -> None:
        self.spec = spec
        self.run_id = run_id
        self.device = device
        self.hosts: list[HostSlot] = []
        self.warnings: list[str] = []
        self.notes: list[str] = []
        self.measured_bps: float | None = None
        self.emulated: EmulatedLink | None = None

    @classmethod
    @abstractmethod
    def parse(cls, text: str, options: dict[str, str]) -> FabricSpec:
        """A spec from the options in `text`. Raises SpecError naming the wrong value."""

    def _cores_by_host(self) -> list[Cores]:
        """Cores of every rank of each host, none on GPUs. Warns if ranks have to share."""
        if self.device != "cpu":
            return [()] * self.spec.hosts
        cores = available_cores()
        shares, warning = split_cores(cores, self.spec.hosts, self.spec.ranks, hyper_threads(cores))
        self.warnings += [warning] if warning else []
        return [tuple(tuple(rank) for rank in host) for host in shares]

    def measure_bandwidth(self) -> float | None:
        """Goodput [bit/s] of one TCP stream between two hosts, kept in `measured_bps`; None if nothing is shaped."""
        return None

    def diagnose(self) -> str | None:
        """Present fault of the links, as one sentence, or None."""
        return None

    def changed(self) -> str | None:
        """Changes of the links since they were made, as one sentence, or None. Every launch calls it at its end."""
        return None

    def free_ports(self, count: int) -> list[int]:
        """Distinct TCP ports on which host 0 can listen now."""
        with contextlib.ExitStack() as stack:
            sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
            for endpoint in sockets:
                endpoint.bind((self.hosts[0].address, 0))
            return [int(endpoint.getsockname()[1]) for endpoint in sockets]

    def close(self) -> None:
        """Remove everything that the fabric made."""
        return None

    def describe(self, backend: str = "gloo") -> FabricRecord:
        """Record of this fabric, with the measurements made so far."""
        return FabricRecord(
            name=self.spec.name,
            spec=str(self.spec),
            label=self.label,
            backend=backend,
            hosts=self.spec.hosts,
            ranks_per_host=self.spec.ranks,
            world_size=self.spec.world_size,
            rate_bps=parse_rate(self.spec.rate) if self.spec.rate else None,
            measured_bps=self.measured_bps,
            cores_per_rank=[list(cores) for host in self.hosts for cores in host.cores],
            notes=[*self.notes, *self.warnings],
        )

    def __enter__(self) -> Fabric:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class LocalFabric(Fabric):
    """All ranks on this machine, over its loopback device, without a rate limit and without root.

    On a CPU this shows how schedules behave on a link as fast as memory, which is rarely the question. With several
    GPUs it is the real thing: NCCL over NVLink or PCIe. Ranks on CPUs are pinned to their own cores. With GPUs each
    rank takes the GPU of its LOCAL_RANK and binds itself to the cores next to it (`rank.gpu`).
    """

    def __init__(self, spec: FabricSpec, run_id: str, device: DeviceType = "cpu") -> None:
        super().__init__(spec, run_id, device)
        self.hosts = [this_machine(cores) for cores in self._cores_by_host()]

    @classmethod
    def parse(cls, text: str, options: dict[str, str]) -> FabricSpec:
        """`local` (2 ranks) or `local:ranks=4`. Raises SpecError."""
        known_options(text, options, ("ranks",))
        return FabricSpec(name="local", ranks=parse_int(text, "ranks", options.get("ranks", "2"), 1, MAX_RANKS))


def this_machine(cores: Cores) -> HostSlot:
    """This machine as the only host, over its loopback device, with its ranks pinned to these cores."""
    prefix = pinned(cores, shutil.which("taskset"))
    return HostSlot(0, "localhost", prefix, "127.0.0.1", "lo", cores, rank_environment("lo", cores))


def rank_environment(interface: str, cores: Cores) -> dict[str, str]:
    """Environment that keeps collectives on `interface` and math threads on the rank's own cores."""
    env = {"GLOO_SOCKET_IFNAME": interface, "TP_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}
    if cores:
        threads = str(min(len(rank) for rank in cores))
        env |= {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    return env


def pinned(cores: Cores, taskset: str | None) -> tuple[str, ...]:
    """A command prefix that pins a process to the cores of all ranks of a host; empty without cores."""
    if not cores or taskset is None:
        return ()
    return (taskset, "-c", ",".join(str(core) for core in sorted({core for rank in cores for core in rank})))


def available_cores(topology: Path = _TOPOLOGY) -> list[int]:
    """Cores that this process may use, with the hyper-threads of a physical core next to each other.

    As many as a container's quota of time is worth: on more, its processes would be stopped in every period. They are
    of different physical cores where these suffice, from a place on that differs between containers by their host name.
    """
    physical = {core: _physical_core(core, topology) for core in os.sched_getaffinity(0)}
    quota = cpu_quota()
    if quota is not None and quota < len(physical):
        ordered = sorted(physical, key=lambda core: (physical[core], core))
        first = [next(threads) for _, threads in groupby(ordered, physical.__getitem__)]  # of each physical core
        begin = zlib.crc32(socket.gethostname().encode()) % len(first)
        others = [core for core in ordered if core not in first]
        physical = {core: physical[core] for core in [*first[begin:], *first[:begin], *others][:quota]}
    return sorted(physical, key=lambda core: (physical[core], core))


def hyper_threads(cores: Sequence[int], topology: Path = _TOPOLOGY) -> int:
    """The most of these cores that are hyper-threads of one physical core."""
    return max(Counter(_physical_core(core, topology) for core in cores).values(), default=1)


def _physical_core(core: int, topology: Path) -> tuple[int, int]:
    """(package, physical core) of a logical core; (0, its number) if the kernel does not tell."""
    folder = topology / f"cpu{core}" / "topology"
    try:
        return int((folder / "physical_package_id").read_text()), int((folder / "core_id").read_text())
    except (OSError, ValueError):
        return 0, core


def split_cores(
    cores: Sequence[int], hosts: int, ranks: int, threads: int = 1
) -> tuple[list[list[list[int]]], str | None]:
    """Cores of every rank, [host][local rank], and a warning if ranks have to share.

    With at least one core per rank, each gets ⌊cores / (hosts·ranks)⌋ adjacent ones, rounded down to whole physical
    cores of `threads` hyper-threads if it gets one of these. With fewer, each gets one, and neighbouring ranks share
    one. Ranks of one host, or of one group of `hsdp`, wait for the same collectives. Raises ValueError without cores,
    hosts or ranks.
    """
    world = hosts * ranks
    if not cores or world < 1:
        raise ValueError(f"cannot split {len(cores)} cores among {hosts} hosts of {ranks} ranks")
    each = len(cores) // world
    each -= each % threads if each > threads else 0
    if each:
        shares = [list(cores[rank * each : (rank + 1) * each]) for rank in range(world)]
        warning = None
    else:
        shares = [[cores[rank * len(cores) // world]] for rank in range(world)]
        warning = (
            f"{world} ranks share {counted(len(cores), 'core')}: they slow each other's compute, so ratios between "
            "modes hold only for machines as short of cores as this one"
        )
    return [shares[host * ranks : (host + 1) * ranks] for host in range(hosts)], warning
