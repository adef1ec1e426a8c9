"""Methods of a model that are called on its twin too, while a schedule trains the twin in its place."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch.nn import Module, Parameter

from xbench.schedules.shard_pair import ParameterInShards

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
