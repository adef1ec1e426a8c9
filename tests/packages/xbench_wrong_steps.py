"""Schedules that ignore an option of the training step: a parity check must refuse each of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from xbench.schedules.base import AttachConfig, Handle
from xbench.schedules.bucketed import Wfbp


class ForgetfulHandle(Handle):
    """Drops the gradients of all micro-steps but the last."""

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        with super().no_sync():
            yield
        for parameter in self.model.parameters():
            parameter.grad = None


class Forgetful(Wfbp):
    """Sends the gradients of the last micro-step alone."""

    def attach(self, setup: AttachConfig) -> Handle:
        handle = super().attach(setup)
        return ForgetfulHandle(handle.model, handle.engine)


class EagerHandle(Handle):
    """Has neither an engine that the handle knows, nor a wrapper, nor a `no_sync` of its own."""

    def __init__(self, handle: Handle) -> None:
        super().__init__(handle.model)
        self._handle = handle

    def detach(self) -> None:
        self._handle.detach()
        super().detach()


class Eager(Wfbp):
    """Sends gradients in every backward pass."""

    def attach(self, setup: AttachConfig) -> Handle:
        return EagerHandle(super().attach(setup))


class UnclippedHandle(Handle):
    """Updates with the gradients as they were before the loop clipped them."""

    def __init__(self, handle: Handle, optimizer: Optimizer) -> None:
        super().__init__(handle.model, handle.engine)
        self._averaged: dict[Parameter, Tensor] = {}
        self.at_detach(optimizer.register_step_pre_hook(self._put_back).remove)

    def synchronize(self) -> None:
        super().synchronize()
        self._averaged = {p: p.grad.clone() for p in self.model.parameters() if p.grad is not None}

    def _put_back(self, *_: object) -> None:
        for parameter, gradient in self._averaged.items():
            parameter.grad = gradient


class Unclipped(Wfbp):
    """Ignores clipping."""

    def attach(self, setup: AttachConfig) -> Handle:
        assert isinstance(setup.optimizer, Optimizer)
        return UnclippedHandle(super().attach(setup), setup.optimizer)


class Summing(Wfbp):
    """Sums gradients in place of averaging them: clipping gives both the same size."""

    def attach(self, setup: AttachConfig) -> Handle:
        handle = super().attach(setup)
        synchronize = handle.synchronize

        def summed() -> None:
            synchronize()
            for parameter in setup.model.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(dist.get_world_size())

        handle.synchronize = summed
        return handle


class Stubborn(Wfbp):
    """Hides overflows from the scaler, so no step is skipped."""

    def attach(self, setup: AttachConfig) -> Handle:
        handle = super().attach(setup)
        synchronize = handle.synchronize

        def finite() -> None:
            synchronize()
            for parameter in setup.model.parameters():
                if parameter.grad is not None:
                    parameter.grad.nan_to_num_(0.0, 0.0, 0.0)

        handle.synchronize = finite
        return handle
