"""Work of Horovod: asked whether it has arrived while another thread waits for it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from xbench.horovod.world import HorovodWork


def test_work_is_not_asked_for_handles_that_another_thread_may_have_taken() -> None:
    hvd = SimpleNamespace(poll=lambda handle: handle == 1 or pytest.fail("a handle that is gone"))
    work = HorovodWork(hvd, [torch.ones(1)], [1])
    assert work.is_completed()
    with work._lock:
        work._handles[:] = [2]
        assert not work.is_completed()
