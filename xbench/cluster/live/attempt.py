"""What the ranks of one incarnation are told, where things lie in a job's folder, and how a batch is shared. No torch.

    FOLDER/lock                        flocked by every process of an incarnation, while it lives
    FOLDER/checkpoint-00000150.xb      see `checkpoints`
    FOLDER/incarnation-0001/           program.json, meeting, stop, log, and a journal a rank (`rank.journal`)

A step is one of the whole batch: n_r of its B samples go to rank r, as evenly as they can, so numbers of workers that
do not divide the batch are served too. Rank r's loss is the mean over its n_r samples; weighted by n_r·w/B before
backward, the mean over w ranks that DistributedDataParallel takes is the mean over the whole batch, exactly.

`rank.events` has the events of a journal.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from xbench.cluster.live.engine import AttemptProgress, LiveJob
from xbench.errors import SpecError
from xbench.rank.events import CheckpointKept, CheckpointLoaded, Event, RankFailed, StepTrained
from xbench.rank.journal import JournalReader
from xbench.spec import DeviceType, Spec, WorkloadSpec
from xbench.workloads import family_of, parse_workload, resolve

LOCK = "lock"
PROGRAM = "program.json"
MEETING = "meeting"
STOP = "stop"
LOG = "log"


class AttemptSpec(Spec):
    """The argument of every rank: `program.json` in the incarnation's own folder, whose parent is the job's.

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


def incarnation_of(job: LiveJob, slots: Sequence[int], device: DeviceType = "cpu") -> AttemptSpec:
    """What the ranks of a job on these slots are told.

    Raises SpecError for an unknown workload, one with a batch size of its own, counts below one, and more workers than
    a step has samples.
    """
    spec = parse_workload(job.workload, seed=job.seed)
    if spec.batch_size is not None:
        raise SpecError(
            f"job {job.name!r}: its workload {job.workload!r} has a batch size of its own, and a job's is that of all "
            "its workers",
            hint=f"give the job batch_size = {spec.batch_size}",
        )
    for what in ("steps", "batch_size", "checkpoint_steps"):
        count = getattr(job, what)
        if count < 1:
            raise SpecError(f"job {job.name!r}: {what} = {count} is below 1", hint="write a whole number from 1 on")
    if not slots:
        raise SpecError(f"job {job.name!r} got no slot to run on", hint="an incarnation has at least one worker")
    if len(slots) > job.batch_size:
        raise SpecError(
            f"job {job.name!r}: {len(slots)} workers cannot share a batch of {job.batch_size}",
            hint=f"at most {job.batch_size} workers, or a larger batch_size",
        )
    drawn = family_of(spec.name) != "factory"
    one = resolve(spec.model_copy(update={"batch_size": 1}) if drawn else spec, device)
    return AttemptSpec(
        name=job.name,
        workload=one,
        steps=job.steps,
        batch_size=job.batch_size,
        checkpoint_steps=job.checkpoint_steps,
        slots=tuple(slots),
        device=device,
    )


def share(batch_size: int, workers: int, rank: int) -> range:
    """Places in the batch that a rank has: together all, none twice, and nobody has two more than another."""
    return range(rank * batch_size // workers, (rank + 1) * batch_size // workers)


def incarnations(folder: Path) -> list[Path]:
    """Folders of all incarnations so far, the first one first."""
    return sorted(folder.glob("incarnation-[0-9]*"))


def next_incarnation(folder: Path) -> Path:
    """A new folder for the next one. Raises OSError."""
    before = incarnations(folder)
    number = int(before[-1].name.rpartition("-")[2]) + 1 if before else 1
    made = folder / f"incarnation-{number:04}"
    made.mkdir(parents=True)
    return made


def events_of(incarnation: Path, rank: int = 0) -> list[Event]:
    """Everything that a rank has told."""
    return JournalReader(incarnation, 0, rank).poll()


def seen(look: AttemptProgress, event: Event) -> AttemptProgress:
    """How an incarnation stands after rank 0 has told that; its end is another matter."""
    match event:
        case CheckpointLoaded():
            return look._replace(steps=event.steps, kept_steps=event.steps)
        case StepTrained():
            return look._replace(state="training", steps=event.step)
        case CheckpointKept():
            return look._replace(kept_steps=event.steps)
    return look


def errors_of(incarnation: Path, workers: int) -> list[tuple[int, RankFailed]]:
    """What ranks died of, by rank, as far as they could tell."""
    told = ((rank, event) for rank in range(workers) for event in events_of(incarnation, rank))
    return [(rank, event) for rank, event in told if isinstance(event, RankFailed)]


def first_line(text: str) -> str:
    """The first line that says something, at most 300 characters."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "no message")[:300]


def losses(folder: Path) -> dict[int, float]:
    """The job's loss by step (from 1). A step that was done again, after a crash, counts as it was done last."""
    found: dict[int, float] = {}
    for incarnation in incarnations(folder):
        for event in events_of(incarnation):
            if isinstance(event, StepTrained):
                found[event.step] = event.loss
    return dict(sorted(found.items()))
