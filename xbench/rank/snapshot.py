"""Snapshot of everything that a training step changes, for an exact restore.

Many models change more than parameters, buffers, the optimizer's state and generators: a buffer that is registered in
the first forward pass, a hidden state in a plain attribute, a counter. So the snapshot stores, for every module of the
model and of its loss:

- its parameters, buffers and submodules, as objects, and the values of the tensors;
- every other attribute: numbers and strings as they are; tensors and generators with their content; lists, dicts, sets
  and plain objects with their content, a few levels deep.

Restoring removes additions and restores replaced or written values. Values are kept in the host's memory, also those of
a GPU. State in closures, in global variables and outside the process is not covered; `rank.reference` detects it.
"""

from __future__ import annotations

import copy
import random
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from xbench.errors import WorkloadError
from xbench.workloads.batches import shape_of, tensors_in
from xbench.workloads.workload import Workload

DEPTH = 4
"""Levels of containers and plain objects that are searched below a module's attribute."""

_TORCHS = frozenset(vars(nn.Module())) - {"training"} | {"_compiled_call_impl"}
"""Attributes of every module. Its hooks belong to schedules, not to the step."""

_FOREIGN = ("torch", "numpy", "builtins", "xbench", "functools", "threading", "weakref", "collections")
"""Packages whose objects are not searched."""

PutBack = Callable[[], Any]
"""Function that restores the content of a value, and returns the value."""


class RandomState:
    """State of the process's random-number generators at construction."""

    def __init__(self) -> None:
        self._torch = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
        self._numpy = np.random.get_state()
        self._python = random.getstate()

    def restore(self) -> None:
        """Restore the state."""
        torch.set_rng_state(self._torch)
        if self._cuda is not None:
            torch.cuda.set_rng_state_all(self._cuda)
        np.random.set_state(self._numpy)
        random.setstate(self._python)


class Snapshot:
    """State of a workload before its first step."""

    def __init__(self, workload: Workload) -> None:
        seen: dict[int, PutBack] = {}
        self._modules = [_Module(name, module, seen) for name, module in _modules(workload)]
        self._batch = [_keep(tensor, "the batch", seen) for tensor in tensors_in([workload.inputs, workload.targets])]
        self.random = RandomState()

    def restore(self, workload: Workload) -> None:
        """Restore the state. The optimizer's state is cleared: the snapshot was taken before its first step.

        Raises WorkloadError for an expanded tensor that was written to.
        """
        with torch.no_grad():
            for module in self._modules:
                module.restore()
            for put_back in self._batch:
                put_back()
        workload.optimizer.state.clear()
        workload.optimizer.zero_grad(set_to_none=True)
        self.random.restore()


def trained(workload: Workload, snapshot: Snapshot, train: Callable[[], None]) -> None:
    """Call `train()` from the snapshot's state, the first scale of losses and the first batch; restore that state."""
    snapshot.restore(workload)
    workload.reset_scaler()
    with workload.on_one_batch():
        train()
    snapshot.restore(workload)


def expanded_buffer(model: nn.Module) -> str | None:
    """Return the name of the first buffer whose elements share memory, as after `Tensor.expand`; None without any."""
    return next((name for name, buffer in model.named_buffers() if _shares_memory(buffer)), None)


class _Module:
    """Saved contents of one module."""

    def __init__(self, name: str, module: nn.Module, seen: dict[int, PutBack]) -> None:
        self._module = module
        self._registered = {kind: dict(vars(module)[kind]) for kind in ("_parameters", "_buffers", "_modules")}
        self._non_persistent = set(module._non_persistent_buffers_set)
        prefix = f"{name}." if name else ""
        self._values = [
            _keep(value, prefix + key, seen)
            for kind in ("_parameters", "_buffers")
            for key, value in self._registered[kind].items()
        ]
        self._attributes = {
            key: _keep(value, prefix + key, seen) for key, value in vars(module).items() if key not in _TORCHS
        }

    def restore(self) -> None:
        held = vars(self._module)
        for key in [key for key in held if key not in _TORCHS and key not in self._attributes]:
            del held[key]
        for kind, before in self._registered.items():
            now = held[kind]
            if list(now) != list(before) or any(now[key] is not value for key, value in before.items()):
                now.clear()
                now.update(before)
        if self._module._non_persistent_buffers_set != self._non_persistent:
            self._module._non_persistent_buffers_set = set(self._non_persistent)
        for put_back in self._values:
            put_back()
        for key, put_back in self._attributes.items():
            value = put_back()
            if key not in held or held[key] is not value:
                held[key] = value


def _modules(workload: Workload) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules of the model, and of a loss that is or holds a module."""
    yield from workload.model.named_modules()
    owner = getattr(workload.loss, "__self__", workload.loss)
    held = [owner] if isinstance(owner, nn.Module) else list(getattr(owner, "__dict__", {}).values())
    for module in held:
        if isinstance(module, nn.Module) and module is not workload.model:
            yield from ((f"loss.{name}" if name else "loss", each) for name, each in module.named_modules())


def _keep(value: Any, name: str, seen: dict[int, PutBack], depth: int = DEPTH) -> PutBack:
    """Return the `PutBack` of a value. `seen` holds those of values that were stored already, by identity."""
    if isinstance(value, (int, float, str, bytes, bool, type(None), nn.Module, type)) or depth == 0:
        return lambda: value
    if id(value) not in seen:
        seen[id(value)] = lambda: value  # for a value that contains itself
        seen[id(value)] = _put_back(value, name, seen, depth)
    return seen[id(value)]


def _put_back(value: Any, name: str, seen: dict[int, PutBack], depth: int) -> PutBack:
    if isinstance(value, Tensor):
        return _tensor(value, name)
    if isinstance(value, torch.Generator):
        return _calling(value, value.set_state, value.get_state())
    if isinstance(value, np.random.RandomState):
        return _calling(value, value.set_state, value.get_state())
    if isinstance(value, np.random.Generator):
        source = value.bit_generator
        state = copy.deepcopy(source.state)
        return _calling(value, lambda kept: setattr(source, "state", copy.deepcopy(kept)), state)
    if isinstance(value, random.Random):
        return _calling(value, value.setstate, value.getstate())
    if type(value) in (list, deque):
        return _filled(value, [_keep(item, name, seen, depth - 1) for item in value], value.extend)
    if type(value) is set:
        return _filled(value, [_keep(item, name, seen, depth - 1) for item in value], value.update)
    if type(value) in (dict, OrderedDict, defaultdict):
        return _filled_dict(value, {key: _keep(item, name, seen, depth - 1) for key, item in value.items()})
    if type(value) is tuple:
        items = [_keep(item, name, seen, depth - 1) for item in value]
        return _calling(value, lambda every: [put_back() for put_back in every], items)
    if hasattr(value, "__dict__") and type(value).__module__.partition(".")[0] not in _FOREIGN:
        held = vars(value)
        return _calling(
            value, _filled_dict(held, {key: _keep(item, name, seen, depth - 1) for key, item in held.items()}), None
        )
    return lambda: value


def _calling(value: Any, put: Callable[..., Any], state: Any) -> PutBack:
    def put_back() -> Any:
        put() if state is None else put(state)
        return value

    return put_back


def _filled(value: Any, items: list[PutBack], add: Callable[[list[Any]], Any]) -> PutBack:
    def put_back() -> Any:
        before = [item() for item in items]
        value.clear()
        add(before)
        return value

    return put_back


def _filled_dict(value: dict[Any, Any], items: dict[Any, PutBack]) -> PutBack:
    def put_back() -> Any:
        before = {key: item() for key, item in items.items()}
        if list(value) != list(before) or any(value[key] is not item for key, item in before.items()):
            value.clear()
            value.update(before)
        return value

    return put_back


def host_copy(value: Tensor) -> Tensor:
    """Return a copy in the host's memory. On a GPU the copies of the parity check would leave no room for the step."""
    return value.detach().to("cpu", copy=True)


def _tensor(value: Tensor, name: str) -> PutBack:
    kept, device = host_copy(value), value.device

    def put_back() -> Tensor:
        if shape_of(value) != shape_of(kept):  # resized in place
            value.data = kept.to(device, copy=True)
        elif not _shares_memory(value):
            value.copy_(kept)
        elif not torch.equal(value.cpu(), kept):
            raise WorkloadError(
                f"{name!r} is an expanded view, whose elements share memory, and the forward pass writes to it: it "
                "cannot be put back",
                hint="give it memory of its own with .clone()",
            )
        return value

    return put_back


def _shares_memory(tensor: Tensor) -> bool:
    if tensor.layout != torch.strided or tensor.is_nested:
        return False
    return any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
