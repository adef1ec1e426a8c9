"""Ranks of the tests of odd gradients and of compressed ones: each trains what the hand-written average trains.

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


def odd_gradients_train_the_same(rank: int, world: int) -> None:
    """Views of each other's, and of what backward still needs; and gradients that all ranks lack in some steps."""
    for schedule in OURS:
        check(Branches, schedule, rank)
        check(Branches, schedule, rank, wait="step", set_to_none=False)
    check(Net, "optimal", rank, steps=4, sometimes=lambda step: step % 2 == 0)
    check(Net, "optimal", rank, steps=4, wait="step", sometimes=lambda step: (step + rank) % 2 == 0)


def compressed_gradients_train_nearly_the_same(rank: int, world: int) -> None:
    for schedule in OURS:
        check(Net, schedule, rank, compress="bf16")
        check(Branches, schedule, rank, compress="bf16", wait="step")
    check(TwoDtypes, "optimal", rank, compress="bf16")
    check(Net, "optimal", rank, compress="bf16", accumulating=True)
    check(Net, "optimal", rank, compress="bf16", set_to_none=False, clip=True)
    check(Net, "wfbp", rank, compress="bf16", steps=4, wait="step", sometimes=lambda step: (step + rank) % 2 == 0)
    for schedule in ("ddp", "ddp-tuned"):
        check(Net, schedule, rank, compress="bf16")
        check(TwoDtypes, schedule, rank, compress="bf16")


def compressed_gradients_of_two_ranks_are_ddp_s_bit_for_bit(rank: int, world: int) -> None:
    """Halving is exact, and a sum of two has one order: what is left is where gradients are rounded."""
    found: dict[str, dict[str, Tensor]] = {}
    for schedule in ("ddp", "optimal", "wfbp"):
        model, optimizer = make(Net)
        plan = buckets_of(model, schedule)
        with xbench.attach(
            model, optimizer, schedule=schedule, plan=plan, unused_parameters=True, compress="bf16"
        ) as handle:
            train(model, optimizer, handle.model, steps=4, rank=rank, after_backward=nothing_more)
        found[schedule] = {name: value.detach() for name, value in model.named_parameters()}
    exact, optimizer = make(Net)
    with xbench.attach(exact, optimizer, schedule="single") as handle:
        train(exact, optimizer, handle.model, steps=4, rank=rank, after_backward=nothing_more)
    for schedule, values in found.items():
        for name, value in values.items():
            assert torch.equal(value, found["ddp"][name]), (schedule, name)
    assert not torch.equal(found["ddp"]["first.weight"], exact.first.weight)


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
    model, optimizer = make(Net)
    expected, expected_optimizer = make(Net)
    train(expected, expected_optimizer, expected, steps=2, rank=rank, after_backward=nothing_more)
    with xbench.attach(model, optimizer, schedule="wfbp", process_group=alone) as handle:
        train(model, optimizer, handle.model, steps=2, rank=rank, after_backward=nothing_more)
    for a, b in zip(model.parameters(), expected.parameters(), strict=True):
        assert torch.equal(a, b)
    dist.barrier()


if __name__ == "__main__":
    sys.exit(run_scenarios(globals()))
