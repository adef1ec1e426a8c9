"""Traces as Kineto writes them, of a run whose every time is known. Times are in microseconds here.

A step has four layers with one gradient each. On the GPU, backward starts at 310 in the step and gradient j is ready at
322 + 20 j. Collectives take as long as the test says.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

LAYERS = 4
STEP = 1000
READY = (12, 32, 52, 72)
"""Ready times of the gradients since the start of backward."""

Event = dict[str, Any]


def event(category: str, name: str, start: float, length: float, tid: int = 1, **args: Any) -> Event:
    """One complete event."""
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": tid, "ts": 5e9 + start, "dur": length,
            "args": args}  # fmt: skip


def gpu_events(
    *,
    steps: int = 3,
    buckets: tuple[int, ...] = (2, 4),
    collective_us: float = 30,
    elements: int = 1000,
    shapes: bool = False,
    marked: bool = True,
    kind: str = "AllReduce",
    late_us: float = 0,
    group: int = 2,
    dtype: str = "Float",
) -> list[Event]:
    """Events of a GPU rank. `buckets`: gradients complete at each launch; `late_us` is added to all its collectives."""
    found: list[Event] = []
    correlation = 0

    def launch(category: str, name: str, host: float, device: float, length: float, tid: int, **args: Any) -> None:
        nonlocal correlation
        correlation += 1
        found.append(event("cuda_runtime", "cudaLaunchKernel", host, 0.5, tid, correlation=correlation))
        found.append(event(category, name, device, length, 7, correlation=correlation, **args))

    for step in range(steps):
        base = step * STEP
        if marked:
            found.append(event("user_annotation", f"ProfilerStep#{step + 4}", base, STEP))
        for layer in range(LAYERS):
            at = base + 10 + 10 * layer
            sequence = {"Sequence number": 100 * step + layer, "Fwd thread id": 0}
            found.append(event("cpu_op", "aten::conv2d", at, 5, **sequence))
            launch("kernel", "conv", at + 1, at + 10, 8, 1, grid=[1], block=[1])
        for place in range(LAYERS):
            at = base + 300 + 20 * place
            sequence = {"Sequence number": 100 * step + LAYERS - 1 - place, "Fwd thread id": 1}
            evaluate = "autograd::engine::evaluate_function: "
            found.append(event("cpu_op", f"{evaluate}ConvolutionBackward0", at, 4, 2, **sequence))
            launch("kernel", "conv_backward", at + 1, at + 10, 10, 2, grid=[1], block=[1])
            found.append(event("cpu_op", f"{evaluate}torch::autograd::AccumulateGrad", at + 5, 3, 2))
            told = {"Input Dims": [[elements]], "Input type": ["float"]} if shapes else {}
            found.append(event("cpu_op", "torch::autograd::AccumulateGrad", at + 5.5, 1, 2, **told))
            launch("kernel", "mul", at + 6, at + 20, 2, 2, grid=[2], block=[1])
            if place + 1 in buckets:
                before = max((one for one in buckets if one < place + 1), default=0)
                count = elements * (place + 1 - before)
                start = at + 23
                launch("kernel", f"ncclDevKernel_{kind}_Sum_f32_RING_LL", at + 9, start, collective_us + late_us, 2,
                       **{"Collective name": kind.lower(), "In msg nelems": count, "Out msg nelems": count,
                          "dtype": dtype, "Group size": group})  # fmt: skip
        found.append(event("user_annotation", "Optimizer.step#SGD.step", base + 600, 20))
        launch("kernel", "sgd", base + 601, base + 610, 50, 1, grid=[3], block=[1])
    return queued(found)


def without(events: list[Event], drop: Callable[[Event], bool]) -> list[Event]:
    """The events without some, and without the launches of kernels among these."""
    gone = {one["args"].get("correlation") for one in events if drop(one)} - {None}
    return [one for one in events if not drop(one) and one["args"].get("correlation") not in gone]


def queued(events: list[Event]) -> list[Event]:
    """Start each NCCL kernel after the one before, as their stream does."""
    free = 0.0
    for one in events:
        if one["name"].startswith("nccl"):
            one["ts"] = max(one["ts"], free)
            free = one["ts"] + one["dur"]
    return events


def header(rank: int = 0, world_size: int = 2) -> dict[str, Any]:
    """The keys beside the events."""
    told = {"backend": "nccl", "rank": rank, "world_size": world_size}
    return {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA A100"}], "distributedInfo": told}


def write(path: Path, events: list[Event], **told: Any) -> Path:
    """Write a trace file; `told` replaces the header's keys."""
    path.write_text(json.dumps({**header(), **told, "traceEvents": events}, indent=1), encoding="utf-8")
    return path
