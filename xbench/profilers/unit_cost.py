"""Host time that a sharded mode costs besides its collectives: for a unit, and for a tensor.

torch's sharded modes run hooks and bookkeeping in Python for each unit, dispatch each operation on a sharded tensor,
and copy parameters and gradients into buffers and out of them. Over Gloo the step waits for all of that. It is measured
on the model itself, in torch's process group of backend "fake": its collectives send nothing, and give tensors of the
right shape. With `apart` for what a unit for each block adds to a step without a mode, and `joined` for what one unit
for all blocks adds to it:

    unit = (apart − joined) / (units apart − units joined), at most apart / (units apart)
    tensor = (apart − units apart · unit) / tensors

Both are at least 0. Steps take turns, because a machine's speed changes.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from typing import Any

import torch.distributed as dist

from xbench.model_blocks import blocks_of
from xbench.profilers.layers import bare_step
from xbench.schedules.base import AttachConfig, Schedule
from xbench.workloads.workload import Workload

TURNS = 3
"""Turns of the steps without the mode, with a unit for each block, and with one unit."""

WARMUP = 2
"""Steps after attaching that do not count."""


def silent_group() -> dist.ProcessGroup:
    """A group of all ranks that sends nothing. Every rank must call it together. It is for timing alone."""
    import torch.testing._internal.distributed.fake_pg  # noqa: F401  registers the backend

    made: Any = dist.new_group(backend="fake")
    group: dist.ProcessGroup = made
    return group


def measure_unit_cost(
    schedule: Schedule, group: dist.ProcessGroup, workload: Workload, steps: int
) -> tuple[float, float]:
    """This rank's cost of a unit and of a tensor [s].

    `group` sends nothing, so the values of the model have no meaning afterwards. `steps`: how many count in a turn.
    Raises UsageError as `schedule` does, and whatever the model raises on such values.
    """
    setup = AttachConfig(workload.model, workload.optimizer, group=group, wait="step")
    blocks = list(blocks_of(workload.model))
    more_s: list[list[float]] = []
    units: list[int] = []
    for _ in range(TURNS):
        alone_s = _step_s(workload, steps)
        more_s.append([])
        units = []
        for division in (None, [blocks]):
            handle = schedule.attach(replace(setup, units=division))
            try:
                units.append(len(handle.units or {}))
                attached = workload.under(handle.model, handle.no_sync, handle.synchronize)
                more_s[-1].append(_step_s(attached, steps) - alone_s)
            finally:
                handle.detach()  # after every error: no rank waits for another one in this group
    apart_s, joined_s = (max(0.0, statistics.median(turns)) for turns in zip(*more_s, strict=True))
    apart, joined = units
    unit_s = max(0.0, apart_s - joined_s) / (apart - joined) if apart > joined else 0.0
    unit_s = min(unit_s, apart_s / apart)
    return unit_s, (apart_s - apart * unit_s) / sum(p.requires_grad for p in workload.model.parameters())


def _step_s(workload: Workload, steps: int) -> float:
    """Median time of a step [s]."""
    took_s = []
    for _ in range(WARMUP + steps):
        begin_s = time.perf_counter()
        bare_step(workload)
        took_s.append(time.perf_counter() - begin_s)
    return statistics.median(took_s[WARMUP:])
