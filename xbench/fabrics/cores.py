"""Assignment of CPU cores to ranks.

Ranks on one machine must not share cores by chance. A rank that loses its core to a neighbour is late to every
collective, and then a comparison measures the kernel's scheduler. So every rank gets the same number of cores, none
shared while there are enough, and the hyper-threads of a physical core stay with one rank. Cores left over after an
even split stay free for the kernel's network work and for the parent.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from xbench.text import counted

_TOPOLOGY = Path("/sys/devices/system/cpu")


def available_cores(topology: Path = _TOPOLOGY) -> list[int]:
    """Cores that this process may use, with the hyper-threads of a physical core next to each other."""
    return sorted(os.sched_getaffinity(0), key=lambda core: (_physical_core(core, topology), core))


def _physical_core(core: int, topology: Path) -> tuple[int, int]:
    """(package, physical core) of a logical core; (0, its number) if the kernel does not tell."""
    folder = topology / f"cpu{core}" / "topology"
    try:
        return int((folder / "physical_package_id").read_text()), int((folder / "core_id").read_text())
    except (OSError, ValueError):
        return 0, core


def split_cores(cores: Sequence[int], hosts: int, ranks: int) -> tuple[list[list[list[int]]], str | None]:
    """Cores of every rank, [host][local rank], and a warning if ranks have to share.

    With at least one core per rank, each gets ⌊cores / (hosts·ranks)⌋ adjacent ones. With fewer, each gets one, in
    turn. Raises ValueError without cores, hosts or ranks.
    """
    world = hosts * ranks
    if not cores or world < 1:
        raise ValueError(f"cannot split {len(cores)} cores among {hosts} hosts of {ranks} ranks")
    each = len(cores) // world
    if each:
        shares = [list(cores[rank * each : (rank + 1) * each]) for rank in range(world)]
        warning = None
    else:
        shares = [[cores[rank % len(cores)]] for rank in range(world)]
        warning = (
            f"{world} ranks share {counted(len(cores), 'core')}: they slow each other's compute, so ratios between "
            "modes hold only for machines as short of cores as this one"
        )
    return [shares[host * ranks : (host + 1) * ranks] for host in range(hosts)], warning
