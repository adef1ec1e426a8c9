"""Ranks of the tests on dressed process groups (`dressed.py`): what NCCL does to a host, and Gloo does not.

Started as `schedules.py` is. A scenario that must deadlock has ranks of its own. Ranks of `SCENARIO:one-queue` run all
collectives in the order in which the host launched them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import ceil, log2
from typing import Any, NamedTuple

import dressed
import pytest
import torch
import torch.distributed as dist
from dressed import DEVICE, Race, Stuck, optimizer_calls
from next_forward_loops import PUT_OFF
from partial import masked
from schedule_training import Net, batch, check, equal_on_all_ranks, make, nothing_more, one, run_scenarios
from torch import Tensor, nn

import xbench
from xbench.modes import MODES, mode_info
from xbench.schedules import bucket as bucket_module
from xbench.schedules import spb
from xbench.schedules.bucket import CommBucket
from xbench.schedules.served_parameters import trainable

LAYERS = 12
STUCK_AFTER_S = 2.0
"""Patience of scenarios that must deadlock."""


class Deep(nn.Module):
    """An embedding and twelve layers, of which every step uses all."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(LAYERS))
        self.use_sometimes = True

    def layers_of_this_step(self) -> Sequence[nn.Module]:
        return list(self.layers)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers_of_this_step():
            x = x + torch.tanh(layer(x))
        return x @ self.embed.weight.t()


class Skipping(Deep):
    """Every second layer is used on some ranks only."""

    def layers_of_this_step(self) -> Sequence[nn.Module]:
        return list(self.layers)[:: 1 if self.use_sometimes else 2]


def each_tensor(model: nn.Module) -> list[list[str]]:
    return [[name] for name in reversed(trainable(model))]


def the_host_goes_on(rank: int, world: int) -> None:
    """The groups themselves: a wait costs the host nothing, values are right, and an unordered use is an error."""
    total = [float(sum(range(world)))] * 3
    tensor = torch.full((3,), float(rank))
    works = [dist.all_reduce(tensor, async_op=True)]
    with pytest.raises(Race, match="all-reduce of group"):
        tensor + 1
    tensor = torch.full((3,), float(rank))
    works.append(dist.all_reduce(tensor, async_op=True))
    works[-1].wait()  # type: ignore[union-attr]
    copied = tensor + 0
    assert not any(work.is_completed() for work in works)  # type: ignore[union-attr]
    before = DEVICE.reads
    assert copied.tolist() == total
    assert DEVICE.reads == before + 1
    works.append(dist.all_reduce(tensor, async_op=True))
    DEVICE.synchronize()
    assert works[-1].is_completed()  # type: ignore[union-attr]
    got = torch.zeros(1)
    if rank == 0:
        dist.send(torch.ones(1), 1)
    elif rank == 1:
        dist.recv(got, 0)
        assert got.tolist() == [1.0]


def trained_as_by_hand(rank: int, world: int) -> None:
    """Every schedule trains what gradients averaged by hand train."""

    def sometimes(step: int) -> bool:
        return (step + rank) % 2 == 0

    for schedule in ("ddp", "single", "wfbp", *PUT_OFF):
        check(Net, schedule, rank, wait="step")
    for schedule in ("optimal", *PUT_OFF):
        check(Net, schedule, rank, wait="step", steps=4, sometimes=sometimes)
    if world == 2:
        check(Net, "wfbp", rank)
        check(Net, "optimal", rank, wait="step", sometimes=sometimes)
        for schedule in ("optimal", *PUT_OFF):
            check(Net, schedule, rank, wait="step", compress="bf16")
            check(Net, schedule, rank, wait="step", accumulating=True, grad_scaler=True, clip=True)


def two_calls_have_the_bits_of_one(rank: int, world: int) -> None:
    for kind in (torch.optim.SGD, torch.optim.AdamW):
        found = []
        for wait_first in (False, True):
            model, optimizer = make(Net, kind)
            with xbench.attach(model, optimizer, schedule="wfbp", plan=each_tensor(model), wait="step") as handle:
                for step in range(3):
                    one(model, optimizer, rank, step, handle.synchronize if wait_first else nothing_more)
            found.append([parameter.detach() for parameter in model.parameters()])
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True)), kind


class StepCosts(NamedTuple):
    """What a step cost the host: parameters in each call of the optimizer, waits for the device, copies of flags."""

    updates: list[int]
    reads: int
    copies: int


def costs(model_kind: type[Deep], schedule: str, rank: int) -> list[StepCosts]:
    """Costs of steps in which every pattern of absent gradients has been before, with buckets of two layers."""
    model, optimizer = make(model_kind)
    first, *others = each_tensor(model)
    pairs = [first, *(a + b for a, b in zip(others[::2], others[1::2], strict=True))]
    plan = pairs if schedule != "single" else None
    found: list[StepCosts] = []
    with (
        xbench.attach(model, optimizer, schedule=schedule, plan=plan, wait="step"),
        optimizer_calls() as updates, flag_copies() as copies,
    ):  # fmt: skip
        for step in range(6):
            before = DEVICE.reads
            one(model, optimizer, rank, step)
            found.append(StepCosts([*updates], DEVICE.reads - before, len(copies)))
            updates.clear()
            copies.clear()
    equal_on_all_ranks(model, schedule)
    return found[3:]


@contextmanager
def flag_copies() -> Iterator[list[None]]:
    """Tensors that buckets make of values of the host: on a GPU each is a copy for which the host waits."""
    made: list[None] = []
    plain = torch.tensor

    def counted(*args: Any, **kwargs: Any) -> Tensor:
        if sys._getframe(1).f_globals["__name__"] == bucket_module.__name__:
            made.append(None)
        return plain(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "tensor", counted)
        yield made


def few_updates_a_step(rank: int, world: int) -> None:
    """Two calls of the optimizer at most; deferred updates take about log2 of the layers, and not one a layer."""
    for schedule in ("wfbp", "single", "spb") if world == 2 else ("spb",):
        for step in costs(Deep, schedule, rank):
            assert len(step.updates) == (1 if schedule == "single" else 2), (schedule, step)
            assert sum(step.updates) == LAYERS + 1, (schedule, step)
    most = 1 + ceil(log2(LAYERS + 1))
    for schedule in PUT_OFF if world == 2 else ():
        for step in costs(Deep, schedule, rank):
            assert 1 < len(step.updates) <= most, (schedule, step)
            assert sum(step.updates) == LAYERS + 1, (schedule, step)


def the_host_waits_for_flags_once(rank: int, world: int) -> None:
    """Not at all where all gradients are there, once a step where some are absent, and never to copy known flags."""
    schedules = ("wfbp", "single", *PUT_OFF) if world == 2 else ()
    for schedule in schedules:
        assert not any(step.reads for step in costs(Deep, schedule, rank)), schedule
    for schedule in (*schedules, "spb"):
        found = costs(Skipping, schedule, rank)
        assert any(step.reads for step in found), schedule
        for step in found:
            assert step.reads <= (len(step.updates) if schedule in PUT_OFF else 1), (schedule, step)
            assert step.copies == 0, (schedule, step)


def spb_on_new_groups(rank: int, world: int) -> None:
    """No deadlock and the right averages at every k, where a group connects at its first collective."""
    for k, wait in ((world, "step"), (2, "backward")) if world == 4 else ((world, "step"),):
        spb._GROUPS.clear()
        check(Net, f"spb:k={k}", rank, wait=wait, by_hand=masked, tolerance=1e-5, steps=2)
    spb._GROUPS.clear()
    model, optimizer = make(Deep)
    names = [name for (name,) in each_tensor(model)]
    with xbench.attach(model, optimizer, schedule="spb", plan=[names[:4], names[4:8], names[8:]], wait="step"):
        for step in range(2):
            one(model, optimizer, rank, step)
    equal_on_all_ranks(model, "spb with large buckets")


def every_schedule(rank: int, world: int) -> None:
    """All schedules whose collectives xbench or DDP launches, in a loop with a collective of its own before a step."""
    names = [one.name for one in MODES if not one.paired and one.trains and not one.compiled and one.reducer != "own"]
    assert {"ddp", "wfbp", "dear", "priority", "spb", "zero1"} < {*names}, names
    for schedule in (*names, "spb:k=2", "spb:variant=temporal"):
        model, optimizer = make(Deep)
        plan = each_tensor(model) if mode_info(schedule).follows_plan else None
        with xbench.attach(model, optimizer, schedule=schedule, plan=plan, wait="step") as handle:
            for step in range(3):
                optimizer.zero_grad()
                tokens, targets = batch(step, rank)
                nn.functional.cross_entropy(handle.model(tokens), targets).backward()
                count = torch.ones(1)
                dist.all_reduce(count)
                optimizer.step()
                assert count.item() == world
        equal_on_all_ranks(model, schedule)


def two_orders_of_two_groups_are_stuck(rank: int, world: int) -> None:
    """The reason for one order of all ranks, and a test of the queue: two groups with a queue each get on with it."""
    groups = [dist.new_group(range(world)) for _ in range(2)]
    tensors = [torch.ones(1), torch.ones(1)]
    for group, tensor in zip(groups, tensors, strict=True):
        dist.all_reduce(tensor, group=group)
    DEVICE.synchronize()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dressed, "PATIENCE_S", STUCK_AFTER_S)
        for place in (0, 1) if rank == 0 else (1, 0):
            dist.all_reduce(tensors[place], group=groups[place], async_op=True)
        if DEVICE.queue is None:
            DEVICE.synchronize()
        else:
            with pytest.raises(Stuck, match="all-reduce of group"):
                DEVICE.synchronize()


def a_pair_of_which_one_never_comes_is_stuck(rank: int, world: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dressed, "PATIENCE_S", STUCK_AFTER_S)
        if rank == 0:
            with pytest.raises(Stuck, match=r"rank 0 waits in the first send of pair \(0, 1\) for ranks \[1\]"):
                dist.send(torch.zeros(1), 1)


def an_engine_that_does_not_wait_is_caught(rank: int, world: int) -> None:
    model, optimizer = make(Net)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CommBucket, "finish", lambda bucket, changed: setattr(bucket, "work", None))
        xbench.attach(model, optimizer, schedule="optimal", plan=each_tensor(model), wait="step")
        with pytest.raises(Race):
            one(model, optimizer, rank, 0)
    DEVICE.synchronize()


if __name__ == "__main__":
    dressed.dress(one_queue=any(name.endswith(":one-queue") for name in sys.argv))
    code = run_scenarios(globals(), backend=dressed.BACKEND)
    sys.stdout.flush()
    os._exit(code)  # a thread may wait for a collective that never comes
