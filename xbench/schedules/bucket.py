"""A bucket: gradients that travel together in one collective.

A gradient is scaled by 1/world while it is copied into its bucket, and after the collective `parameter.grad` *is* the
slice of the bucket. See `engine` for the invariants that buckets keep.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import Parameter


class Travelling(Protocol):
    """A collective under way, as far as the engine needs to know it: a `dist.Work`, or a watched one."""

    def wait(self) -> bool:
        """Return when it has arrived."""
        ...

    def is_completed(self) -> bool:
        """Whether `wait` would return at once."""
        ...


class Bucket:
    """Gradients that travel together: one flat buffer, a slice and a used-flag for each parameter."""

    def __init__(self, parameters: Sequence[Parameter], scale: float, *, travels: bool = True) -> None:
        first = parameters[0]
        self.parameters = list(parameters)
        self.travels = travels
        self.filled = [False] * len(parameters)
        self.waiting = len(parameters)
        self.work: Travelling | None = None
        if not travels:
            return
        elements = sum(p.numel() for p in parameters)
        self.scale = scale
        self.flat = torch.zeros(elements + len(parameters), dtype=first.dtype, device=first.device)
        self.flags = self.flat[elements:]
        self.views: list[Tensor] = []
        offset = 0
        for parameter in parameters:
            piece = self.flat[offset : offset + parameter.numel()]
            # The slice has the parameter's own strides where they are dense (channels-last stays channels-last).
            dense = torch.ops.aten.is_non_overlapping_and_dense(parameter)
            view = piece.as_strided(parameter.size(), parameter.stride()) if dense else piece.view(parameter.size())
            self.views.append(view)
            offset += parameter.numel()

    @property
    def grad_bytes(self) -> int:
        """Bytes of gradients that travel [B], without the flags."""
        return (self.flat.numel() - len(self.parameters)) * self.flat.element_size()

    def fill(self, index: int) -> None:
        """Copy this parameter's gradient in, scaled. A gradient that already is the slice is scaled in place."""
        self.filled[index] = True
        self.waiting -= 1
        if not self.travels:
            return
        parameter, view = self.parameters[index], self.views[index]
        gradient = parameter.grad
        assert gradient is not None
        if gradient.data_ptr() == view.data_ptr():
            view.mul_(self.scale)
        else:
            torch.mul(gradient, self.scale, out=view)
            parameter.grad = view

    def fill_missing(self) -> None:
        """Zero the slices of parameters that got no gradient on this rank and set the flags of all."""
        for index, filled in enumerate(self.filled):
            if not filled:
                self.views[index].zero_()
        self.flags.copy_(torch.tensor([self.scale if f else 0.0 for f in self.filled], dtype=self.flags.dtype))

    def has_arrived(self) -> bool:
        """Whether `finish` would return at once."""
        return self.work is None or self.work.is_completed()

    def finish(self) -> None:
        """Wait for the collective; give gradients to parameters that other ranks used and this one did not."""
        assert self.work is not None
        self.work.wait()
        self.work = None
        if self.waiting:
            used = self.flags.tolist()
            for index, filled in enumerate(self.filled):
                if not filled and used[index] > 0:
                    self.parameters[index].grad = self.views[index]
        self.filled = [False] * len(self.parameters)
        self.waiting = len(self.parameters)
