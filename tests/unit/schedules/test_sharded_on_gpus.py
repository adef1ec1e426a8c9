"""Where `fully_shard` puts the shards of a model on a GPU."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from xbench.errors import UsageError
from xbench.schedules.base import AttachConfig
from xbench.schedules.sharded import Fsdp


def test_a_model_on_another_gpu_than_the_current_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    with FakeTensorMode():
        model = nn.Linear(2, 2, device="cuda:1")
        setup = AttachConfig(model, torch.optim.SGD(model.parameters(), lr=0.1))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert Fsdp().check(setup) == "cuda"
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    with pytest.raises(UsageError, match="current GPU") as caught:
        Fsdp().check(setup)
    assert "set_device(1)" in str(caught.value.hint)
