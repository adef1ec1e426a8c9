"""Options of `horovod:fusion=32,cycle=5`, and the environment of a Horovod process. Nothing here imports torch.

Horovod reads its settings, and its position among the ranks, from environment variables at its initialisation. So two
settings in one comparison need two initialisations; see `world`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from xbench.errors import SpecError
from xbench.spec import known_options

FUSION_MIB, CYCLE_MS = 128.0, 1.0
"""Horovod's own defaults."""

LIMITS = {"fusion": (0.0, 4096.0), "cycle": (0.1, 1000.0)}
UNITS = {"fusion": "MiB", "cycle": "ms"}
PATIENCE_S = 3600
"""Time-out [s] of Horovod's Gloo for data: long, because a silent rank is detected by its journal."""


@dataclass(frozen=True)
class Settings:
    """Horovod's packing of tensors: the fusion buffer [MiB], 0 for none, and the time of a cycle [ms]."""

    fusion_mib: float = FUSION_MIB
    cycle_ms: float = CYCLE_MS

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Settings:
        """Settings from checked options, with Horovod's defaults for missing ones."""
        return cls(float(options.get("fusion", FUSION_MIB)), float(options.get("cycle", CYCLE_MS)))

    def __str__(self) -> str:
        fusion = f"a fusion buffer of {self.fusion_mib:g} MiB" if self.fusion_mib else "no fusion"
        return f"{fusion}, a cycle of {self.cycle_ms:g} ms"


def checked(text: str, options: dict[str, str]) -> dict[str, str]:
    """The options of the mode `text`, `fusion` before `cycle`. Raises SpecError with the nearest valid one."""
    known_options(text, options, tuple(LIMITS))
    valid = {}
    for key, (low, high) in LIMITS.items():
        if key not in options:
            continue
        value, unit = options[key], UNITS[key]
        try:
            number = float(value)
        except ValueError:
            number = float("nan")
        if number != number:
            raise SpecError(f"{text!r}: {key}={value} is not a number of {unit}", hint=f"{low:g} to {high:g} {unit}")
        if not low <= number <= high:
            near = min(max(number, low), high)
            raise SpecError(
                f"{text!r}: {key}={value} is out of range {low:g} to {high:g} {unit}", hint=f"try {key}={near:g}"
            )
        valid[key] = f"{number:g}"
    return valid


@dataclass(frozen=True)
class RankPosition:
    """Position of a rank among the ranks of its job, as torchrun counts them: each host has `local_size` ranks."""

    rank: int
    size: int
    local_size: int

    @classmethod
    def of(cls, rank: int, size: int, environ: Mapping[str, str]) -> RankPosition:
        """Position from the environment. If it is unknown, or hosts are unequal, every rank counts as its own host."""
        text = environ.get("LOCAL_WORLD_SIZE", "1")
        local_size = int(text) if text.isdecimal() and int(text) > 0 else 1
        return cls(rank, size, local_size if size % local_size == 0 else 1)

    @property
    def local_rank(self) -> int:
        """Rank among the ranks of this host."""
        return self.rank % self.local_size

    @property
    def cross_rank(self) -> int:
        """Number of the host."""
        return self.rank // self.local_size

    @property
    def host_name(self) -> str:
        """Name of the host in the rendezvous: its number."""
        return str(self.cross_rank)

    @property
    def cross_size(self) -> int:
        """Number of hosts."""
        return self.size // self.local_size


def environment(
    position: RankPosition, address: str, port: int, settings: Settings, environ: Mapping[str, str]
) -> dict[str, str | None]:
    """The variables that Horovod's own launcher would set for this rank; None: not to be set.

    `address` and `port` belong to its rendezvous server. Collectives use the network device that `environ` names for
    Gloo. Other variables of Horovod in `environ` (HOROVOD_LOG_LEVEL, for example) are the user's own.
    """
    return {
        "HOROVOD_RANK": str(position.rank),
        "HOROVOD_SIZE": str(position.size),
        "HOROVOD_LOCAL_RANK": str(position.local_rank),
        "HOROVOD_LOCAL_SIZE": str(position.local_size),
        "HOROVOD_CROSS_RANK": str(position.cross_rank),
        "HOROVOD_CROSS_SIZE": str(position.cross_size),
        "HOROVOD_HOSTNAME": position.host_name,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_GLOO_IFACE": environ.get("GLOO_SOCKET_IFNAME"),
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(PATIENCE_S),
        "HOROVOD_FUSION_THRESHOLD": None if settings == Settings() else str(round(settings.fusion_mib * 1024**2)),
        "HOROVOD_CYCLE_TIME": None if settings == Settings() else f"{settings.cycle_ms:g}",
    }
