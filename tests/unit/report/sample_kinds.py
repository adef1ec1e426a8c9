"""Hand-made records with GPU counters, of trainings and of a tuning; and one record of every kind and trouble."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import sample_predictions as predicted
import sample_records as made

from xbench.records import (
    AnyRecord,
    Comparison,
    Convergence,
    ConvergenceCurve,
    Dataset,
    GpuUse,
    Job,
    Profile,
    Ratio,
    Training,
    Tuned,
    WorkFormula,
    load,
)
from xbench.stats.convergence import converged

GOLDEN = Path(__file__).parents[2] / "golden"
AUTO = Ratio(value=0.9, ci95=(0.88, 0.92), verdict="faster")
OPTIMAL = Ratio(value=0.97, ci95=(0.93, 1.01), verdict="inconclusive")


def gpu_use(power_w: float, seconds_per_sample: float | None, **changes: object) -> GpuUse:
    """Two busy GPUs; `changes` replace fields."""
    energy_j = power_w * seconds_per_sample if seconds_per_sample else None
    use = GpuUse(
        devices=2, readings=720, utilisation=0.97, memory_peak_bytes=41 * 1024**3, power_w=power_w or None,
        energy_j_per_sample=energy_j, sm_clock_mhz=1980, memory_clock_mhz=2619, temperature_max_c=67, throttled=[],
        throttled_share=0.0, sampling_share=0.004,
    )  # fmt: skip
    return use.model_copy(update=changes)


def on_gpus() -> Comparison:
    """Two GPUs: one mode ran hot, and one device stopped to answer before the last mode was timed."""
    hot = {"throttled": ["power cap", "thermal slowdown by the driver"], "throttled_share": 0.125, "sm_clock_mhz": 1455}
    silent = {"throttled_share": None, "temperature_max_c": None}
    uses = {
        "ddp": gpu_use(1312.0, 0.657 / 16),
        "single": gpu_use(1104.0, 0.818 / 16, **hot),
        "wfbp": gpu_use(0.0, None, **silent),
        "optimal": None,
    }
    results = made.comparison().modes
    return made.comparison(
        [results[mode].model_copy(update={"gpu": use}) for mode, use in uses.items()],
        environment=made.ENVIRONMENT.model_copy(update={"device": "NVIDIA H200", "device_count": 2}),
        warnings=[
            "the GPU's clocks were throttled (power cap, thermal slowdown by the driver) in 3 of 12 blocks of single: "
            "times of a slower GPU"
        ],
        gpu_missing="GPU is lost, after 2160 readings",
    )


def profile_on_gpus() -> Profile:
    """The profile, with counters."""
    return made.profile().model_copy(update={"gpu": gpu_use(1290.0, None)})


def two_workloads() -> Comparison:
    """Two jobs of different workloads, each with layers."""
    (job,) = made.comparison().jobs
    jobs: list[Job] = []
    for title in ("resnet18", "densenet121"):
        workload = job.workload.model_copy(update={"title": title})
        jobs.append(job.model_copy(update={"workload": workload, "layers": made.layers(5)}))
    return made.paired().model_copy(update={"jobs": jobs})


def _curve(mode: str, seed: int, accuracy: float, part: float = 1.0) -> ConvergenceCurve:
    return ConvergenceCurve(
        mode=mode, seed=seed, train_loss=[2.5, 1.0], test_loss=[0.5], test_accuracy=[accuracy], steps_s=[0.25, 0.5],
        sent_bytes=1024.0 * part, activation_bytes=[4096.0 * part], activation_peak_bytes=[4096.0],
        backward_flops=[2e6 * part], ranks_agree=True,
        formula=[WorkFormula(sent_bytes=750.0, activation_bytes=3072.0, backward_flops=1.6e6)] if part < 1 else [],
    )  # fmt: skip


def convergence(**changes: object) -> Convergence:
    """ddp and optimal train alike, spb a little less; one mode failed."""
    curves = [_curve("ddp", 0, 0.97), _curve("ddp", 1, 0.98), _curve("optimal", 0, 0.97), _curve("optimal", 1, 0.98),
              _curve("spb", 0, 0.875, 0.75), _curve("spb", 1, 0.905, 0.75)]  # fmt: skip
    modes = {"ddp": 1, "optimal": 1, "spb": 1, "wfbp": 1}
    record = Convergence(
        created="2026-03-01T12:00:00Z", command="xbench converge resnet18", environment=made.ENVIRONMENT,
        fabric=made.FABRIC, label="real", complete=True, workload=made.WORKLOAD,
        dataset=Dataset(name="digits", source="scikit-learn's load_digits", train=1437, test=360, classes=10),
        training=Training(seeds=[0, 1], steps=2, samples=64, epochs=0.5, batch_size=16, optimizer="sgd", lr=0.01),
        reference="ddp", modes=converged(modes, curves, "ddp", {"wfbp": "it needs a plan"}), curves=curves,
    )  # fmt: skip
    return record.model_copy(update=changes)


def tuned(**changes: object) -> Tuned:
    """auto won, with two buckets."""
    record = Tuned(
        created="2026-03-01T12:00:00Z", command="xbench tune resnet18", xbench="0.1.0", torch="2.15.0", device="cpu",
        label="real", record="results/runs/20260301-120000-comparison-resnet18/record.json", workload=made.WORKLOAD,
        fabric=made.FABRIC, schedule="auto", reference="ddp", margin=0.02, ratio=AUTO,
        tried={"auto": AUTO, "optimal": OPTIMAL}, buckets=[["fc.bias", "fc.weight"], ["conv1.weight"]],
        bucket_bytes=[1024, 4096], bucket_cap_mb_list=[1024 / 2**20, 4096 / 2**20],
    )  # fmt: skip
    return record.model_copy(update=changes)


RESNET18: dict[str, Callable[[], AnyRecord]] = {
    "comparison": made.comparison,
    "comparison-troubled": made.troubled,
    "comparison-paired": made.paired,
    "comparison-gpu": on_gpus,
    "profile": made.profile,
    "scaling": predicted.scaling,
    "convergence": convergence,
    "tuned": tuned,
}
"""Records of resnet18, by the name of their golden files."""

EVERY: dict[str, Callable[[], AnyRecord]] = {
    **RESNET18,
    "two workloads": two_workloads,
    **{kind: partial(load, GOLDEN / f"{kind}-v1.json") for kind in ("regression", "baseline", "cluster", "live")},
}
