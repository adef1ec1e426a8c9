"""Checks of the model that a factory returns.

Each unsuitable model is refused in one sentence, here and on the ranks.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from xbench.errors import WorkloadError

_WRAPPERS = {
    "DistributedDataParallel": "DistributedDataParallel",
    "FullyShardedDataParallel": "FullyShardedDataParallel",
    "FSDPModule": "fully_shard",
}
"""Names of torch's classes. Comparing names avoids importing the classes."""


def check_model(title: str, model: nn.Module) -> None:
    """Raise WorkloadError for a model that is wrapped or sharded already, or that no schedule can train."""
    for name, module in model.named_modules():
        wrapper = next((_WRAPPERS[c.__name__] for c in _torch_classes(module) if c.__name__ in _WRAPPERS), None)
        if wrapper is not None:
            part = "the model" if not name else f"the model's part {name!r}"
            raise WorkloadError(
                f"{title}: {part} is wrapped in {wrapper}, and xbench attaches every schedule itself, DDP among them",
                hint="hand the model in unwrapped",
            )
    for name, parameter in model.named_parameters():
        if type(parameter).__name__ == "DTensor":
            raise WorkloadError(
                f"{title}: the model's parameter {name!r} is sharded over ranks (a DTensor), and every schedule here "
                "keeps whole parameters on every rank",
                hint="hand the model in unwrapped",
            )
    if any(isinstance(parameter, UninitializedParameter) for parameter in model.parameters()):
        raise WorkloadError(
            f"{title}: the model has lazy parameters without a shape yet",
            hint="run the model once in the factory before returning it",
        )
    for kind, tensors in (("parameter", model.named_parameters()), ("buffer", model.named_buffers())):
        for name, tensor in tensors:
            strides = tensor.stride() if tensor.layout == torch.strided else ()
            if any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, strides, strict=False)):
                raise WorkloadError(
                    f"{title}: the model's {kind} {name!r} is an expanded view, whose elements share memory, so it "
                    "cannot be written to, as DDP writes to buffers and an optimizer to parameters",
                    hint=f"{name.rpartition('.')[2]}.clone() has memory of its own",
                )


def _torch_classes(module: nn.Module) -> list[type]:
    return [kind for kind in type(module).__mro__ if kind.__module__.startswith("torch.")]
