"""Ranks of the Horovod tests: scenarios as in `schedules.py`, started by torchrun, which gives them an address."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import sys
import traceback
import weakref

import pytest
import torch
import torch.distributed as dist
from schedule_training import Images, Net, average_by_hand, batch, buckets_of, make, nothing_more, same, train
from torch import nn

import xbench
from xbench.errors import UsageError
from xbench.horovod.group import new_group
from xbench.horovod.options import Settings
from xbench.horovod.world import WORLD

GROUP: list[dist.ProcessGroup] = []


def agrees(rank: int, *, clip: bool = False, scaled: bool = False, accumulating: bool = False, **how: object) -> None:
    expected, expected_optimizer = make(Net)
    actual, optimizer = make(Net)

    def scaler() -> torch.amp.GradScaler | None:
        return torch.amp.GradScaler("cpu", init_scale=1024.0) if scaled else None

    train(expected, expected_optimizer, expected, steps=3, rank=rank, clip=clip, scaler=scaler(),
          after_backward=lambda: average_by_hand(expected), sometimes=lambda step: (step + rank) % 2 == 0,
          accumulate=contextlib.nullcontext if accumulating else None)  # fmt: skip
    with xbench.attach(actual, optimizer, wait="step", **how) as handle:  # type: ignore[arg-type]
        train(actual, optimizer, handle.model, steps=3, rank=rank, clip=clip, scaler=scaler(),
              after_backward=handle.synchronize if clip or scaled else nothing_more,
              sometimes=lambda step: (step + rank) % 2 == 0,
              accumulate=handle.no_sync if accumulating else None)  # fmt: skip
    same(actual, expected, how)


def its_own_optimizer(rank: int) -> None:
    for how in ({}, {"clip": True}, {"clip": True, "scaled": True}, {"accumulating": True}):
        agrees(rank, schedule="horovod", **how)
    assert WORLD.settings is None


def our_schedules_over_it(rank: int) -> None:
    group = GROUP[0] if GROUP else new_group()
    GROUP.append(group)
    for schedule in ("single", "wfbp", "optimal"):
        for copies in ("views", "coalesced"):
            plan = buckets_of(Net(), schedule)
            agrees(rank, schedule=schedule, plan=plan, process_group=group, copies=copies)
    WORLD.stop()


def settings_change(rank: int) -> None:
    """A second initialisation takes the new settings, and one with the defaults goes back to them."""
    for settings in (Settings(32, 5), Settings(), Settings(0, 0.5), Settings(), Settings(32, 5)):
        hvd = WORLD.start(settings)
        handle = hvd.allreduce_async_(torch.full((1000,), float(rank)), name="x", op=hvd.Sum)
        total = hvd.synchronize(handle)
        assert total.unique().item() == sum(range(dist.get_world_size()))
        WORLD.stop()


def detach_leaves_nothing(rank: int) -> None:
    model, optimizer = make(Net)
    tokens, targets = batch(50, rank)
    handle = xbench.attach(model, optimizer, schedule="horovod", wait="step")
    wrapper = weakref.ref(handle._wrapper)  # type: ignore[attr-defined]
    hooks = len(optimizer._optimizer_step_pre_hooks)
    loss = nn.functional.cross_entropy(model(tokens), targets)
    loss.backward(retain_graph=True)
    optimizer.step()
    handle.detach()
    handle.detach()
    assert len(optimizer._optimizer_step_pre_hooks) == hooks - 1
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(tokens), targets)  # the old graph was alive until now
    loss.backward()
    gradients = [torch.zeros_like(model.first.weight) for _ in range(dist.get_world_size())]
    dist.all_gather(gradients, model.first.weight.grad)
    assert not torch.equal(gradients[0], gradients[1])
    del loss, handle
    gc.collect()
    assert wrapper() is None


def refusals(rank: int) -> None:
    def refused(model: nn.Module, words: str, **how: object) -> None:
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
        with pytest.raises(UsageError, match=re.escape(words)):
            xbench.attach(model, optimizer, schedule="horovod", **({"wait": "step"} | how))  # type: ignore[arg-type]
        assert WORLD.settings is None

    refused(Images(), "sends only contiguous memory, and parameter 'first.weight'")
    refused(nn.Linear(2, 2).to(torch.bfloat16), "sends no bfloat16, which parameter 'weight' is")
    refused(nn.Linear(2, 2), "averages gradients in optimizer.step()", wait="backward")
    refused(nn.Linear(2, 2), "compresses gradients to fp16 and not to bf16", compress="bf16")
    refused(nn.Embedding(4, 2, sparse=True), "sparse gradients")
    two = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    stranger = torch.optim.SGD(two.parameters(), lr=0.1)
    with pytest.raises(UsageError, match="Horovod refuses this model"):
        xbench.attach(two[0], stranger, schedule="horovod", wait="step")


SCENARIOS = (its_own_optimizer, our_schedules_over_it, settings_change, detach_leaves_nothing, refusals)


def main() -> int:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for scenario in SCENARIOS:
        if len(sys.argv) > 1 and scenario.__name__ not in sys.argv[1:]:
            continue
        try:
            scenario(dist.get_rank())
            print(f"{dist.get_rank()} {scenario.__name__}: ok", flush=True)
        except Exception:
            print(f"{scenario.__name__}: {traceback.format_exc()}", flush=True)
            return 1  # the ranks may be out of step now
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
