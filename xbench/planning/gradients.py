"""Gradients of a step: one per parameter tensor, in the order in which backward completes them.

Times are seconds since the start of backward. Every function of `planning` that takes gradients takes them in ready
order. A bucket is a list of indices into that order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from xbench import records


@dataclass(frozen=True)
class Gradient:
    """One parameter's gradient: `nbytes` [B], complete `ready_s` [s] after the start of backward.

    Raises ValueError for a negative or non-finite number.
    """

    name: str
    nbytes: int
    ready_s: float
    dtype: str = "float32"
    elements: int = 0

    def __post_init__(self) -> None:
        if self.nbytes < 0 or self.elements < 0:
            raise ValueError(f"gradient {self.name!r} has {self.nbytes} bytes in {self.elements} elements: below zero")
        if not math.isfinite(self.ready_s) or self.ready_s < 0:
            raise ValueError(f"gradient {self.name!r} is ready at {self.ready_s} s: not a time after backward's start")


def from_layers(layers: Sequence[records.Layer]) -> list[Gradient]:
    """The gradients of a profile's layers in ready order; equal times keep the layers' order.

    Raises ValueError when there is no gradient, or one is not valid.
    """
    found = [
        Gradient(tensor.name, tensor.bytes, tensor.ready_s, tensor.dtype, tensor.elements)
        for layer in layers
        for tensor in layer.tensors
    ]
    if not found:
        raise ValueError("the layers have no gradients: nothing to plan")
    return sorted(found, key=lambda gradient: gradient.ready_s)


def require_ready_order(gradients: Sequence[Gradient]) -> None:
    """Raise ValueError unless there are gradients and each is ready no earlier than the one before it."""
    if not gradients:
        raise ValueError("there are no gradients to plan")
    for before, after in itertools.pairwise(gradients):
        if after.ready_s < before.ready_s:
            raise ValueError(
                f"gradients are not in ready order: {after.name!r} at {after.ready_s} s follows "
                f"{before.name!r} at {before.ready_s} s"
            )


def dtypes_of(gradients: Sequence[Gradient]) -> list[str]:
    """The distinct dtypes, in order of first readiness."""
    return list(dict.fromkeys(gradient.dtype for gradient in gradients))
