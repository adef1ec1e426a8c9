"""Events of a rank's journal: one class each, written as a line of JSON and read back by `parse`.

A line holds the event's name (`event`), the time at which it was made (`t`) and the fields that were given:

    {"event": "part", "t": 81.25, "name": "layers"}

A reader ignores fields that it does not know, so that a journal of another version can be read. This module needs no
torch, because both the ranks and their parent import it.
"""

from __future__ import annotations

import json
import time
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from xbench import records
from xbench.profilers.gpu import Window


class Event(BaseModel):
    """Base of all events. `event` is the name on disk; `t` is time.monotonic() of the machine [s].

    `of_job`: the job that it is about, in the journal of a process that holds another job too. None: the journal's.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    event: ClassVar[str]
    t: float = Field(default_factory=time.monotonic)
    of_job: int | None = None

    def __init_subclass__(cls, event: str) -> None:
        super().__init_subclass__()
        cls.event = event

    def line(self) -> str:
        """Return the event as a line of JSON, without the fields that were not given."""
        given = self.model_dump(include=self.model_fields_set | {"t"})
        return json.dumps({"event": self.event, **given}) + "\n"


class RankStarted(Event, event="hello"):
    """A rank runs."""

    rank: int
    pid: int
    job: int = 0
    host: int = 0


class PhaseBegan(Event, event="phase"):
    """A phase begins. `name` is for messages ('gate ddp', 'round 2 optimal'), `number` its place in the program."""

    name: str
    number: int = 0


class ProfilePartBegan(Event, event="part"):
    """A part of the profile begins ('layers', 'link', 'contention')."""

    name: str


class Remarked(Event, event="remark"):
    """A sentence for the notes of the record."""

    message: str


class Warned(Event, event="warning"):
    """A problem that does not end the run."""

    message: str


class ModeFailed(Event, event="failed"):
    """A mode could not run. The others continue."""

    mode: str
    message: str


class RankFailed(Event, event="error"):
    """A rank is about to end because of an error.

    `place` is the user's file:line. `told` is the sentence of an error of ours, `said` that of a known kind. `short_in`
    is the mode in which memory ran out.
    """

    message: str
    place: str | None = None
    kind: str | None = None
    traceback: str | None = None
    told: str | None = None
    said: str | None = None
    hint: str | None = None
    short_in: str | None = None


class RankEnded(Event, event="end"):
    """The work is done, and no event follows. `how` and `steps` are those of a job of a cluster."""

    how: Literal["stopped", "finished"] | None = None
    steps: int | None = None


class LinkCalibrated(Event, event="calibration"):
    """An emulated link was calibrated."""

    points: list[records.CalibrationPoint]


class StepProfiled(Event, event="profile"):
    """Layers and step of a job. `series`: the raw times [s] by name."""

    workload: records.WorkloadRecord
    layers: list[records.Layer]
    step: records.StepTimes
    series: dict[str, list[float]]


class StragglersSought(Event, event="stragglers"):
    """Ranks and links of a job that hold the others back, or none."""

    found: records.Stragglers


class SchedulesPlanned(Event, event="plans"):
    """Plans of all schedules of a job, and the models that they were made with. `other_costs`: by collective.
    `unit_costs`: by mode."""

    cost_model: records.CostModel | None
    contention: records.Contention | None = None
    plans: dict[str, records.Plan]
    bounds: records.Bounds
    other_costs: dict[str, records.CostModel] = {}
    unit_costs: dict[str, records.UnitCost] = {}


class ParityChecked(Event, event="parity"):
    """Verdict of the parity check of a mode."""

    mode: str
    verdict: records.Parity


class BlockTimed(Event, event="block"):
    """A timed block.

    `stamps` [s on the machine's clock] has the start of the block, then the end of each step. The first `warmup` steps
    do not count. `pattern`: the job of each turn.
    """

    mode: str
    round: int
    position: int
    warmup: int
    stamps: list[float]
    pattern: tuple[int, ...] | None = None


class GpuWatched(Event, event="gpu"):
    """Readings of this rank's GPU: those of the timed steps of a block, or of the profile (`mode` None)."""

    mode: str | None
    round: int = 0
    window: Window


class GpuMissing(Event, event="gpu_missing"):
    """This rank's GPU has no counters, or no more."""

    reason: str


class StepRecorded(Event, event="timeline"):
    """A recorded step of one of the first ranks: its start by rank 0's clock [s], and its timeline from there."""

    mode: str
    began_s: float
    timeline: records.Timeline


class MemoryMeasured(Event, event="memory"):
    """Memory of a mode's step on this rank [B].

    `peak_bytes` is the allocator's; None: the device has none that counts.
    """

    mode: str
    peak_bytes: int | None
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    activation_bytes: int


class UnitsWrapped(Event, event="units"):
    """Parameter names by unit of a mode that wraps modules. Rank 0."""

    mode: str
    units: dict[str, list[str]]


class TurnsRecorded(Event, event="turns"):
    """Turns of a job by the host's clock [s]: start, end, and arrival of the gradients."""

    mode: str
    turns: list[tuple[float, float, float | None]]


class EpochTrained(Event, event="epoch"):
    """A training has finished its epoch number `epoch`, counted from 1."""

    mode: str
    seed: int
    epoch: int


class ModeTrained(Event, event="trained"):
    """A rank's part of a finished training (`records.ConvergenceCurve`). `digest` is that of all parameters."""

    mode: str
    seed: int
    train_loss: list[float]
    digest: str
    sent_bytes: float | None
    device_peak_bytes: int | None
    test_loss: list[float]
    test_accuracy: list[float]
    steps_s: list[float]
    activation_bytes: float | None = None
    activation_peak_bytes: int | None = None
    backward_flops: float | None = None
    formula: records.WorkFormula | None = None


class StepCounted(Event, event="counts"):
    """Operations of one step of a mode (`regress.protocol.Counts`)."""

    mode: str
    collectives: float
    wire_bytes: float
    peak_bytes: int | None


class CheckpointLoaded(Event, event="loaded"):
    """Steps of the checkpoint, 0 without one, and files that were passed over, each with its reason. Rank 0."""

    steps: int
    skipped: list[str]


class StepTrained(Event, event="step"):
    """Number of a step, counted from 1, and its mean loss over the whole batch. Rank 0."""

    step: int
    loss: float


class CheckpointKept(Event, event="kept"):
    """A checkpoint is on the disk. Rank 0."""

    steps: int


KINDS = {kind.event: kind for kind in Event.__subclasses__()}
"""Every event by its name."""


def parse(line: str | bytes) -> Event:
    """Return the event of a line. Raises ValueError if the line is no event."""
    try:
        content: dict[str, Any] = json.loads(line)
        return KINDS[content["event"]].model_validate(content)
    except (LookupError, TypeError, RecursionError) as error:
        raise ValueError(f"not an event: {error}") from None
