"""Units of a model for torch's `fully_shard`, and a second tree of modules that it can wrap.

A unit is a module whose parameters are gathered, and whose gradients are reduced, by one collective. torchtitan and
most users wrap each block of a network (`model_blocks`) and then the root, which holds the rest.

`fully_shard` changes modules in place: their class, hooks and parameters. Nothing in torch takes that back. So it gets
a twin of the model: new modules over the same parameters and buffers. Detaching drops the twin.
"""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from xbench.errors import UsageError
from xbench.model_blocks import blocks_of
from xbench.torch_compile import plain_name, regions


def units_of(model: nn.Module) -> dict[str, list[str]]:
    """Parameter names by unit: each block, then the root under the name ''. Raises UsageError for parameters in two.

    A parameter that two units share would be trained twice, apart.
    """
    blocks = blocks_of(model)
    owner: dict[int, str] = {}
    wrapped: set[int] = set()
    for path, block in blocks.items():
        wrapped |= {id(module) for module in block.modules()}
        for name, parameter in block.named_parameters():
            if owner.setdefault(id(parameter), path) != path:
                _refuse_shared(f"{path}.{name}", owner[id(parameter)])
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False) if id(module) not in wrapped else ():
            if id(parameter) in owner:
                _refuse_shared(f"{path}.{name}" if path else name, owner[id(parameter)])
    units: dict[str, list[str]] = {path: [] for path in (*blocks, "")}
    for name, parameter in model.named_parameters():
        units[owner.get(id(parameter), "")].append(plain_name(name))
    return {path: names for path, names in units.items() if names}


def _refuse_shared(name: str, unit: str) -> None:
    raise UsageError(
        f"parameter {name!r} is also one of unit {unit!r}, and fully_shard has no parameter in two units",
        hint="the other modes train models with shared parameters",
    )


def twin_of(model: nn.Module) -> nn.Module:
    """New modules over the same parameters and buffers, with the same hooks. Raises UsageError if they cannot be made.

    A hook that is added to the twin is not on the model. A buffer that either assigns is the other's, too.
    """
    if regions(model):
        raise UsageError(
            "fully_shard wraps the modules of a model one by one, and torch.compile has left no modules to wrap",
            hint="the other modes take compiled models",
        )
    known: dict[int, Any] = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    for module in model.modules():
        known[id(module._buffers)] = module._buffers
        for name, value in vars(module).items():
            if "hooks" in name and isinstance(value, dict):
                known[id(value)] = copy.copy(value)
    try:
        return copy.deepcopy(model, known)
    except Exception as error:  # whatever the attributes of a user's module raise
        said = " ".join(str(error).split())[:300]
        raise UsageError(f"fully_shard needs a second tree of the model's modules, and copying raised {said}") from None
