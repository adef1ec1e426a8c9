"""Tensors in nests of tuples, lists and dicts, such as a model's inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

Inputs = Tensor | tuple[Any, ...] | list[Any] | dict[str, Any]
"""A model's inputs: `model(x)` for a tensor, `model(*x)` for a tuple or list, `model(**x)` for a dict."""


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Every tensor in a nest of tuples, lists and dicts, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors_in(item)


def with_each(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same nest of tuples, named tuples, lists and dicts, with every tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: with_each(item, change) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(with_each(item, change) for item in value))
    if isinstance(value, tuple | list):
        return type(value)(with_each(item, change) for item in value)
    return value
