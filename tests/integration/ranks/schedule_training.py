"""What the ranks of the schedule tests train, and the average of gradients written down by hand.

Models with everything that a schedule must cope with, batches that differ by rank and step, one training loop, and the
definition of the right answer: gradients of every rank's batch, averaged in a plain loop (`all_gather`, then the mean).
A scenario is a function of a rank and the number of ranks.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import xbench
from xbench.schedules.base import Handle
from xbench.schedules.served_parameters import engine_of, trainable


class Net(nn.Module):
    """Batch-norm, dropout, a shared weight, a frozen and an unused parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.first = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.dropout = nn.Dropout(0.2)
        self.second = nn.Linear(8, 8)
        self.frozen = nn.Linear(8, 8)
        self.unused = nn.Linear(8, 8)
        self.sometimes = nn.Linear(8, 8)
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.embed.weight
        for parameter in self.frozen.parameters():
            parameter.requires_grad_(False)
        self.use_sometimes = True

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        x = self.dropout(torch.relu(self.norm(self.first(x))))
        x = self.frozen(self.second(x))
        if self.use_sometimes:
            x = x + self.sometimes(x)
        return self.head(x)


class TwoDtypes(nn.Module):
    """Two dtypes in one model."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.low = nn.Linear(6, 6).to(torch.bfloat16)
        self.last = nn.Linear(6, 20)

    def forward(self, tokens: Tensor) -> Tensor:
        x = torch.nn.functional.one_hot(tokens % 6, 6).float()
        x = self.low(self.first(x).to(torch.bfloat16)).float()
        return self.last(x)


class Images(nn.Module):
    """Convolutions in channels-last; under autocast where `mixed`."""

    mixed = False

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 32)
        self.first = nn.Conv2d(2, 8, 3, padding=1)
        self.block = nn.Sequential(nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), nn.ReLU())
        self.head = nn.Linear(8, 20)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens).view(-1, 2, 4, 4).contiguous(memory_format=torch.channels_last)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.mixed):
            return self.head(self.block(self.first(x)).mean((2, 3)))


class Mixed(Images):
    mixed = True


def compiled_whole() -> nn.Module:
    return torch.compile(Mixed(), backend="aot_eager")  # type: ignore[return-value]


def compiled_by_itself() -> nn.Module:
    model = Images()
    model.compile(backend="aot_eager")
    return model


def compiled_blocks() -> nn.Module:
    model = Mixed()
    model.first = torch.compile(model.first, backend="aot_eager")  # type: ignore[assignment]
    model.block.compile(backend="aot_eager")
    return model


def make(
    kind: Callable[[], nn.Module], optimizer_kind: type[torch.optim.Optimizer] | None = None
) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(7)
    model = kind()
    parameters = [p for p in model.parameters() if p.requires_grad]
    if optimizer_kind is not None:
        return model, optimizer_kind(parameters, lr=0.01)  # type: ignore[call-arg]
    return model, torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randint(0, 20, (6,), generator=generator), torch.randint(0, 20, (6,), generator=generator)


def buckets_of(model: nn.Module, schedule: str) -> list[list[str]] | None:
    if schedule.partition(":")[0] in ("wfbp", "single", "ddp", "spb", "horovod"):
        return None
    parameters = trainable(model)
    result: list[list[str]] = []
    for name in reversed(parameters):
        if result and len(result[-1]) < 3 and parameters[result[-1][0]].dtype == parameters[name].dtype:
            result[-1].append(name)
        else:
            result.append([name])
    return result


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    call: nn.Module,
    *,
    steps: int,
    rank: int,
    after_backward: Callable[[], None],
    accumulate: Callable[[], contextlib.AbstractContextManager[None]] | None = None,
    set_to_none: bool = True,
    clip: bool = False,
    scaler: torch.amp.GradScaler | None = None,
    sometimes: Callable[[int], bool] = lambda step: True,
) -> None:
    loss_of = nn.CrossEntropyLoss()
    amp = torch.autocast("cpu", torch.bfloat16, enabled=scaler is not None)
    for step in range(steps):
        torch.manual_seed(step)  # dropout
        model.use_sometimes = sometimes(step)  # type: ignore[assignment]
        optimizer.zero_grad(set_to_none=set_to_none)
        if accumulate is not None:
            with accumulate():
                tokens, targets = batch(1000 + step, rank)
                loss_of(call(tokens), targets).backward()
        tokens, targets = batch(step, rank)
        with amp:
            loss = loss_of(call(tokens), targets)
        if scaler is not None:
            scaler.scale(loss).backward()
        else:
            loss.backward()
        after_backward()
        if scaler is not None:
            scaler.unscale_(optimizer)
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        if scaler is not None:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()


def nothing_more() -> None:
    """`optimizer.step()` waits by itself."""


def one(
    model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int, after: Callable[[], None] = nothing_more
) -> None:
    """A step with the gradients zeroed before it."""
    torch.manual_seed(step)
    model.use_sometimes = (step + rank) % 2 == 0  # type: ignore[assignment]
    optimizer.zero_grad()
    tokens, targets = batch(step, rank)
    nn.functional.cross_entropy(model(tokens), targets).backward()
    after()
    optimizer.step()


def average_by_hand(model: nn.Module) -> None:
    """The definition: a parameter that any rank used gets the mean over ranks, an absent gradient counting as zero."""
    everyone = range(dist.get_world_size())
    average_over([(parameter, everyone) for parameter in model.parameters() if parameter.requires_grad])


def average_over(shares: Sequence[tuple[nn.Parameter, Collection[int]]]) -> None:
    """Each parameter's mean over its ranks, for all. A gradient that none of them has stays absent."""
    rank = dist.get_rank()
    used = torch.tensor([float(rank in members and parameter.grad is not None) for parameter, members in shares])
    dist.all_reduce(used)
    gradients = [torch.zeros_like(one) if one.grad is None else one.grad.detach() for one, _ in shares]
    gathered = [torch.split(whole, [one.numel() for one in gradients]) for whole in gathered_flat(gradients)]
    for place, ((parameter, members), gradient) in enumerate(zip(shares, gradients, strict=True)):
        parts = [gathered[member][place].view(gradient.shape).to(gradient.dtype) for member in members]
        mean = sum((part / len(members) for part in parts), torch.zeros_like(gradient))
        parameter.grad = mean if used[place] else None


def gathered_flat(tensors: Iterable[Tensor]) -> list[Tensor]:
    """These tensors of every rank, one after the other in fp32, which holds each of their numbers exactly."""
    flat = torch.cat([tensor.detach().float().flatten() for tensor in tensors])
    everyone = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, flat)
    return everyone


def same(
    actual: nn.Module, expected: nn.Module, what: object, *, tolerance: float | None = None, rounded: bool = False
) -> None:
    """Close to what was trained by hand, and equal on all ranks. `rounded`: gradients were sent in bf16."""
    if tolerance is None:
        tolerance = 1e-6 if dist.get_world_size() == 2 else 1e-4  # a sum of two is the same in either order
    for (name, a), (_, b) in zip(actual.named_parameters(), expected.named_parameters(), strict=True):
        within = 2e-2 if rounded or a.dtype != torch.float32 else tolerance
        off = (a.float() - b.float()).abs().max()
        assert torch.allclose(a.float(), b.float(), rtol=within, atol=within), (what, name, off)
    equal_on_all_ranks(actual, what)


def equal_on_all_ranks(model: nn.Module, what: object) -> None:
    names, parameters = zip(*model.named_parameters(), strict=True)
    sizes = [parameter.numel() for parameter in parameters]
    everyone = [torch.split(whole, sizes) for whole in gathered_flat(parameters)]
    for name, *copies in zip(names, *everyone, strict=True):
        assert all(torch.equal(copy, copies[0]) for copy in copies), (what, name, "differs between ranks")


def training(
    rank: int, steps: int, *, accumulating: bool = False, grad_scaler: bool = False, **options: Any
) -> Callable[[Side], None]:
    """`train` as a loop of `as_by_hand`."""

    def loop(side: Side) -> None:
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if grad_scaler else None
        train(side.model, side.optimizer, side.call, steps=steps, rank=rank, after_backward=side.average,
              accumulate=side.no_sync if accumulating else None, scaler=scaler, **options)  # fmt: skip

    return loop


def values_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Parameters, and the tensors of the optimizer's state."""
    found = {name: parameter.detach() for name, parameter in model.named_parameters()}
    for place, state in optimizer.state_dict()["state"].items():
        found |= {f"{place}.{name}": value for name, value in state.items() if torch.is_tensor(value)}
    return found


def gradients_of(model: nn.Module) -> Tensor:
    """All gradients in a row, with NaN where there is none."""
    absent = ((one, torch.full_like(one, torch.nan)) for one in model.parameters())
    return torch.cat([(none if one.grad is None else one.grad).detach().flatten() for one, none in absent])


def assert_local(model: Any, rank: int) -> None:
    """A backward pass of this Net sends nothing: ranks have gradients of their own."""
    model.zero_grad()
    tokens, targets = batch(50, rank)
    nn.functional.cross_entropy(model(tokens), targets).backward()
    first, second, *_ = gathered_flat([model.first.weight.grad])
    assert not torch.equal(first, second)


def plainly(model: nn.Module, handle: Handle) -> Callable[[], None]:
    """Average gradients by hand: the default of `as_by_hand`."""
    return lambda: average_by_hand(model)


@dataclass
class Side:
    """A model that a loop trains under a schedule, or with gradients averaged by hand, where there is no handle.

    `call` runs its forward passes. `average` follows the backward passes of a step; a schedule may have nothing to do.
    """

    model: Any
    optimizer: torch.optim.Optimizer
    call: Any
    average: Callable[[], None]
    no_sync: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
    handle: Handle | None = None


def as_by_hand(
    made: Callable[[], tuple[nn.Module, torch.optim.Optimizer]],
    loop: Callable[[Side], Tensor | None],
    schedule: str,
    *,
    waits: bool = False,
    within: tuple[float, float] = (1e-5, 1e-6),
    attach: Callable[..., Handle] = xbench.attach,
    by_hand: Callable[[nn.Module, Handle], Callable[[], None]] = plainly,
    tolerance: float | None = None,
    **given: Any,
) -> Side:
    """The loop trains and returns under the schedule what it does with gradients averaged by hand.

    `waits`: it synchronizes before each step. `within`: relative and absolute tolerance of what it returns.
    `tolerance`: of the parameters. Returns the side of the schedule, which is detached.
    """
    model, optimizer = made()
    with attach(model, optimizer, schedule=schedule, **given) as handle:
        average = handle.synchronize if waits else nothing_more
        side = Side(model, optimizer, handle.model, average, handle.no_sync, handle)
        heard = loop(side)
    expected, optimizer = made()
    said = loop(Side(expected, optimizer, expected, by_hand(expected, handle)))
    if said is not None:
        assert torch.allclose(said, heard, *within, equal_nan=True), (schedule, given, said, heard)
    same(model, expected, (schedule, given), tolerance=tolerance, rounded="compress" in given)
    return side


def check(
    kind: Callable[[], nn.Module], schedule: str, rank: int, *, steps: int = 3, wait: str = "backward", **options: Any
) -> None:
    """A model trains as by hand in the loop of `train`. `options`: of `training` and of `as_by_hand`."""
    waits = wait != "step" or bool(options.get("grad_scaler") or options.get("clip"))
    given = {name: options.pop(name) for name in options.keys() & {"compress", "process_group", "by_hand", "tolerance"}}
    side = as_by_hand(
        partial(make, kind), training(rank, steps, **options), schedule, waits=waits, wait=wait,
        plan=buckets_of(make(kind)[0], schedule), unused_parameters=True, **given,
    )  # fmt: skip
    assert engine_of(next(iter(trainable(side.model).values()))) is None


@contextlib.contextmanager
def collectives() -> Iterator[list[tuple[str, Tensor, dict[str, Any]]]]:
    """All-reduces and broadcasts as they are called: name, tensor, keywords."""
    calls: list[tuple[str, Tensor, dict[str, Any]]] = []

    def noted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(tensor: Tensor, *args: Any, **keywords: Any) -> Any:
            calls.append((name, tensor, keywords))
            return call(tensor, *args, **keywords)

        return called

    with pytest.MonkeyPatch.context() as patch:
        for name in ("all_reduce", "broadcast"):
            patch.setattr(dist, name, noted(name, getattr(dist, name)))
        yield calls


def run_scenarios(*modules: dict[str, Any], backend: str = "gloo") -> int:
    """Run the scenarios in these modules that the command line names, or all; print one line for each.

    What follows a colon in a name is for whoever made the ranks.
    """
    scenarios = {
        name: found
        for names in modules
        for name, found in names.items()
        if inspect.isfunction(found) and [*inspect.signature(found).parameters] == ["rank", "world"]
    }
    rank, world, path = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ.get("STORE")
    torch.set_num_threads(1)
    store = dist.FileStore(path, world) if path else None
    dist.init_process_group(backend, store=store, rank=rank, world_size=world)
    for name in sys.argv[1:] or list(scenarios):
        try:
            scenarios[name.partition(":")[0]](rank, world)
            print(f"{name}: ok", flush=True)
        except Exception:
            print(f"{name}: {traceback.format_exc()}", flush=True)
            return 1  # the ranks may be out of step now
    if store is not None:  # who leaves first would close its connections
        store.set(f"ended {rank}", "")
        store.wait([f"ended {other}" for other in range(world)], timedelta(seconds=60))
    dist.destroy_process_group()
    return 0
