"""Activation checkpointing of blocks: the same gradients, fewer activations, and what is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from xbench.errors import WorkloadError
from xbench.workloads.build import checkpoint_blocks


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow, self.drop = nn.Linear(8, 64), nn.Linear(64, 8), nn.Dropout(0.5)
        self.calls = 0

    def forward(self, x: Tensor, *, times: int = 1) -> Tensor:
        self.calls += 1
        return x + times * self.drop(self.narrow(self.wide(x).relu()))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x, times=2)
        return x.square().mean()


def saved_bytes(run: Callable[[], Tensor]) -> tuple[Tensor, int]:
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = run()
    return result, sum(tensor.nbytes for tensor in kept)


def test_gradients_are_the_same_and_fewer_activations_are_kept() -> None:
    torch.manual_seed(0)
    plain, inputs = Network(), torch.randn(16, 8)
    checkpointed = copy.deepcopy(plain)
    checkpoint_blocks(checkpointed, "net")
    assert [type(block).__name__ for block in checkpointed.blocks] == ["Block", "Block"]
    assert list(checkpointed.state_dict()) == list(plain.state_dict())
    kept = []
    for model in (plain, checkpointed, copy.deepcopy(checkpointed)):
        torch.manual_seed(1)
        loss, nbytes = saved_bytes(lambda model=model: model(inputs))
        loss.backward()
        kept.append(nbytes)
        for own, other in zip(model.parameters(), plain.parameters(), strict=True):
            assert own.grad is not None
            assert torch.equal(own.grad, other.grad)
    assert kept[1] == kept[2] < kept[0] / 2
    assert [block.calls for block in checkpointed.blocks] == [2, 2]


def test_without_gradients_a_block_runs_once() -> None:
    model = Network()
    checkpoint_blocks(model, "net")
    with torch.no_grad():
        model(torch.randn(2, 8))
    assert [block.calls for block in model.blocks] == [1, 1]


def test_a_model_without_blocks_is_refused() -> None:
    with pytest.raises(WorkloadError, match="net: the model has no blocks to checkpoint"):
        checkpoint_blocks(nn.Linear(2, 2), "net")


def test_a_compiled_model_is_refused() -> None:
    model = Network()
    model.blocks[0].compile()
    with pytest.raises(WorkloadError, match=r"torch\.compile has made one of several"):
        checkpoint_blocks(model, "net")
