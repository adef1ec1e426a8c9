"""Parameters with odd names: PyTorch takes every name without a dot, and a plan from a record has to find them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

import xbench
from xbench.errors import UsageError
from xbench.records import Plan
from xbench.schedules.served_parameters import trainable
from xbench.torch_compile import plain_name

ODD = ["a\nb", "\x1b[31mred", "é 中 😀", '"); import os #', "\u202ertl", "=1+1", "back\\slash", "<img src=x>"]


class Odd(nn.Module):
    def __init__(self, names: list[str]) -> None:
        super().__init__()
        for name in names:
            self.register_parameter(name, nn.Parameter(torch.ones(3)))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return sum((inputs * parameter).sum() for parameter in self.parameters())  # type: ignore[return-value]


def test_a_plan_from_a_record_fits_a_model_with_odd_names(tmp_path: Path) -> None:
    model = Odd(ODD)
    names = list(trainable(model))
    assert names == [plain_name(name) for name in ODD]
    assert all(name.isprintable() for name in names)
    plan = Plan(
        mode="optimal", buckets=[ODD[::-1]], bucket_bytes=[12 * len(ODD)], predicted_step_s=1.0,
        predicted_exposed_s=0.1,
    )  # fmt: skip
    assert plan.buckets == [names[::-1]]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        with xbench.attach(model, optimizer, schedule="optimal", plan=plan) as handle:
            handle.model(torch.full((3,), 2.0)).backward()
            optimizer.step()
    finally:
        dist.destroy_process_group()
    assert all(bool((parameter == 0).all()) for parameter in model.parameters())


def test_two_names_that_a_plan_cannot_tell_apart_are_refused() -> None:
    with pytest.raises(UsageError, match="two parameters are both called") as caught:
        trainable(Odd(["a\nb", "a\\nb"]))
    assert str(caught.value).isprintable()
