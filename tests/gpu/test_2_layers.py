"""Layer times: do they add up to the bare step, what does measuring cost, and does torch's profiler say the same?"""

from __future__ import annotations

import statistics

import pytest
import torch
from kernels_by_layer import MARK, by_layer, kernel_seconds
from runs import DRY, Keep

from xbench.profilers.clock import clock_for
from xbench.profilers.layers import bare_step, profile_step
from xbench.profilers.summary import summarise
from xbench.spec import WorkloadSpec
from xbench.workloads.build import build
from xbench.workloads.probe import probe

WORKLOADS = ["transformer-tiny"] if DRY else ["resnet50", "vgg16", "densenet161", "bert-base", "gpt2-small"]
DTYPES = ["fp32"] if DRY else ["fp32", "bf16"]
STEPS = 4 if DRY else 10
LONG_S = 100e-6
DOUBLINGS = 1 if DRY else 3
FULL = 1.6
"""A GPU is full where a batch of twice the size takes at least so many times as long."""


def step_s(spec: WorkloadSpec, device: torch.device) -> float:
    """Median time of five bare steps after three of warm-up."""
    workload, clock, took = build(spec, device, rank=0), clock_for(device), []
    for _ in range(8):
        begin = clock.mark()
        bare_step(workload)
        took.append((begin, clock.mark()))
    clock.flush()
    return statistics.median(clock.elapsed_s(*ends) for ends in took[3:])


def filling(spec: WorkloadSpec, device: torch.device) -> WorkloadSpec:
    """The workload with its batch doubled until the device is full, at most three times."""
    last_s = step_s(spec, device)
    for _ in range(DOUBLINGS):
        larger = spec.model_copy(update={"batch_size": 2 * spec.batch_size})
        try:
            larger_s = step_s(larger, device)
        except torch.OutOfMemoryError:
            return spec
        if larger_s >= FULL * last_s:
            return spec
        spec, last_s = larger, larger_s
    return spec


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", WORKLOADS)
def test_layers(name: str, dtype: str, device: torch.device, keep: Keep) -> None:
    spec = probe([WorkloadSpec(name=name, dtype=dtype)], device.type, 1).specs[0]  # type: ignore[arg-type]
    spec = filling(spec, device)
    workload = build(spec, device, rank=0)
    raw = profile_step(workload, clock_for(device), steps=STEPS, warmup=3)
    layers, step = summarise([raw.raw()])
    whole_s = sum(layer.forward_s + layer.backward_s for layer in layers) + step.optimizer_s
    adds_up = whole_s / step.uninstrumented_step_s - 1
    modules = dict(workload.model.named_modules())
    owner = {id(modules[layer.name]): layer.name for layer in layers if layer.name in modules}
    kernels = kernel_seconds(workload, owner)
    off = []
    for layer in layers:
        for kind, took_s in (("forward", layer.forward_s), ("backward", layer.backward_s)):
            there_s = kernels.get((kind, layer.name), 0.0)
            if there_s > LONG_S:
                off.append(took_s / there_s - 1)
    agree = statistics.median(map(abs, off)) if off else None
    held = abs(adds_up) <= 0.02 and step.overhead_ratio <= 0.02 and (agree is None or agree <= 0.05)
    keep(
        f"layers-{name}-{dtype}", line=2,
        goal="Σ layers within 2 % of the bare step, measuring ≤ 2 %, layers over 100 µs within 5 % of their kernels",
        held=held,
        finding=f"batch {spec.batch_size}: {step.uninstrumented_step_s * 1e3:.2f} ms; Σ {adds_up:+.1%}, "
        + f"measuring {step.overhead_ratio:+.1%}, "
        + (f"kernels {agree:.1%} (median of {len(off)})" if agree is not None else "no kernels to compare with"),
        batch_size=spec.batch_size, step=step.model_dump(), layers=len(layers),
        off_kernels=[round(value, 4) for value in off],
    )  # fmt: skip


def test_kernels_belong_to_the_span_in_which_they_were_launched() -> None:
    def mark(ts: float, text: str) -> dict[str, object]:
        return {"cat": "user_annotation", "name": MARK + text, "ts": ts, "dur": 0}

    def kernel(launched: float, took: float, number: int) -> list[dict[str, object]]:
        return [
            {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": launched, "args": {"correlation": number}},
            {"cat": "kernel", "name": "gemm", "ts": 1000.0, "dur": took, "args": {"correlation": number}},
        ]

    events = [
        mark(0, "begin"), mark(10, "forward a"), *kernel(11, 30, 1), mark(20, "forward b"), *kernel(21, 60, 2),
        mark(30, "turn"), *kernel(31, 90, 3), mark(40, "backward b"), *kernel(41, 15, 4), mark(50, "backward a"),
        mark(60, "end"), *kernel(61, 999, 5),
    ]  # fmt: skip
    found = by_layer(events)
    assert found == pytest.approx(
        {("forward", "a"): 1e-5, ("forward", "b"): 2e-5, ("backward", "b"): 3e-5, ("backward", "a"): 5e-6}
    )
