"""Random training loops under random schedules: each trains what averaging by hand trains, or is refused.

A case is drawn from its seed alone, so that all ranks draw the same one. Arguments: first seed, number of cases.
"""

from __future__ import annotations

import contextlib
import copy
import random
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist
from schedule_training import average_by_hand, buckets_of, run_scenarios
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import xbench
from xbench.errors import UsageError

WIDTH, CLASSES, STEPS = 8, 5, 3


@dataclass(frozen=True)
class Case:
    """One loop. `gradless`: an autograd function returns None for a parameter."""

    schedule: str
    wait: str
    optimizer: str
    frozen: str
    checkpointed: str
    tied: bool
    unused: str
    gradless: bool
    accumulated: int
    clipped: bool
    closure: bool
    start: str


def drawn(seed: int) -> Case:
    """The case of this seed; each feature is rare enough that most cases have two or three."""
    draw = random.Random(seed)

    def rarely(likely: Any, *others: Any) -> Any:
        return likely if draw.random() < 0.85 else draw.choice(others)

    return Case(
        schedule=draw.choice(["wfbp", "single", "optimal", "mgwfbp", "ddp", "dear", "priority"]),
        wait=draw.choice(["backward", "step"]),
        optimizer=rarely("SGD", "AdamW", "Adagrad", "LBFGS"),
        frozen=rarely("nothing", "head", "stem", "one bias"),
        checkpointed=draw.choice(["reentrant", "no", "without reentry"]),
        tied=rarely(False, True),
        unused=rarely("nothing", "everywhere", "on rank 1", "at odd steps"),
        gradless=rarely(False, True),
        accumulated=rarely(1, 2, 3),
        clipped=rarely(False, True),
        closure=rarely(False, True),
        start=rarely("equal", "unequal", "broadcast"),
    )


class NoGradient(torch.autograd.Function):
    """Uses a weight and returns no gradient for it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        return x + 0 * weight.sum()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0], None


class Net(nn.Module):
    """A stem, three blocks and a head, with the features of a case."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case = case
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(3))
        if case.tied:
            self.blocks[2][0].weight = self.blocks[0][0].weight  # type: ignore[index, union-attr]
        self.extra = nn.Linear(WIDTH, WIDTH)
        if case.gradless:
            self.gradless = nn.Parameter(torch.ones(3))
        self.head = nn.Linear(WIDTH, CLASSES)
        if case.frozen in ("head", "stem"):
            getattr(self, case.frozen).requires_grad_(False)
        elif case.frozen == "one bias":
            self.blocks[1][0].bias.requires_grad_(False)  # type: ignore[index, union-attr]
        self.step = 0

    def uses_extra(self) -> bool:
        unused = self.case.unused
        here = unused == "on rank 1" and dist.get_rank() == 1
        return not (unused == "everywhere" or here or (unused == "at odd steps" and self.step % 2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            if self.case.checkpointed != "no" and x.requires_grad:
                x = checkpoint(block, x, use_reentrant=self.case.checkpointed == "reentrant")
            else:
                x = block(x)
        if self.uses_extra():
            x = x + self.extra(x)
        if self.case.gradless:
            x = NoGradient.apply(x, self.gradless)
        return self.head(x)


def optimizer_of(model: nn.Module, case: Case) -> torch.optim.Optimizer:
    parameters = [p for p in model.parameters() if p.requires_grad]
    options = {"SGD": {"momentum": 0.9}, "LBFGS": {"max_iter": 1}}.get(case.optimizer, {})
    return getattr(torch.optim, case.optimizer)(parameters, lr=0.05, **options)  # type: ignore[no-any-return]


def train(
    model: Net,
    call: nn.Module,
    optimizer: torch.optim.Optimizer,
    case: Case,
    no_sync: Callable[[], contextlib.AbstractContextManager[None]],
    average: Callable[[], None],
) -> None:
    """`average()` comes after each backward pass that ends a step, and before clipping."""
    for step in range(STEPS):
        model.step = step

        def backward(micro: int, step: int = step) -> Tensor:
            generator = torch.Generator().manual_seed(1000 * step + 10 * micro + dist.get_rank())
            x = torch.randn(6, WIDTH, generator=generator)
            y = torch.randint(0, CLASSES, (6,), generator=generator)
            loss = nn.functional.cross_entropy(call(x), y)
            loss.backward()
            return loss

        def closure() -> Tensor:
            optimizer.zero_grad()
            with no_sync():
                for micro in range(1, case.accumulated):
                    backward(micro)
            loss = backward(0)
            average()
            if case.clipped:
                nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 0.1)
            return loss

        if case.closure or case.optimizer == "LBFGS":
            optimizer.step(closure)  # type: ignore[arg-type]
        else:
            closure()
            optimizer.step()


def may_be_refused(case: Case) -> str | None:
    """Why a refusal is right, or None where the schedule must serve the case."""
    closure = case.closure or case.optimizer == "LBFGS"
    if case.start == "unequal":
        return "ranks that start apart"
    if case.schedule in ("dear", "priority") and closure:
        return "a closure, which cannot be put off"
    if case.tied and case.checkpointed == "reentrant":
        return "a parameter with gradients in several nested passes"
    return None


def outcome(case: Case) -> str:
    """'trained' or 'refused'. Raises AssertionError when the schedule trains something else, on this rank at least."""
    torch.manual_seed(3)
    expected = Net(case)
    actual = copy.deepcopy(expected)
    if case.start != "equal" and dist.get_rank() == 1:
        with torch.no_grad():
            actual.blocks[1][0].weight.add_(0.5)  # type: ignore[index, union-attr, operator]
    by_hand = optimizer_of(expected, case)
    train(expected, expected, by_hand, case, contextlib.nullcontext, lambda: average_by_hand(expected))
    optimizer = optimizer_of(actual, case)
    try:
        with xbench.attach(
            actual,
            optimizer,
            schedule=case.schedule,
            plan=buckets_of(actual, case.schedule if case.schedule in ("mgwfbp", "optimal") else "wfbp"),
            process_group=dist.new_group(),
            wait=case.wait,  # type: ignore[arg-type]
            unused_parameters=case.unused != "nothing" or case.gradless,
            broadcast=case.start == "broadcast",
        ) as handle:
            average = handle.synchronize if case.clipped else lambda: None
            train(actual, handle.model, optimizer, case, handle.no_sync, average)
    except UsageError:
        if may_be_refused(case) is None:
            raise
        return "refused"
    except RuntimeError:  # torch's DDP does not take nested passes together with unused or tied parameters
        if case.schedule != "ddp" or case.checkpointed != "reentrant":
            raise
        return "refused"
    for (name, a), b in zip(actual.named_parameters(), expected.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-6), f"{name} is off by {float((a - b).abs().max()):.2e}"
        other = a.detach().clone()
        dist.broadcast(other, src=0)
        assert torch.equal(a, other), f"ranks are apart in {name}"
    return "trained"


def loops(rank: int, world: int) -> None:
    """All cases, then how many ended how; the first that fails ends it, with its seed."""
    first, count = FIRST, COUNT
    ends: dict[str, int] = {}
    for seed in range(first, first + count):
        case = drawn(seed)
        try:
            end = outcome(case)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {asdict(case)}") from error
        ends[end] = ends.get(end, 0) + 1
    print(f"ends: {ends}", flush=True)
    assert ends["trained"] > ends.get("refused", 0), "most cases must be served, or nothing is tested"


if __name__ == "__main__":
    FIRST, COUNT = int(sys.argv[1]), int(sys.argv[2])
    sys.argv[1:] = []
    sys.exit(run_scenarios(globals()))
