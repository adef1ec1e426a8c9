"""What several buckets cost a short step: which are run, and what is kept of the times."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from xbench.planning.contention import Contention
from xbench.planning.gradients import Gradient
from xbench.planning.plans import Planner
from xbench.planning.step import StepModel
from xbench.records import CostModel
from xbench.runtime import stalls
from xbench.runtime.stalls import SHORT_S, measure_stalls, parts
from xbench.spec import Effort

COST = CostModel(
    backend="gloo", world_size=2, alpha_s=1e-4, beta_s_per_byte=1e-9, alpha_ci95=(1e-4, 1e-4), beta_ci95=(1e-9, 1e-9),
    max_relative_residual=0.0, points=[],
)  # fmt: skip
GRADIENTS = tuple(Gradient(f"g{k}", 1000, 1e-4 * (k + 1)) for k in range(12))
STEP = StepModel(GRADIENTS, forward_s=0.001, backward_s=0.002, optimizer_s=0.0)
FREE = Contention(np.zeros(1), np.ones((2, 1)), np.ones((2, 1)))
PLANNER = Planner(STEP, COST, FREE)


class Rank:
    """As far as measuring stalls asks a rank."""

    group = None

    def __init__(self) -> None:
        self.run: Any = SimpleNamespace(effort=Effort())
        self.workload: Any = self
        self.optimizer: Any = self
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def zero_grad(self, set_to_none: bool) -> None:
        assert set_to_none


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A machine on which steps take what is predicted, and a quarter of a millisecond for each bucket but one.

    In the second round all takes a millisecond longer. Returned: the number of buckets of each block.
    """
    ran: list[int] = []

    def slowest_of_both(times: torch.Tensor, op: Any, group: Any) -> None:
        assert op == dist.ReduceOp.MAX  # the other rank is as fast

    def block(rank: Any, planner: Planner, buckets: list[list[int]], unused: Any, steps: int) -> list[float]:
        ran.append(len(buckets))
        known_s = planner.simulate("auto", buckets).step_s if buckets else planner.step.compute_s
        disturbed_s = 1e-3 if 5 < len(ran) <= 10 else 0.0
        return [9.0] + [known_s + disturbed_s + max(0, len(buckets) - 1) * 25e-5] * steps

    monkeypatch.setattr(stalls, "_block", block)
    monkeypatch.setattr(dist, "all_reduce", slowest_of_both)
    return ran


def test_every_kind_runs_in_every_round_and_what_was_not_predicted_is_kept(blocks: list[int]) -> None:
    found = measure_stalls(Rank(), PLANNER, [])  # type: ignore[arg-type]
    assert sorted(blocks) == sorted([0, 1, 3, 8, 12] * stalls.ROUNDS)
    assert [stall.buckets for stall in found] == [1, 3, 8, 12]
    assert [stall.seconds for stall in found] == pytest.approx([0.0, 5e-4, 17.5e-4, 27.5e-4], abs=1e-12)


def test_what_is_cheaper_than_predicted_costs_nothing(blocks: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stalls, "_block", lambda *_: [9.0] + [1e-3] * stalls.STEPS)
    found = measure_stalls(Rank(), PLANNER, [])  # type: ignore[arg-type]
    assert [stall.seconds for stall in found] == pytest.approx([0.0] * 4, abs=1e-12)


def test_nothing_is_run_for_long_steps(blocks: list[int]) -> None:
    long = replace(PLANNER, step=replace(STEP, forward_s=SHORT_S))
    assert measure_stalls(Rank(), long, []) == []  # type: ignore[arg-type]
    assert blocks == []


def test_parts_hold_every_gradient_once_in_order_and_about_the_same_bytes() -> None:
    for count in (1, 3, 8, 12):
        found = parts(PLANNER, count)
        assert [index for bucket in found for index in bucket] == list(range(12))
        assert len(found) == count
        assert max(map(len, found)) - min(map(len, found)) <= 1
    assert len(parts(PLANNER, 100)) == 12


def test_no_part_holds_two_dtypes() -> None:
    mixed = [Gradient(f"g{k}", 1000, 1e-4 * (k + 1), "float32" if k % 2 else "bfloat16") for k in range(4)]
    assert parts(replace(PLANNER, step=replace(STEP, gradients=tuple(mixed))), 1) == [[0], [1], [2], [3]]
