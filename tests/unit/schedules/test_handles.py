"""Handles: when leaving their context detaches them, and which of them accumulate."""

from __future__ import annotations

import contextlib

import pytest
from torch import nn

from xbench.errors import AlikeError, UsageError, WorkloadError
from xbench.schedules.base import AttachConfig, Handle
from xbench.schedules.compiled import CompiledCompute


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
