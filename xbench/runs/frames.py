"""Frame of a run: the record's fields besides measurements, saved as `frame.json` before the first launch.

Together with the journals it gives the record of a run that was killed (`runs.rebuild`). There is one class for each
kind of run; `kind` names its row in `records.REBUILDERS`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from xbench.record_files import FRAME, write_whole
from xbench.records import EmulatedLink, Environment, FabricRecord, Label, Training, WorkloadRecord
from xbench.records.parts import Part
from xbench.spec import RunSpec


class MeasuredFrame(Part):
    """Fields of every frame of a run that starts ranks."""

    format: Literal[1] = 1
    created: str
    command: str
    run: RunSpec
    environment: Environment
    fabric: FabricRecord
    warnings: list[str]


class RunFrame(MeasuredFrame):
    """Frame of profile, compare and tune. `failed` holds modes that the parent gave up, with the reason."""

    kind: Literal["measured"] = "measured"
    emulated: EmulatedLink | None
    workloads: list[WorkloadRecord]
    failed: dict[str, str]


class ConvergenceFrame(MeasuredFrame):
    """Frame of converge. `an_epoch` is the number of steps of an epoch."""

    kind: Literal["convergence"] = "convergence"
    label: Label
    workload: WorkloadRecord
    training: Training
    an_epoch: int


class LiveFrame(Part):
    """Frame of cluster run. Its ledger holds everything else."""

    kind: Literal["live"] = "live"
    format: Literal[1] = 1
    environment: Environment


def write_frame(frame: MeasuredFrame | LiveFrame, folder: Path) -> None:
    """Write the frame atomically. Raises OSError."""
    write_whole(frame.model_dump_json(indent=1) + "\n", folder / FRAME)
