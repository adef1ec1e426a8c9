"""Which modules wait for which parameters."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from xbench.errors import UsageError
from xbench.schedules.first_use import FirstUse


class Model(nn.Module):
    """Uses `later` by function before it is called, and `never` only by function."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.block = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.later = nn.Linear(4, 4)
        self.never = nn.Linear(4, 4)
        self.unused = nn.Linear(4, 4)
        self.attention = nn.MultiheadAttention(4, 1)
        self.own = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.block(self.first(x))
        x = x @ self.later.weight.t()
        x = self.later(x) * self.own
        x, _ = self.attention(x, x, x)
        return nn.functional.linear(x, self.never.weight, bias=self.never.bias)


def homes_of(model: nn.Module, *inputs: Tensor) -> dict[str, list[str]]:
    first_use = FirstUse(model, dict(model.named_parameters()), "dear")
    model(*inputs)
    first_use.close()
    names = {id(module): name for name, module in model.named_modules()}
    return {name: [names[id(home)] for home in homes] for name, homes in first_use.homes().items()}


def test_a_parameter_is_waited_for_where_it_is_used_first() -> None:
    found = homes_of(Model(), torch.randn(3, 4))
    assert found["first.weight"] == ["first"]
    assert found["block.0.weight"] == ["block.0"]
    assert found["later.weight"] == ["", "later"]  # the model's own forward, which uses it, comes before the layer
    assert found["later.bias"] == ["later"]
    assert found["never.weight"] == found["never.bias"] == [""]
    assert found["unused.weight"] == [""]
    assert found["own"] == [""]
    assert found["attention.out_proj.weight"] == ["attention"]
    assert found["attention.in_proj_weight"] == ["attention"]


def test_a_shared_parameter_is_waited_for_by_whichever_comes_first() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    assert homes_of(model, torch.randn(2, 4))["0.weight"] == ["0", "2"]


def test_a_model_whose_parts_are_called_one_by_one() -> None:
    model = Model()
    first_use = FirstUse(model, dict(model.named_parameters()), "dear")
    assert not first_use.seen
    model.first(torch.randn(2, 4))
    assert first_use.seen
    first_use.close()
    homes = first_use.homes()
    assert homes["first.weight"] == [model.first]
    assert homes["later.weight"] == []


def test_forward_may_be_run_twice_but_no_layer_twice_in_it() -> None:
    layer = nn.Linear(4, 4)
    model = nn.Sequential(nn.ReLU(), layer)
    first_use = FirstUse(model, dict(model.named_parameters()), "dear")
    model(torch.randn(2, 4))
    model(torch.randn(2, 4))
    first_use.close()
    relu = nn.ReLU()
    again = nn.Sequential(relu, layer, relu, layer)
    first_use = FirstUse(again, dict(again.named_parameters()), "dear")
    with pytest.raises(UsageError, match="calls '1' twice"):
        again(torch.randn(2, 4))
    first_use.close()
    again(torch.randn(2, 4))
    assert not layer._forward_pre_hooks


def test_a_forward_that_fails_leaves_nothing() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(5, 5))
    first_use = FirstUse(model, dict(model.named_parameters()), "dear")
    with pytest.raises(RuntimeError):
        model(torch.randn(2, 4))
    assert torch.overrides._get_current_function_mode_stack() == []
    first_use.close()
