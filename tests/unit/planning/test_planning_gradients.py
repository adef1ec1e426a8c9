from __future__ import annotations

import math

import pytest

from xbench.planning.gradients import Gradient, dtypes_of, from_layers, require_ready_order
from xbench.records import Layer, Tensor


def layer(name: str, *tensors: Tensor) -> Layer:
    return Layer(
        name=name,
        kind="Linear",
        parameters=sum(t.elements for t in tensors),
        grad_bytes=sum(t.bytes for t in tensors),
        forward_s=0.1,
        backward_s=0.2,
        ready_s=0.3,
        share=0.5,
        tensors=list(tensors),
    )


def tensor(name: str, ready_s: float, dtype: str = "float32") -> Tensor:
    return Tensor(name=name, elements=10, bytes=40, dtype=dtype, ready_s=ready_s)


def test_gradients_come_in_ready_order_and_ties_keep_the_layers_order() -> None:
    layers = [layer("b", tensor("b.weight", 0.2), tensor("b.bias", 0.1)), layer("a", tensor("a.weight", 0.1, "bf16"))]
    assert from_layers(layers) == [
        Gradient("b.bias", 40, 0.1, "float32", 10),
        Gradient("a.weight", 40, 0.1, "bf16", 10),
        Gradient("b.weight", 40, 0.2, "float32", 10),
    ]
    assert dtypes_of(from_layers(layers)) == ["float32", "bf16"]


@pytest.mark.parametrize("layers", [[], [layer("empty")]])
def test_no_gradients_are_refused(layers: list[Layer]) -> None:
    with pytest.raises(ValueError, match="no gradients"):
        from_layers(layers)


@pytest.mark.parametrize(
    ("nbytes", "ready_s", "elements"), [(-1, 0.0, 0), (1, -0.1, 0), (1, math.nan, 0), (1, math.inf, 0), (1, 0.0, -1)]
)
def test_numbers_that_cannot_be_are_refused(nbytes: int, ready_s: float, elements: int) -> None:
    with pytest.raises(ValueError, match="gradient 'w'"):
        Gradient("w", nbytes, ready_s, elements=elements)


def test_ready_order_is_required() -> None:
    require_ready_order([Gradient("a", 1, 0.1), Gradient("b", 1, 0.1)])
    with pytest.raises(ValueError, match=r"'b' at 0\.1 s follows 'a' at 0\.2 s"):
        require_ready_order([Gradient("a", 1, 0.2), Gradient("b", 1, 0.1)])
    with pytest.raises(ValueError, match="no gradients"):
        require_ready_order([])
