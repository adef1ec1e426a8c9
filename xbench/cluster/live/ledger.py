"""The ledger of a live cluster: every decision and event, one line of JSON each, on the disk before anything follows.

    FOLDER/ledger.jsonl     the lines; the first is what was asked for (`Began`)
    FOLDER/controller.lock  flocked by the one controller that runs, and freed by the kernel however it ends
    FOLDER/jobs/NAME/       of each job, the engine's

What a cluster is, is what its ledger says: `state.State` is made of the events and of nothing else, so a controller
that was killed at any point goes on where the lines end. A last line that was torn (the machine died while it was
written) never had an effect, and is cut off; a broken line anywhere else is refused. Times are seconds of the cluster's
own clock, which stands still while no controller runs.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from xbench.cluster.live.jobs_file import JobEntry
from xbench.errors import RecordError, RunError, SpecError
from xbench.record_files import sync_folder
from xbench.records.parts import Part

LEDGER = "ledger.jsonl"
LOCK = "controller.lock"
JOBS = "jobs"
RESUME = "xbench cluster run --resume"

Ending = Literal["stopped", "finished", "failed", "lost"]
"""lost: its controller was killed, or a node that it ran on is gone."""


class Began(Part):
    """The user's request. `restart_s`: cost of a start as the policy assumes it, the first start of a job included.

    `slots`: their number at the beginning; `most_slots`: the limit that the user set, None without one.
    """

    event: Literal["began"] = "began"
    format: Literal[1] = 1
    created: str
    command: str
    policy: str
    engine: str
    address: str | None = Field(default=None, description="of a Ray cluster")
    device: Literal["cpu", "cuda"] = "cpu"
    slots: int = Field(ge=1)
    most_slots: int | None = None
    restart_s: float = Field(ge=0)
    retries: int = Field(ge=0)
    jobs: list[JobEntry] = Field(min_length=1)


class Moment(Part):
    """Something happened then, by the cluster's clock [s]."""

    at_s: float


class OfJob(Moment):
    """Something happened to a job."""

    job: str


class Arrived(OfJob):
    """It is here."""

    event: Literal["arrived"] = "arrived"


class Seen(Part):
    """What an engine has seen of a job: steps done, steps a second, and from when on it trains. See `Active.learn`."""

    done: float
    speed: float
    ready_s: float
    measured: bool = False
    """Whether the speed was measured on the workers that it has, and not declared or guessed."""


class Decided(Moment):
    """What the policy was told of the jobs, and the workers that it changed, in the order of changing them."""

    event: Literal["decided"] = "decided"
    seen: dict[str, Seen] = Field(default={})
    grants: dict[str, int] = Field(default={})


class Started(OfJob):
    """An incarnation was launched, from so many steps."""

    event: Literal["started"] = "started"
    slots: list[int]
    steps: float


class Trained(OfJob):
    """An incarnation was seen to train for the first time, when so many steps were done."""

    event: Literal["trained"] = "trained"
    steps: float


class Told(Moment):
    """How far jobs are: (steps done, steps kept, when that was seen [s])."""

    event: Literal["told"] = "told"
    jobs: dict[str, tuple[float, float, float]]


class Stopping(OfJob):
    """An incarnation was asked to keep a checkpoint and to end."""

    event: Literal["stopping"] = "stopping"


class Ended(OfJob):
    """An incarnation is over. `last`: (when [s], steps) it was last seen to train."""

    event: Literal["ended"] = "ended"
    how: Ending
    steps: float
    kept_steps: float
    last: tuple[float, float] | None = None
    reason: str = ""


class GaveUp(OfJob):
    """A job will not be tried again."""

    event: Literal["gave up"] = "gave up"
    reason: str


class Paused(Moment):
    """The user asked to stop."""

    event: Literal["paused"] = "paused"


class Resumed(Moment):
    """Another controller goes on. `retries`: crashes are counted from here, up to this limit.

    Given-up jobs are then tried again. None leaves the count, the limit and given-up jobs as they were.
    """

    event: Literal["resumed"] = "resumed"
    created: str
    retries: int | None = None


class Resized(Moment):
    """The engine has another number of slots."""

    event: Literal["resized"] = "resized"
    slots: int


Event = (
    Began | Arrived | Decided | Started | Trained | Told | Stopping | Ended | GaveUp | Paused | Resumed | Resized
)  # fmt: skip
_EVENT: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="event")])


class Ledger:
    """The ledger of a folder, held by this process alone. Close it to let another one have it.

    Raises RunError where another controller holds it.
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
    def begin(cls, folder: Path, began: Began) -> Ledger:
        """A new one. Raises SpecError where the folder has a ledger already, RunError as above, OSError."""
        folder.mkdir(parents=True, exist_ok=True)
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
        """One that is there, with its events; a torn last line is cut off.

        Raises SpecError for a folder without one, RecordError for a broken one, RunError as above, OSError.
        """
        if not (folder / LEDGER).is_file():
            raise SpecError(
                f"there is no run in {str(folder)!r} to go on with", hint="name the folder that the run has said"
            )
        ledger = cls(folder)
        try:
            events, whole = read(folder)
        except BaseException:
            ledger.close()
            raise
        os.ftruncate(ledger._file, whole)
        return ledger, events

    def append(self, event: Event) -> None:
        """On the disk when this returns. Raises OSError."""
        line = event.model_dump_json(exclude_defaults=False).encode() + b"\n"
        written = os.write(self._file, line)
        if written != len(line):
            raise OSError(f"{self.folder / LEDGER}: the disk took {written} of {len(line)} bytes")
        os.fsync(self._file)

    def close(self) -> None:
        """Let another controller have it."""
        os.close(self._file)
        os.close(self._lock)


def read(folder: Path) -> tuple[list[Event], int]:
    """The events of a folder's ledger, and how many bytes of it are whole lines. Raises RecordError, OSError."""
    path = folder / LEDGER
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    events: list[Event] = []
    for number, line in enumerate(data[:whole].splitlines(), start=1):
        try:
            events.append(_EVENT.validate_json(line))
        except ValidationError as error:
            told = error.errors()[0]["msg"]
            raise RecordError(f"{str(path)!r} is not a ledger of ours: line {number}: {told}") from None
    if not events or not isinstance(events[0], Began):
        raise RecordError(f"{str(path)!r} does not say what was asked for", hint="begin anew, in another --folder")
    return events, whole
