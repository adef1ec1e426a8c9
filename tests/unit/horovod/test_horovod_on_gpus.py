"""A Horovod that was built for CPUs, and a model on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from xbench.errors import UsageError
from xbench.horovod.world import WORLD
from xbench.schedules import horovod
from xbench.schedules.base import AttachConfig


@pytest.fixture
def attach(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Attach the mode over a Horovod with these parts. Returns what happened."""
    happened: list[str] = []

    def attach(device: str, **built: bool) -> list[str]:
        def wrapped(*_: Any, **__: Any) -> Any:
            happened.append("wrapped")
            raise ValueError("seen")

        hvd = SimpleNamespace(
            DistributedOptimizer=wrapped, size=lambda: 2, **{name: lambda has=has: has for name, has in built.items()}
        )
        monkeypatch.setattr(WORLD, "start", lambda settings: hvd)
        monkeypatch.setattr(WORLD, "stop", lambda: happened.append("stopped"))
        monkeypatch.setattr(horovod.Horovod, "check", lambda self, setup: None)
        monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
        with FakeTensorMode():
            model = nn.Linear(2, 2, device=device)
            setup = AttachConfig(model, torch.optim.SGD(model.parameters(), lr=0.1), wait="step")
            with pytest.raises(UsageError, match="for CPUs" if not any(built.values()) else "seen"):
                horovod.Horovod().attach(setup)
        return happened

    return attach


def test_a_build_for_cpus_is_refused_before_a_gradient_is_sent(attach: Callable[..., list[str]]) -> None:
    assert attach("cuda:0", nccl_built=False, cuda_built=False) == ["stopped"]


@pytest.mark.parametrize("built", [{"nccl_built": True, "cuda_built": True}, {"nccl_built": False, "cuda_built": True}])
def test_a_build_for_gpus_is_taken(attach: Callable[..., list[str]], built: dict[str, bool]) -> None:
    assert attach("cuda:0", **built) == ["wrapped", "stopped"]
