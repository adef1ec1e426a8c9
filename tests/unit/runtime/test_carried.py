"""What Horovod's threads get beside those of torch's Gloo."""

from __future__ import annotations

import pytest

from xbench.runtime import carried


def test_of_horovod_s_threads_its_own_is_raised_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[int] = []
    monkeypatch.setattr(carried, "raise_thread", raised.append)
    carried._raise([11, 12, 13])
    assert raised == [11]
