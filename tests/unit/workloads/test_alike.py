"""Ranks compare the bits of their parameters once they have built them; the collective is a fake."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from xbench.errors import WorkloadError
from xbench.spec import WorkloadSpec
from xbench.workloads.build import check_alike
from xbench.workloads.workload import Workload


class Odd(nn.Module):
    """A parameter of every kind that has bits: quantised, complex, empty, a scalar, a transposed one."""

    def __init__(self) -> None:
        super().__init__()
        self.quantised = nn.Parameter(torch.ones(2, 2, dtype=torch.int8), requires_grad=False)
        self.complex = nn.Parameter(torch.ones(3, dtype=torch.complex64).conj())
        self.empty, self.scalar = nn.Parameter(torch.ones(0, 3)), nn.Parameter(torch.tensor(1.0))
        self.transposed = nn.Parameter(torch.arange(6.0).reshape(2, 3).t())


def on_ranks(monkeypatch: pytest.MonkeyPatch, *models: nn.Module) -> None:
    """Check every model as the ranks would. Raises what the last one raises."""
    said: list[Any] = []

    def gather(into: list[Any], mine: Any, group: object = None) -> None:
        said.append(mine)
        into[:] = (said + [mine] * len(models))[: len(models)]

    monkeypatch.setattr(dist, "get_world_size", lambda group=None: len(models))
    monkeypatch.setattr(dist, "all_gather_object", gather)
    for model in models:
        check_alike(Workload(WorkloadSpec(name="a/train.py:make"), model, torch.ones(1), None, lambda *_: _, 1, ""))


def test_equal_models_of_any_kind_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    on_ranks(monkeypatch, Odd(), Odd())


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("model.scalar.data += 1e-7", "in 'scalar'"),
        ("model.quantised.data[0, 0] = 2", "in 'quantised'"),
        ("model.transposed = nn.Parameter(torch.ones(3, 3))", "in 'transposed'"),
        ("model.more = nn.Linear(2, 2)", "in 'more.weight' and 1 more"),
    ],
)
def test_the_first_parameter_that_differs_is_named(monkeypatch: pytest.MonkeyPatch, change: str, named: str) -> None:
    model = Odd()
    exec(change, {"model": model, "nn": nn, "torch": torch})
    with pytest.raises(WorkloadError) as caught:
        on_ranks(monkeypatch, Odd(), model)
    assert str(caught.value) == f"train.py:make: the ranks' models start apart, {named}"
