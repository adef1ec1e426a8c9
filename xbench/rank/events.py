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

from xbench.records import (
    Bounds,
    CalibrationPoint,
    Contention,
    CostModel,
    Layer,
    Parity,
    Plan,
    Slice,
    StepTimes,
    WorkFormula,
    WorkloadRecord,
)


class Event(BaseModel):
    """Base of all events. `event` is the name on disk; `t` is time.monotonic() of the machine [s]."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    event: ClassVar[str]
    t: float = Field(default_factory=time.monotonic)

    def line(self) -> str:
        """Return the event as a line of JSON, without the fields that were not given."""
        given = self.model_dump(include=self.model_fields_set | {"t"})
        return json.dumps({"event": self.event, **given}) + "\n"


# --- every rank ------------------------------------------------------------------------------------------------------


class RankStarted(Event):
    """A rank runs. `started_s`: when Python ran its first line, in a job of a cluster."""

    event = "hello"
    rank: int
    pid: int
    job: int = 0
    host: int = 0
    started_s: float = 0.0


class PhaseBegan(Event):
    """A phase begins. `name` is for messages ('gate ddp', 'round 2 optimal'), `number` its place in the program."""

    event = "phase"
    name: str
    number: int = 0


class ProfilePartBegan(Event):
    """A part of the profile begins ('layers', 'link', 'contention')."""

    event = "part"
    name: str


class Remarked(Event):
    """A sentence on the fabric, for the record."""

    event = "remark"
    message: str


class Warned(Event):
    """A problem that does not end the run."""

    event = "warning"
    message: str


class ModeFailed(Event):
    """A mode could not run. The others continue."""

    event = "failed"
    mode: str
    message: str


class RankFailed(Event):
    """A rank is about to end because of an error.

    `place` is the user's file:line. `told` is the sentence of an error of ours, `said` that of a known kind. `short_in`
    is the mode in which memory ran out.
    """

    event = "error"
    message: str
    place: str | None = None
    kind: str | None = None
    traceback: str | None = None
    told: str | None = None
    said: str | None = None
    hint: str | None = None
    short_in: str | None = None


class RankEnded(Event):
    """The work is done, and no event follows. `how` and `steps` are those of a job of a cluster."""

    event = "end"
    how: Literal["stopped", "finished"] | None = None
    steps: int | None = None


# --- profile and parity check ----------------------------------------------------------------------------------------


class LinkCalibrated(Event):
    """An emulated link was calibrated."""

    event = "calibration"
    points: list[CalibrationPoint]


class StepProfiled(Event):
    """Layers and step of a job. `series`: the raw times [s] by name."""

    event = "profile"
    workload: WorkloadRecord
    layers: list[Layer]
    step: StepTimes
    series: dict[str, list[float]]


class SchedulesPlanned(Event):
    """Plans of all schedules of a job, and the models that they were made with."""

    event = "plans"
    cost_model: CostModel | None
    contention: Contention | None = None
    plans: dict[str, Plan]
    bounds: Bounds


class ParityChecked(Parity, Event):
    """Verdict of the parity check of a mode."""

    event = "parity"
    mode: str

    @property
    def verdict(self) -> Parity:
        """The verdict alone."""
        return Parity(**self.model_dump(include=set(Parity.model_fields)))


# --- blocks and timelines --------------------------------------------------------------------------------------------


class BlockTimed(Event):
    """A timed block.

    `stamps` [s on the machine's clock] has the start of the block, then the end of each step. The first `warmup` steps
    do not count. `pattern`: the job of each turn.
    """

    event = "block"
    mode: str
    round: int
    position: int
    warmup: int
    stamps: list[float]
    pattern: tuple[int, ...] | None = None


class GpuWatched(Event):
    """A `profilers.gpu.Window` of this rank's GPU: the timed steps of a block, or the profile (`mode` None)."""

    event = "gpu"
    mode: str | None
    round: int = 0
    device: str
    seconds: float
    readings: int
    utilisation: float | None
    memory_peak_bytes: int | None
    energy_j: float | None
    sm_clock_mhz: float | None
    memory_clock_mhz: float | None
    temperature_max_c: float | None
    throttled: list[str]
    throttled_readings: int | None
    sampling_s: float


class GpuMissing(Event):
    """This rank's GPU has no counters, or no more."""

    event = "gpu_missing"
    reason: str


class StepRecorded(Event):
    """A recorded step of one of the first ranks: its start by rank 0's clock [s], and its two lanes from there."""

    event = "timeline"
    mode: str
    began_s: float
    compute: list[Slice]
    communication: list[Slice]


class TurnsRecorded(Event):
    """Turns of a job by the host's clock [s]: start, end, and arrival of the gradients."""

    event = "turns"
    mode: str
    turns: list[tuple[float, float, float | None]]


# --- converge and regress --------------------------------------------------------------------------------------------


class EpochTrained(Event):
    """A training has finished its epoch number `epoch`, counted from 1."""

    event = "epoch"
    mode: str
    seed: int
    epoch: int


class ModeTrained(Event):
    """A rank's part of a finished training (`records.ConvergenceCurve`). `digest` is that of all parameters."""

    event = "trained"
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
    formula: WorkFormula | None = None


class StepCounted(Event):
    """Operations of one step of a mode (`regress.protocol.Counts`)."""

    event = "counts"
    mode: str
    collectives: float
    wire_bytes: float
    peak_bytes: int | None


# --- jobs of a cluster -----------------------------------------------------------------------------------------------


class GroupJoined(Event):
    """The process group is formed."""

    event = "joined"


class ModelBuilt(Event):
    """The model is built."""

    event = "built"


class CheckpointLoaded(Event):
    """Steps of the checkpoint, 0 without one, and files that were passed over, each with its reason. Rank 0."""

    event = "loaded"
    steps: int
    skipped: list[str]


class RankReady(Event):
    """The model is as in the checkpoint, and wrapped."""

    event = "ready"


class ShareDependent(Event):
    """Sentences on parts of the model that depend on how a batch is shared. Rank 0."""

    event = "depends"
    on: list[str]


class StepTrained(Event):
    """Number of a step, counted from 1, and its mean loss over the whole batch. Rank 0."""

    event = "step"
    step: int
    loss: float


class CheckpointKept(Event):
    """A checkpoint is on the disk. `began_s`: when its writing began [s]. Rank 0."""

    event = "kept"
    steps: int
    began_s: float


KINDS = {kind.event: kind for kind in Event.__subclasses__()}
"""Every event by its name."""


def parse(line: str | bytes) -> Event:
    """Return the event of a line. Raises ValueError if the line is no event."""
    try:
        content: dict[str, Any] = json.loads(line)
        return KINDS[content["event"]].model_validate(content)
    except (LookupError, TypeError, RecursionError) as error:
        raise ValueError(f"not an event: {error}") from None
