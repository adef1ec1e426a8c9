"""Host time that a sharded mode costs besides its collectives: for a unit, and for a tensor.

torch's sharded modes run hooks, copies and bookkeeping in Python for each unit, and dispatch each operation on a
sharded tensor. Over Gloo the step waits for all of that. It is measured with the mode itself, on toy models of tiny
blocks. With t(u, k) for the step of u units of k tensors each, less its collectives and the step of the same model
alone:

    tensor = (t(2, 33) − t(2, 1)) / 64
    unit = (t(10, 1) − t(2, 1)) / 8 − tensor

Both are at least 0. The models take their steps in turn, because a machine's speed changes.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from xbench.schedules.base import AttachConfig, Schedule
from xbench.schedules.bucket import Work
from xbench.schedules.torch_calls import SHARDED, watch_calls

FEW, MANY_UNITS, MANY_TENSORS = (2, 1), (10, 1), (2, 33)
"""Units, and tensors of a unit, of the toy models."""

ELEMENTS = 64

WARMUP, STEPS = 2, 15


def measure_unit_cost(schedule: Schedule) -> tuple[float, float]:
    """This rank's cost of a unit and of a tensor [s]. Every rank must call it together.

    Raises UsageError as `schedule` does.
    """
    took_s = _steps_s(schedule)
    more_tensors, more_units = FEW[0] * (MANY_TENSORS[1] - FEW[1]), MANY_UNITS[0] - FEW[0]
    tensor_s = max(0.0, (took_s[MANY_TENSORS] - took_s[FEW]) / more_tensors)
    unit_s = (took_s[MANY_UNITS] - took_s[FEW]) / more_units - tensor_s
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


def _steps_s(schedule: Schedule) -> dict[tuple[int, int], float]:
    """Median step [s] of each toy model, less its collectives and the same model's step without communication."""
    sizes = (FEW, MANY_UNITS, MANY_TENSORS)
    more_s: dict[tuple[int, int], list[float]] = {size: [] for size in sizes}
    with ExitStack() as stack:
        alone = {size: _Toy(*_toy(*size)) for size in sizes}
        attached = {}
        for size in sizes:
            model, optimizer = _toy(*size)
            handle = stack.enter_context(schedule.attach(AttachConfig(model, optimizer, wait="step")))
            attached[size] = _Toy(handle.model, optimizer, handle.synchronize)
        sent = _Sent()
        stack.callback(watch_calls(sent.wait, SHARDED))
        for _ in range(WARMUP + STEPS):
            alone_s = {size: toy.step_s() for size, toy in alone.items()}
            dist.barrier()
            for size, toy in attached.items():
                sent.took_s = 0.0
                more_s[size].append(toy.step_s() - sent.took_s - alone_s[size])
    return {size: statistics.median(values[WARMUP:]) for size, values in more_s.items()}


class _Sent:
    """The time of collectives [s]."""

    took_s = 0.0

    def wait(self, nbytes: int, start: Callable[[], Work], kind: str = "") -> Work:
        """Start a collective, and wait for it."""
        begin_s = time.perf_counter()
        work = start()
        work.wait()
        self.took_s += time.perf_counter() - begin_s
        return _Complete()


class _Complete:
    """A collective that has been waited for."""

    def wait(self) -> bool:
        """Do nothing."""
        return True

    def is_completed(self) -> bool:
        """True."""
        return True


@dataclass(frozen=True)
class _Toy:
    """A toy model with its optimizer; `synchronize` waits for its gradients."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    synchronize: Callable[[], object] = lambda: None

    def step_s(self) -> float:
        """Take a step; return its time [s]."""
        begin_s = time.perf_counter()
        self.model(torch.ones(ELEMENTS)).sum().backward()
        self.synchronize()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.perf_counter() - begin_s
