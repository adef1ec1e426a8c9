"""The ledger of a live cluster: one JSON line per decision and event, on the disk before it takes effect.

    FOLDER/ledger.jsonl     the lines; the first is the user's request (`RunStarted`)
    FOLDER/controller.lock  flocked by the one running controller, and freed by the kernel when it ends
    FOLDER/jobs/NAME/       files of each job, written by the engine

The ledger defines the state of a cluster: `state.State` is computed from the events alone. So a controller that was
killed at any point continues where the lines end. A torn last line (the machine died during the write) never had an
effect, and is cut off; a broken line anywhere else is refused. Times are seconds of the cluster's own clock, which
stops while no controller runs.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from xbench.cluster.live.jobs_file import JobEntry
from xbench.errors import RecordError, RunError, SpecError
from xbench.record_files import FRAME, RECORD, sync_folder
from xbench.records.parts import Part
from xbench.spec import DeviceType

LEDGER = "ledger.jsonl"
LOCK = "controller.lock"
JOBS = "jobs"
RESUME = "xbench cluster run --resume"

Ending = Literal["stopped", "finished", "failed", "lost"]
"""lost: its controller was killed, or a node that it ran on is gone."""


class RunRequest(Part):
    """The settings of a live run. `restart_s`: cost of a start as the policy assumes it, a job's first start included.

    `address`: that of a Ray cluster.
    """

    created: str
    command: str
    policy: str
    engine: Literal["local", "ray"]
    address: str | None = None
    device: DeviceType = "cpu"
    restart_s: float = Field(ge=0)
    retries: int = Field(ge=0)


class RunStarted(RunRequest):
    """The request, and its jobs.

    `slots`: their number at the beginning; `most_slots`: the limit that the user set, None without one.
    """

    event: Literal["began"] = "began"
    format: Literal[1] = 1
    slots: int = Field(ge=1)
    most_slots: int | None = None
    jobs: list[JobEntry] = Field(min_length=1)


class TimedEvent(Part):
    """An event at a time [s] of the cluster's clock."""

    at_s: float


class JobEvent(TimedEvent):
    """An event of one job."""

    job: str


class JobArrived(JobEvent):
    """The job has arrived."""

    event: Literal["arrived"] = "arrived"


class ProgressObserved(Part):
    """An engine's observation of a job: steps done, steps a second, and start of training. See `Active.learn`."""

    done: float
    speed: float
    ready_s: float
    measured: bool = False
    """True if the speed was measured on the present workers, and is neither declared nor guessed."""


class PolicyDecided(TimedEvent):
    """Observations given to the policy, and the numbers of workers that it changed, in the order of change."""

    event: Literal["decided"] = "decided"
    seen: dict[str, ProgressObserved] = Field(default={})
    grants: dict[str, int] = Field(default={})


class Started(JobEvent):
    """An attempt was launched, from `steps`."""

    event: Literal["started"] = "started"
    slots: list[int]
    steps: float


class Trained(JobEvent):
    """An attempt was seen to train for the first time, at `steps`."""

    event: Literal["trained"] = "trained"
    steps: float


class ProgressReported(TimedEvent):
    """Progress of jobs: (steps done, steps kept, time of the observation [s])."""

    event: Literal["told"] = "told"
    jobs: dict[str, tuple[float, float, float]]


class JobStopping(JobEvent):
    """An attempt was asked to keep a checkpoint and to end."""

    event: Literal["stopping"] = "stopping"


class JobEnded(JobEvent):
    """An attempt is over. `last`: (time [s], steps) of the last observation of training."""

    event: Literal["ended"] = "ended"
    how: Ending
    steps: float
    kept_steps: float
    last: tuple[float, float] | None = None
    reason: str = ""


class RunAbandoned(JobEvent):
    """A job will not be tried again."""

    event: Literal["gave up"] = "gave up"
    reason: str


class RunPaused(TimedEvent):
    """The user asked to stop."""

    event: Literal["paused"] = "paused"


class RunResumed(TimedEvent):
    """Another controller continues. `retries`: limit on crashes, counted from here.

    Given-up jobs are then tried again. None leaves the count, the limit and given-up jobs as they were.
    """

    event: Literal["resumed"] = "resumed"
    created: str
    retries: int | None = None


class Resized(TimedEvent):
    """The engine's number of slots changed."""

    event: Literal["resized"] = "resized"
    slots: int


Event = (
    RunStarted | JobArrived | PolicyDecided | Started | Trained | ProgressReported | JobStopping | JobEnded
    | RunAbandoned | RunPaused | RunResumed | Resized
)  # fmt: skip
_EVENT: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="event")])


class Ledger:
    """The ledger of a folder, held by this process alone. Close it to release it.

    Raises RunError if another controller holds it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise RunError(
                f"another controller runs the jobs in {str(folder)!r}", hint="wait for it, or stop it with Ctrl-C"
            ) from None
        self._file = os.open(folder / LEDGER, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    @classmethod
    def begin(cls, folder: Path, began: RunStarted) -> Ledger:
        """Create a ledger. Raises SpecError if the folder has a run in it already, RunError as above, OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        others = [name for name in (RECORD, FRAME, JOBS) if (folder / name).exists()]
        if others and not (folder / LEDGER).exists():
            raise SpecError(
                f"the folder {str(folder)!r} has {others[0]!r} of another run in it", hint="name another --folder"
            )
        ledger = cls(folder)
        if (folder / LEDGER).stat().st_size:
            ledger.close()
            raise SpecError(
                f"the folder {str(folder)!r} has a run in it already", hint=f"{RESUME} {folder}, or another --folder"
            )
        ledger.append(began)
        sync_folder(folder)
        return ledger

    @classmethod
    def resume(cls, folder: Path) -> tuple[Ledger, list[Event]]:
        """Open an existing ledger, with its events. A torn last line is cut off.

        Raises SpecError for a folder without one, RecordError for a broken one, RunError as above, OSError.
        """
        if not (folder / LEDGER).is_file():
            raise SpecError(
                f"there is no run in {str(folder)!r} to continue", hint="name the folder that the run printed"
            )
        ledger = cls(folder)
        try:
            events, whole_bytes = read(folder)
        except BaseException:
            ledger.close()
            raise
        os.ftruncate(ledger._file, whole_bytes)
        return ledger, events

    def append(self, event: Event) -> None:
        """Write an event to the disk. Raises OSError."""
        line = event.model_dump_json().encode() + b"\n"
        try:
            written = os.write(self._file, line)
            os.fsync(self._file)
        except OSError as error:  # of a descriptor, so it lacks the file's name
            raise OSError(error.errno, error.strerror, str(self.folder / LEDGER)) from None
        if written != len(line):
            raise OSError(f"{self.folder / LEDGER}: the disk took {written} of {len(line)} bytes")

    def close(self) -> None:
        """Release the ledger."""
        os.close(self._file)
        os.close(self._lock)


def read(folder: Path) -> tuple[list[Event], int]:
    """Events of a folder's ledger, and the number of bytes in whole lines. Raises RecordError, OSError."""
    path = folder / LEDGER
    data = path.read_bytes()
    whole_bytes = data.rfind(b"\n") + 1
    events: list[Event] = []
    for number, line in enumerate(data[:whole_bytes].splitlines(), start=1):
        try:
            events.append(_EVENT.validate_json(line))
        except ValidationError as error:
            message = error.errors()[0]["msg"]
            raise RecordError(f"{str(path)!r} is not a ledger of xbench: line {number}: {message}") from None
    if not events or not isinstance(events[0], RunStarted):
        raise RecordError(f"{str(path)!r} does not contain the request", hint="begin anew, in another --folder")
    return events, whole_bytes
