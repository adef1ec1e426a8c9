"""Tensors in nests of tuples, lists and mappings, such as a model's inputs, and the number of samples in a batch.

**Samples.** Each part of a batch has possible numbers of samples: a tensor its first dimension, a list of tensors its
length and what its items have in common, a packed sequence and a jagged tensor the number of their sequences. If the
model has a module with `batch_first=False`, the second dimension of a tensor is possible, too. The batch has as many
samples as all parts of its inputs and targets can have. If that is no number, or more than one, it is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from copy import copy
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

Inputs = Tensor | tuple[Any, ...] | list[Any] | Mapping[str, Any]
"""A model's inputs: `model(*x)` for a tuple or list, `model(**x)` for a mapping, `model(x)` for a tensor or a named
tuple."""


def is_named(value: Any) -> bool:
    """True for a named tuple, which is one object with fields, as a packed sequence is."""
    return isinstance(value, tuple) and hasattr(value, "_fields")


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Every tensor in a nest of tuples, lists and mappings, in order; of a packed sequence its data alone."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, PackedSequence):
        yield value.data
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors_in(item)


def with_parts(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same tuple, named tuple, list or mapping, with each direct part changed. Anything else stays as it is."""
    if isinstance(value, Mapping):
        changed = {key: change(item) for key, item in value.items()}
        if type(value) is dict or not isinstance(value, MutableMapping):
            return changed
        same_type = copy(value)
        same_type.update(changed)
        return same_type
    if is_named(value):
        return type(value)(*map(change, value))
    if isinstance(value, tuple | list):
        return type(value)(map(change, value))
    return value


def with_each(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same nest of tuples, named tuples, lists and mappings, with every tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, PackedSequence):  # its sizes stay on the CPU
        data, sizes, *orders = value
        return PackedSequence(change(data), sizes, *(one if one is None else change(one) for one in orders))
    return with_parts(value, lambda part: with_each(part, change))


def shape_of(tensor: Tensor) -> tuple[int, ...]:
    """Sizes of a tensor; of a nested one, 0 for a dimension in which its parts differ."""
    if not tensor.is_nested:
        return tuple(tensor.shape)
    shapes = [part.shape for part in tensor.unbind()]
    return (len(shapes), *(sizes[0] if len(set(sizes)) == 1 else 0 for sizes in zip(*shapes, strict=True)))


def takes_time_first(model: nn.Module) -> bool:
    """True if a module of the model says `batch_first=False`, as torch's recurrent layers and attention do."""
    return any(getattr(module, "batch_first", True) is False for module in model.modules())


def sizes_of(value: Any, time_first: bool = False) -> set[int] | None:
    """Possible numbers of samples in a part of a batch; None without a tensor that has a dimension."""
    if isinstance(value, PackedSequence):
        return {int(value.batch_sizes[0])}
    if isinstance(value, Tensor):
        return set(shape_of(value)[: 2 if time_first and not value.is_nested else 1]) or None
    if isinstance(value, Mapping):
        return _common(value.values(), time_first)
    if isinstance(value, tuple | list):
        found = _common(value, time_first)
        return found if found is None or is_named(value) else found | {len(value)}
    return None


def samples_of(inputs: Inputs, targets: Any, time_first: bool = False) -> int | None:
    """Number of samples in a batch; None if its parts do not tell."""
    arguments = inputs if isinstance(inputs, tuple | list) and not is_named(inputs) else [inputs]
    found = _common([*arguments, targets], time_first)
    return min(found) if found is not None and len(found) == 1 else None


def _common(parts: Iterable[Any], time_first: bool) -> set[int] | None:
    sizes = [found for part in parts if (found := sizes_of(part, time_first)) is not None]
    return set.intersection(*sizes) if sizes else None
