"""Parameters that a schedule serves: which they are, which engine has them, and their gradients after it."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.nn.parameter import is_lazy

from xbench.errors import UsageError
from xbench.schedules.checks import refuse_wrapped
from xbench.torch_compile import plain_name

ENGINES: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""The engine of each parameter that has one, by the parameter's id. (An attribute of it would be saved with it.)"""


def engine_of(parameter: Parameter) -> Any:
    """The engine that sends this parameter's gradients; None without one."""
    return ENGINES.get(id(parameter))


def ignored(model: Module) -> set[str]:
    """Names of the parameters and buffers that the model excludes from DDP, and so from every schedule."""
    return set(getattr(model, "_ddp_params_and_buffers_to_ignore", ()))


def without_ignored(model: Module, buckets: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return the buckets of a plan without the parameters that the model excludes from DDP."""
    left_out = {plain_name(name) for name in ignored(model)}
    return [kept for bucket in buckets if (kept := [name for name in bucket if name not in left_out])]


def refuse_ignored(model: Module, name: str) -> None:
    """Raise UsageError, naming the schedule, for a model that excludes parameters from DDP."""
    if ignored(model):
        raise UsageError(
            f"the model excludes parameters from DDP (_ddp_params_and_buffers_to_ignore), and {name} cannot leave them "
            "alone"
        )


def refuse_sparse(name: str, parameter: Tensor) -> None:
    """Raise UsageError for a sparse gradient."""
    assert parameter.grad is not None
    if parameter.grad.layout is not torch.strided:
        raise UsageError(f"parameter {name!r} has a sparse gradient, which xbench's schedules do not send")


def own_gradients(parameters: Iterable[Parameter]) -> None:
    """Copy gradients that are slices of a bucket, so that the bucket's memory is freed."""
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad._is_view():
            parameter.grad = parameter.grad.clone()


def trainable(model: Module) -> dict[str, Parameter]:
    """Name before torch.compile → parameter, for all trainable ones in order of registration, each shared tensor once.

    Those that the model excludes from DDP are left out. Raises UsageError for a model that the engine cannot serve.
    """
    refuse_wrapped(model)
    found: dict[str, Parameter] = {}
    left_out = ignored(model)
    for full_name, p in model.named_parameters():
        name = plain_name(full_name)
        if is_lazy(p) or (p.is_meta and p.requires_grad):
            raise UsageError(
                f"parameter {name!r} has no values yet",
                hint="run a forward pass, or move the model from the meta device, before the schedule is attached",
            )
        if not p.requires_grad or full_name in left_out:
            continue
        if name in found:
            raise UsageError(f"two parameters are both called {name!r} in a plan", hint="rename one of them")
        found[name] = p
    if not found:
        raise UsageError("the model has no trainable parameter, so there is no gradient to send")
    for name, parameter in found.items():
        if parameter.is_complex():
            raise UsageError(f"parameter {name!r} is complex, which xbench's schedules do not support")
        if engine_of(parameter) is not None:
            raise UsageError("another xbench schedule is attached to this model", hint="detach it first")
    for module_name, module in model.named_modules():
        if isinstance(module, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and module.sparse:
            raise UsageError(f"module {module_name!r} makes sparse gradients, which xbench's schedules do not support")
    devices = {p.device for p in found.values()}
    if len(devices) > 1:
        raise UsageError(f"the model is spread over several devices ({', '.join(map(str, devices))})")
    return found
