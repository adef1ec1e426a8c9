"""First use of each parameter in a forward pass: which layer reads it first, from one observed pass.

Mostly the module that owns a parameter reads it when it is called. But `nn.MultiheadAttention` reads its `out_proj`'s
weight without calling it, and a model may pass another layer's weight to a function. So one forward pass is observed:
every call of a module, and every torch function with a parameter among its arguments. Such a use counts for the
innermost module in call.

A parameter's **homes** are the modules that wait for it before they run: the modules that own it, if they are called;
for an owner that is not called, the innermost called module around it; and the module in which it was first used. The
first home in the order of a forward pass waits, and the others then have nothing to wait for. A parameter without any
home is waited for in the first module call. A use before the homes in a later pass completes the step (`due_updates`).

A module with its own parameters that is called twice in one forward pass is refused. The schedules that wait in forward
passes promise one wait per layer, and their plans have one place for it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from xbench.errors import UsageError
from xbench.schedules.hooks import uncopied
from xbench.schedules.in_flight import DESCRIPTION


class FirstUse:
    """Observer of forward passes of `model` from now on until `close`. `schedule` is the name in error messages."""

    def __init__(self, model: Module, parameters: Mapping[str, Parameter], schedule: str) -> None:
        self._schedule = schedule
        self._modules: dict[str, Module] = dict(model.named_modules())
        self._parameters = parameters
        self._called: dict[int, int] = {}  # module → its place in the order of calls
        self._inside: list[Module] = []
        self._counts: dict[int, int] = {}
        self._watching = _Watching(self._used)
        self._wanted = {id(parameter) for parameter in parameters.values()}
        self._first: dict[int, Module] = {}
        self._owning = {id(module) for module in model.modules() if _own(module, self._wanted)}
        self._handles: list[RemovableHandle] = []
        enter, leave = map(torch.compiler.disable, (self._enter, self._leave))
        for module in model.modules():
            self._handles.append(uncopied(module.register_forward_pre_hook(enter, prepend=True)))
            self._handles.append(uncopied(module.register_forward_hook(leave, always_call=True)))

    @property
    def seen(self) -> bool:
        """True if any module has been called."""
        return bool(self._called)

    @property
    def inside(self) -> bool:
        """True during a forward pass."""
        return bool(self._inside)

    def _enter(self, module: Module, _: Any) -> None:
        if not self._inside:
            self._counts.clear()
            self._watching.__enter__()  # type: ignore[no-untyped-call]
        self._inside.append(module)
        self._called.setdefault(id(module), len(self._called))
        count = self._counts[id(module)] = self._counts.get(id(module), 0) + 1
        if count > 1 and id(module) in self._owning:
            name = next(name for name, other in self._modules.items() if other is module)
            raise UsageError(
                f"{self._schedule} waits once for the parameters of a layer, and the forward pass calls {name!r} twice",
                hint="the other schedules take such a model",
            )

    def _leave(self, module: Module, *_: Any) -> None:
        if self._inside and self._inside[-1] is module:
            self._inside.pop()
            if not self._inside:
                self._watching.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def _used(self, tensor: Tensor) -> None:
        if id(tensor) in self._wanted and id(tensor) not in self._first and self._inside:
            self._first[id(tensor)] = self._inside[-1]

    def homes(self) -> dict[str, list[Module]]:
        """Parameter name → its homes, in the order in which they were called."""
        owners: dict[int, list[str]] = {}
        for path, module in self._modules.items():
            for parameter in _own(module, self._wanted):
                owners.setdefault(id(parameter), []).append(path)
        found: dict[str, list[Module]] = {}
        for name, parameter in self._parameters.items():
            homes = [self._around(path) for path in owners.get(id(parameter), [])]
            homes.append(self._first.get(id(parameter)))
            unique = {id(module): module for module in homes if module is not None}
            found[name] = sorted(unique.values(), key=lambda module: self._called[id(module)])
        return found

    def place(self, module: Module) -> int:
        """Position of a module in the order of first calls, from 0."""
        return self._called[id(module)]

    def _around(self, path: str) -> Module | None:
        """The module at that path if it is called, else the innermost called module around it."""
        while id(self._modules.get(path)) not in self._called:
            if not path:
                return None
            path = path.rpartition(".")[0]
        return self._modules[path]

    def close(self) -> None:
        """Stop the observation."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if self._inside:
            self._inside.clear()
            self._watching.__exit__(None, None, None)  # type: ignore[no-untyped-call]


class _Watching(TorchFunctionMode):
    """Call of `used` for every tensor among the arguments of a torch function."""

    def __init__(self, used: Callable[[Tensor], None]) -> None:
        super().__init__()
        self._used = used

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        for given in () if func in DESCRIPTION else tree_leaves((args, kwargs)):
            if isinstance(given, Tensor):
                self._used(given)
        return func(*args, **(kwargs or {}))


def _own(module: Module, wanted: Container[int]) -> list[Parameter]:
    """The wanted parameters that the module itself holds."""
    return [parameter for parameter in module.parameters(recurse=False) if id(parameter) in wanted]
