"""Default modes of a comparison, and checks of modes that need ranks of their own, or a compiler."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence

from xbench.config import RunConfig
from xbench.errors import SpecError
from xbench.fabrics.cluster import ranks_around
from xbench.host import tuning
from xbench.modes import COMPARED, UNTUNED, mode_info
from xbench.schedules import parse_mode, parse_modes
from xbench.spec import FabricSpec, ModeSpec
from xbench.units import format_bytes
from xbench.workloads.probe import Preflight

REAL = ("local", "shaped")
"""Fabrics with real links between ranks that a run starts by itself."""
ROOM = 2
"""Factor of the estimated memory, which is low, that must be free for a second set of ranks."""


def default_modes(config: RunConfig) -> tuple[ModeSpec, ...]:
    """Return the modes of a comparison that names none, without the untuned one (`with_untuned`)."""
    return parse_modes(COMPARED) if config.kind == "comparison" else ()


def with_untuned(
    modes: tuple[ModeSpec, ...], config: RunConfig, fabric: FabricSpec, found: Preflight, ranks: int
) -> tuple[tuple[ModeSpec, ...], list[str]]:
    """Return default modes with the untuned one, if it shows something, and messages for the user.

    It shows something if host tuning is on, and if ranks on CPUs, which this run starts, send over real links. A first
    look (`--quick`) has no time for it. `ranks` is the number of ranks of one job on this machine: their memory is
    needed twice, and an estimate of it is in `found`.
    """
    shows = tuning.is_on() and found.device == "cpu" and fabric.name in REAL and fabric.world_size > 1
    if config.modes or not modes or not shows or config.effort.is_quick:
        return modes, []
    needed = 2 * ranks * sum(item.memory_bytes_estimate for item in found.workloads)
    if found.free_bytes is not None and ROOM * needed > found.free_bytes:
        return modes, [
            f"{UNTUNED} is left out to save memory: with ranks of its own the run needs at least "
            f"{format_bytes(needed)} of the {format_bytes(found.free_bytes)} that are free (--modes takes it anyway)"
        ]
    place = next(number for number, mode in enumerate(modes, 1) if mode.name == "ddp")
    return (*modes[:place], parse_mode(UNTUNED), *modes[place:]), []


def check_untuned(modes: Sequence[ModeSpec], config: RunConfig) -> None:
    """Raise SpecError for modes in ranks of their own without host tuning, where they would show nothing."""
    apart = next((mode.text for mode in modes if not mode_info(mode.name).host_tuning), None)
    if apart is None:
        return
    paired = next((mode.text for mode in modes if mode.paired), None)
    ours = ranks_around(os.environ) if config.fabric.name == "auto" else None
    if not tuning.is_on():
        raise SpecError(
            f"mode {apart!r} leaves out host tuning, and {tuning.VARIABLE}=off has left it out of every mode",
            hint=f"unset {tuning.VARIABLE}, or leave {apart} out",
        )
    if not any(mode.text == "ddp" for mode in modes):
        raise SpecError(f"mode {apart!r} shows what host tuning is worth to ddp, which is not here", hint="add ddp")
    if any(mode.text == config.reference and not mode_info(mode.name).host_tuning for mode in modes):
        raise SpecError(
            f"--reference: {config.reference!r} has no host tuning, and every ratio would hold the gain of that too",
            hint="try --reference ddp",
        )
    if paired is not None:
        raise SpecError(
            f"mode {apart!r} has ranks of its own, and {paired!r} has two jobs in them", hint=f"leave {apart} out"
        )
    if config.fabric.name == "cluster" or (ours is not None and ours.world_size > 1):
        raise SpecError(
            f"mode {apart!r} has ranks of its own, and another launcher started these",
            hint="try --fabric local:ranks=2",
        )


def check_on_gpu(modes: Sequence[ModeSpec]) -> None:
    """Raise SpecError for a mode that differs from another on CPUs alone, and for kernels that nothing can make."""
    compiled = next((mode.text for mode in modes if mode_info(mode.name).compiled), None)
    if compiled is not None and importlib.util.find_spec("triton") is None:
        raise SpecError(
            f"mode {compiled!r} needs Triton, of which torch.compile makes kernels for GPUs, and it is not installed",
            hint="pip install triton",
        )
    apart = next((mode.text for mode in modes if not mode_info(mode.name).host_tuning), None)
    if apart is not None:
        raise SpecError(
            f"mode {apart!r} leaves out the host tuning of ranks on CPUs, and these are on GPUs",
            hint=f"leave {apart} out, or try --device cpu",
        )
