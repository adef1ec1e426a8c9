"""Schedules that ignore an option of the training step: a parity check must refuse each of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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
