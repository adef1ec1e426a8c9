"""Bytes that are counted from tensors, on networks whose sizes are known."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from xbench.rank.memory_phase import activation_bytes, local_bytes
from xbench.rank.partial_work import kept_bytes, work_by_band

BATCH, WIDTH, ELEMENT_BYTES = 5, 3, 4


def counted(model: nn.Module, inputs: Tensor) -> int:
    loss, nbytes = activation_bytes(model, lambda: model(inputs).sum())
    loss.backward()
    return nbytes


def test_what_a_layer_saves_is_its_input_and_not_its_weight() -> None:
    inputs = torch.ones(BATCH, WIDTH)
    layer = nn.Linear(WIDTH, 2)
    assert counted(layer, inputs) == inputs.nbytes
    assert not layer._forward_pre_hooks
    # The second layer saves the first one's output; so does tanh, whose output both need: it counts once.
    model = nn.Sequential(nn.Linear(WIDTH, 2), nn.Tanh(), nn.Linear(2, 1))
    assert counted(model, inputs) == inputs.nbytes + BATCH * 2 * ELEMENT_BYTES


class Gathered(nn.Module):
    """A layer whose weight is made before its forward pass, as `fully_shard` makes it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, WIDTH))
        self.register_forward_pre_hook(lambda *_: self._gather(), prepend=True)

    def _gather(self) -> None:
        self._parameters["weight"] = nn.Parameter(torch.ones(2, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.t()


def test_a_parameter_that_is_gathered_for_the_forward_pass_is_no_activation() -> None:
    inputs = torch.ones(BATCH, WIDTH)
    assert counted(Gathered(), inputs) == inputs.nbytes


class Shard:
    """Stands for a DTensor."""

    def to_local(self) -> Tensor:
        return torch.ones(2)


def test_of_a_sharded_tensor_the_shard_counts() -> None:
    assert local_bytes([torch.ones(3), Shard()]) == (3 + 2) * ELEMENT_BYTES  # type: ignore[list-item]


class Saving(torch.autograd.Function):
    """A step that saves memory which tells when it is freed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, saved: list[Any], seen: list[list[bool]]) -> Tensor:
        array = np.ones(WIDTH, dtype=np.float32)
        saved.append(weakref.ref(array))
        ctx.save_for_backward(torch.from_numpy(array))
        ctx.saved, ctx.seen = saved, seen
        return x * 1

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        assert ctx.saved_tensors
        ctx.seen.append([one() is None for one in ctx.saved])
        return gradients[0], None, None


@pytest.mark.parametrize("count", [activation_bytes, kept_bytes])
def test_the_backward_pass_frees_what_was_counted_step_by_step(count: Callable[..., tuple[Tensor, int]]) -> None:
    saved: list[Any] = []
    seen: list[list[bool]] = []
    inputs = torch.ones(WIDTH, requires_grad=True)

    def forward() -> Tensor:
        x = Saving.apply(inputs, saved, seen)  # type: ignore[no-untyped-call]
        return Saving.apply(x, saved, seen).sum()  # type: ignore[no-untyped-call,no-any-return]

    loss, nbytes = count(nn.Linear(WIDTH, 2), forward)
    assert nbytes == 2 * WIDTH * ELEMENT_BYTES
    loss.backward()
    assert seen == [[False, False], [False, True]]


class Output(torch.autograd.Function):
    """A step that saves its own output, in memory which tells when it is freed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, saved: list[Any]) -> Tensor:
        array = np.ones(WIDTH, dtype=np.float32)
        saved.append(weakref.ref(array))
        output = torch.from_numpy(array)
        ctx.save_for_backward(output)
        return output


@pytest.mark.parametrize(
    "count",
    [activation_bytes, kept_bytes, lambda model, forward: work_by_band(model, {"weight": 1, "bias": 1}, 1, forward)],
)
def test_a_forward_pass_without_a_backward_pass_leaves_nothing(count: Callable[..., object]) -> None:
    saved: list[Any] = []
    inputs = torch.ones(WIDTH, requires_grad=True)

    def forward() -> Tensor:
        output: Tensor = Output.apply(inputs, saved)  # type: ignore[no-untyped-call]
        return output.sum()

    count(nn.Linear(WIDTH, 2), forward)
    assert [one() for one in saved] == [None]
