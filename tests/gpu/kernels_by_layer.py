"""Kernel time of each layer's forward and backward, from torch's profiler: an account of a step by other means.

A mark is written on the host where a layer begins its forward and where a gradient is complete. Kernels are launched in
the order in which the host gets there, so each kernel belongs to the span of marks in which its launch lies. The sum of
its kernels is what a layer needs on the device, without the gaps between them.
"""

from __future__ import annotations

import bisect
import json
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

STEPS = 3
MARK = "xbench mark "


def kernel_seconds(workload: Any, owner: dict[int, str]) -> dict[tuple[str, str], float]:
    """Seconds of kernels by (pass, layer), a step, mean; `owner`: the layer's name by id of its module."""
    handles, parameters = [], {}
    for module in workload.model.modules():
        name = owner.get(id(module))
        if name is None:
            continue
        for parameter in module.parameters(recurse=False):
            if parameter.requires_grad and id(parameter) not in parameters:
                parameters[id(parameter)] = (parameter, name)
        handles.append(module.register_forward_pre_hook(lambda *_, name=name: _mark(f"forward {name}")))
    for parameter, name in parameters.values():
        handles.append(parameter.register_post_accumulate_grad_hook(lambda _, name=name: _mark(f"backward {name}")))
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
    try:
        with profile(activities=activities) as found:
            for _ in range(STEPS):
                _mark("begin")
                workload.optimizer.zero_grad(set_to_none=True)
                loss = workload.forward_loss()
                _mark("turn")
                loss.backward()
                _mark("end")
                workload.optimizer.step()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
    finally:
        for handle in handles:
            handle.remove()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        found.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    return by_layer(events)


def _mark(text: str) -> None:
    with record_function(MARK + text):
        pass


def by_layer(events: list[dict[str, Any]]) -> dict[tuple[str, str], float]:
    """The same from the events of a trace, whose times are microseconds.

    Kernels after a forward mark belong to its layer; kernels up to a backward mark, since the mark before, to that one.
    """
    named = [event for event in events if str(event.get("name", "")).startswith(MARK) and "ts" in event]
    marks = sorted((event["ts"], event["name"][len(MARK) :]) for event in named)
    launches = {
        e["args"]["correlation"]: e["ts"]
        for e in events
        if e.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in e.get("args", {})
    }
    times = [ts for ts, _ in marks]
    took: dict[tuple[str, str], float] = defaultdict(float)
    for event in events:
        if event.get("cat") not in ("kernel", "gpu_memcpy", "gpu_memset"):
            continue
        launched = launches.get(event.get("args", {}).get("correlation"))
        place = bisect.bisect_right(times, launched) - 1 if launched is not None else -1
        if place < 0:
            continue
        before = marks[place][1]
        after = marks[place + 1][1] if place + 1 < len(marks) else "end"
        if before.startswith("forward "):
            took["forward", before.removeprefix("forward ")] += event["dur"]
        elif after.startswith("backward "):
            took["backward", after.removeprefix("backward ")] += event["dur"]
    return {key: microseconds * 1e-6 / STEPS for key, microseconds in took.items()}
