"""Whose collectives carry gradients, and how Horovod's threads are raised: the parts that need no process group."""

from __future__ import annotations

import pytest

from xbench.rank import transport


def test_of_horovod_s_threads_its_own_is_raised_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[int] = []
    monkeypatch.setattr(transport, "raise_thread", raised.append)
    transport._raise([11, 12, 13])
    assert raised == [11]
