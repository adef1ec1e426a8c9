"""Horovod as a rival: whether it can be used here, its options, and its one world in a process.

Horovod (Sergeev and Del Balso, arXiv 1802.05799) averages gradients in its own thread. Hooks submit tensors by name.
Every cycle (1 ms) the ranks announce which they have; those that all ranks have are packed into one buffer (128 MiB at
most: tensor fusion) and sent together.

Here is checked that Horovod is installed and fits the installed torch, without importing either. Horovod's extension
contains torch's C++ symbols. If it was built against another torch, it fails to load with the name of an obscure
symbol. `horovod/metadata.json` in its wheel tells what it was built against.

Horovod reads its settings (`horovod:fusion=32,cycle=5`), and its position among the ranks, from environment variables
at its initialisation. So two settings in one comparison need two initialisations; see `world`.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from xbench.distribution import version_of
from xbench.errors import SpecError
from xbench.spec import known_options

LOCAL_VERSION = "xbench"
"""Suffix of the version, after '+', of a build by `make horovod`."""

INSTALL = "make horovod in a checkout of xbench"
"""The code that builds it, as the subject of a sentence."""


FUSION_MIB, CYCLE_MS = 128.0, 1.0
"""Horovod's own defaults."""

LIMITS = {"fusion": (0.0, 4096.0), "cycle": (0.1, 1000.0)}
UNITS = {"fusion": "MiB", "cycle": "ms"}
PATIENCE_S = 3600
"""Time-out [s] of Horovod's Gloo for data: long, because a silent rank is detected by its journal."""


def folder() -> Path | None:
    """Folder of the installed package, or None. A folder that happens to be called horovod is not one."""
    spec = importlib.util.find_spec("horovod")
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None


def version() -> str | None:
    """Version of the installed Horovod, or None."""
    return version_of("horovod") if folder() is not None else None


def is_own_build() -> bool:
    """True for a build by `make horovod`, which can be initialised again with other settings."""
    return (version() or "").partition("+")[2] == LOCAL_VERSION


def built_against() -> str | None:
    """The torch that the installed Horovod was built against, without '+cu130'; None if unknown."""
    package = folder()
    try:
        text = (package / "metadata.json").read_text(encoding="utf-8") if package is not None else ""
    except OSError:
        return None
    # Not JSON: the part that CMake appends ends with a comma.
    match = re.search(r'"pytorch":\s*"([^"+]+)', text)
    return match[1] if match else None


def obstacle() -> str | None:
    """Reason why Horovod cannot be used here, as half a sentence, or None. `INSTALL` fixes it in either case."""
    if folder() is None:
        return "Horovod is not installed"
    built, installed = built_against(), (version_of("torch") or "").partition("+")[0]
    if built is not None and installed and built != installed:
        return mismatch(built, installed)
    return None


def mismatch(built: str | None, installed: str) -> str:
    """Half a sentence for a Horovod built against another torch."""
    torch = f"torch {built}" if built else "another torch"
    return f"Horovod was built against {torch}, and torch {installed} is installed"


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
