"""Handles: when leaving their context detaches them, and which of them accumulate."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import xbench
from xbench.errors import AlikeError, SpecError, UsageError, WorkloadError
from xbench.schedules.base import AttachConfig, Handle
from xbench.schedules.compiled import CompiledCompute
from xbench.schedules.sharded import Fsdp


class Meeting(Handle):
    """A handle whose ranks exchange data when they detach."""

    meets_at_detach = True


@pytest.mark.parametrize(
    ("raised", "detaches"),
    [
        (None, True),
        (AlikeError("refused on every rank alike"), True),
        (UsageError("this rank alone read a gradient"), False),
        (WorkloadError("the loader of this rank ended"), False),
        (ZeroDivisionError(), False),
    ],
)
def test_a_rank_that_may_have_failed_alone_meets_nobody(raised: Exception | None, detaches: bool) -> None:
    handle, detached = Meeting(nn.Linear(1, 1)), []
    handle.at_detach(lambda: detached.append(True))
    with contextlib.suppress(UsageError, ZeroDivisionError), handle:
        if raised is not None:
            raise raised
    assert bool(detached) == detaches


def test_the_compiled_control_sends_nothing_in_any_micro_step() -> None:
    model = nn.Linear(1, 1)
    handle = CompiledCompute().attach(AttachConfig(model))
    assert handle.accumulates
    handle.detach()
    assert handle.model is model


@pytest.mark.parametrize("schedule", ["wfbp", "dear"])
def test_a_group_that_is_initialised_after_attach_is_refused(schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with xbench.attach(model, optimizer, schedule=schedule) as handle:
        handle.model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        with monkeypatch.context() as patch:
            patch.setattr(dist, "is_initialized", lambda: True)
            patch.setattr(dist, "get_world_size", lambda *_: 2)
            for use in (lambda: handle.model(torch.ones(1, 2)), optimizer.step):
                with pytest.raises(UsageError, match="initialised after the schedule was attached"):
                    use()
    assert not model._forward_pre_hooks
    assert not optimizer._optimizer_step_pre_hooks


def test_unknown_buffers_are_refused() -> None:
    with pytest.raises(SpecError, match="buffers"):
        xbench.attach(nn.Linear(1, 1), buffers="all")  # type: ignore[arg-type]


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
