"""Requirements of a deferred update: a suitable optimizer and model, a known backend, and ordinary autograd modes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.nn import Module
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from xbench.errors import UsageError
from xbench.schedules.base import AttachConfig
from xbench.schedules.engine import PER_PARAMETER
from xbench.torch_compile import regions

Carrier = Literal["exchange", "streams"]
"""Completion of collectives: by future callbacks of a backend (Gloo), or in order on a stream (NCCL)."""


def check_deferrable(setup: AttachConfig, name: str) -> Optimizer:
    """Return the optimizer when its updates can be deferred for this model. Raises UsageError naming `name`."""
    optimizer = setup.optimizer
    if optimizer is None:
        raise UsageError(f"{name} applies the optimizer layer by layer, and none was given")
    kind = type(optimizer)
    if kind not in PER_PARAMETER:
        known = ", ".join(sorted(one.__name__ for one in PER_PARAMETER))
        raise UsageError(
            f"{name} updates some parameters before others, and does not know that {kind.__name__} may be",
            hint=f"it knows {known}, as torch has them",
        )
    if any(group.get("differentiable") for group in optimizer.param_groups):
        raise UsageError(f"{name} cannot put off the step of a differentiable optimizer")
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        raise UsageError(
            f"{name} puts updates off into the next forward pass, and the optimizer has step hooks, which "
            "would find neither gradients nor new parameters"
        )
    if regions(setup.model):
        raise UsageError(
            f"{name} waits before each layer of the forward pass, and torch.compile has left no layers to wait before",
            hint="the other schedules take compiled models",
        )
    if setup.copies == "coalesced":
        raise UsageError(
            f"{name} sends pieces of buckets, and copies 'coalesced' leaves gradients where they are",
            hint="copies 'views' or 'fused'",
        )
    return optimizer


def carrier_of(group: dist.ProcessGroup | None, device: torch.device) -> Carrier:
    """The way in which collectives of this group complete. Raises UsageError for an unknown backend."""
    backend = dist.get_backend(group)
    if device.type == "cuda" and ("nccl" in backend or (backend == "emulated" and dist.get_world_size(group) == 1)):
        return "streams"
    if "gloo" in backend or (backend == "emulated" and device.type == "cpu"):
        return "exchange"
    if backend == "emulated":
        raise UsageError("next-forward overlap over an emulated link of GPUs is for one rank")
    raise UsageError(f"next-forward overlap knows Gloo and NCCL, and the process group's backend is {backend!r}")


@contextmanager
def ordinary_mode(device: str) -> Iterator[None]:
    """Leave inference mode and autocast, which the surrounding forward pass may use."""
    with ExitStack() as stack:
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        if torch.is_autocast_enabled(device):
            stack.enter_context(torch.autocast(device, enabled=False))
        yield


def before_state_dicts(model: Module, optimizer: Optimizer, finish: Callable[[], None]) -> list[RemovableHandle]:
    """Add hooks that complete the step before state dicts are taken or loaded."""

    def first(*_: Any) -> None:
        finish()

    found: list[RemovableHandle] = []
    for module in model.modules():
        found.append(module.register_state_dict_pre_hook(first))  # type: ignore[no-untyped-call]
        found.append(module.register_load_state_dict_pre_hook(first))  # type: ignore[no-untyped-call]
    found.append(optimizer.register_state_dict_pre_hook(first))
    found.append(optimizer.register_load_state_dict_pre_hook(first))
    return found
