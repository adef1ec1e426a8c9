"""The GPU from which Python objects are sent: that of the model, whatever the current one is."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode

import xbench
from xbench import equal_ranks

PACKAGE = Path(xbench.__file__).parent
SOURCES = [PACKAGE / "equal_ranks.py", *sorted((PACKAGE / "schedules").glob("*.py"))]


def test_digests_are_compared_from_the_gpu_of_the_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    current = [0]

    @contextmanager
    def device(chosen: torch.device) -> Iterator[None]:
        current.append(chosen.index)
        yield
        current.pop()

    sent: list[int] = []

    def gather(by_rank: list[Any], local: Any, group: Any) -> None:
        sent.append(current[-1])
        by_rank[0] = local

    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(equal_ranks, "digest", lambda _: "")
    monkeypatch.setattr(dist, "get_world_size", lambda group=None: 1)
    monkeypatch.setattr(dist, "all_gather_object", gather)
    with FakeTensorMode():
        weight = torch.empty(2, device="cuda:3")
    assert equal_ranks.differing([("weight", weight)]) == []
    assert (sent, current) == ([3], [0])


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_attached_schedules_say_from_which_device_objects_are_sent(source: Path) -> None:
    """A script may have set no current GPU, which ranks of `xbench` itself do."""
    tree = ast.parse(source.read_text(encoding="utf-8"))
    within = {
        call
        for block in ast.walk(tree)
        if isinstance(block, ast.With) and "on_device" in ast.unparse(block.items[0].context_expr)
        for call in ast.walk(block)
    }
    calls = {
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and "_object" in node.func.attr
        and ast.unparse(node.func.value) == "dist"
    }  # fmt: skip
    assert calls <= within
