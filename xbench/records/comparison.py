"""Records of `xbench compare`, `profile`, `trace` and `tune`, and of `xbench plan --workers`, which is simulated."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from xbench.field_types import MAX_COUNT, Count, Duration, PositiveCount, PositiveSeconds, Seconds, Text
from xbench.records.parts import (
    Bounds,
    Contention,
    CostModel,
    Estimate,
    FabricRecord,
    GpuUse,
    Headed,
    Interval,
    Label,
    Layer,
    Part,
    Parts,
    Plan,
    RankTimeline,
    Ratio,
    RecordBase,
    StepTimes,
    Stragglers,
    Timeline,
    TurnTaken,
    UnitCost,
    WorkloadRecord,
)

GPU_MISSING = "why NVML had nothing, or nothing more, to say on a GPU"
STRAGGLERS = "ranks and links that hold the others back; null: not looked for"

RANKS = "ranks"
"""`Parity.reference` of a mode that is only checked for agreement between its ranks."""

BY_HAND = "averaging by hand"
"""`Parity.reference` where DDP cannot train the model."""


class Sample(Part):
    """One block: consecutive timed steps of one mode by one job. Samples are raw: they are flagged, never deleted."""

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
    gpu: GpuUse | None = Field(None, description="what NVML said of this job's devices in the timed steps")


class Parity(Part):
    """Result of the parity check of a schedule.

    The check passes if the schedule trained the same network as DDP. Where `reference` is "ranks", it passes if all
    ranks trained one network. If `ok` is False, the mode's time is no result. If `ok` is True and `shown` False, the
    check found no difference, but a wrong schedule would have passed too; `message` says why.
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


class Memory(Part):
    """Memory of one training step, of the rank with the largest peak [B].

    The parts are counted from tensors; of parameters, gradients and state in shards, a rank's own shards count.
    """

    peak_bytes: Count
    by: Literal["allocator", "counted"] = Field(
        description="allocator: CUDA's, which includes buckets, gathered parameters and workspace; counted: the sum of "
        "the four parts"
    )
    parameter_bytes: Count
    gradient_bytes: Count = Field(description="after backward")
    optimizer_bytes: Count = Field(description="the optimizer's state")
    activation_bytes: Count = Field(description="what autograd saves in the forward pass")


class Unit(Part):
    """Module, or several, that a sharded mode wraps: one collective gathers its parameters or reduces its gradients."""

    name: Text = Field(
        description="path in the model, or several with commas; empty: the root, with all that no other unit has"
    )
    parameters: list[Text]


class ModeResult(Part):
    """One mode of a comparison. Times are None if the mode failed or nothing was measured."""

    mode: Text
    status: Literal["ok", "failed", "not measured"] = Field(description="not measured: the run ended before its turn")
    label: Label
    error: Text | None = None
    step_s: Estimate | None = None
    seconds_per_sample: Estimate | None = None
    exposed_s: Seconds | None = None
    predicted_step_s: Duration | None = None
    prediction_error: float | None = Field(None, description="predicted over measured, minus one")
    removed_share: float | None = Field(None, description="share of removable exposed communication removed")
    removed_ci95: Interval | None = Field(
        None, description="its 95 % interval; null in older records, and where the ratio to `ddp` has none"
    )
    parity: Parity | None = None
    ratio: Ratio | None = None
    ratio_to: Text | None = Field(
        None, description="the mode that `ratio` is to, where that is not the comparison's reference"
    )
    blocks: Count = 0
    plan: Plan | None = None
    timeline: Timeline | None = Field(
        None, description="a recorded step of the first job; `plan.timeline` is the predicted one"
    )
    other_ranks: list[RankTimeline] = Field([], description="the recorded step on ranks 1 to 7")
    turns: list[TurnTaken] = Field([], description="recorded turns of `crossover`, in order of time")
    pattern: Text | None = Field(None, description="turn pattern of a paired mode, such as 'ABA'")
    gpu: GpuUse | None = Field(None, description="what NVML said while its blocks were timed")
    memory: Memory | None = Field(None, description="of a mode of one job; null in older records")
    units: list[Unit] = Field([], description="modules that torch's sharded modes wrap, in order of registration")
    note: Text | None = None

    @property
    def is_trusted(self) -> bool:
        """True if its times may be shown: it ran, was timed, and passed its parity check."""
        same_network = self.parity is None or self.parity.ok
        return self.status == "ok" and same_network and self.seconds_per_sample is not None


class Job(Part):
    """One workload of a comparison, with the measurements made before timing."""

    workload: WorkloadRecord
    step: StepTimes | None = None
    contention: Contention | None = None
    bounds: Bounds | None = None
    plans: dict[Text, Plan] = {}
    layers: list[Layer] = []
    stragglers: Stragglers | None = Field(None, description=STRAGGLERS)


class Comparison(RecordBase):
    """Result of `xbench compare`: each mode's result and the raw samples behind it."""

    kind: Literal["comparison"] = "comparison"
    reference: Text = Field(description="the mode that ratios are against")
    modes: dict[Text, ModeResult] = Field(description="by mode, in the order in which they were asked for")
    jobs: list[Job] = Field(description="one; two where a mode is paired")
    bounds: Bounds | None = None
    cost_model: CostModel | None = Field(None, description="T(M) of an all-reduce of M bytes, as fitted")
    other_costs: dict[Text, CostModel] = Field(
        {}, description="T(M) of other collectives by name (all_gather, all_gather:group=2), where modes shard"
    )
    unit_costs: dict[Text, UnitCost] = Field({}, description="the host's time for units, by mode, where modes shard")
    samples: list[Sample] = Field([], description="one a block of timed steps, raw")
    gpu_missing: Text | None = Field(None, description=GPU_MISSING)

    @property
    def profiled(self) -> list[Job]:
        """Jobs that were profiled."""
        return self.jobs


SizesFrom = Literal["shapes", "model", "buckets"]


class TracedBucket(Part):
    """One collective of the traced steps that carried gradients. Times are medians over the steps."""

    gradients: Count = Field(description="gradients that were complete when it was launched, of all")
    nbytes: Count
    launched_s: Seconds = Field(description="since the start of backward, by the host")
    duration_s: Duration = Field(description="time that it ran, waiting for peers included; shortest rank")


class Traced(Part):
    """The traced run: its files, its steps and its communication, as they were."""

    files: list[Text]
    ranks: PositiveCount = Field(description="ranks whose traces were read, of the world's")
    collective: Text = Field(description="what carried the gradients")
    periods_s: list[Seconds] = Field(description="each step's time")
    exposed_s: Seconds = Field(description="a collective runs and nothing computes, median")
    waited_s: Seconds = Field(description="the next work waits for the last gradients, median; slowest rank")
    buckets: list[TracedBucket]
    sizes_from: SizesFrom = Field(description="where the gradients' sizes are from")
    compute_slowdown: float | None = Field(
        default=None, description="kernels beside a collective over the same kernels alone; null: not known"
    )


class Profile(RecordBase):
    """Result of `xbench profile`: every layer, the step without communication, an all-reduce, and the plans."""

    kind: Literal["profile"] = "profile"
    workload: WorkloadRecord
    layers: list[Layer] = Field(description="in gradient-ready order: the layer nearest the loss is first")
    step: StepTimes | None = Field(description="without communication")
    cost_model: CostModel | None = Field(None, description="T(M) of an all-reduce of M bytes, as fitted")
    contention: Contention | None = None
    bounds: Bounds | None = None
    plans: dict[Text, Plan] = Field({}, description="by schedule")
    samples: dict[Text, list[float]] = Field({}, description="raw per-step times [s] by series name")
    stragglers: Stragglers | None = Field(None, description=STRAGGLERS)
    gpu: GpuUse | None = Field(None, description="what NVML said during the whole profile")
    gpu_missing: Text | None = Field(None, description=GPU_MISSING)
    traced: Traced | None = Field(None, description="of a profile from profiler traces; null: it was measured")

    @property
    def profiled(self) -> list[Profile]:
        """The one job that was profiled."""
        return [self]

    @property
    def modes(self) -> dict[str, ModeResult]:
        """Timed modes: a profile has none."""
        return {}


class Tuned(Headed):
    """Winner of `xbench tune`, or the reference if no candidate was worth a change; small enough to commit.

    `xbench.attach(model, optimizer, plan=FILE)` reads it. The comparison named in `record` holds the raw samples.
    """

    kind: Literal["tuned"] = "tuned"
    xbench: Text = Field(description="version")
    torch: Text | None = Field(description="version")
    device: Text = Field(description="'cpu' or the GPU's name")
    label: Label
    complete: Literal[True] = True
    record: Text = Field(description="path of the comparison that this rests on")
    workload: WorkloadRecord
    fabric: FabricRecord
    schedule: Text = Field(description="what to use; the reference itself where nothing was worth a change")
    reference: Text
    margin: float = Field(ge=0, lt=1, description="the least gain that was taken to be worth a change")
    ratio: Ratio | None = Field(description="of the schedule to the reference; None for the reference itself")
    tried: dict[Text, Ratio] = Field(description="of every candidate that was timed")
    buckets: list[list[Text]] | None = Field(
        None, description="parameter names in launch order; None for the reference"
    )
    parts: Parts | None = Field(None, description="of `priority`: those of unused parameters included")
    carrier: Text | None = Field(
        None, description="the schedule that carries the buckets of `auto`, where that is not `auto` itself"
    )
    bucket_bytes: list[Count] | None = Field(
        None, description="of the gradients seen when profiled; buckets of unused parameters follow those"
    )
    bucket_cap_mb_list: list[float] | None = Field(
        None, description="DistributedDataParallel's argument for these buckets; None where it has none"
    )
    host_tuning: bool | None = Field(
        None, description="whether ranks were tuned when it was measured; null in files that do not say"
    )
    unused_parameters: bool = Field(False, description="whether a parameter got no gradient when profiled")


# --- xbench plan --workers: nothing ran, so the record has no environment and no raw samples -------------------------


class ScalingSource(Part):
    """Record that the figures were computed from."""

    path: Text
    kind: Literal["profile", "comparison"]
    created: Text
    command: Text


class ErrorBand(Part):
    """Known error of predictions: |predicted over measured − 1| is at most `share` on `workers` workers.

    On N workers it is `share` + `growth` · |log2(N / workers)|.
    """

    share: float = Field(ge=0, lt=1)
    source: Text = Field(description="where the share comes from, for people")
    workers: Count | None = Field(None, description="on which it was checked; null: any, as it was given")
    growth: float | None = Field(None, ge=0, description="added share for each doubling; null: a given band is for all")
    growth_source: Text | None = Field(None, description="where the growth comes from, for people")


class LinkTerms(Part):
    """One all-reduce over `workers`: the line T(M) = a_s + b_s_per_byte · M, and the curve's T for all gradients."""

    workers: Count
    a_s: Seconds
    b_s_per_byte: float
    all_gradients_s: Duration = Field(description="T of all gradients at once, by the curve that plans are made with")


class ScalingPoint(Part):
    """One mode at one number of workers, with one batch a worker."""

    mode: Text
    workers: int = Field(ge=2, le=MAX_COUNT)
    step_s: PositiveSeconds
    step_band_s: Interval = Field(description="where a measured step would lie if the prediction is off by the band")
    exposed_s: Seconds = Field(description="the step beyond compute alone")
    samples_per_s: float | None = Field(description="of all workers together; null where the batch is unknown")
    efficiency: float = Field(description="of scaling: one worker's step without communication over this step")
    buckets: Count
    largest_bucket_bytes: Count


class Scaling(Headed):
    """Result of `xbench plan --workers 2..2048`. `points`: every mode at every size, sizes ascending."""

    kind: Literal["scaling"] = "scaling"
    xbench: Text = Field(description="version")
    label: Literal["simulated"] = "simulated"
    complete: Literal[True] = True
    source: ScalingSource
    workload: WorkloadRecord
    fabric: FabricRecord = Field(description="where the cost model was measured")
    topology: Text = Field(description="as asked for, defaults filled in: 'ring', 'hierarchical:gpus=8,...'")
    compute_scale: float = Field(description="compute times as measured, times this")
    compute_s: Duration = Field(description="one worker's step without communication, scaled")
    modes: list[Text]
    workers: list[Count]
    measured_link: LinkTerms
    links: list[LinkTerms] = Field(description="for each size, what the straight line becomes")
    error_band: ErrorBand
    points: list[ScalingPoint]
    findings: list[Text] = Field([], description="crossover points in words")
    assumptions: list[Text] = []
    warnings: list[Text] = []
