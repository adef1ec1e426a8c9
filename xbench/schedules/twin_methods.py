"""Methods of a model that are called on its twin too, while a schedule trains the twin in its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.nn import Module

Method = Callable[..., Any]


def follow(plain: Module, twin: Module, in_shards: Callable[[], bool]) -> Callable[[], None]:
    """Let `train()`, `eval()` and `zero_grad()` of the model and of each of its modules reach the twin's.

    While `in_shards()`, gradients are the twin's alone. Returns the function that ends it.
    """

    def train(one: Module, other: Module, mode: bool = True) -> Module:
        other.train(mode)
        return type(one).train(one, mode)

    def zero_grad(one: Module, other: Module, set_to_none: bool = True) -> None:
        other.zero_grad(set_to_none)
        if not in_shards():
            type(one).zero_grad(one, set_to_none)

    ends = [
        _replaced(one, call.__name__, TwinMethod(one, other, call))
        for one, other in zip(plain.modules(), twin.modules(), strict=True)
        for call in (train, zero_grad)
    ]

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


def _replaced(module: Module, method: str, by: Method) -> Callable[[], None]:
    """Replace a method of one module; return the function that puts it back."""
    before = vars(module).get(method)
    object.__setattr__(module, method, by)

    def put_back() -> None:
        object.__delattr__(module, method)
        if before is not None:
            object.__setattr__(module, method, before)

    return put_back
