"""Testing a model: every batch is noted, and the modules stay in the modes in which they were handed in."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from xbench.rank import converge
from xbench.rank.converge import ConvergeRank


def test_parts_in_evaluation_mode_are_in_it_after_a_test(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Dropout(0.5)).eval()
    model = nn.Sequential(frozen, nn.Linear(16, 10))
    # A sharded mode hands train() and eval() on to the modules that it trains.
    object.__setattr__(model, "train", lambda _: pytest.fail("the modules that a schedule trains changed their mode"))
    before = [module.training for module in model.modules()]
    notes: list[str] = []
    monkeypatch.setattr(converge, "TEST_BATCH", 2)
    rank = SimpleNamespace(
        rank=0,
        note=notes.append,
        device=torch.device("cpu"),
        workload=SimpleNamespace(model=model, inputs=torch.ones(2, 1, 8, 8)),
        data=SimpleNamespace(test_images=torch.rand(4, 1, 8, 8), test_labels=torch.tensor([0, 1, 2, 3])),
    )
    loss, accuracy = ConvergeRank.tested(rank)  # type: ignore[arg-type]
    assert loss > 0
    assert 0 <= accuracy <= 1
    assert notes == ["testing, from image 1 on", "testing, from image 3 on"]
    assert [module.training for module in model.modules()] == before
    assert set(before) == {True, False}
