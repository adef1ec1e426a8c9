"""The gate's own test: wrong schedules on purpose are refused, or a pass is not shown to mean anything."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from xbench.rank import parity_power
from xbench.rank.parity_checker import ParityChecker, copies, momentum_of, size_of
from xbench.rank.parity_power import Gradients, averaged, give, local_gradients, trainable
from xbench.rank.reference import WEIGHTS
from xbench.rank.snapshot import Snapshot
from xbench.workloads.training_step import TrainingStep

STEPS = 3
Batches = list[tuple[torch.Tensor, torch.Tensor]]


@pytest.fixture(autouse=True)
def two_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks, of which this process is both: what one says, the other says."""
    monkeypatch.setattr(dist, "get_world_size", lambda group=None: 2)
    monkeypatch.setattr(
        dist, "all_gather_object", lambda found, said, group=None: found.__setitem__(slice(2), [said] * 2)
    )


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def differing() -> Batches:
    torch.manual_seed(1)
    return [(torch.randn(4, 8), torch.randint(0, 4, (4,))) for _ in range(2)]


def equal() -> Batches:
    return differing()[:1] * 2


def reordered() -> Batches:
    (x, y), _ = differing()
    return [(x, y), (x.flip(0), y.flip(0))]


class Job(TrainingStep):
    """A model, its optimizer, and what a snapshot looks at."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, batch: tuple[Any, Any]) -> None:
        self.model, self.optimizer = model, optimizer
        self.inputs, self.targets = batch
        self.loss = None

    def forward_loss(self) -> torch.Tensor:
        raise AssertionError("the test of the gate runs no forward pass")


def said(
    model: nn.Module,
    batches: Batches,
    optimizer_of: Callable[[Any], torch.optim.Optimizer],
    *,
    compressed: bool = False,
    steps: int = STEPS,
    momentum: bool = True,
    weights: tuple[float, ...] = WEIGHTS,
    max_norm: float | None = None,
    norms: bool = True,
) -> str | None:
    """Train the reference on the mean of both batches' gradients, and ask what the gate would let pass."""
    job = Job(model, optimizer_of(model.parameters()), batches[0])
    job.max_norm = max_norm
    sizes: list[float | None] = []
    snapshot = Snapshot(job)
    states, local, averaged = [copies(model.named_parameters())], [], []
    for step in range(steps):
        ranks: list[Gradients] = []
        for x, y in batches:
            job.optimizer.zero_grad()
            (F.cross_entropy(model(x), y) * weights[step % len(weights)]).backward()
            ranks.append(local_gradients(trainable(model)))
        mean: Gradients = {
            name: None if g is None else (g + other) / 2
            for (name, g), other in zip(ranks[0].items(), ranks[1].values(), strict=True)
        }
        give(trainable(model), mean)
        sizes.append(size_of(job.update()))
        states.append(copies(model.named_parameters()))
        local.append(ranks[0])
        averaged.append(mean)
    moments = copies(momentum_of(job).items()) if momentum else None
    snapshot.restore(job)

    def new_checker() -> ParityChecker:
        return ParityChecker(job, states, None, momentum=moments, norms=sizes if norms else (), compressed=compressed)

    return parity_power.not_shown(job, snapshot, new_checker, local, averaged)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-4)


@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("optimizer_of", [sgd, adam])
def test_ranks_with_batches_of_their_own_show_every_wrong_schedule(
    optimizer_of: Any, compressed: bool, steps: int
) -> None:
    assert said(network(), differing(), optimizer_of, compressed=compressed, steps=steps) is None


def slow(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1e-5, momentum=0.9)


@pytest.mark.parametrize(
    ("optimizer_of", "given", "without", "passes"),
    [
        # clipping hides a sum from all but the norm
        (sgd, {"max_norm": 1e-3}, {"norms": False}, "sums in place of averaging"),
        (adam, {"max_norm": 1e-3}, {"norms": False}, "sums in place of averaging"),
        # a sum under Adam is seen in the first moment alone, and a late step because losses are weighted
        (adam, {}, {"momentum": False}, "sums in place of averaging"),
        (slow, {}, {"weights": (1.0,)}, "is a step late"),
    ],
)
def test_what_is_seen_by_one_means_alone_would_pass_without_it(
    optimizer_of: Any, given: dict[str, Any], without: dict[str, Any], passes: str
) -> None:
    assert said(network(), differing(), optimizer_of, **given) is None
    told = said(network(), differing(), optimizer_of, **given, **without)
    assert (told or "").startswith(f"a schedule that {passes} would pass")


@pytest.mark.parametrize("batches", [equal, reordered])
@pytest.mark.parametrize("optimizer_of", [sgd, adam])
def test_ranks_with_one_batch_would_let_a_schedule_pass_that_never_averages(optimizer_of: Any, batches: Any) -> None:
    told = said(network(), batches(), optimizer_of)
    assert told.startswith("a schedule that does not average would pass: the gradients of the ranks are too much alike")


def test_a_layer_whose_gradients_are_equal_on_all_ranks_is_named() -> None:
    class Constant(nn.Module):
        """A layer whose gradient depends on no sample."""

        def __init__(self) -> None:
            super().__init__()
            self.body = network()
            self.constant = nn.Linear(2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body(x) + self.constant(torch.ones(1, 2)) * torch.tensor([1.0, 0, 0, 0])

    model = Constant()
    batches = differing()
    batches[1] = (batches[1][0], batches[0][1])
    with torch.no_grad():
        for parameter in model.body[2].parameters():
            parameter.zero_()  # so that the softmax is the same for all samples
    told = said(model, batches, lambda p: torch.optim.SGD(p, lr=1e-6))
    assert told == "a schedule that forgets 'constant' would pass: its gradients are too much alike on all ranks"


def test_a_layer_that_no_rank_uses_cannot_be_forgotten() -> None:
    model = network()
    model.unused = nn.Linear(2, 2)
    forward = nn.Sequential(*list(copy.copy(model).children())[:3])
    model.forward = forward.forward  # type: ignore[method-assign]
    assert said(model, differing(), sgd) is None


# --- averaging by hand -----------------------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.others, self.nobodys = (nn.Parameter(torch.zeros(2)) for _ in range(3))
        self.frozen = nn.Parameter(torch.zeros(2, dtype=torch.int8), requires_grad=False)


def test_the_mean_of_all_ranks_and_none_where_no_rank_has_a_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Net()
    model.used.grad = torch.tensor([2.0, 4.0])
    other = iter([torch.tensor([0.0, 1.0, 0.0]), torch.tensor([4.0, 0.0]), torch.tensor([1.0, 1.0])])

    def all_reduce(tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM, group: Any = None) -> None:
        theirs = next(other)
        tensor.copy_(torch.maximum(tensor, theirs) if op == dist.ReduceOp.MAX else tensor + theirs / 2)

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    parameters = trainable(model)
    assert list(parameters) == ["used", "others", "nobodys"]
    mean = averaged(parameters, local_gradients(parameters))
    give(parameters, mean)
    assert model.used.grad.tolist() == [3.0, 2.0]
    assert model.others.grad.tolist() == [0.5, 0.5]
    assert model.nobodys.grad is None


def test_given_gradients_stay_as_they_are() -> None:
    model = Net()
    gradients: Gradients = {"used": torch.tensor([2.0, 4.0]), "others": None, "nobodys": torch.ones(2)}
    give(trainable(model), gradients, 3)
    assert model.used.grad.tolist() == [6.0, 12.0]
    assert model.others.grad is None
    model.used.grad.zero_()
    assert gradients["used"].tolist() == [2.0, 4.0]


def test_sparse_gradients_become_dense() -> None:
    table = nn.Parameter(torch.zeros(3, 2))
    nn.functional.embedding(torch.tensor([1]), table, sparse=True).sum().backward()
    found = local_gradients({"table": table})["table"]
    assert found.tolist() == [[0.0, 0.0], [1.0, 1.0], [0.0, 0.0]]
