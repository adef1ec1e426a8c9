"""Ranks of the schedule tests: each scenario trains the same thing under a schedule and without one.

The expectation is computed without any schedule: gradients averaged by hand (`schedule_training.average_by_hand`),
applied by the same optimizer. `test_schedules.py` starts one process a rank; they meet in a file store.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from schedule_training import (
    Images,
    Mixed,
    Net,
    Side,
    TwoDtypes,
    as_by_hand,
    assert_local,
    buckets_of,
    check,
    collectives,
    compiled_blocks,
    compiled_by_itself,
    compiled_whole,
    gradients_of,
    make,
    nothing_more,
    one,
    run_scenarios,
    train,
    training,
    values_of,
)
from torch import Tensor
from torch._dynamo.utils import counters

import xbench
from xbench.schedules.bucket import CommBucket
from xbench.schedules.engine import PER_PARAMETER
from xbench.schedules.served_parameters import trainable

SCHEDULES = ("ddp", "ddp-tuned", "single", "wfbp", "mgwfbp", "optimal")
OURS = ("single", "wfbp", "mgwfbp", "optimal")


def trained_in_every_loop(rank: int, world: int) -> None:
    loops = ({}, {"accumulating": True}, {"set_to_none": False}, {"clip": True}, {"grad_scaler": True, "clip": True})
    for schedule, options in itertools.product(SCHEDULES, loops):
        check(Net, schedule, rank, **options)


def wait_at_step(rank: int, world: int) -> None:
    for schedule in OURS:
        check(Net, schedule, rank, wait="step")
        check(Net, schedule, rank, wait="step", clip=True)


def early_update(rank: int, world: int) -> None:
    """Updating what has arrived while the rest travels ends in the bits of an update after everything has arrived."""
    arrived = CommBucket.has_arrived
    for kind in (None, *sorted(PER_PARAMETER, key=lambda kind: kind.__name__)):
        expected, asked = stepped(rank, kind, arrived, wait_first=True)
        assert not asked, kind
        # as it comes, every bucket by itself, all at once
        for answer in (arrived, lambda bucket: False, lambda bucket: True):
            actual, asked = stepped(rank, kind, answer, wait_first=False)
            assert asked, kind
            assert actual.keys() == expected.keys(), kind
            for name, value in expected.items():
                assert torch.equal(actual[name], value), (kind, name, (actual[name] - value).abs().max())


def stepped(
    rank: int, kind: type[torch.optim.Optimizer] | None, answer: Callable[[CommBucket], bool], *, wait_first: bool
) -> tuple[dict[str, Tensor], int]:
    """Parameters, gradients and optimizer state after a few steps, and how often a bucket was asked if it was there.

    Parameters are of two groups in turn, which learn at different rates.
    """
    model, optimizer = make(Net, kind)
    (group,) = optimizer.param_groups
    slower, group["params"] = group["params"][1::2], group["params"][::2]
    optimizer.add_param_group({"params": slower, "lr": group["lr"] / 2})
    arrived, asked = CommBucket.has_arrived, 0

    def has_arrived(bucket: CommBucket) -> bool:
        nonlocal asked
        asked += 1
        return answer(bucket)

    CommBucket.has_arrived = has_arrived  # type: ignore[method-assign]
    try:
        with xbench.attach(
            model, optimizer, schedule="optimal", plan=buckets_of(model, "optimal"), wait="step"
        ) as handle:
            train(model, optimizer, handle.model, steps=4, rank=rank,
                  after_backward=handle.synchronize if wait_first else nothing_more,
                  sometimes=lambda step: (step + rank) % 2 == 0)  # fmt: skip
    finally:
        CommBucket.has_arrived = arrived  # type: ignore[method-assign]
    gradients = {f"{name}.grad": p.grad for name, p in model.named_parameters() if p.grad is not None}
    return gradients | values_of(model, optimizer), asked


def gradients_after_a_step(rank: int, world: int) -> None:
    """After optimizer.step() every gradient is there, averaged, as without a schedule."""

    def loop(side: Side) -> Tensor:
        training(rank, 1)(side)
        return gradients_of(side.model)

    plan = [[name] for name in reversed(trainable(make(Net)[0]))]
    as_by_hand(partial(make, Net), loop, "optimal", within=(1e-6, 1e-7), plan=plan, wait="step")


def used_on_some_ranks(rank: int, world: int) -> None:
    for schedule in SCHEDULES:
        check(Net, schedule, rank, steps=4, sometimes=lambda step: (step + rank) % 2 == 0)


def dtypes_channels_last_and_autocast(rank: int, world: int) -> None:
    for kind, schedule in itertools.product((TwoDtypes, Images, Mixed), SCHEDULES):
        check(kind, schedule, rank)
    for kind, schedule in itertools.product((Images, Mixed), OURS):
        check(kind, schedule, rank, wait="step")


def compiled(rank: int, world: int) -> None:
    """Whole or in parts, with the plain model's names in the plan."""
    for kind in (compiled_whole, compiled_by_itself, compiled_blocks):
        for schedule, wait in (("ddp", "backward"), ("wfbp", "backward"), ("optimal", "step")):
            torch._dynamo.reset()  # of many models of one class torch compiles the first few
            counters.clear()
            check(kind, schedule, rank, wait=wait)
            assert counters["frames"]["ok"] == counters["frames"]["total"] >= 1


def hooks_out_of_order(rank: int, world: int) -> None:
    """Ranks whose plans launch against the ready order still launch in plan order, and do not hang."""
    forwards = [[name] for name in trainable(make(Net)[0])]
    as_by_hand(partial(make, Net), training(rank, 2), "optimal", plan=forwards)


def learnt_order(rank: int, world: int) -> None:
    """Without a plan, wfbp adopts rank 0's ready order after the first step, on every rank."""
    model, optimizer = make(Net)
    with xbench.attach(model, optimizer, schedule="wfbp") as handle:
        train(model, optimizer, handle.model, steps=2, rank=rank, after_backward=nothing_more)
        order = [name for bucket in handle.buckets or [] for name in bucket]
    everyone: list[list[str]] = [[] for _ in range(world)]
    dist.all_gather_object(everyone, order)
    assert everyone[0] == everyone[1]
    assert order.index("second.weight") < order.index("first.weight")
    assert sorted(order) == sorted(trainable(model))


def one_collective_a_bucket(rank: int, world: int) -> None:
    """Counted at the process group: no more, no fewer, in plan order, whether or not gradients are missing."""
    model, optimizer = make(Net)
    plan = buckets_of(model, "optimal")
    with collectives() as calls, xbench.attach(model, optimizer, schedule="optimal", plan=plan) as handle:
        train(model, optimizer, handle.model, steps=3, rank=rank, after_backward=nothing_more,
              sometimes=lambda step: (step + rank) % 2 == 0)  # fmt: skip
        sizes = [bucket.flat.numel() for bucket in handle.engine.buckets]  # type: ignore[union-attr]
    assert [tensor.numel() for _, tensor, _ in calls] == sizes * 3


def detach_leaves_nothing(rank: int, world: int) -> None:
    """After detach a step is local again, for every schedule, and attaching again works."""
    for schedule in SCHEDULES:
        model, optimizer = make(Net)
        for _ in range(2):
            with xbench.attach(
                model, optimizer, schedule=schedule, plan=buckets_of(model, schedule), unused_parameters=True
            ) as h:
                train(model, optimizer, h.model, steps=2, rank=rank, after_backward=nothing_more)
        assert_local(model, rank)


def poisoned_buckets(rank: int, world: int) -> None:
    """Bucket memory is poisoned while no collective is under way; nothing of it may reach a parameter."""

    def loop(side: Side) -> None:
        for step in range(3):
            for parameter in side.model.parameters():
                parameter.grad = None
            for bucket in side.handle.engine.buckets if side.handle else ():
                bucket.flat.fill_(float("nan"))
            one(side.model, side.optimizer, rank, step, side.average)

    as_by_hand(partial(make, Net), loop, "optimal", plan=buckets_of(make(Net)[0], "optimal"))


if __name__ == "__main__":
    sys.exit(run_scenarios(globals()))
