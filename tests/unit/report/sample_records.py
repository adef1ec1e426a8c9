"""Hand-made records with plausible figures: one profile and comparisons that cover every case a report must show."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from xbench.records import (
    Bounds,
    Comparison,
    CostModel,
    CostPoint,
    CostSegment,
    Environment,
    Estimate,
    FabricRecord,
    Job,
    Layer,
    ModeResult,
    Parity,
    Plan,
    Profile,
    Ratio,
    Sample,
    Slice,
    StepTimes,
    Tensor,
    Timeline,
    WorkloadRecord,
)
from xbench.schedules import parse_modes
from xbench.spec import Effort, FabricSpec, RunSpec, WorkloadSpec

ENVIRONMENT = Environment(
    hostname="bench1", cpu="AMD EPYC 7543 32-Core Processor", cores=8, memory_bytes=32 * 1024**3, python="3.11.7",
    torch="2.15.0", device="cpu", device_count=0, xbench="0.1.0", commit="0123456789abcdef0123456789abcdef01234567",
    facts={"kernel": "6.1.0", "governor": "performance"},
)  # fmt: skip
WORKLOAD = WorkloadRecord(
    spec=WorkloadSpec(name="resnet18", batch_size=8, image_size=128), title="resnet18", parameters=11_689_512,
    tensors=62, grad_bytes=46_758_048, batch_size=8, input="3×128×128 images",
)  # fmt: skip
FABRIC = FabricRecord(
    name="shaped", spec="shaped:hosts=2,rate=1gbit", label="real", backend="gloo", hosts=2, ranks_per_host=1,
    world_size=2, rate_bps=1e9, measured_bps=941e6, allreduce_bps=902e6, cores_per_rank=[[0, 1, 2, 3], [4, 5, 6, 7]],
    notes=["veth pair, tbf burst 125 kB"],
)  # fmt: skip
TRANSFERS_S = {1024: 0.00041, 8192: 0.00049, 65536: 0.00097, 524288: 0.0051, 4194304: 0.0379, 46758048: 0.4161}
COST = CostModel(
    backend="gloo",
    world_size=2,
    alpha_s=0.00043,
    beta_s_per_byte=8.9e-9,
    alpha_ci95=(0.00039, 0.00047),
    beta_ci95=(8.8e-9, 9.05e-9),
    max_relative_residual=0.12,
    points=[
        CostPoint(nbytes=size, transfer_s=t, ci95=(t * 0.97, t * 1.04), wait_s=0.0002, repetitions=12)
        for size, t in TRANSFERS_S.items()
    ],
    segments=[
        CostSegment(from_bytes=0, alpha_s=0.0004, beta_s_per_byte=8.7e-9),
        CostSegment(from_bytes=524288, alpha_s=0.0005, beta_s_per_byte=8.9e-9),
    ],
    segmented_max_relative_residual=0.05,
)
BOUNDS = Bounds(compute_s=0.402, communication_s=0.4161, overlap_bound_s=0.4161, backward_overlap_bound_s=0.5482)
STEP = StepTimes(
    forward_s=0.131, backward_s=0.259, optimizer_s=0.012, step_s=0.404, step_ci95=(0.401, 0.409),
    uninstrumented_step_s=0.402, uninstrumented_ci95=(0.399, 0.406), overhead_ratio=0.005,
    overhead_ci95=(-0.004, 0.013), steps=16, warmup_steps=3,
)  # fmt: skip


def layers(count: int = 14) -> list[Layer]:
    """`count` layers in ready order: a classifier, then convolutions that shrink towards the input."""
    made = []
    for number in range(count):
        name, kind = ("fc", "Linear") if number == 0 else (f"layer{4 - number // 4}.{number % 4}.conv", "Conv2d")
        elements = 512_000 if number == 0 else 2_359_296 // 2 ** (number // 3)
        nbytes, ready_s = 4 * elements, 0.018 * (number + 1)
        tensor = Tensor(name=f"{name}.weight", elements=elements, bytes=nbytes, dtype="float32", ready_s=ready_s)
        made.append(Layer(
            name=name, kind=kind, parameters=elements, grad_bytes=nbytes, forward_s=0.009 - 0.0003 * number,
            backward_s=0.018 - 0.0005 * number, ready_s=ready_s, share=round(0.067 - 0.002 * number, 4),
            tensors=[tensor],
        ))  # fmt: skip
    return made


def plan(mode: str, buckets: int, step_s: float, note: str | None = None) -> Plan:
    """A plan with `buckets` equal buckets."""
    return Plan(
        mode=mode,
        buckets=[[f"layer{number}.weight"] for number in range(buckets)],
        bucket_bytes=[WORKLOAD.grad_bytes // buckets] * buckets,
        predicted_step_s=step_s,
        predicted_exposed_s=step_s - BOUNDS.compute_s,
        timeline=Timeline(
            label="simulated",
            compute=[Slice(name="forward", start_s=0, end_s=0.131), Slice(name="backward", start_s=0.131, end_s=0.39)],
            communication=[Slice(name="bucket 0", start_s=0.149, end_s=step_s - 0.012, nbytes=WORKLOAD.grad_bytes)],
        ),
        note=note,
    )


def recorded_step(step_s: float, buckets: int) -> Timeline:
    """A step of `step_s` whose buckets travel one after the other, until the optimizer's 12 ms begin."""
    ends_s = [0.19 + (step_s - 0.202) * number / buckets for number in range(1, buckets + 1)]
    waits = step_s > BOUNDS.compute_s
    return Timeline(
        label="real",
        compute=[
            Slice(name="forward", start_s=0, end_s=0.131),
            Slice(name="backward fc", start_s=0.131, end_s=0.17),
            Slice(name="backward layer1.0.conv1", start_s=0.17, end_s=0.39),
            Slice(name="optimizer", start_s=step_s - 0.012 if waits else 0.39, end_s=step_s),
        ],
        communication=[
            Slice(name=f"bucket {number}", start_s=start_s, end_s=end_s, nbytes=WORKLOAD.grad_bytes // buckets)
            for number, (start_s, end_s) in enumerate(zip([0.19, *ends_s], ends_s, strict=False), start=1)
        ],
    )


def mode_result(
    mode: str,
    step_s: float,
    ratio: tuple[float, float, float] | None,
    verdict: str,
    *,
    buckets: int = 0,
    label: str = "real",
    jobs: int = 1,
) -> ModeResult:
    """A mode that worked: its step, and `ratio` as (value, low, high)."""
    samples = 16 * jobs
    made = plan(mode, buckets, step_s * 0.985) if buckets else None
    return ModeResult(
        mode=mode,
        status="ok",
        label=label,
        step_s=Estimate(median=step_s, ci95=(step_s * 0.99, step_s * 1.012)),
        seconds_per_sample=Estimate(median=step_s / samples, ci95=(step_s * 0.99 / samples, step_s * 1.012 / samples)),
        exposed_s=step_s - BOUNDS.compute_s,
        predicted_step_s=made.predicted_step_s if made else None,
        prediction_error=-0.015 if made else None,
        removed_share=0.5 if made else None,
        parity=None
        if verdict == "control"
        else Parity(ok=True, max_relative_difference=2.4e-7, tolerance=1e-4, bitwise_across_ranks=True, steps=3),
        ratio=Ratio(value=ratio[0], ci95=ratio[1:], verdict=verdict) if ratio else None,
        blocks=12,
        plan=made,
        timeline=recorded_step(step_s, buckets) if jobs == 1 and buckets < 20 and step_s < 10 else None,
    )


def samples(
    modes: list[str], launches: int = 2, rounds: int = 6, ratios: Mapping[str, float] | None = None
) -> list[Sample]:
    """Raw blocks of five steps, times each mode's ratio; one is flagged."""
    made = []
    for launch, number, (position, mode) in itertools.product(range(launches), range(rounds), enumerate(modes)):
        step_s = round((0.6 + 0.001 * number) * (ratios or {}).get(mode, 1.0), 6)
        made.append(Sample(
            launch=launch, round=number, position=position, mode=mode, job=0, steps_s=[step_s] * 5, step_s=step_s,
            warmup_s=[step_s * 1.1] * 2, samples_per_step=16, started_s=4.0 * (number * len(modes) + position),
            outlier=launch == 1 and number == 0 and position == 0,
        ))  # fmt: skip
    return made


def comparison(results: list[ModeResult] | None = None, *, reference: str = "ddp", **changes: object) -> Comparison:
    """A whole comparison; `changes` replace fields of the record."""
    if results is None:
        results = [
            mode_result("compute", 0.402, (0.612, 0.604, 0.62), "faster"),
            mode_result("ddp", 0.657, (1.0, 1.0, 1.0), "reference", buckets=4),
            mode_result("single", 0.818, (1.245, 1.232, 1.257), "slower", buckets=1),
            mode_result("wfbp", 0.611, (0.93, 0.921, 0.941), "faster", buckets=62),
            mode_result("mgwfbp", 0.592, (0.901, 0.893, 0.91), "faster", buckets=21),
            mode_result("optimal", 0.586, (0.892, 0.884, 0.9), "faster", buckets=17),
        ]
    names = [result.mode for result in results]
    record = Comparison(
        created="2026-03-01T12:00:00Z",
        command="xbench compare resnet18 --batch-size 8 --image-size 128",
        spec=RunSpec(
            kind="comparison",
            workloads=(WORKLOAD.spec,),
            modes=parse_modes(",".join(names)) if names else (),
            reference=reference,
            fabric=FabricSpec(name="shaped", hosts=2, rate="1gbit"),
            effort=Effort(),
        ),
        environment=ENVIRONMENT,
        fabric=FABRIC,
        complete=True,
        warnings=["2 hosts share 8 cores: each rank has 4"],
        reference=reference,
        modes={result.mode: result for result in results},
        jobs=[Job(workload=WORKLOAD, step=STEP, bounds=BOUNDS, plans={"optimal": plan("optimal", 17, 0.577)})],
        bounds=BOUNDS,
        cost_model=COST,
        samples=samples(names, ratios={r.mode: r.ratio.value for r in results if r.ratio is not None}),
    )
    return record.model_copy(update=changes)


def troubled() -> Comparison:
    """An interrupted comparison: one mode crashed, one trained another network, one cannot be told from DDP."""
    wrong = mode_result("mgwfbp", 0.4, (0.6, 0.59, 0.61), "faster", buckets=21).model_copy(
        update={
            "status": "failed",
            "error": "the parity check failed",
            "parity": Parity(ok=False, max_relative_difference=0.31, tolerance=1e-4, bitwise_across_ranks=False,
                             steps=3, worst_parameter="layer1.0.conv1.weight"),
        }
    )  # fmt: skip
    crashed = ModeResult(mode="single", status="failed", label="real", error="rank 1 on host 1 died: killed by SIGKILL")
    return comparison(
        [
            mode_result("ddp", 0.657, (1.0, 1.0, 1.0), "reference", buckets=4),
            mode_result("optimal", 0.63, (0.96, 0.9, 1.03), "inconclusive", buckets=17),
            wrong,
            crashed,
        ],
        complete=False,
        error="interrupted in round 3 of launch 1",
    )


def paired() -> Comparison:
    """Two jobs that share the devices, with long names, a turn pattern and an emulated mode."""
    crossover = mode_result("crossover:mgwfbp", 0.84, (0.64, 0.63, 0.65), "faster", buckets=21, jobs=2)
    return comparison(
        [
            mode_result("sequential", 1.314, (1.0, 1.0, 1.0), "reference", buckets=4, jobs=2),
            mode_result("concurrent", 1.1, (0.837, 0.82, 0.85), "faster", buckets=4, jobs=2, label="emulated"),
            crossover.model_copy(update={"pattern": "ABA", "note": "a turn passes in 41 µs (median)"}),
        ],
        reference="sequential",
        bounds=None,
    )


def profile() -> Profile:
    """A whole profile of resnet18 over two shaped hosts."""
    return Profile(
        created="2026-03-01T12:00:00Z",
        command="xbench profile resnet18",
        spec=RunSpec(
            kind="profile", workloads=(WORKLOAD.spec,), fabric=FabricSpec(name="shaped", hosts=2, rate="1gbit")
        ),
        environment=ENVIRONMENT,
        fabric=FABRIC,
        complete=True,
        workload=WORKLOAD,
        layers=layers(),
        step=STEP,
        cost_model=COST,
        bounds=BOUNDS,
        plans={
            "single": plan("single", 1, 0.8181),
            "wfbp": plan("wfbp", 62, 0.609),
            "mgwfbp": plan("mgwfbp", 21, 0.5591, note="the greedy's step is 2.0 % longer than the exact plan's"),
            "optimal": plan("optimal", 17, 0.5482),
        },
        samples={"uninstrumented": [0.402, 0.403, 0.401], "instrumented": [0.404, 0.405, 0.403]},
    )
