"""What came out of a run: typed, versioned, immutable. Every output format is made from these and nothing else.

| schema_version | meaning |
| --- | --- |
| 1 | the first: profiles and comparisons; later other kinds and optional fields |

The parts that all kinds share are in `record_parts` and `measured_parts`, the kinds that derive from others in
`scaling_record`, `validation_record`, `tuned_record`, `convergence_record`, `regression_record`, `cluster_record`,
`live_record` and `restart_record`; this module exports them all. `load` reads a file, migrates an older version and
refuses a newer, truncated or foreign one in one sentence. `save` writes atomically. All times are seconds, all sizes
bytes, all rates bits per second. Nothing here imports torch.
"""

from __future__ import annotations

import json
import os
import reprlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from xbench.characters import visible
from xbench.cluster_record import (
    ClusterComparison,
    ClusterCurve,
    ClusterResult,
    ClusterRun,
    ClusterSpan,
    TraceRecord,
)
from xbench.convergence_record import Converged, Convergence, Dataset, MeanOf, Training, WorkFormula
from xbench.convergence_record import Curve as ConvergenceCurve
from xbench.errors import RecordError
from xbench.field_types import Count, Duration, PositiveSeconds, Seconds, Text
from xbench.live_record import LiveResult, LiveRun, LiveSpan, LiveStatus
from xbench.measured_parts import (
    Bounds,
    CalibrationPoint,
    Contention,
    ContentionPoint,
    CostModel,
    CostPoint,
    CostSegment,
    EmulatedLink,
    GpuUse,
    Layer,
    Parts,
    Plan,
    RankTimeline,
    Slice,
    Stall,
    StepTimes,
    Tensor,
    Timeline,
    TurnTaken,
)
from xbench.record_files import RECORD, frame_kind, write_whole
from xbench.record_parts import (
    FOREIGN,
    Environment,
    Estimate,
    FabricRecord,
    Interval,
    Label,
    Part,
    Ratio,
    Result,
    Verdict,
    WorkloadRecord,
)
from xbench.registry import Registry
from xbench.regression_record import (
    Baseline,
    Case,
    Check,
    Failure,
    Found,
    Judged,
    LaunchPair,
    Measurement,
    MetricName,
    MetricUnit,
    Noise,
    NoiseFloor,
    Regression,
    RegressionVerdict,
    Side,
    SideName,
    Suite,
    Threshold,
)
from xbench.regular_file import MIB, read_regular
from xbench.restart_record import LossCheck, Restart, RestartPart, RestartResult, RestartTimes
from xbench.scaling_record import ErrorBand, LinkTerms, Scaling, ScalingPoint, ScalingSource
from xbench.spec import RunSpec
from xbench.tuned_record import Tuned
from xbench.validation_record import (
    AutoAgainst,
    ErrorSummary,
    Goal,
    Validation,
    ValidationCell,
    ValidationPoint,
)

__all__ = [
    "BY_HAND",
    "RANKS",
    "SCHEMA_VERSION",
    "AnyRecord",
    "AutoAgainst",
    "Baseline",
    "Bounds",
    "CalibrationPoint",
    "Case",
    "Check",
    "ClusterComparison",
    "ClusterCurve",
    "ClusterResult",
    "ClusterRun",
    "ClusterSpan",
    "Comparison",
    "Contention",
    "ContentionPoint",
    "Converged",
    "Convergence",
    "ConvergenceCurve",
    "CostModel",
    "CostPoint",
    "CostSegment",
    "Dataset",
    "EmulatedLink",
    "Environment",
    "ErrorBand",
    "ErrorSummary",
    "Estimate",
    "FabricRecord",
    "Failure",
    "Found",
    "Goal",
    "GpuUse",
    "Interval",
    "Job",
    "Judged",
    "Label",
    "LaunchPair",
    "Layer",
    "LinkTerms",
    "LiveResult",
    "LiveRun",
    "LiveSpan",
    "LiveStatus",
    "LossCheck",
    "MeanOf",
    "Measurement",
    "MetricName",
    "MetricUnit",
    "ModeResult",
    "Noise",
    "NoiseFloor",
    "Parity",
    "Part",
    "Parts",
    "Plan",
    "Profile",
    "RankTimeline",
    "Ratio",
    "Record",
    "RecordBase",
    "Regression",
    "RegressionVerdict",
    "Restart",
    "RestartPart",
    "RestartResult",
    "RestartTimes",
    "Sample",
    "Scaling",
    "ScalingPoint",
    "ScalingSource",
    "Side",
    "SideName",
    "Slice",
    "Stall",
    "StepTimes",
    "Suite",
    "Tensor",
    "Threshold",
    "Timeline",
    "TraceRecord",
    "Training",
    "Tuned",
    "TurnTaken",
    "Validation",
    "ValidationCell",
    "ValidationPoint",
    "Verdict",
    "WorkFormula",
    "WorkloadRecord",
    "dump",
    "json_schema",
    "load",
    "load_measured",
    "loads",
    "migrate",
    "save",
]

SCHEMA_VERSION = 1
MOST_BYTES = 256 * MIB
"""Largest file [B] that `load` reads. The largest record so far is a hundredth of it."""

WHICH = "give a record.json, or the folder of a run under results/runs"
RANKS = "ranks"
"""`Parity.reference` of a mode that is held to nothing but that all ranks train one network."""

BY_HAND = "averaging by hand"
"""`Parity.reference` where DDP cannot train the model."""

GPU_MISSING = "why NVML had nothing, or nothing more, to say on a GPU"


class Sample(Part):
    """One block: consecutive timed steps of one mode by one job. Raw; never deleted, only flagged."""

    launch: Count
    round: Count
    position: Count = Field(description="place in the launch's order of blocks")
    mode: Text
    job: Count = Field(description="0-based; the workload's place on the command line")
    steps_s: list[PositiveSeconds] = Field(description="each until the last rank has done it, see docs")
    step_s: PositiveSeconds = Field(description="median of steps_s; in paired modes window over steps, see docs")
    warmup_s: list[PositiveSeconds] = []
    samples_per_step: Count = Field(description="batch over all ranks")
    started_s: Seconds = Field(description="since the launch began")
    outlier: bool = False
    gpu: GpuUse | None = Field(default=None, description="what NVML said of this job's devices in the timed steps")


class Parity(Part):
    """Verdict on a schedule: it trained the same network as DDP or, by `reference` "ranks", one network on all ranks.

    `ok` False: it did not, and its time is no result. `ok` and not `shown`: nothing speaks against it, and the gate
    would have let a wrong schedule pass as well; `message` says why.
    """

    ok: bool
    shown: bool = True
    max_relative_difference: float | None
    tolerance: float
    bitwise_across_ranks: bool
    steps: Count
    worst_parameter: Text | None = None
    reference: Text = "ddp"
    message: Text | None = None


class ModeResult(Part):
    """One column of a comparison. Times are None when the mode failed or nothing was measured."""

    mode: Text
    status: Literal["ok", "failed", "not measured"] = Field(description="not measured: the run ended before its turn")
    label: Label
    error: Text | None = None
    step_s: Estimate | None = None
    seconds_per_sample: Estimate | None = None
    exposed_s: Seconds | None = None
    predicted_step_s: Duration | None = None
    prediction_error: float | None = Field(default=None, description="predicted over measured, minus one")
    removed_share: float | None = Field(default=None, description="share of removable exposed communication removed")
    parity: Parity | None = None
    ratio: Ratio | None = None
    ratio_to: Text | None = Field(
        default=None, description="the mode that `ratio` is to, where that is not the comparison's reference"
    )
    blocks: Count = 0
    plan: Plan | None = None
    timeline: Timeline | None = Field(
        default=None, description="a recorded step of the first job; `plan.timeline` is the predicted one"
    )
    other_ranks: list[RankTimeline] = Field(default=[], description="the recorded step on ranks 1 to 7")
    turns: list[TurnTaken] = Field(default=[], description="recorded turns of `crossover`, in order of time")
    pattern: Text | None = Field(default=None, description="turn pattern of a paired mode, such as 'ABA'")
    gpu: GpuUse | None = Field(default=None, description="what NVML said while its blocks were timed")
    note: Text | None = None


class Job(Part):
    """One workload of a comparison with what was measured about it before timing."""

    workload: WorkloadRecord
    step: StepTimes | None = None
    contention: Contention | None = None
    bounds: Bounds | None = None
    plans: dict[Text, Plan] = {}
    layers: list[Layer] = []


class RecordBase(Result):
    """What every record has."""

    schema_version: Literal[1] = 1
    created: Text = Field(description="ISO 8601, UTC")
    command: Text
    spec: RunSpec
    environment: Environment
    fabric: FabricRecord
    emulated: EmulatedLink | None = Field(default=None, description="of an emulated fabric")
    complete: bool = Field(description="false: the run ended early, and the record has what was measured by then")
    error: Text | None = Field(default=None, description="why the run ended early, one sentence")
    warnings: list[Text] = []


class Profile(RecordBase):
    """What `xbench profile` measured: every layer, the step without communication, an all-reduce, and the plans."""

    kind: Literal["profile"] = "profile"
    workload: WorkloadRecord
    layers: list[Layer] = Field(description="in gradient-ready order: the layer nearest the loss is first")
    step: StepTimes | None = Field(description="without communication")
    cost_model: CostModel | None = Field(default=None, description="T(M) of an all-reduce of M bytes, as fitted")
    contention: Contention | None = None
    bounds: Bounds | None = None
    plans: dict[Text, Plan] = Field(default={}, description="by schedule")
    samples: dict[Text, list[float]] = Field(default={}, description="raw per-step times [s] by series name")
    gpu: GpuUse | None = Field(default=None, description="what NVML said during the whole profile")
    gpu_missing: Text | None = Field(default=None, description=GPU_MISSING)


class Comparison(RecordBase):
    """What `xbench compare` measured: each mode's result, and the raw samples that it rests on."""

    kind: Literal["comparison"] = "comparison"
    reference: Text = Field(description="the mode that ratios are against")
    modes: dict[Text, ModeResult] = Field(description="by mode, in the order in which they were asked for")
    jobs: list[Job] = Field(description="one; two where a mode is paired")
    bounds: Bounds | None = None
    cost_model: CostModel | None = Field(default=None, description="T(M) of an all-reduce of M bytes, as fitted")
    samples: list[Sample] = Field(default=[], description="one a block of timed steps, raw")
    gpu_missing: Text | None = Field(default=None, description=GPU_MISSING)


AnyRecord = (
    Profile
    | Comparison
    | Scaling
    | Validation
    | Tuned
    | Convergence
    | Baseline
    | Noise
    | Regression
    | ClusterComparison
    | LiveRun
    | Restart
)
"""Every kind of record that `load` reads and `report` shows."""

Record = Annotated[AnyRecord, Field(discriminator="kind")]
_ADAPTER: TypeAdapter[AnyRecord] = TypeAdapter(Record)

REBUILDERS: Registry[Callable[[Path], AnyRecord]] = Registry("kind of run", listing="docs/report.md")
"""Functions that make a killed run's record from its journals, by the kind that its `frame.json` names."""
REBUILDERS.add("measured", "xbench.runtime.rebuild:measured", "profile, compare, tune")
REBUILDERS.add("convergence", "xbench.runtime.rebuild:convergence", "converge")
REBUILDERS.add("restart", "xbench.runtime.rebuild:restart", "cluster restart")
REBUILDERS.add("live", "xbench.runtime.rebuild:live", "cluster run")


def json_schema() -> dict[str, Any]:
    """The record's JSON Schema (draft 2020-12), as `xbench schema` prints it."""
    return _ADAPTER.json_schema()


def dump(record: AnyRecord) -> str:
    """The record as JSON text."""
    return record.model_dump_json(indent=1) + "\n"


def save(record: AnyRecord, path: Path) -> Path:
    """Write atomically: the file is whole or is not there. Raises OSError."""
    return write_whole(dump(record), path)


def load(path: str | os.PathLike[str]) -> AnyRecord:
    """Read the record in a file, or in the folder of a run: the model of its kind, such as Comparison or Profile.

    A run that was killed before it wrote its record has its journals: the record is then made from those, and its
    `complete` is False. Raises RecordError where there is no such file, or where it is cut off, of another program or
    of a newer schema.
    """
    path = Path(path)
    try:
        if path.is_dir():
            path = path / RECORD
        if path.name == RECORD and not path.exists() and frame_kind(path.parent) in REBUILDERS.names():
            return REBUILDERS.load(str(frame_kind(path.parent)))(path.parent)
        text = read_regular(path, MOST_BYTES).decode("utf-8")
    except FileNotFoundError:
        raise RecordError(f"there is no result file {_short(path)}", hint=WHICH) from None
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a NUL in the path
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise RecordError(f"{_short(path)} cannot be read: {_one_line(reason)}") from None
    return loads(text, str(path))


def load_measured(path: str | os.PathLike[str]) -> Profile | Comparison:
    """As `load`, for what starts from measurements: a record of another kind is refused. Raises RecordError."""
    record = load(path)
    if isinstance(record, (Profile, Comparison)):
        return record
    raise RecordError(
        f"{_short(path)} is a {record.kind} record, which holds no measurements",
        hint="it takes what xbench profile or xbench compare wrote",
    )


def loads(text: str, name: str = "record") -> AnyRecord:
    """Parse a record's JSON text; `name` is what errors call it. Raises RecordError."""
    shown = repr(_one_line(name))
    try:
        data = json.loads(text)
        if "\\ud" in text.lower():  # half of a surrogate pair is JSON, but no text: it could not be written again
            json.dumps(data, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise RecordError(f"{shown} is not whole JSON: it was cut off or is another kind of file") from None
    except MemoryError:
        raise RecordError(f"{shown} needs more memory than there is") from None
    if not isinstance(data, dict) or "schema_version" not in data or "kind" not in data:
        raise RecordError(f"{shown} is not an xbench result", hint=WHICH)
    version = data["schema_version"]
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        found = reprlib.repr(version)  # bounds each part of a nested value, but not their sum
        raise RecordError(f"{shown} has no valid schema_version: {found[:100]}{'…' if len(found) > 100 else ''}")
    if version > SCHEMA_VERSION:
        raise RecordError(
            f"{shown} has schema version {reprlib.repr(version)}, and this xbench reads up to {SCHEMA_VERSION}",
            hint="install a newer xbench",
        )
    try:
        return _ADAPTER.validate_python(migrate(data), context=FOREIGN)
    except (ValidationError, RecursionError) as error:
        raise RecordError(f"{shown} is not a valid xbench result: {_explain(error)}") from None


def migrate(data: dict[str, Any]) -> dict[str, Any]:
    """Bring an older record to SCHEMA_VERSION, one step a version. There is no older version yet."""
    return data


def _explain(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return f"{_one_line(where) or 'record'}: {_one_line(first['msg'])}"
    return "nested too deeply"


def _one_line(text: str) -> str:
    """Foreign text for an error message: one harmless line of at most 160 characters."""
    line = visible(" ".join(text.split()))
    return line if len(line) <= 160 else f"{line[:159]}…"


def _short(path: str | os.PathLike[str]) -> str:
    return repr(_one_line(str(path)))
