"""Checks of a run's need for Horovod, before anything is launched. Nothing here imports torch or Horovod.

A mode that cannot run here fails by itself, and the others run. It is an error only if there is no other mode, or if
Horovod would carry all modes.
"""

from __future__ import annotations

from collections.abc import Sequence

from xbench import horovod
from xbench.errors import SpecError
from xbench.modes import mode_info
from xbench.schedules import obstacle
from xbench.spec import Collectives, Compress, FabricSpec, ModeSpec, RunSpec


def check_available(modes: Sequence[ModeSpec], collectives: Collectives, compress: Compress | None) -> list[str]:
    """Return messages on modes that will fail here. Raises SpecError if no mode could run."""
    if collectives == "horovod":
        why = horovod.obstacle()
        if why is not None:
            raise SpecError(f"--backend horovod: {why}", hint=f"{horovod.INSTALL} builds it")
        if compress is not None:
            raise SpecError(
                f"--backend horovod sends gradients as they are, or as fp16, and not as {compress}",
                hint="leave --compress or --backend out",
            )
    reasons = {mode.text: why for mode in modes if (why := obstacle(mode.carrier)) is not None}
    remedies = {mode.text: mode_info(mode.carrier).remedy for mode in modes if mode.text in reasons}
    builds = {text: f"{command} builds it" for text, command in remedies.items() if command is not None}
    useful = [mode for mode in modes if mode.name != "compute"]
    if reasons and all(mode.text in reasons for mode in useful):
        first = next(iter(reasons))
        raise SpecError(f"mode {first!r} cannot run here: {reasons[first]}", hint=builds.get(first))
    remedy = {text: f" ({built})" for text, built in builds.items()}
    return [f"mode {text} cannot run here: {why}{remedy.get(text, '')}" for text, why in reasons.items()]


def check_real(fabric: FabricSpec, modes: Sequence[ModeSpec], collectives: Collectives) -> None:
    """Raise SpecError for Horovod on emulated links: its collectives are real, and would take no emulated time."""
    if fabric.name != "emulated":
        return
    named = [mode.text for mode in modes if mode_info(mode.carrier).library is not None]
    if named or collectives == "horovod":
        what = f"mode {named[0]!r} sends" if named else "--backend horovod sends"
        raise SpecError(
            f"{what} by Horovod itself, over links that are there, and those of {fabric} are emulated",
            hint="try --fabric shaped:hosts=2,rate=1gbit",
        )


def backend_of(run: RunSpec) -> str:
    """Return the backend of our schedules for the record: gloo, nccl, or horovod over one of them."""
    return f"horovod ({run.backend})" if run.collectives == "horovod" else run.backend
