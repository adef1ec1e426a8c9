"""Host time that a sharded mode costs besides its collectives: for a unit, and for a tensor.

torch's sharded modes run hooks, copies and bookkeeping in Python for each unit, and dispatch each operation on a
sharded tensor. Over Gloo the step waits for all of that. It is measured with the mode itself, on toy models of tiny
blocks, whose collectives take little more than their latency. With t(u, k) for the step of u units of k tensors each,
less the step of the same model alone:

    tensor = (t(2, 9) − t(2, 1)) / 16
    unit = (t(10, 1) − t(2, 1)) / 8 − tensor − the collectives of a unit

Both are at least 0.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from xbench.schedules.base import AttachConfig, Schedule

FEW, MANY_UNITS, MANY_TENSORS = (2, 1), (10, 1), (2, 9)
"""Units, and tensors of a unit, of the toy models."""

ELEMENTS = 64
UNIT_BYTES = 4 * ELEMENTS
"""Bytes of a unit of one tensor."""

WARMUP, STEPS = 2, 15


def measure_unit_cost(schedule: Schedule, collectives_s: float) -> tuple[float, float]:
    """This rank's cost of a unit and of a tensor [s]. Every rank must call it together.

    `collectives_s` [s]: the collectives of a unit of UNIT_BYTES in a step. Raises UsageError as `schedule` does.
    """
    took_s = {}
    for units, tensors in (FEW, MANY_UNITS, MANY_TENSORS):
        took_s[units, tensors] = _attached_s(schedule, units, tensors) - _alone_s(units, tensors)
    more_tensors, more_units = FEW[0] * (MANY_TENSORS[1] - FEW[1]), MANY_UNITS[0] - FEW[0]
    tensor_s = max(0.0, (took_s[MANY_TENSORS] - took_s[FEW]) / more_tensors)
    unit_s = (took_s[MANY_UNITS] - took_s[FEW]) / more_units - tensor_s - collectives_s
    return max(0.0, unit_s), tensor_s


class _Block(nn.Module):
    """Adds tiny parameters to its input."""

    def __init__(self, tensors: int) -> None:
        super().__init__()
        self.tiny = nn.ParameterList(torch.zeros(ELEMENTS) for _ in range(tensors))

    def forward(self, x: Tensor) -> Tensor:
        """(ELEMENTS,) to the same."""
        for parameter in self.tiny:
            x = x + parameter
        return x


def _toy(units: int, tensors: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(*(_Block(tensors) for _ in range(units)))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def _alone_s(units: int, tensors: int) -> float:
    """Median step [s] of the toy model without communication."""
    model, optimizer = _toy(units, tensors)
    return _median_step_s(model, optimizer, lambda: None)


def _attached_s(schedule: Schedule, units: int, tensors: int) -> float:
    """Median step [s] of the toy model under the schedule."""
    model, optimizer = _toy(units, tensors)
    with schedule.attach(AttachConfig(model, optimizer, wait="step")) as handle:
        dist.barrier()
        return _median_step_s(handle.model, optimizer, handle.synchronize)


def _median_step_s(model: nn.Module, optimizer: torch.optim.Optimizer, synchronize: Callable[[], object]) -> float:
    x = torch.ones(ELEMENTS)
    times: list[float] = []
    for _ in range(WARMUP + STEPS):
        begin_s = time.perf_counter()
        model(x).sum().backward()
        synchronize()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - begin_s)
    return statistics.median(times[WARMUP:])
