"""Ranks of the tests of ways to carry gradients: each trains what the hand-written average trains, like the others.

Started as `schedules.py` is.
"""

from __future__ import annotations

import itertools
import sys

import torch
import torch.distributed as dist
from schedule_training import (
    Net,
    TwoDtypes,
    batch,
    buckets_of,
    check,
    collectives,
    make,
    nothing_more,
    run_scenarios,
    train,
)
from schedules import OURS
from torch import Tensor, nn

import xbench
from xbench.schedules.bucket import FlatBucket, FusedBucket
from xbench.schedules.bucket_kinds import CoalescedBucket

WAYS = {"views": FlatBucket, "coalesced": CoalescedBucket, "fused": FusedBucket}


class Branches(nn.Module):
    """Gradients that are views of each other's, and of what backward still needs when they are ready."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 6)
        self.first = nn.Parameter(torch.randn(2, 6))
        self.second = nn.Parameter(torch.randn(4, 6))
        self.flat = nn.Parameter(torch.randn(36))
        self.turned = nn.Parameter(torch.randn(6, 20).t())
        self.image = nn.Conv2d(2, 4, 3, padding=1).to(memory_format=torch.channels_last)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        x = torch.cat([self.first, self.second]) + x
        x = self.flat.view(6, 6) + torch.tanh(x)
        y = self.image(x.view(1, 2, 3, 6).contiguous(memory_format=torch.channels_last))
        return (x + y.reshape(12, 6)[:6]) @ self.turned.t()


def every_way_trains_the_same(rank: int, world: int) -> None:
    """Also where gradients are missing, have several dtypes and memory orders, and are views of each other's."""
    apart, together = (lambda step: (step + rank) % 2 == 0), (lambda step: step % 2 == 0)
    for copies, schedule in itertools.product(WAYS, OURS):
        for options in ({}, {"wait": "step"}, {"wait": "step", "clip": True}, {"steps": 4, "sometimes": apart}):
            check(Net, schedule, rank, copies=copies, **options)
        check(TwoDtypes, schedule, rank, copies=copies)
        check(Branches, schedule, rank, copies=copies)
        check(Branches, schedule, rank, copies=copies, wait="step", set_to_none=False)
    for copies in WAYS:
        for options in ({"accumulating": True}, {"set_to_none": False}, {"steps": 4, "sometimes": together},
                        {"steps": 4, "sometimes": apart, "wait": "step"}):  # fmt: skip
            check(Net, "optimal", rank, copies=copies, **options)
        check(Net, "single", rank, copies=copies, grad_scaler=True, clip=True)


def all_ways_end_in_the_same_bits(rank: int, world: int) -> None:
    found: dict[str, dict[str, Tensor]] = {}
    for copies, kind in WAYS.items():
        model, optimizer = make(Net)
        plan = buckets_of(model, "optimal")
        with xbench.attach(model, optimizer, schedule="optimal", plan=plan, wait="step", copies=copies) as handle:  # type: ignore[arg-type]
            assert handle.engine is not None
            assert all(type(bucket) is kind for bucket in handle.engine.buckets)
            train(model, optimizer, handle.model, steps=4, rank=rank, after_backward=nothing_more,
                  sometimes=lambda step: (step + rank) % 2 == 0)  # fmt: skip
        found[copies] = {name: value.detach() for name, value in model.named_parameters()}
        found[copies] |= {f"{n}.grad": p.grad for n, p in model.named_parameters() if p.grad is not None}
        assert not any(p.grad._is_view() for p in model.parameters() if p.grad is not None)
    for copies, values in found.items():
        assert values.keys() == found["views"].keys(), copies
        for name, value in values.items():
            assert torch.equal(value, found["views"][name]), (copies, name)


def coalesced_leaves_gradients_where_they_are(rank: int, world: int) -> None:
    """No copy is made, unless a gradient's memory has another user."""
    torch.manual_seed(3)
    model, optimizer = make(Branches)
    places: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda p, name=name: places.__setitem__(name, p.grad.data_ptr()))
    with xbench.attach(model, optimizer, schedule="single", wait="step", copies="coalesced"):
        tokens, targets = batch(0, rank)
        nn.functional.cross_entropy(model(tokens), targets).backward()
        optimizer.step()
        kept = {name for name, p in model.named_parameters() if p.grad.data_ptr() == places[name]}
    assert "embed.weight" in kept
    assert "image.weight" in kept


def compressed_gradients_train_nearly_the_same(rank: int, world: int) -> None:
    for copies in ("views", "fused"):
        for schedule in OURS:
            check(Net, schedule, rank, copies=copies, compress="bf16")
            check(Branches, schedule, rank, copies=copies, compress="bf16", wait="step")
        check(TwoDtypes, "optimal", rank, copies=copies, compress="bf16")
        check(Net, "optimal", rank, copies=copies, compress="bf16", accumulating=True)
        check(Net, "optimal", rank, copies=copies, compress="bf16", set_to_none=False, clip=True)
        check(Net, "wfbp", rank, copies=copies, compress="bf16", steps=4, wait="step",
              sometimes=lambda step: (step + rank) % 2 == 0)  # fmt: skip
    for schedule in ("ddp", "ddp-tuned"):
        check(Net, schedule, rank, compress="bf16")
        check(TwoDtypes, schedule, rank, compress="bf16")


def compressed_gradients_of_two_ranks_are_ddp_s_bit_for_bit(rank: int, world: int) -> None:
    """Halving is exact, and a sum of two has one order: what is left is where gradients are rounded."""
    found: dict[str, dict[str, Tensor]] = {}
    for schedule, copies in (("ddp", None), ("optimal", "views"), ("optimal", "fused"), ("wfbp", "fused")):
        model, optimizer = make(Net)
        plan = buckets_of(model, schedule)
        with xbench.attach(
            model, optimizer, schedule=schedule, plan=plan, unused_parameters=True, copies=copies, compress="bf16"
        ) as handle:
            train(model, optimizer, handle.model, steps=4, rank=rank, after_backward=nothing_more)
        found[f"{schedule} {copies}"] = {name: value.detach() for name, value in model.named_parameters()}
    exact, optimizer = make(Net)
    with xbench.attach(exact, optimizer, schedule="single") as handle:
        train(exact, optimizer, handle.model, steps=4, rank=rank, after_backward=nothing_more)
    for way, values in found.items():
        for name, value in values.items():
            assert torch.equal(value, found["ddp None"][name]), (way, name)
    assert not torch.equal(found["ddp None"]["first.weight"], exact.first.weight)


def half_the_bytes_travel(rank: int, world: int) -> None:
    with collectives() as calls:
        for compress, schedule in itertools.product((None, "bf16"), ("ddp", "single")):
            model, optimizer = make(Net)
            with xbench.attach(model, optimizer, schedule=schedule, unused_parameters=True, compress=compress) as h:  # type: ignore[arg-type]
                if schedule == "ddp":
                    assert h.watch(lambda nbytes, start: start())
                train(model, optimizer, h.model, steps=1, rank=rank, after_backward=nothing_more)
    ddp, single, ddp_half, single_half = (tensor.nbytes for _, tensor, _ in calls)
    assert (ddp, single) == (2 * ddp_half, 2 * single_half)


def a_world_of_one_sends_nothing(rank: int, world: int) -> None:
    alone = [dist.new_group([r]) for r in range(world)][rank]
    for copies in WAYS:
        model, optimizer = make(Net)
        expected, expected_optimizer = make(Net)
        train(expected, expected_optimizer, expected, steps=2, rank=rank, after_backward=nothing_more)
        with xbench.attach(model, optimizer, schedule="wfbp", process_group=alone, copies=copies) as handle:  # type: ignore[arg-type]
            train(model, optimizer, handle.model, steps=2, rank=rank, after_backward=nothing_more)
        for a, b in zip(model.parameters(), expected.parameters(), strict=True):
            assert torch.equal(a, b), copies
    dist.barrier()


if __name__ == "__main__":
    sys.exit(run_scenarios(globals()))
