"""Gradients in flight: stand-ins that refuse every use of a gradient before it is averaged.

With `wait="step"`, and where updates are deferred, gradients are still sent when `loss.backward()` returns. Code that
reads or changes them then (clipping, a GradScaler) would use sums of some ranks, or change what is sent. So each
parameter's `grad` is a stand-in until the wait. It has the gradient's shape, dtype and device, but no memory, and any
operation on it raises UsageError. A parameter without a gradient on this rank gets one too: another rank may have used
it, and a loop that removes all gradients must remove this one on every rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.nn import Parameter

from xbench.errors import UsageError
from xbench.schedules.bucket import grad_dtype

DESCRIPTION = {
    *(Tensor.shape.__get__, Tensor.dtype.__get__, Tensor.device.__get__, Tensor.layout.__get__, Tensor.ndim.__get__),  # type: ignore[attr-defined]
    *(Tensor.requires_grad.__get__, Tensor.requires_grad.__set__, Tensor.is_leaf.__get__, Tensor.is_cuda.__get__),  # type: ignore[attr-defined]
    *(Tensor.is_meta.__get__, Tensor.is_sparse.__get__, Tensor.nbytes.__get__, Tensor.itemsize.__get__),  # type: ignore[attr-defined]
    *(Tensor.size, Tensor.dim, Tensor.numel, Tensor.nelement, Tensor.element_size, Tensor.requires_grad_),
    *(Tensor.is_floating_point, Tensor.is_complex, torch.is_floating_point, torch.is_complex, torch.numel),
}
"""Functions of a tensor that use neither its values nor its gradient."""


class StandIn(Tensor):
    """A tensor without memory in the place of a gradient. Any operation on it raises UsageError: SAID with a hint."""

    SAID = "gradients are used before they are averaged, by clipping, a GradScaler or another backward pass"
    HINT = "call handle.synchronize() before that"
    HINT_IN_BACKWARD = "run all backward passes of a step but the last under handle.no_sync()"

    @staticmethod
    def __new__(cls, like: Tensor, dtype: torch.dtype | None = None) -> StandIn:
        """Make one with the shape, strides and device of `like`, and its dtype or another."""
        made: StandIn = Tensor._make_wrapper_subclass(
            cls, like.size(), strides=like.stride(), dtype=dtype or like.dtype, device=like.device
        )
        return made

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return "a gradient that is not averaged yet"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> NoReturn:
        in_backward = torch._C._current_graph_task_id() >= 0
        raise UsageError(cls.SAID, hint=cls.HINT_IN_BACKWARD if in_backward else cls.HINT)


class InFlight:
    """The gradients in flight, by parameter."""

    def __init__(self) -> None:
        self._stand_ins: dict[int, StandIn] = {}
        self._taken: set[int] = set()
        """Ids of the parameters that have got a stand-in since their gradients were given back."""
        self.held: dict[int, Tensor] = {}
        """The gradients that this rank has computed, by the parameter's id."""

    def take(self, parameters: Iterable[Parameter]) -> None:
        """Replace the parameters' gradients by stand-ins, also where there is none."""
        for parameter in parameters:
            stand_in = self._stand_ins.get(id(parameter))
            if stand_in is None:
                stand_in = self._stand_ins[id(parameter)] = StandIn(parameter.detach(), grad_dtype(parameter))
            if parameter.grad is not None:
                self.held[id(parameter)] = parameter.grad
            self._taken.add(id(parameter))
            parameter.grad = stand_in

    def give_back(self, parameters: Iterable[Parameter]) -> set[int]:
        """Put the gradients back, except where other code has replaced or removed the stand-in: return those ids."""
        changed: set[int] = set()
        for parameter in parameters if self._taken else ():
            if id(parameter) not in self._taken:
                continue
            self._taken.remove(id(parameter))
            gradient = self.held.pop(id(parameter), None)
            if parameter.grad is self._stand_ins[id(parameter)]:
                parameter.grad = gradient
            else:
                changed.add(id(parameter))
        return changed

    def changed(self, parameters: Iterable[Parameter]) -> list[tuple[Parameter, Tensor | None]]:
        """Return the parameters whose gradient other code has replaced or removed, and what they have now."""
        return [
            (parameter, parameter.grad)
            for parameter in parameters
            if parameter.grad is not self._stand_ins.get(id(parameter))
        ]

    def remove(self, parameters: Iterable[Parameter]) -> None:
        """Remove the stand-ins, so that the parameters have no gradients. `held` stays."""
        for parameter in parameters:
            self._taken.discard(id(parameter))
            if parameter.grad is not None and parameter.grad is self._stand_ins.get(id(parameter)):
                parameter.grad = None
