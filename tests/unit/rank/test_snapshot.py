"""State besides parameters that a training step may change is put back exactly, wherever a model keeps it."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from xbench.errors import WorkloadError
from xbench.rank.snapshot import Snapshot, expanded_buffer, trained
from xbench.workloads import parse_workload
from xbench.workloads.build import build


def workload(model: nn.Module, loss: Any = None) -> Any:
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9)
    return SimpleNamespace(
        model=model,
        inputs=torch.randn(4, 8),
        targets=torch.zeros(4),
        loss=loss or (lambda a, b: a),
        optimizer=optimizer,
    )


class Holder:
    """A plain object that a model keeps its state in."""

    def __init__(self) -> None:
        self.count = 0
        self.rows: list[torch.Tensor] = [torch.zeros(2)]


class Stateful(nn.Module):
    """State in every place that models were seen to keep it in."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.hidden: torch.Tensor | None = None
        self.kept = torch.zeros(8)
        self.steps = 0
        self.drawn = torch.Generator().manual_seed(3)
        self.numpy_drawn = np.random.default_rng(3)
        self.old_numpy_drawn = np.random.RandomState(3)
        self.python_drawn = random.Random(3)
        self.cache: dict[str, Any] = {}
        self.holder = Holder()
        self.gain: Any = None
        self.register_buffer("grown", torch.zeros(1))
        self.register_buffer("counts", torch.zeros(3, dtype=torch.int64))
        self.register_buffer("flags", torch.zeros(3, dtype=torch.bool))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        if not hasattr(self, "mask"):
            self.register_buffer("mask", torch.ones(8), persistent=False)
        if self.gain is None:
            self.gain = nn.Parameter(torch.ones(8))
        self.grown = torch.ones(len(self.grown) + 1)
        self.counts += 1
        self.flags.logical_not_()
        self.kept += 1
        noise = (
            float(torch.rand(1, generator=self.drawn)) + self.numpy_drawn.random() + self.old_numpy_drawn.rand()
            + self.python_drawn.random() + random.random() + np.random.rand() + float(torch.rand(1))
        )  # fmt: skip
        self.cache["last"] = noise
        self.holder.count += 1
        self.holder.rows[0] += 1
        self.holder.rows.append(torch.ones(2))
        before = torch.zeros(8) if self.hidden is None else self.hidden
        self.hidden = (self.layer(x).mean(0) + before).detach()
        return (self.layer(x) * self.gain * self.mask * noise + self.hidden + self.steps + self.holder.count).sum()


def test_a_run_from_the_snapshot_ends_in_the_same_bits() -> None:
    job = workload(Stateful())
    snapshot = Snapshot(job)

    def run() -> tuple[float, torch.Tensor]:
        loss = torch.zeros(())
        for _ in range(3):
            job.optimizer.zero_grad()
            loss = job.model(job.inputs)
            loss.backward()
            job.optimizer.step()
        return float(loss.detach()), job.model.layer.weight.detach().clone()

    first = run()
    snapshot.restore(job)
    second = run()
    assert first[0] == second[0]
    assert torch.equal(first[1], second[1])


def test_steps_that_are_compared_have_the_first_batch(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import itertools, torch\nfrom torch import nn\n\n\ndef make():\n"
        "    batches = ((torch.full((2, 3), float(i)), torch.tensor([0, 1])) for i in itertools.count())\n"
        "    return nn.Linear(3, 2), batches, nn.CrossEntropyLoss()\n"
    )
    job = build(parse_workload(f"{tmp_path / 'train.py'}:make"), torch.device("cpu"))
    seen: list[float] = []

    def train() -> None:
        for _ in range(2):
            job.load()
            seen.append(job.inputs[0, 0].item())

    train()
    trained(job, Snapshot(job), train)
    train()
    assert seen == [1, 2, 0, 0, 3, 4]


def test_everything_is_where_it_was() -> None:
    model = Stateful()
    job = workload(model)
    names = (set(vars(model)), [n for n, _ in model.named_buffers()], [n for n, _ in model.named_parameters()])
    grown, holder = model.grown, model.holder
    snapshot = Snapshot(job)
    model(job.inputs)
    model.train(False)
    job.inputs.zero_()
    snapshot.restore(job)
    assert (set(vars(model)), [n for n, _ in model.named_buffers()], [n for n, _ in model.named_parameters()]) == names
    assert model.grown is grown
    assert (model.holder, len(model.holder.rows), model.holder.count) == (holder, 1, 0)
    assert (model.hidden, model.gain, model.steps, model.cache, model.training) == (None, None, 0, {}, True)
    assert (float(model.kept.sum()), int(model.counts.sum()), bool(model.flags.any())) == (0.0, 0, False)
    assert bool(job.inputs.any())
    assert not job.optimizer.state


def test_a_loss_that_keeps_state_is_put_back() -> None:
    loss = nn.Module()
    loss.register_buffer("center", torch.zeros(2))
    job = workload(nn.Linear(2, 2), loss)
    snapshot = Snapshot(job)
    loss.center += 1
    snapshot.restore(job)
    assert not loss.center.any()


def test_an_expanded_buffer_is_left_alone_or_named() -> None:
    model = nn.Linear(2, 2)
    model.register_buffer("position", torch.zeros(2).expand(4, -1))
    assert expanded_buffer(model) == "position"
    assert expanded_buffer(nn.BatchNorm1d(2)) is None
    job = workload(model)
    snapshot = Snapshot(job)
    snapshot.restore(job)
    model.position[0].add_(1)
    with pytest.raises(WorkloadError, match="'position' is an expanded view"):
        snapshot.restore(job)


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_a_nested_batch_is_put_back(layout: torch.layout) -> None:
    job = workload(nn.Linear(2, 2))
    job.inputs = torch.nested.nested_tensor([torch.ones(3, 2), torch.ones(5, 2)], layout=layout)
    snapshot = Snapshot(job)
    job.inputs.mul_(2)
    snapshot.restore(job)
    assert all(bool((part == 1).all()) for part in job.inputs.unbind())


def test_a_counter_in_a_list_that_holds_itself() -> None:
    model = nn.Linear(2, 2)
    model.counts = [1]
    model.counts.append(model.counts)
    job = workload(model)
    snapshot = Snapshot(job)
    model.counts[0] = 2
    snapshot.restore(job)
    assert model.counts[0] == 1
