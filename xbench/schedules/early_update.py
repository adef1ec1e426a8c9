"""Early updates: the optimizer's step for some parameters, before the user's own step updates the others.

With `wait="step"`, the step waits for gradients in flight. Meanwhile it updates parameters whose gradients have
arrived. These are the same updates in another order, with bit-identical results, for optimizers whose update of a
parameter uses only its own gradient and state (`PER_PARAMETER`).

How much is updated at once depends on the cost of a wait. Over Gloo a wait blocks the host. There, what has arrived is
updated before each wait that would block. On a stream (NCCL) a wait costs the host nothing, and each call of the
optimizer costs launches. There, the first half of the bytes is updated while the rest is in flight: two calls a step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from xbench.schedules.bucket import CommBucket

PER_PARAMETER = frozenset(
    (
        torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RAdam, torch.optim.Adamax,
        torch.optim.Adadelta, torch.optim.Adagrad, torch.optim.RMSprop,
    )
)  # fmt: skip
"""Optimizers (exactly these, no subclass) whose update of a parameter uses only its own gradient and state."""


def group_of(optimizer: Optimizer) -> dict[int, int]:
    """Parameter id → index of its parameter group."""
    return {id(p): number for number, group in enumerate(optimizer.param_groups) for p in group["params"]}


def first_half(buckets: Sequence[CommBucket]) -> list[CommBucket]:
    """The first buckets in launch order, with at most half of the bytes, or the first one of several.

    A bucket without all of this rank's gradients is left out: its flags are read after the last wait.
    """
    total, passed = sum(bucket.grad_bytes for bucket in buckets), 0
    found: list[CommBucket] = []
    for bucket in buckets[:-1]:
        passed += bucket.grad_bytes
        if found and passed > total / 2:
            break
        if not bucket.waiting:
            found.append(bucket)
    return found


class EarlyUpdates:
    """Parameters that were updated in this step already, and their gradients."""

    def __init__(self) -> None:
        self._updated: list[tuple[Parameter, Tensor]] = []

    def update(self, parameters: Iterable[Parameter], optimizer: Optimizer, groups: Mapping[int, int]) -> None:
        """Step the optimizer for these alone: its groups have no others in this call, and theirs is then None."""
        mine = list(parameters)
        whole = [group["params"] for group in optimizer.param_groups]
        part: list[list[Parameter]] = [[] for _ in whole]
        for parameter in mine:
            if (number := groups.get(id(parameter))) is not None:
                part[number].append(parameter)
        try:
            for group, some in zip(optimizer.param_groups, part, strict=True):
                group["params"] = some
            type(optimizer).step.__wrapped__(optimizer)  # type: ignore[attr-defined]  # without hooks: the user's step runs them
        finally:
            for group, all_of_it in zip(optimizer.param_groups, whole, strict=True):
                group["params"] = all_of_it
        for parameter in mine:
            if parameter.grad is not None:
                self._updated.append((parameter, parameter.grad))
                parameter.grad = None

    def restore(self) -> None:
        """Give the parameters their gradients again, so that these are visible after a step."""
        for parameter, gradient in self._updated:
            parameter.grad = gradient
        self._updated.clear()
