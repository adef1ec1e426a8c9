"""Hand-made records with GPU counters."""

from __future__ import annotations

from sample_records import ENVIRONMENT, comparison, mode_result, profile

from xbench.records import Comparison, GpuUse, Profile


def gpu_use(power_w: float, seconds_per_sample: float | None, **changes: object) -> GpuUse:
    """Two busy GPUs; `changes` replace fields."""
    made = GpuUse(
        devices=2,
        readings=720,
        utilisation=0.97,
        memory_peak_bytes=41 * 1024**3,
        power_w=power_w or None,
        energy_j_per_sample=power_w * seconds_per_sample if seconds_per_sample else None,
        sm_clock_mhz=1980,
        memory_clock_mhz=2619,
        temperature_max_c=67,
        throttled=[],
        throttled_share=0.0,
        sampling_share=0.004,
    )
    return made.model_copy(update=changes)


def on_gpus() -> Comparison:
    """Two GPUs: one mode ran hot, and one device stopped to answer before the last mode was timed."""
    results = [
        mode_result("ddp", 0.657, (1.0, 1.0, 1.0), "reference", buckets=4),
        mode_result("single", 0.818, (1.245, 1.232, 1.257), "slower", buckets=1),
        mode_result("wfbp", 0.611, (0.93, 0.921, 0.941), "faster", buckets=62),
        mode_result("optimal", 0.586, (0.892, 0.884, 0.9), "faster", buckets=17),
    ]
    hot = {"throttled": ["power cap", "thermal slowdown by the driver"], "throttled_share": 0.125, "sm_clock_mhz": 1455}
    silent = {"throttled_share": None, "temperature_max_c": None}
    uses = [
        gpu_use(1312.0, 0.657 / 16),
        gpu_use(1104.0, 0.818 / 16, **hot),
        gpu_use(0.0, None, **silent),
        None,
    ]
    return comparison(
        [result.model_copy(update={"gpu": use}) for result, use in zip(results, uses, strict=True)],
        environment=ENVIRONMENT.model_copy(update={"device": "NVIDIA H200", "device_count": 2}),
        warnings=[
            "the GPU's clocks were throttled (power cap, thermal slowdown by the driver) in 3 of 12 blocks of single: "
            "times of a slower GPU"
        ],
        gpu_missing="GPU is lost, after 2160 readings",
    )


def profile_on_gpus() -> Profile:
    """The profile, with counters."""
    return profile().model_copy(update={"gpu": gpu_use(1290.0, None)})
