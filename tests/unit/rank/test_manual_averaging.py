"""Averaging written out by hand, on this rank and on one that answers from a list."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from xbench.rank.parity_power import averaged, give, local_gradients, trainable


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.others, self.nobodys = (nn.Parameter(torch.zeros(2)) for _ in range(3))
        self.frozen = nn.Parameter(torch.zeros(2, dtype=torch.int8), requires_grad=False)


def test_the_mean_of_all_ranks_and_none_where_no_rank_has_a_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Net()
    model.used.grad = torch.tensor([2.0, 4.0])
    other = iter([torch.tensor([0.0, 1.0, 0.0]), torch.tensor([4.0, 0.0]), torch.tensor([1.0, 1.0])])

    def all_reduce(tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM, group: Any = None) -> None:
        theirs = next(other)
        tensor.copy_(torch.maximum(tensor, theirs) if op == dist.ReduceOp.MAX else tensor + theirs / 2)

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    monkeypatch.setattr(dist, "get_world_size", lambda group=None: 2)
    parameters = trainable(model)
    assert list(parameters) == ["used", "others", "nobodys"]
    mean = averaged(parameters, local_gradients(parameters))
    give(parameters, mean)
    assert model.used.grad.tolist() == [3.0, 2.0]
    assert model.others.grad is not None
    assert model.others.grad.tolist() == [0.5, 0.5]
    assert model.nobodys.grad is None


def test_sparse_gradients_become_dense() -> None:
    table = nn.Parameter(torch.zeros(3, 2))
    nn.functional.embedding(torch.tensor([1]), table, sparse=True).sum().backward()
    found = local_gradients({"table": table})["table"]
    assert found is not None
    assert found.tolist() == [[0.0, 0.0], [1.0, 1.0], [0.0, 0.0]]
