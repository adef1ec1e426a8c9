"""Attaching Horovod allocates the momentum of SGD: training is the same, and other optimizers are left alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Adam, Optimizer

from xbench.schedules.horovod import allocate_momentum


class Sgd(torch.optim.SGD):
    """A user's own subclass, whose step may be another."""


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def trained(allocated: bool, **options: Any) -> dict[str, torch.Tensor]:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, **options)
    if allocated:
        allocate_momentum(optimizer)
        assert len(optimizer.state) == 4
    inputs = torch.randn(16, 4)
    for _ in range(3):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
    momenta = {f"momentum of {name}": optimizer.state[it]["momentum_buffer"] for name, it in model.named_parameters()}
    return dict(model.named_parameters()) | momenta


@pytest.mark.parametrize("implementation", [{}, {"foreach": True}, {"foreach": False}, {"fused": True}])
@pytest.mark.parametrize("more", [{}, {"nesterov": True}, {"weight_decay": 0.01}, {"maximize": True}])
def test_training_is_the_same_without_tolerance(implementation: dict[str, Any], more: dict[str, Any]) -> None:
    options = {"momentum": 0.9} | implementation | more
    with_it, without = trained(True, **options), trained(False, **options)
    for name, value in with_it.items():
        assert torch.equal(value, without[name]), name


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.SGD, {}),
        (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.5}),
        (Sgd, {"momentum": 0.9}),
        (Adam, {}),
    ],
)
def test_other_optimizers_are_left_alone(kind: type[Optimizer], options: dict[str, Any]) -> None:
    optimizer = kind(net().parameters(), lr=0.1, **options)  # type: ignore[call-arg]
    allocate_momentum(optimizer)
    assert not optimizer.state


def test_frozen_parameters_and_momentum_that_is_there_are_left_alone() -> None:
    model = net()
    frozen, trains = model[0].weight, model[2].weight
    frozen.requires_grad_(False)
    optimizer = torch.optim.SGD([frozen, trains], lr=0.1, momentum=0.9)
    momentum = torch.ones_like(trains)
    optimizer.state[trains]["momentum_buffer"] = momentum
    allocate_momentum(optimizer)
    assert list(optimizer.state) == [trains]
    assert optimizer.state[trains]["momentum_buffer"] is momentum
