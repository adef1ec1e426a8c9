"""Parameters and gradients between a step and its deferred update: each use finds what a plain loop would have.

A parameter whose update is due has the class `DueParameter`. The first torch function with it among its arguments
completes the step: an average of weights, a copy, a file, a change in place. Reads of its gradient or of its shape do
not. The class is `Parameter` again when the parameter is updated. Memory that other code got hold of before the step
(`parameter.data`, a numpy array) is not seen.

The step uses the gradients, and in a plain loop they stay until `zero_grad()`. They are in flight here, so a
`UsedGradient` stands for each until the update. `zero_grad()` removes it or, with `set_to_none=False`, puts zeros in
its place. Every other use completes the step, which leaves the averaged gradient.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils._pytree import tree_leaves, tree_map_only

from xbench.schedules.in_flight import DESCRIPTION, StandIn
from xbench.schedules.served_parameters import engine_of


def _without_values(name: str) -> Any:
    """An attribute of a tensor whose use completes nothing. It is fast, because loops read it of each parameter."""
    plain: Any = getattr(Tensor, name)
    not_seen = torch._C.DisableTorchFunctionSubclass

    def get(tensor: Tensor) -> Any:
        with not_seen():
            return plain.__get__(tensor)

    def put(tensor: Tensor, value: Any) -> None:
        with not_seen():
            plain.__set__(tensor, value)

    def delete(tensor: Tensor) -> None:
        with not_seen():
            plain.__delete__(tensor)

    return property(get, put, delete)


class DueParameter(Parameter):
    """A parameter whose update is due: a use of its values completes the step."""

    dtype = _without_values("dtype")
    device = _without_values("device")
    grad = _without_values("grad")
    requires_grad = _without_values("requires_grad")

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        _complete(self)
        return self.__deepcopy__(memo)  # of Parameter, which this is now

    def __reduce_ex__(self, protocol: Any) -> Any:
        _complete(self)
        return self.__reduce_ex__(protocol)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Complete the step before `func` is called, unless it needs no values."""
        if func in DESCRIPTION:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        for given in tree_leaves((args, kwargs)):
            if type(given) is DueParameter:
                _complete(given)
        return func(*args, **(kwargs or {}))


def _complete(parameter: Parameter) -> None:
    """Complete the step of the parameter's schedule."""
    engine = engine_of(parameter)
    if engine is not None:
        engine.finish()
    no_longer_due([parameter])


class UsedGradient(StandIn):
    """A stand-in for the gradient of a parameter whose update is due: a use of its values completes the step."""

    parameter: weakref.ref[Parameter]
    is_certain: bool
    """True if this rank had a gradient. If not, the other ranks' flags tell whether there is one."""

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call `func` with the averages in the place of their stand-ins."""
        if func in (torch.ops.aten.zero_.default, torch.ops.aten._foreach_zero_.default):
            for given in tree_leaves(args):
                given.become_zero()
            return args[0] if func is torch.ops.aten.zero_.default else None
        return func(*tree_map_only(UsedGradient, _average, args), **tree_map_only(UsedGradient, _average, kwargs or {}))

    def become_zero(self) -> None:
        """Put zeros in its place, as `zero_grad(set_to_none=False)` asks. A gradient that no rank had stays absent."""
        parameter = self.parameter()
        if parameter is not None and not self.is_certain:
            _complete(parameter)
        if parameter is not None and parameter.grad is self:
            parameter.grad = _zeros(self)
        elif parameter is not None and parameter.grad is not None:
            parameter.grad.zero_()


def _average(used: UsedGradient) -> Tensor:
    """The averaged gradient that a step has used; zeros for one that no rank had."""
    parameter = used.parameter()
    if parameter is not None:
        _complete(parameter)
    if parameter is None or parameter.grad is None or isinstance(parameter.grad, UsedGradient):
        return _zeros(used)
    return parameter.grad


def _zeros(like: Tensor) -> Tensor:
    return torch.empty_strided(like.size(), like.stride(), dtype=like.dtype, device=like.device).zero_()


class DueUpdates:
    """Stand-ins of the gradients that a step has used, by the parameter's id."""

    def __init__(self) -> None:
        self._used: dict[int, UsedGradient] = {}

    def mark(self, parameters: Iterable[Parameter], certain: Collection[int]) -> None:
        """Mark parameters as due after a step, and their gradients as used. `certain`: ids of those with a gradient."""
        for parameter in parameters:
            used = self._used.get(id(parameter))
            if used is None:
                used = self._used[id(parameter)] = UsedGradient(parameter.detach())
                used.parameter = weakref.ref(parameter)
            used.is_certain = id(parameter) in certain
            parameter.grad = used
            if type(parameter) is Parameter:
                parameter.__class__ = DueParameter

    def forget(self, parameters: Collection[Parameter]) -> None:
        """Leave no mark on the parameters."""
        no_longer_due(parameters)
        for parameter in parameters:
            if type(parameter.grad) is UsedGradient:
                parameter.grad = None
        self._used.clear()


def no_longer_due(parameters: Iterable[Parameter]) -> None:
    """Give the parameters their own class again."""
    for parameter in parameters:
        if type(parameter) is DueParameter:
            parameter.__class__ = Parameter  # type: ignore[assignment]
