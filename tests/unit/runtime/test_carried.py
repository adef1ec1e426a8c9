"""What Horovod's threads get beside those of torch's Gloo, and which ranks poll over sockets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from xbench.runtime import carried
from xbench.sockets import polling


def test_of_horovod_s_threads_its_own_is_raised_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[int] = []
    monkeypatch.setattr(carried, "raise_thread", raised.append)
    carried._raise([11, 12, 13])
    assert raised == [11]


@pytest.mark.parametrize(("is_alone", "ranks", "polls"), [(True, 2, True), (False, 2, False), (True, 3, False)])
def test_two_ranks_with_cores_of_their_own_poll_and_the_record_says_so(
    monkeypatch: pytest.MonkeyPatch, is_alone: bool, ranks: int, polls: bool
) -> None:
    asked: list[float] = []
    said: list[str] = []
    monkeypatch.setattr(carried, "new_socket_group", lambda *, poll_s: asked.append(poll_s))
    monkeypatch.setattr(carried.dist, "get_world_size", lambda: ranks)
    rank: Any = SimpleNamespace(
        rank=0, group=None, is_alone=is_alone, run=SimpleNamespace(collectives="sockets", modes=()),
        journal=SimpleNamespace(write=lambda kind, message: said.append(message)),
    )  # fmt: skip
    carried.Carried(rank)
    assert asked == [polling.POLL_S if polls else 0.0]
    assert said == ([polling.NOTE] if polls else [])
