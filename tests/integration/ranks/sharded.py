"""Ranks of the tests of torch's sharded modes: each scenario trains the same thing under a mode and without one.

The expectation is computed without a schedule: gradients averaged by hand, applied by the same optimizer. Ranks train
blocks of seven features, which no number of ranks here divides.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import pytest
import torch
import torch.distributed as dist
from schedule_training import Side, as_by_hand, average_by_hand, make, run_scenarios, same, train, training
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

import xbench
from xbench.errors import SpecError, UsageError
from xbench.schedules.base import AttachConfig, Handle
from xbench.schedules.sharded import PlannedUnits

ONE_DIMENSION = ("fsdp", "replicate", "zero1")
IN_SHARDS = ("fsdp", "replicate")
OPTIMIZERS = (None, torch.optim.AdamW)
WIDTH = 7


class Blocks(nn.Module):
    """An embedding, whose weight is the head's too, and blocks between."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, WIDTH)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(2))
        self.last = nn.ModuleList([Block(), Block()])
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.head = nn.Linear(WIDTH, 20)
        self.head.weight = self.embed.weight
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, tokens: Tensor) -> Tensor:
        self.calls += 1
        x = self.embed(tokens)
        for block in (*self.blocks, *self.last):
            x = x + block(x)
        return self.head(self.frozen(x))


class Block(nn.Module):
    """A normalised layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.inner(self.norm(x)))


def attached(
    schedule: str, kind: type[torch.optim.Optimizer] | None
) -> tuple[nn.Module, torch.optim.Optimizer, Handle]:
    model, optimizer = make(Blocks, kind)
    return model, optimizer, xbench.attach(model, optimizer, schedule=schedule, wait="step")


def by_hand(rank: int, steps: int, kind: type[torch.optim.Optimizer] | None) -> tuple[nn.Module, torch.optim.Optimizer]:
    model, optimizer = make(Blocks, kind)
    train(model, optimizer, model, steps=steps, rank=rank, after_backward=lambda: average_by_hand(model))
    return model, optimizer


def same_state(actual: torch.optim.Optimizer, expected: torch.optim.Optimizer, what: object) -> None:
    """Every parameter has its optimizer state on every rank, whole."""
    for one, other in zip(actual.param_groups, expected.param_groups, strict=True):
        for a, b in zip(one["params"], other["params"], strict=True):
            assert not isinstance(a, DTensor), what
            assert actual.state[a].keys() == expected.state[b].keys(), what
            for key, value in expected.state[b].items():
                assert torch.allclose(actual.state[a][key], value, rtol=1e-5, atol=1e-7), (what, key)


def trained_as_by_hand(rank: int, world: int) -> None:
    for schedule in ONE_DIMENSION:
        for kind in OPTIMIZERS:
            model, optimizer, handle = attached(schedule, kind)
            buffer = dict(model.named_buffers())["calls"]
            with handle:
                train(model, optimizer, handle.model, steps=3, rank=rank, after_backward=handle.synchronize)
            expected, theirs = by_hand(rank, 3, kind)
            same(model, expected, (schedule, kind))
            same_state(optimizer, theirs, (schedule, kind))
            assert float(buffer) == 3, "buffers are the model's own"
            assert "step" not in vars(optimizer)


def every_unit_sums(rank: int, world: int) -> None:
    """Gloo does not average in some versions of torch, so each unit sums and divides."""
    for schedule in IN_SHARDS:
        model, optimizer, handle = attached(schedule, None)
        ops: list[Any] = []
        with pytest.MonkeyPatch.context() as patched:
            for name in ("reduce_scatter_tensor", "reduce_scatter_single", "all_reduce"):
                if hasattr(dist, name):
                    patched.setattr(dist, name, noting_op(getattr(dist, name), ops))
            train(model, optimizer, handle.model, steps=1, rank=rank, after_backward=handle.synchronize)
        assert ops == [dist.ReduceOp.SUM] * len(handle.units), (schedule, ops)
        handle.detach()


def noting_op(call: Any, ops: list[Any]) -> Any:
    @wraps(call)
    def noting(*args: Any, **named: Any) -> Any:
        ops.append(named["op"])
        return call(*args, **named)

    return noting


def shards_are_of_the_callers_group(rank: int, world: int) -> None:
    """torch takes meshes of the same ranks for one, and the first may be of a group that is gone."""
    for schedule in IN_SHARDS:
        for _ in range(2):
            model, optimizer = make(Blocks, torch.optim.AdamW)
            group: Any = dist.new_group()
            with xbench.attach(model, optimizer, schedule=schedule, wait="step", process_group=group) as handle:
                train(model, optimizer, handle.model, steps=2, rank=rank, after_backward=handle.synchronize)
                used: set[Any] = {shard.device_mesh.get_group() for shard in handle.model.parameters()}  # type: ignore[attr-defined]
                assert used == {group}
            dist.destroy_process_group(group)
            same(model, by_hand(rank, 2, torch.optim.AdamW)[0], schedule)


def blocks_in_one_unit(rank: int, world: int) -> None:
    """Blocks that a plan names together are one unit, and the others one each. They train the same."""

    def planned(model: nn.Module, optimizer: torch.optim.Optimizer, schedule: str) -> Handle:
        units = [["blocks.0.0", "blocks.1.0", "last.0"]]
        return PlannedUnits().attach(AttachConfig(model, optimizer, wait="step", units=units))

    def loop(side: Side, accumulating: bool) -> None:
        training(rank, 3, accumulating=accumulating)(side)
        if side.handle:
            assert list(side.handle.units) == ["blocks.0.0, blocks.1.0, last.0", "last.1", ""]
            states = {id(one._get_fsdp_state()) for one in side.call.modules() if isinstance(one, FSDPModule)}
            assert len(states) == 3

    for accumulating in (False, True):
        as_by_hand(
            partial(make, Blocks), partial(loop, accumulating=accumulating), "auto:shard", waits=True, attach=planned
        )
    with pytest.raises(UsageError, match="auto:shard wraps units that a comparison plans from its profile"):
        attached("auto:shard", None)


def copies_of_shards(rank: int, world: int) -> None:
    """hsdp: two copies of the parameters, each divided among two of four ranks."""

    def loop(side: Side) -> None:
        training(rank, 3)(side)
        if side.handle:
            held.append(sum(shard.to_local().numel() for shard in side.call.parameters()))

    held: list[int] = []
    for text in ("hsdp", "hsdp:group=2"):
        trained = as_by_hand(partial(make, Blocks), loop, text, waits=True, wait="step")
        assert held[-1] < 0.6 * sum(parameter.numel() for parameter in trained.model.parameters())
    with pytest.raises(SpecError, match="4 ranks are not two or more groups of 3"):
        attached("hsdp:group=3", None)


def looked_at_between_steps(rank: int, world: int) -> None:
    """After `finish` a model is whole, what is written into it counts, and training goes on from there."""
    for schedule in ONE_DIMENSION:
        model, optimizer, handle = attached(schedule, None)
        expected, theirs = make(Blocks)
        with handle:
            for step in range(3):
                batches = rank + 10 * step
                train(model, optimizer, handle.model, steps=1, rank=batches, after_backward=handle.synchronize)
                average = partial(average_by_hand, expected)
                train(expected, theirs, expected, steps=1, rank=batches, after_backward=average)
                with torch.no_grad():
                    handle.model(torch.zeros(1, dtype=torch.long))
                handle.finish()
                same(model, expected, (schedule, step))
                same_state(optimizer, theirs, (schedule, step))
                with torch.no_grad():
                    for net in (model, expected):
                        next(net.parameters()).mul_(0.5)
        same(model, expected, schedule)


def in_shards_while_attached(rank: int, world: int) -> None:
    for schedule in IN_SHARDS:
        model, optimizer, handle = attached(schedule, None)
        whole = sum(p.numel() for p in model.parameters())
        with handle:
            assert list(handle.units) == ["blocks.0.0", "blocks.1.0", "last.0", "last.1", ""]
            assert all(isinstance(p, DTensor) for group in optimizer.param_groups for p in group["params"])
            train(model, optimizer, handle.model, steps=1, rank=rank, after_backward=handle.synchronize)
            held = sum(p.to_local().numel() for p in handle.model.parameters())  # type: ignore[attr-defined]
        assert held == whole if schedule == "replicate" else held < 0.7 * whole
        assert type(model) is Blocks
        model(torch.zeros(1, dtype=torch.long))


def one_rank_has_a_parameter_s_state(rank: int, world: int) -> None:
    model, optimizer, handle = attached("zero1", torch.optim.AdamW)
    with handle:
        optimizer.param_groups[0]["lr"] = 0.5
        train(model, optimizer, handle.model, steps=1, rank=rank, after_backward=handle.synchronize)
        held = torch.tensor([float(sum(p.numel() for p in optimizer.state))])
        dist.all_reduce(held)
    trainable = [p for p in model.parameters() if p.requires_grad]
    assert held == sum(p.numel() for p in trainable)
    assert len(optimizer.state) == len(trainable)


def accumulated_gradients(rank: int, world: int) -> None:
    for schedule in ONE_DIMENSION:
        as_by_hand(partial(make, Blocks), training(rank, 2, accumulating=True), schedule, waits=True, wait="step")


def models_that_are_refused(rank: int, world: int) -> None:
    model, optimizer = make(Blocks)
    with pytest.raises(UsageError, match="waits for ever if ranks use different parameters"):
        xbench.attach(model, optimizer, schedule="fsdp", unused_parameters=True)
    with pytest.raises(UsageError, match="and not as bf16"):
        xbench.attach(model, optimizer, schedule="fsdp", compress="bf16")
    model.embed.weight.data = model.embed.weight.data.t().contiguous().t()  # type: ignore[union-attr, operator]
    with pytest.raises(UsageError, match=r"fully_shard refuses this model: .*non-contiguous"):
        xbench.attach(model, optimizer, schedule="fsdp")
    assert type(model) is Blocks


def a_rank_that_raises_alone_does_not_wait(rank: int, world: int) -> None:
    """Also where the error is a refusal of ours, as of a log of gradients on the first rank alone."""
    uses: dict[type[Exception], Callable[[torch.optim.Optimizer], object]] = {
        ZeroDivisionError: lambda _: 1 / 0,
        UsageError: lambda optimizer: pickle.dumps(optimizer.state_dict()),
    }
    for schedule in ONE_DIMENSION:
        for error, use in uses.items():
            model, optimizer, handle = attached(schedule, None)
            train(model, optimizer, handle.model, steps=1, rank=rank, after_backward=handle.synchronize)
            if rank == 0:
                with pytest.raises(error), handle:
                    use(optimizer)
            else:
                handle.model = nn.Linear(1, 1)  # it never detaches


if __name__ == "__main__":
    sys.exit(run_scenarios(globals()))
