"""Ranks of the tests of `spb`: it trains what full gradients train that are averaged over those who may compute them.

The expectation is made without the schedule: a whole backward pass on every rank, of which each band of parameters is
averaged by hand over the ranks whose level reaches it; the others' gradients of it are thrown away.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from schedule_training import (
    Images,
    Net,
    TwoDtypes,
    average_over,
    check,
    collectives,
    compiled_blocks,
    equal_on_all_ranks,
    make,
    nothing_more,
    run_scenarios,
    train,
)
from torch import Tensor, nn

import xbench
from xbench.errors import UsageError
from xbench.rank.converge import kept_bytes
from xbench.schedules.base import Handle
from xbench.schedules.spb import PartialBackpropEngine
from xbench.torch_compile import plain_name


def kinds(world: int) -> list[str]:
    found = ["spb", "spb:variant=spatial,k=2", "spb:variant=temporal,k=2", "spb:variant=temporal,k=3"]
    return found if world > 2 else found[1:]


def engine_of(handle: Handle) -> PartialBackpropEngine:
    assert isinstance(handle.engine, PartialBackpropEngine)
    return handle.engine


def masked(model: nn.Module, handle: Handle) -> Callable[[], None]:
    """A parameter's mean over the ranks whose level reaches its band and, of those, an absent gradient is zero."""
    engine, steps = engine_of(handle), itertools.count()
    assert all(parameter.requires_grad for parameter in engine.parameters.values())

    def average() -> None:
        levels = [engine.split.level(rank, step) for step in [next(steps)] for rank in range(engine.split.workers)]
        bands = [(parameter, engine.band_of.get(plain_name(name))) for name, parameter in model.named_parameters()]
        average_over(
            [
                (parameter, [rank for rank, level in enumerate(levels) if level >= band])
                for parameter, band in bands
                if band is not None
            ]
        )

    return average


def check_all(rank: int, world: int, kind: Callable[[], nn.Module] = Net, **options: Any) -> None:
    for schedule in kinds(world):
        check(kind, schedule, rank, **OPTIONS | options)


OPTIONS: dict[str, Any] = {"steps": 4, "by_hand": masked, "tolerance": 1e-5}


def trained_in_every_loop(rank: int, world: int) -> None:
    """Also zeroed in place where the expectation drops gradients: momentum must not see zeros of other steps."""
    for kind in (Net, TwoDtypes, Images):
        check_all(rank, world, kind)
    for options in (
        {"wait": "step"}, {"wait": "step", "clip": True}, {"accumulating": True}, {"set_to_none": False},
        {"clip": True}, {"grad_scaler": True, "clip": True}, {"compress": "bf16"},
        {"compress": "bf16", "wait": "step"},
    ):  # fmt: skip
        check_all(rank, world, **options)


class Topped(Net):
    """With a last layer that every step uses: a level of which a step used nothing has no loss to differentiate."""

    def __init__(self) -> None:
        super().__init__()
        self.top = nn.Linear(20, 20)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.top(super().forward(tokens))


def used_on_some_ranks(rank: int, world: int) -> None:
    check_all(rank, world, Topped, sometimes=lambda step: (step + rank) % 2 == 0)


def compiled(rank: int, world: int) -> None:
    for schedule in ("spb", "spb:variant=temporal,k=2"):
        torch._dynamo.reset()
        # in bf16 graphs that are cut elsewhere round elsewhere
        check(compiled_blocks, schedule, rank, **OPTIONS | {"tolerance": 1e-3})


class Deep(nn.Module):
    """Sixteen equal layers, each followed by an activation that is kept for backward."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64, bias=False) for _ in range(16))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.sin(layer(x))
        return x


def graph_is_left_out(rank: int, world: int) -> None:
    """Autograd keeps i/k of the activations and runs i/k of the backward nodes at level i, counted in both variants."""
    for schedule in ("spb", "spb:variant=temporal,k=4"):
        torch.manual_seed(1)
        model = Deep()
        inputs = torch.randn(8, 64, generator=torch.Generator().manual_seed(rank))
        with xbench.attach(model, schedule=schedule) as handle:
            engine = engine_of(handle)
            for step in range(4):
                level = engine.split.level(rank, step)
                _, kept = kept_bytes(model, lambda: model(inputs).sum())  # noqa: B023
                share = level / engine.split.levels
                whole = 2 * 16 * inputs.nbytes  # a layer's input, and its output for the sine
                assert abs(kept / whole - share) < 0.05, (schedule, level, kept, whole)
                model(inputs).sum().backward()
                handle.synchronize()
                computed = sum(parameter.grad is not None for parameter in model.parameters())
                reached = 16 if engine.split.variant == "spatial" else round(16 * share)
                assert computed == reached, (schedule, step, computed)
                for parameter in model.parameters():
                    parameter.grad = None


def bytes_as_computed(rank: int, world: int) -> None:
    """What is handed to collectives, turned into bytes sent, is what the formula says, within 5 %."""
    for schedule in ("spb", "spb:variant=spatial,k=2", "spb:variant=temporal,k=4"):
        torch.manual_seed(1)
        model = Deep()
        sent = 0.0
        with xbench.attach(model, schedule=schedule) as handle, collectives() as calls:
            engine = engine_of(handle)
            for _ in range(4):
                model(torch.randn(8, 64)).sum().backward()
                handle.synchronize()
                for parameter in model.parameters():
                    parameter.grad = None
            by_band = [0.0] * engine.split.levels
            for name, parameter in engine.parameters.items():
                by_band[engine.band_of[name] - 1] += 4 * parameter.numel()
            expected = engine.split.sent_bytes(by_band)[rank]
        for kind, tensor, options in calls:
            members = dist.get_process_group_ranks(options["group"])
            size = len(members)
            if kind == "all_reduce":
                sent += 2 * (size - 1) / size * tensor.nbytes
            else:
                place = [options["src"], *(other for other in members if other != options["src"])].index(rank)
                times = sum(place < 2**i and place + 2**i < size for i in range((size - 1).bit_length()))
                sent += times * tensor.nbytes
        assert abs(sent / 4 - expected) <= 0.05 * expected + 64, (schedule, rank, sent / 4, expected)
    everything = sum(4 * parameter.numel() for parameter in model.parameters())
    assert expected < 2 * (world - 1) / world * everything


def refused(rank: int, world: int) -> None:
    """Each in one sentence, on all ranks alike, and what was attached is as it was."""
    model, optimizer = make(Net)
    for schedule, options, words in (
        (f"spb:k={world + 1}", {}, "needs a worker for each level"),
        ("spb", {"process_group": dist.new_group(list(range(world)))}, "takes no process_group"),
    ):
        with pytest.raises(UsageError, match=words):
            xbench.attach(model, optimizer, schedule=schedule, **options)  # type: ignore[arg-type]
    check(Net, "spb", rank, **OPTIONS)


def poisoned(rank: int, world: int) -> None:
    """Bucket memory is poisoned between steps; nothing of it may reach a parameter."""
    for schedule in kinds(world):
        model, optimizer = make(Net)
        with xbench.attach(model, optimizer, schedule=schedule, wait="step") as handle:
            for step in range(4):
                for parameter in model.parameters():
                    parameter.grad = None
                for bucket in engine_of(handle).buckets:
                    bucket.flat.fill_(float("nan"))  # type: ignore[attr-defined]
                train(model, optimizer, handle.model, steps=1, rank=rank + step, after_backward=nothing_more)
                assert all(torch.isfinite(parameter).all() for parameter in model.parameters()), (schedule, step)
        equal_on_all_ranks(model, schedule)


if __name__ == "__main__":
    sys.exit(run_scenarios(globals()))
