"""Collectives of torch's own schedules, watched in one process: the calls do what they did."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from xbench.schedules.torch_calls import BROADCASTS, SHARDED, watch_calls


@pytest.fixture
def seen(tmp_path: Path) -> Iterator[list[tuple[str, int]]]:
    found: list[tuple[str, int]] = []

    def watch(nbytes: int, start: Callable[[], Any], kind: str = "bucket") -> Any:
        found.append((kind, nbytes))
        return start()

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    undo = watch_calls(watch, SHARDED | BROADCASTS)
    try:
        yield found
    finally:
        undo()
        dist.destroy_process_group()


def test_a_call_waits_as_before(seen: list[tuple[str, int]]) -> None:
    value = torch.ones(4)
    assert dist.all_reduce(value) is None
    gathered = torch.zeros(4)
    dist.all_gather_into_tensor(gathered, value)
    assert gathered.tolist() == [1.0] * 4
    dist.broadcast(value, src=0)
    work = dist.all_reduce(torch.ones(2), async_op=True)  # a call that asks for the work gets it
    assert work.wait()
    assert seen == [("all-reduce", 16), ("all-gather", 16), ("broadcast", 16), ("all-reduce", 8)]


def test_the_functions_are_put_back() -> None:
    before = {name: getattr(dist, name, None) for name in SHARDED}
    undo = watch_calls(lambda _nbytes, start, kind="bucket": start(), SHARDED)
    assert dist.all_reduce is not before["all_reduce"]
    undo()
    assert {name: getattr(dist, name, None) for name in SHARDED} == before
