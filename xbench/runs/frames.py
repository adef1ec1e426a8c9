"""Contents of a record besides measurements, on disk from before the first launch: `frame.json` in a run's folder.

With the journals beside it, it makes the record of a run that was killed: see `runs.rebuild`. One class a kind of
run; `kind` names its row in `records.REBUILDERS`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from xbench.record_files import FRAME, write_whole
from xbench.records import EmulatedLink, Environment, FabricRecord, Label, Training, WorkloadRecord
from xbench.records.parts import Part
from xbench.runs.build_records import RunMetadata
from xbench.runs.event_collector import Collector
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
    """Frame of profile, compare and tune. `failed`: modes that the parent gave up, with the reason."""

    kind: Literal["measured"] = "measured"
    emulated: EmulatedLink | None
    workloads: list[WorkloadRecord]
    failed: dict[str, str]

    @classmethod
    def of(cls, run: RunSpec, frame: RunMetadata, found: Collector) -> RunFrame:
        """The frame of a live run as it stands."""
        return cls(
            created=frame.created,
            command=frame.command,
            run=run,
            environment=frame.environment,
            fabric=frame.fabric,
            emulated=frame.emulated,
            workloads=frame.workloads,
            warnings=frame.warnings,
            failed=found.failed,
        )

    def frame(self) -> RunMetadata:
        """The frame as `runs.build_records` takes it."""
        frame = RunMetadata(self.command, self.environment, self.fabric, self.workloads, self.created)
        frame.emulated, frame.warnings = self.emulated, list(self.warnings)
        return frame


class ConvergenceFrame(MeasuredFrame):
    """Frame of converge. `an_epoch`: steps of an epoch."""

    kind: Literal["convergence"] = "convergence"
    label: Label
    workload: WorkloadRecord
    training: Training
    an_epoch: int


class LiveFrame(Part):
    """Frame of cluster run, whose ledger has everything else."""

    kind: Literal["live"] = "live"
    format: Literal[1] = 1
    environment: Environment


class RestartFrame(Part):
    """Frame of cluster restart: see `restart_record.Restart` for the fields."""

    kind: Literal["restart"] = "restart"
    format: Literal[1] = 1
    created: str
    command: str
    xbench: str
    environment: Environment
    workload: WorkloadRecord
    batch_size: int
    slots: list[list[int]]
    backend: str
    from_workers: int
    to_workers: int
    warnings: list[str]


def write_frame(frame: RunFrame | ConvergenceFrame | LiveFrame | RestartFrame, folder: Path) -> None:
    """Write it, whole. Raises OSError."""
    write_whole(frame.model_dump_json(indent=1) + "\n", folder / FRAME)
