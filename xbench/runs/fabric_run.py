"""A run that starts ranks on a fabric: open it, measure, keep the frame on disk, and save the record in any case.

After the fabric is open, a record is always written: complete, or marked incomplete with the reason. If this process is
killed, the run's folder holds the sources of that record: its frame and its journals (`runs.rebuild`). A signal that
asks to stop ends the measurement at once, and is held while the record is built.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

from xbench import environment
from xbench.errors import XbenchError
from xbench.fabrics import open_fabric
from xbench.fabrics.fabric import Fabric
from xbench.interrupts import interrupts_held
from xbench.launch.launcher import launch
from xbench.launch.monitor import Verdict
from xbench.rank.journal import Take
from xbench.rank.program import Program
from xbench.record_files import RECORD, command_line, now
from xbench.records import AnyRecord
from xbench.runs.frames import MeasuredFrame, write_frame
from xbench.runs.progress import Progress
from xbench.runs.run_folder import Kept, ended_by, keep
from xbench.spec import RunSpec
from xbench.workloads.probe import Preflight

F = TypeVar("F", bound=MeasuredFrame)
R = TypeVar("R", bound=AnyRecord)


class FabricRun(ABC, Generic[F, R]):
    """One run. `saves`: False on all ranks but the first, if another launcher started xbench itself."""

    fabric: Fabric

    def __init__(self, run: RunSpec, found: Preflight, progress: Progress, folder: Path, *, saves: bool = True) -> None:
        self.run, self.found, self.progress, self.folder, self.saves = run, found, progress, folder, saves
        self.warnings = [*found.warnings, *environment.noise_warnings()]
        self._created, self._command = now(), command_line()

    @abstractmethod
    def measure(self) -> None:
        """Launch the ranks, on `fabric`, to the end. Raises XbenchError, OSError."""

    @abstractmethod
    def frame(self) -> F:
        """Return the record's fields besides measurements, as they are now."""

    @abstractmethod
    def record(self, frame: F, error: str | None) -> R:
        """Return the record of the measurements so far. `error` is the reason why the run ended early."""

    @property
    def path(self) -> Path:
        """Path of the record."""
        return self.folder / RECORD

    def execute(self) -> Kept[R]:
        """Run, and return the result. Raises errors before the fabric is open.

        A fabric that cannot be removed afterwards is a warning of the record.
        """
        error: XbenchError | None = None
        frame: F | None = None
        with interrupts_held() as held:
            try:
                with ExitStack() as stack:
                    stack.enter_context(self.progress)
                    with held.let_through():
                        self._environment = environment.capture(self.found.environment_facts())
                        self.fabric = stack.enter_context(open_fabric(self.run.fabric, device=self.run.device))
                    error = ended_by(self._measure, held)
                    frame = self.frame()
            except XbenchError as left:
                if frame is None:
                    raise
                warning = f"{left} ({left.hint})" if left.hint else str(left)
                frame = frame.model_copy(update={"warnings": [*frame.warnings, warning]})
            record = self.record(frame, str(error) if error is not None else None)
            path = keep(record, self.path) if self.saves else self.path
            return Kept(record, path, error or held.interrupted())

    def _measure(self) -> None:
        self.progress.say(f"fabric {self.run.fabric}")
        self.fabric.measure_bandwidth()
        self.measure()

    def fields(self) -> dict[str, Any]:
        """Return the fields that every frame has, by name."""
        return {
            "created": self._created,
            "command": self._command,
            "run": self.run,
            "environment": self._environment,
            "fabric": self.fabric.describe(self.run.backend),
            "warnings": [*self.warnings, *self.fabric.warnings],
        }

    def write_frame(self) -> None:
        """Save the frame, if there is room: the launch reports a full disk, and the record has other places."""
        with suppress(OSError):
            write_frame(self.frame(), self.folder)

    def start_ranks(self, program: Program, worker: str, directory: Path, take: Take) -> Verdict:
        """Run one start of the ranks of module `worker` to the end."""
        self.progress.begin_launch(program.launch, program.phases)
        argument = directory / "program.json"
        with argument.open("x", encoding="utf-8") as stream:
            stream.write(program.model_dump_json())
        return launch(
            self.fabric,
            program.run.processes,
            worker,
            argument.resolve(),
            directory.resolve(),
            on_event=take,
            silence_s=self.run.timeout_s,
            on_note=lambda job, rank, at_s, text: self.progress.note(rank, at_s, text) if job == 0 else None,
        )
