"""What an engine costs: from what each rank saw to two numbers, and steps with and without a real engine's hooks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import torch
import torch.distributed as dist
from torch import nn

from xbench.profilers import engine_cost
from xbench.profilers.engine_cost import EngineCost, measure_engine_cost, summarise_engine_cost
from xbench.schedules import engine as engines
from xbench.schedules.engine import Engine
from xbench.workloads.training_step import TrainingStep


def cost(with_s: list[float], without_s: list[float], hook_s: float = 0.125, cold: float = 0.5) -> EngineCost:
    return EngineCost(hook_s, 2, 8, cold, with_s, without_s)


def test_copies_are_what_the_slowest_step_takes_longer_less_the_hooks() -> None:
    ranks = [cost([3.0, 2.0, 3.0], [1.0, 1.0, 1.0]), cost([2.0, 3.5, 3.0], [1.5, 0.5, 1.0], hook_s=0.25)]
    # Slowest: 3, 3.5, 3 with; 1.5, 1, 1 without. Differences 1.5, 2.5, 2: the median is 2, of which hooks are 2 · 0.25.
    assert summarise_engine_cost(ranks) == (0.25, (2.0 - 0.5) / 8)


def test_hooks_cost_no_more_than_the_step_takes_longer() -> None:
    assert summarise_engine_cost([cost([1.125], [1.0], hook_s=0.5)]) == (0.0625, 0.0)
    assert summarise_engine_cost([cost([1.0], [1.25], hook_s=0.5)]) == (0.0, 0.0)


def test_where_steps_are_too_long_for_that_a_cold_copy_stands_for_all() -> None:
    assert summarise_engine_cost([cost([], [], cold=0.25), cost([], [], cold=0.75)]) == (0.125, 0.75)


@dataclass
class Linear(TrainingStep):
    """Two parameters, and the gradients that each step left."""

    model: nn.Module = field(default_factory=lambda: nn.Linear(3, 2))
    seen: list[list[float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.0)
        self.optimizer.register_step_post_hook(
            lambda *_: self.seen.append([float(p.grad.sum()) for p in self.model.parameters() if p.grad is not None])
        )

    def forward_loss(self) -> torch.Tensor:
        """Its gradients are ones."""
        return torch.as_tensor(self.model(torch.ones(1, 3)).sum())


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(("step_s", "rows"), [(0.0625, 16), (10.0, 0)])
def test_a_real_engine_copies_and_sends_nothing(
    monkeypatch: pytest.MonkeyPatch, group: None, step_s: float, rows: int
) -> None:
    monkeypatch.setattr(engines, "workers_of", lambda _: 2)

    def refuse(*_: object) -> None:
        raise AssertionError("a collective was launched")

    monkeypatch.setattr(Engine, "_all_reduce", refuse)
    workload = Linear()
    attached: list[list[list[str]]] = []

    def engine_of(model: nn.Module, buckets: list[list[str]]) -> Engine:
        attached.append(buckets)
        made = Engine(model, None, buckets)
        for bucket in made.buckets:
            bucket.scale = 0.5  # as in a world of two
        return made

    found = measure_engine_cost(
        workload, engine_of, [["bias"], ["weight"]], step_s=step_s, note=lambda _: None
    )  # fmt: skip
    counted = engine_cost.IN_A_ROW - 1
    assert len(found.with_s) == len(found.without_s) == rows * counted
    assert (found.gradients, found.grad_bytes) == (2, 4 * (6 + 2))
    assert attached[0] == [["bias"], ["weight"]]
    assert [len(bucket) for bucket in attached[1]] == [engine_cost.TINY]
    assert found.cold_s_per_byte > 0
    scaled, whole = [3.0, 1.0], [6.0, 2.0]
    pattern = [*[scaled] * 3, *[whole] * 3, *[whole] * 3, *[scaled] * 3]  # the order changes with every row
    assert workload.seen == (pattern * rows)[: rows * 2 * engine_cost.IN_A_ROW]
    assert all(parameter.grad is None for parameter in workload.model.parameters())
    Engine(workload.model, None, [["bias"], ["weight"]]).detach()  # nothing is attached any more
