"""Checks of modes that need ranks of their own, or a compiler, before anything is launched."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence

from xbench.config import RunConfig
from xbench.errors import SpecError
from xbench.fabrics.cluster import ranks_around
from xbench.host import tuning
from xbench.modes import mode_info
from xbench.spec import ModeSpec


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
