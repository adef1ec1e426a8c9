"""Units of a model for torch's `fully_shard`, and a second tree of modules that it can wrap.

A unit is a module whose parameters are gathered, and whose gradients are reduced, by one collective. torchtitan and
most users wrap each block of a network (`model_blocks`) and then the root, which holds the rest.

`fully_shard` changes modules in place: their class, hooks and parameters. Nothing in torch takes that back. So it gets
a twin of the model: new modules over the same parameters and buffers. Detaching drops the twin.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn
from torch.nn import Module, Parameter

from xbench.errors import UsageError
from xbench.model_blocks import blocks_of
from xbench.schedules.shard_pair import ParameterInShards
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


Method = Callable[..., Any]


def follow(
    plain: Module, twin: Module, in_shards: Callable[[], bool], clear: Callable[[Iterable[Parameter], bool], None]
) -> Callable[[], None]:
    """Let `train()` and `eval()` of each module of the model reach the twin's, and `zero_grad()` of either the other's.

    `clear(parameters, set_to_none)` clears gradients in every form. Loading parameters while `in_shards()` is refused.
    Returns the function that ends it.
    """

    def train(one: Module, other: Module, mode: bool = True) -> Module:
        other.train(mode)
        return type(one).train(one, mode)

    def zero_grad(one: Module, other: Module, set_to_none: bool = True) -> None:
        present = other if in_shards() else one
        type(present).zero_grad(present, set_to_none)
        clear(present.parameters(), set_to_none)

    def load_state_dict(one: Module, other: Module, *args: Any, **kwargs: Any) -> Any:
        if in_shards():
            ParameterInShards.refuse()
        return type(one).load_state_dict(one, *args, **kwargs)

    ends = []
    for one, other in zip(plain.modules(), twin.modules(), strict=True):
        ends += [
            replaced(one, call.__name__, TwinMethod(one, other, call)) for call in (train, zero_grad, load_state_dict)
        ]
        ends.append(replaced(other, "zero_grad", TwinMethod(one, other, zero_grad)))

    def end() -> None:
        for put_back in ends:
            put_back()

    return end


class TwinMethod:
    """A method of one module that takes another one along. A copy of the module has its own method again."""

    def __init__(self, one: Module, other: Module, call: Method) -> None:
        self._one, self._other, self._call = one, other, call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method on both modules."""
        return self._call(self._one, self._other, *args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Method:
        """The own method of the module's copy, which is under way."""
        return self._own(memo.get(id(self._one), self._one))

    def __reduce__(self) -> tuple[Any, ...]:
        """The own method of the module that is loaded."""
        return getattr, (self._one, self._call.__name__)

    def _own(self, module: Module) -> Method:
        own: Method = getattr(type(module), self._call.__name__).__get__(module)
        return own


def replaced(owner: object, method: str, by: Method) -> Callable[[], None]:
    """Replace a method of one object; return the function that puts it back."""
    before = vars(owner).get(method)
    object.__setattr__(owner, method, by)

    def put_back() -> None:
        object.__delattr__(owner, method)
        if before is not None:
            object.__setattr__(owner, method, before)

    return put_back
