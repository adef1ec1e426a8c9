"""Collectives that are timed: what they send for a size."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from xbench.profilers import timed_calls
from xbench.profilers.timed_calls import CALLS

WORLD, RANK = 3, 1


class Group:
    """Notes the elements that each collective gets."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, list[int]]] = []

    def get_rank(self, group: object) -> int:
        return RANK

    def __getattr__(self, name: str) -> Any:
        def call(*tensors: Tensor, **_: object) -> Waited:
            self.sent.append((name, [len(tensor) for tensor in tensors]))
            return Waited()

        return call


class Waited:
    def wait(self) -> None:
        pass


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Group:
    made = Group()
    monkeypatch.setattr(timed_calls, "dist", made)
    monkeypatch.setattr(timed_calls, "workers_of", lambda group: WORLD)
    return made


@pytest.mark.parametrize(
    ("name", "called", "elements"),
    [
        ("all_gather", "all_gather_into_tensor", [12, 4]),  # rounded up to equal parts of three ranks
        ("reduce_scatter", "reduce_scatter_tensor", [4, 12]),
    ],
)
def test_a_size_is_that_of_the_whole_tensor(group: Group, name: str, called: str, elements: list[int]) -> None:
    call = CALLS[name](400, torch.device("cpu"), None)
    call.run(40)
    assert group.sent == [(called, elements)]


@pytest.mark.parametrize(("nbytes", "calls"), [(40, 8), (1 << 18, 4), (1 << 20, 1), (1 << 24, 1)])
def test_small_broadcasts_are_started_together(group: Group, nbytes: int, calls: int) -> None:
    call = CALLS["broadcast"](nbytes, torch.device("cpu"), None)
    assert call.at_once(nbytes) == calls
    call.run(nbytes)
    assert group.sent == [("broadcast", [nbytes // 4])] * calls


def test_an_all_gather_is_in_place(monkeypatch: pytest.MonkeyPatch, group: Group) -> None:
    pairs: list[tuple[Tensor, Tensor]] = []
    monkeypatch.setattr(group, "all_gather_into_tensor", lambda *pair, **_: pairs.append(pair), raising=False)
    CALLS["all_gather"](24, torch.device("cpu"), None).run(24)
    ((whole, own),) = pairs
    assert own.data_ptr() == whole.data_ptr() + RANK * 2 * 4
    assert CALLS["all_gather"](24, torch.device("cpu"), None).title == "all-gather"
