"""One attempt of a real job: what an engine launches, what its ranks are told, and how it stands. No torch.

A job has one folder and passes through *attempts*. Each is launched with a fixed number of workers and trains from the
newest whole checkpoint of the folder (the first one from nothing). It ends as stopped, with a checkpoint of the last
applied step; as finished, with one of the job's last step; or as failed.

    FOLDER/lock                        flocked by every process of an attempt, while it lives
    FOLDER/checkpoint-00000150.xb      see `checkpoints`
    FOLDER/incarnation-0001/           program.json, meeting, stop, log, and a journal a rank (`rank.journal`)

A step is one of the whole batch, however many workers share it. n_r of the B samples go to rank r, as evenly as they
can. Rank r's loss is the mean over its n_r samples; weighted by n_r·w/B before backward, the mean over w ranks that
DistributedDataParallel takes is the mean over the whole batch, exactly.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from xbench.cluster.live import checkpoints
from xbench.cluster.live.jobs_file import JobEntry
from xbench.rank.events import CheckpointKept, CheckpointLoaded, Event, RankEnded, RankFailed, StepTrained
from xbench.rank.journal import JournalReader
from xbench.spec import DeviceType, Spec, WorkloadSpec
from xbench.workloads import family_of, parse_workload, resolve

LOCK = "lock"
PROGRAM = "program.json"
MEETING = "meeting"
STOP = "stop"
LOG = "log"

State = Literal["starting", "training", "stopped", "finished", "failed", "lost"]
"""lost: the node of a worker is gone, which is not the job's fault."""

OVER: tuple[State, ...] = ("stopped", "finished", "failed", "lost")


class AttemptProgress(NamedTuple):
    """State of an attempt. Steps count from the beginning of the job, not of the attempt."""

    state: State
    steps: int
    """Applied steps, as far as rank 0 has reported."""
    kept_steps: int
    """Steps in the newest whole checkpoint."""
    reason: str = ""
    """Cause of a failure or a loss, or the obstacle of a starting attempt; one sentence."""


class AttemptSpec(Spec):
    """The argument of every rank: `program.json` in the attempt's own folder, whose parent is the job's.

    `slots`: by rank, the GPU to use where `device` is cuda.
    """

    name: str
    workload: WorkloadSpec
    steps: int
    batch_size: int
    checkpoint_steps: int
    slots: tuple[int, ...]
    device: DeviceType = "cpu"

    @property
    def workers(self) -> int:
        """How many ranks share each step."""
        return len(self.slots)

    @property
    def key(self) -> str:
        """What a checkpoint must agree on to be one of this job: the workload with its seed, and the batch."""
        told = json.dumps([self.workload.model_dump(mode="json"), self.batch_size])
        return hashlib.blake2b(told.encode(), digest_size=8).hexdigest()


class Running(ABC):
    """One attempt, as the controller sees it, with its folder and rank 0's journal. No call blocks for long."""

    def __init__(self, directory: Path, program: AttemptSpec) -> None:
        self.directory = directory
        self._program = program
        self._journal = JournalReader(directory, 0, 0)
        self._end: State | None = None
        """How it ended, as rank 0 says."""
        kept = self._kept()
        self._look = AttemptProgress("starting", kept, kept)

    @property
    def over(self) -> bool:
        """True if `look` has said that it is over."""
        return self._look.state in OVER

    @abstractmethod
    def look(self) -> AttemptProgress:
        """Present state. In a state of `OVER` no process is left, and the state never changes."""

    @abstractmethod
    def kill(self) -> None:
        """End all its processes, without a checkpoint."""

    def stop(self) -> None:
        """Ask it to keep a checkpoint after the present step, and to end. `look` reports the end."""
        (self.directory / STOP).touch()

    def _kept(self) -> int:
        """The steps in its last checkpoint. A rank may die between writing one and the journal's word of it."""
        return checkpoints.kept_steps(self.directory.parent, self._program.key)

    def _read(self) -> None:
        """Take what the journal has said since."""
        for event in self._journal.poll():
            match event:
                case CheckpointLoaded():
                    self._look = self._look._replace(steps=event.steps, kept_steps=event.steps)
                case StepTrained():
                    self._look = self._look._replace(state="training", steps=event.step)
                case CheckpointKept():
                    self._look = self._look._replace(kept_steps=event.steps)
                case RankEnded():
                    self._end = event.how


class Engine(Protocol):
    """One machine or several, with numbered slots of one worker each."""

    @property
    def slots(self) -> int:
        """Present number of slots. It may change from call to call, and is 0 without any node."""

    def start(self, job: JobEntry, folder: Path, slots: tuple[int, ...]) -> Running:
        """Launch an attempt with one worker on each slot. Raises SpecError for a job that cannot be built."""

    def close(self) -> None:
        """End everything that still runs."""


def attempt_of(job: JobEntry, slots: Sequence[int], device: DeviceType = "cpu") -> AttemptSpec:
    """Return the settings of the ranks of a job on these slots. Raises SpecError for an unknown workload."""
    spec = parse_workload(job.workload, seed=job.seed)
    drawn = family_of(spec.name) != "factory"
    return AttemptSpec(
        name=job.name,
        workload=resolve(spec.model_copy(update={"batch_size": 1}) if drawn else spec, device),
        steps=job.steps,
        batch_size=job.batch_size,
        checkpoint_steps=job.checkpoint_steps,
        slots=tuple(slots),
        device=device,
    )


def share(batch_size: int, workers: int, rank: int) -> range:
    """Places in the batch that a rank has: together all, none twice, and nobody has two more than another."""
    return range(rank * batch_size // workers, (rank + 1) * batch_size // workers)


def attempts(folder: Path) -> list[Path]:
    """Folders of all attempts so far, the first one first."""
    return sorted(folder.glob("incarnation-[0-9]*"))


def next_attempt(folder: Path, program: AttemptSpec) -> Path:
    """A new folder for the next one, with its program. Raises OSError."""
    before = attempts(folder)
    number = int(before[-1].name.rpartition("-")[2]) + 1 if before else 1
    made = folder / f"incarnation-{number:04}"
    made.mkdir(parents=True)
    (made / PROGRAM).write_text(program.model_dump_json(indent=1), encoding="utf-8")
    return made


def events_of(attempt: Path, rank: int = 0) -> list[Event]:
    """Everything that a rank has told."""
    return JournalReader(attempt, 0, rank).poll()


def errors_of(attempt: Path, workers: int) -> list[tuple[int, RankFailed]]:
    """What ranks died of, by rank, as far as they could tell."""
    told = ((rank, event) for rank in range(workers) for event in events_of(attempt, rank))
    return [(rank, event) for rank, event in told if isinstance(event, RankFailed)]


def first_line(text: str) -> str:
    """The first line that says something, at most 300 characters."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "no message")[:300]


def losses(folder: Path) -> dict[int, float]:
    """The job's loss by step (from 1). A step that was done again, after a crash, counts as it was done last."""
    found: dict[int, float] = {}
    for attempt in attempts(folder):
        for event in events_of(attempt):
            if isinstance(event, StepTrained):
                found[event.step] = event.loss
    return dict(sorted(found.items()))
