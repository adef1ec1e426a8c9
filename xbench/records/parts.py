"""Parts of records: machine, workload, fabric and statistics; measurements of a step and of a link, and their plans.

`Machine` is the answer of `xbench env`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from xbench.field_types import Count, Duration, PositiveCount, PositiveSeconds, Rate, Seconds, SimulatedSeconds, Text
from xbench.spec import RunSpec, WorkloadSpec

if TYPE_CHECKING:
    from pandas import DataFrame

Label = Literal["real", "emulated", "simulated"]
Verdict = Literal["reference", "faster", "slower", "equivalent", "inconclusive"]
Interval = tuple[float, float]
NOT_TRACED = "not in the trace"
"""Text in place of what a profiler's trace does not tell."""

MAX_INTEGER = 2**63 - 1
"""Largest size, count or seed. Python's integers have no limit, but those above 1e308 cannot be divided."""

MAX_NUMBER = 1e150
"""Largest number in a record that is read. Losses, rates and ratios stay far below it; a product of two is finite.

Apart from zero, no number is closer to zero than its inverse, so that no quotient overflows.
"""

FOREIGN = {"foreign": True}
"""Validation context of a record read from a file. Values measured here are not held to MAX_NUMBER, so none is lost."""


class Part(BaseModel):
    """Base of everything in a record: frozen. It refuses unknown fields, NaN, infinity and out-of-range numbers.

    The validator of a class is made when it is first used: a process uses few of them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    @field_validator("*", mode="after")
    @classmethod
    def _fits(cls, value: Any, info: ValidationInfo) -> Any:
        if _is_beyond(value, MAX_NUMBER if info.context == FOREIGN else math.inf):
            raise PydanticCustomError("too_large", "a number so large, or so close to zero, means nothing here")
        return value


class Result(Part):
    """Base of every kind of record. Its repr is one line, because a record holds up to a million numbers.

    `xbench.report` makes frames and the notebook view. It imports records, so records import it only on demand.
    """

    def frame(self, table: str) -> DataFrame:
        """Return one of the record's tables as a pandas data frame, as `xbench report --csv` writes it.

        A comparison has `samples`, `steps`, `modes` and `layers`; docs/report.md lists the tables of the other kinds.
        Column names end in their unit: `step_s` is in seconds, `grad_bytes` in bytes. Raises UsageError for an unknown
        table, naming the known ones, and where pandas is not installed.
        """
        return import_module("xbench.report.formats.csv").data_frame(self, table)

    def __repr_args__(self) -> Iterable[tuple[str, Any]]:
        return [(name, getattr(self, name)) for name in ("created", "command", "complete")]

    def _repr_html_(self) -> str:
        """Return the headline and a table for a notebook: self-contained, without scripts, all text escaped."""
        shown: str = import_module("xbench.report.formats.html").summary(self)
        return shown


class Headed(Result):
    """Base of the kinds whose fields begin with these."""

    kind: str
    schema_version: Literal[1] = 1
    created: Text = Field(description="ISO 8601, UTC")
    command: Text


def _is_beyond(value: object, most: float) -> bool:
    """True for an integer beyond MAX_INTEGER, or a float beyond `most` or 1 / `most`. Nested parts check themselves."""
    if isinstance(value, float):
        return value != 0 and not 1 / most <= abs(value) <= most
    if isinstance(value, str) or value is None:  # the common case first: the test for a mapping is slow
        return False
    if isinstance(value, int):
        return abs(value) > MAX_INTEGER
    if isinstance(value, Mapping):
        return any(_is_beyond(one, most) for one in value.values())
    return isinstance(value, (list, tuple)) and any(_is_beyond(one, most) for one in value)


class Estimate(Part):
    """Statistic with its 95 % confidence interval."""

    median: float
    ci95: Interval

    @property
    def interval(self) -> Interval | None:
        """`ci95`, or None for a single value: it shows no spread, and both ends equal the value."""
        return self.ci95 if self.ci95[0] < self.ci95[1] else None


class Ratio(Part):
    """Seconds per sample over those of the reference; below 1 is faster."""

    value: float
    ci95: Interval
    verdict: Verdict
    pairs: Count | None = Field(None, description="pairs of blocks that it is of; null in older records")
    launches: Count | None = Field(
        None, description="launches that it is of; of 1, it speaks of that launch alone; null in older records"
    )

    @property
    def interval(self) -> Interval | None:
        """`ci95`, or None for a single pair, which shows no spread."""
        return None if self.pairs == 1 else self.ci95


class Environment(Part):
    """Machine and software of a measurement. `facts` holds everything else (kernel, governor, NCCL, ...)."""

    hostname: Text
    cpu: Text
    cores: Count
    memory_bytes: Count
    python: Text
    torch: Text | None
    device: Text = Field(description="'cpu' or the GPU's name")
    device_count: Count
    xbench: Text
    commit: Text | None
    facts: dict[Text, Text] = {}


class WorkloadRecord(Part):
    """Workload as it ran, with every default filled in."""

    spec: WorkloadSpec
    title: Text
    parameters: Count
    tensors: Count
    grad_bytes: Count
    batch_size: Count = Field(description="samples a rank and step; 0: not known")
    input: Text = Field(description="for people: '3×128×128 images', '64 tokens'")
    loader: Text | None = Field(
        None, description="what every step takes its batches from, 'DataLoader with 2 workers'; null: one fixed batch"
    )
    burst: PositiveCount = Field(1, description="steps whose batches come together: one of each worker of the loader")
    buffer_bytes: list[Count] = Field([], description="the model's buffers, one entry a dtype: DDP sends them")
    parameter_dtypes: Text | None = Field(
        None, description="'bf16', 'fp32 and bf16': of a factory's model whose parameters are not `spec.dtype`"
    )

    @property
    def dtype(self) -> str:
        """Data types of the trainable parameters, and so of the gradients: 'fp32', 'bf16', 'fp32 and bf16'."""
        return self.parameter_dtypes or self.spec.dtype

    @property
    def samples(self) -> int:
        """Samples a rank and step. A batch counts as one sample if the number of its samples is not known."""
        return self.batch_size or self.spec.accumulate

    @property
    def training(self) -> str:
        """The training step, for people: 'batch 2 × 8 of 32 tokens, fp32 with bf16 autocast, adamw, clipped to 1'."""
        spec = self.spec
        if self.input == NOT_TRACED:
            return self.dtype
        times = f"{spec.accumulate} × " if spec.accumulate > 1 else ""
        batch = f"batch {times}{self.batch_size // spec.accumulate or '(untold size)'} of {self.input}"
        kernels = f"{spec.optimizer_impl} " if spec.optimizer_impl != "default" else ""
        amp = f" with {spec.amp} autocast" if spec.amp is not None else ""
        clip = f", clipped to {spec.clip:g}" if spec.clip is not None else ""
        again = f", {spec.checkpoint} checkpointed" if spec.checkpoint is not None else ""
        return f"{batch}, {self.dtype}{amp}, {kernels}{spec.optimizer}{clip}{again}"


class FabricRecord(Part):
    """Connection between the ranks: as requested and as measured."""

    name: Text
    spec: Text
    label: Label
    backend: Text
    hosts: Count
    ranks_per_host: Count
    world_size: Count
    rate_bps: Rate | None = Field(None, description="asked for, one link, one direction")
    measured_bps: Rate | None = Field(None, description="one TCP stream between two hosts, through the shaping")
    allreduce_bps: Rate | None = Field(None, description="bus bandwidth of the largest measured all-reduce")
    cores_per_rank: list[list[Count]] = []
    notes: list[Text] = []


class Gpu(Part):
    """One GPU, with NVML's index. A field is None if NVML does not report it."""

    index: Count
    name: Text
    uuid: Text | None = None
    memory_bytes: Count | None = None
    pci_bus_id: Text | None = None
    pcie_generation: Count | None = Field(None, description="the most that GPU and slot can; idle GPUs use less")
    pcie_width: Count | None = Field(None, description="lanes in use")
    pcie_max_width: Count | None = None
    nvlinks: Count | None = Field(None, description="links that are up")
    sm_clock_max_mhz: Count | None = None
    power_limit_w: float | None = None
    mig: bool = Field(False, description="whether it is split into instances")


class GpuLink(Part):
    """Best link between two GPUs."""

    one: Count
    other: Count
    path: Text = Field(description="'NVLink', or what of PCIe the two share")


class Finding(Part):
    """One thing that xbench can use. `works` is None if it is of no use on this machine."""

    name: Text
    works: bool | None
    detail: Text
    costs: Text | None = Field(None, description="what cannot be had without it")
    get: Text | None = Field(None, description="the command that brings it")


class Machine(Part):
    """Answer of `xbench env`."""

    schema_version: Literal[1] = 1
    kind: Literal["machine"] = "machine"
    created: Text = Field(description="ISO 8601, UTC")
    environment: Environment
    fingerprints: dict[Text, Text] = Field(description="by device, 'cpu' or 'cuda': results of the same one compare")
    gpus: list[Gpu] = []
    links: list[GpuLink] = []
    findings: list[Finding] = []
    differs_from: dict[Text, list[Text]] = Field(
        {}, description="by the path of a saved result: what keeps its times from comparing with this machine's"
    )


class Tensor(Part):
    """Gradient of one parameter tensor."""

    name: Text
    elements: Count
    bytes: Count
    dtype: Text
    ready_s: Seconds = Field(description="since the start of backward, median over steps, slowest rank")
    ready_loaded_s: Seconds | None = Field(
        None, description="the same while gradients travel, which slows a host that computes and sends"
    )
    ready_loaded_each_s: Seconds | None = Field(
        None, description="the same while every gradient travels by itself, as many collectives as tensors"
    )


class Layer(Part):
    """One module that owns parameters, in gradient-ready order (1 is nearest the loss)."""

    name: Text
    kind: Text = Field(description="the module's class name")
    parameters: Count
    grad_bytes: Count
    forward_s: Duration
    backward_s: Seconds
    ready_s: Seconds
    share: float = Field(description="(forward + backward) over the step")
    tensors: list[Tensor]


class StepTimes(Part):
    """One training step without communication. Its parts are instrumented; `uninstrumented_step_s` is the bare loop.

    In a step of several micro-steps, forward and backward are of the last one, which communicates.
    """

    forward_s: Duration
    backward_s: Seconds
    optimizer_s: Duration
    step_s: PositiveSeconds
    step_ci95: Interval
    uninstrumented_step_s: PositiveSeconds
    uninstrumented_ci95: Interval
    overhead_ratio: float = Field(description="instrumented over uninstrumented, minus one")
    overhead_ci95: Interval
    steps: Count
    warmup_steps: Count = Field(description="steps before the first that counts, as detected")
    micro_steps: PositiveCount = Field(1, description="forward and backward passes of a step")
    accumulate_s: Duration = Field(0.0, description="all micro-steps but the last")
    input_s: Duration = Field(0.0, description="wait for the batches of a loader, and their copy to the device")
    input_ahead: bool = Field(
        False, description="whether the loader prepares batches while the step runs, so that a longer step waits less"
    )
    updates_together: bool = Field(
        False, description="whether every update waits for all gradients, to clip or unscale them"
    )


class CostPoint(Part):
    """One size of a collective: the slowest rank's transfer time after all had arrived, and the wait for the last."""

    nbytes: Count
    transfer_s: Duration = Field(description="median of the repetitions; in `other_costs` their mean")
    ci95: Interval
    wait_s: Seconds = Field(description="median of the repetitions")
    repetitions: Count


class CostSegment(Part):
    """Piece of T(M): alpha_s + beta_s_per_byte · M from `from_bytes` on."""

    from_bytes: Count
    alpha_s: Seconds
    beta_s_per_byte: float


class CostModel(Part):
    """Cost function T(M) of one all-reduce of M bytes: a robust line, and segments where one line does not fit."""

    collective: Text = "all_reduce"
    backend: Text
    world_size: Count
    alpha_s: Seconds
    beta_s_per_byte: float
    alpha_ci95: Interval
    beta_ci95: Interval
    max_relative_residual: float
    points: list[CostPoint]
    segments: list[CostSegment] = Field([])
    segmented_max_relative_residual: float | None = None
    clock_offset_s: list[Seconds] = Field(
        [], description="each rank's clock minus rank 0's, as it was estimated; empty where it is not recorded"
    )
    clock_error_s: Seconds | None = Field(
        None,
        description="how far any of these may be off; 0: one kernel keeps the time of all ranks; null: not recorded",
    )


class UnitCost(Part):
    """Host time of a sharded mode besides its collectives."""

    unit_s: Seconds = Field(description="for a unit, with the waits of ranks for each other there")
    tensor_s: Seconds = Field(description="for a tensor, with its copies into and out of buffers")


class ContentionPoint(Part):
    """Collectives of one size, back to back, beside computation: how much each slows the other."""

    nbytes: Count
    in_flight: Count = Field(description="how many were under way at once: 1 or 2")
    alone_s: Duration = Field(description="time of one, back to back, while nothing computes")
    loaded_s: Duration = Field(description="the same while the device computes")
    compute_slowdown: float = Field(description="time of the computation beside them over its time alone")


class Contention(Part):
    """Contention: the time of computation and communication at once, against each alone."""

    launch_s: Seconds = Field(description="c0: host time of one launch; part of what slows the computation below")
    host_step_s: Duration | None = Field(
        None, description="of a GPU: host time of a step without communication, launched without a wait; slowest rank"
    )
    device_step_s: Duration | None = Field(None, description="of a GPU: device time of the same step")
    launch_bound: bool | None = Field(
        None,
        description="whether the host is the bottleneck, so that launches and hooks delay computation; null: a CPU, or "
        "not measured",
    )
    hook_s: Seconds = Field(0.0, description="host time of a gradient's hook, whatever its size")
    copy_s_per_byte: float = Field(0.0, description="copying a gradient into its bucket")
    meeting_s: Seconds = Field(0.0, description="what it costs the ranks to meet once a step, beyond T")
    rest_s: Seconds = Field(
        0.0, description="how much less than T a collective takes at most that comes after a rest of the link"
    )
    points: list[ContentionPoint] = Field(description="empty: not measured, and taken as no slow-down")


class CalibrationPoint(Part):
    """One duration tried on an emulated link: requested, and measured from launch to return (median)."""

    asked_s: Duration
    got_s: Duration
    ci95: Interval


class EmulatedLink(Part):
    """Emulated link and its accuracy."""

    model: CostModel = Field(description="what collectives were to take")
    contention: Contention | None = Field(None, description="as measured with the model, and emulated too")
    slowdown: float | None = Field(None, description="of computation beside a collective, where it was asked for")
    source: Text | None = Field(None, description="the record that the model is from")
    calibration: list[CalibrationPoint] = Field([], description="made before anything was timed")


class Slice(Part):
    """Interval from `start_s` to `end_s` on a lane of a timeline; 0 is the start of the step."""

    name: Text
    start_s: SimulatedSeconds
    end_s: SimulatedSeconds
    nbytes: Count | None = None


class Timeline(Part):
    """One step: intervals of the device's work and of collectives."""

    label: Label
    compute: list[Slice]
    communication: list[Slice]

    @property
    def end_s(self) -> float:
        """End of the last slice [s]."""
        return max((part.end_s for part in (*self.compute, *self.communication)), default=0.0)


class RankTimeline(Timeline):
    """The same recorded step on another rank of the job. Times follow that rank's clock, from the start of its step."""

    rank: PositiveCount
    starts_s: Seconds = Field(description="when its step began, after rank 0's and by rank 0's clock")


class TurnTaken(Part):
    """One turn of a job on the device in `crossover`, recorded by rank 0 of the job."""

    job: Count = Field(ge=0)
    start_s: Seconds = Field(description="when the device was its own; 0 is the first turn's start")
    computed_s: Seconds = Field(description="when it passed the device on")
    arrived_s: Seconds | None = Field(
        None, description="when the turn's gradients had arrived; null for a job's last turn recorded"
    )


class Parts(Part):
    """Parts into which `priority` cuts a plan's buckets, and the order in which all ranks launch them.

    Each bucket of the plan is cut into parts of `nbytes`; its last part holds the rest. A bucket without bytes is one
    part. Parts are numbered from 0 through all buckets. A part is launched once its bucket is full and every part
    before it in `order` has been launched. Also, at most `credit_bytes` may then be in flight, or nothing else is.
    """

    nbytes: PositiveCount = Field(description="a part's bytes, a multiple of 16")
    order: list[Count] = Field(description="part numbers as they are launched, each once")
    credit_bytes: Count | None = Field(None, ge=0, description="under way at once; null: without limit")

    def followed_by(self, bucket_bytes: Sequence[int]) -> Parts:
        """Return the same with the parts of further buckets of these sizes [B], launched after all others."""
        more = sum(max(1, -(-nbytes // self.nbytes)) for nbytes in bucket_bytes)
        count = len(self.order)
        return self.model_copy(update={"order": [*self.order, *range(count, count + more)]})


class Plan(Part):
    """Buckets of a schedule in launch order, and the step that the model predicts for them."""

    mode: Text = Field(description="the schedule")
    buckets: list[list[Text]] = Field(description="parameter names by bucket")
    bucket_bytes: list[Count] = Field(description="gradient bytes by bucket")
    predicted_step_s: SimulatedSeconds
    predicted_exposed_s: SimulatedSeconds = Field(description="what of the step is spent waiting for gradients")
    timeline: Timeline | None = Field(None, description="the predicted step")
    note: Text | None = None
    parts: Parts | None = Field(None, description="of `priority`; null: whole buckets, in launch order")
    carrier: Text | None = Field(
        None, description="the schedule that carries the plan of `auto`, where that is not `auto` itself"
    )


class Bounds(Part):
    """Lower bounds of a synchronous step (`planning.bounds`), for any schedule of one job."""

    compute_s: Duration = Field(description="C: the step without communication")
    communication_s: Duration = Field(description="T of all gradients in one collective")
    overlap_bound_s: Duration = Field(description="max(C, the link's least time): next-forward overlap allowed")
    backward_overlap_bound_s: Duration = Field(description="forward + max(earliest end, backward + optimizer)")

    def of(self, *, ahead: bool) -> float:
        """Return the bound [s] of a schedule. With `ahead`, gradients may arrive in the next forward pass."""
        return self.overlap_bound_s if ahead else self.backward_overlap_bound_s


class GpuUse(Part):
    """NVML readings while steps were timed, over all devices and blocks. A field is None if NVML did not report it."""

    devices: Count
    readings: Count
    utilisation: float | None = Field(None, description="share of time in which any kernel ran, median")
    memory_peak_bytes: Count | None = Field(None, description="in use on the fullest device, by any process")
    power_w: float | None = Field(None, description="mean, of all devices together")
    energy_j_per_sample: float | None = Field(None, description="power_w times seconds per sample")
    sm_clock_mhz: float | None = Field(None, description="median")
    memory_clock_mhz: float | None = Field(None, description="median")
    temperature_max_c: float | None = None
    throttled: list[Text] = Field([], description="why clocks were lower than the device is able to")
    throttled_share: float | None = Field(None, description="share of readings")
    sampling_share: float | None = Field(None, description="time that reading NVML took, over the time")


StepPart = Literal["input", "forward", "backward", "optimizer"]
"""Part of a rank's own step. `input` is the forward pass before its first layer, and no part of `forward`."""


class SlowRank(Part):
    """Rank that the others wait for: its own step, without communication, is longer than that of the typical rank."""

    rank: Count
    host: Text | None = Field(None, description="null: all ranks are on one host")
    parts: list[StepPart] = Field(description="where the lag is, the largest part of it first")
    layer: Text | None = Field(None, description="from which on `parts[0]` lags; null: all of it does")
    lag_s: Duration = Field(description="beyond the typical rank's step, medians")
    share: float = Field(description="lag_s over the rank's own step")
    chance: float = Field(description="probability that a rank that is not slow lags like this")
    waited_share: float | None = Field(
        None, description="time that it waited for its processor; null: that does not explain the lag"
    )


class SlowLink(Part):
    """Link of one host, or between two hosts, that carries less than the others."""

    hosts: list[Text] = Field(description="one: its link to all others; two: the link between them")
    rate_bps: Rate = Field(description="in each direction, both in use, median")
    typical_bps: Rate = Field(description="the same of the other links, or the rate that was asked for")
    typical_is_asked: bool = Field(False, description="whether `typical_bps` is the rate that was asked for")
    lag_s: Duration = Field(description="what all gradients of a step take longer in one collective")
    share: float = Field(description="lag_s over the step with that collective after it")
    chance: float = Field(description="probability that a link that is not slow looks like this")


class Stragglers(Part):
    """Ranks and links that hold the others back in every step, the largest lag first."""

    ranks: list[SlowRank] = []
    links: list[SlowLink] = []


class RecordBase(Result):
    """Base of the records of real or emulated runs."""

    schema_version: Literal[1] = 1
    created: Text = Field(description="ISO 8601, UTC")
    command: Text
    spec: RunSpec
    environment: Environment
    fabric: FabricRecord
    emulated: EmulatedLink | None = Field(None, description="of an emulated fabric")
    complete: bool = Field(description="false: the run ended early, and the record has what was measured by then")
    error: Text | None = Field(None, description="why the run ended early, one sentence")
    warnings: list[Text] = []
