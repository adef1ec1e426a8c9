"""Ranks of the Horovod tests: scenarios as in `schedules.py`, started by torchrun, which gives them an address."""

from __future__ import annotations

import gc
import json
import os
import re
import sys
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import torch
from schedule_training import Images, Net, assert_local, batch, check, make, run_scenarios
from torch import nn

import xbench
from xbench.errors import UsageError
from xbench.horovod import Settings
from xbench.horovod.world import WORLD


def its_own_optimizer(rank: int, world: int) -> None:
    for options in ({}, {"clip": True}, {"clip": True, "grad_scaler": True}, {"accumulating": True}):
        check(Net, "horovod", rank, wait="step", sometimes=lambda step: (step + rank) % 2 == 0, **options)
    assert WORLD.settings is None


def settings_change(rank: int, world: int) -> None:
    """A second initialisation takes the new settings, and one with the defaults goes back to them."""
    for settings in (Settings(32, 5), Settings(), Settings(0, 0.5), Settings(), Settings(32, 5)):
        hvd = WORLD.start(settings)
        handle = hvd.allreduce_async_(torch.full((1000,), float(rank)), name="x", op=hvd.Sum)
        total = hvd.synchronize(handle)
        assert total.unique().item() == sum(range(world))
        WORLD.stop()


def models_attached_at_once_are_not_fused(rank: int, world: int) -> None:
    """Each trains as alone, and no buffer holds gradients of both, which equal scale factors would put into one."""
    slow = "horovod:cycle=300"  # the gradients of both wait for one cycle
    alone, together = [make(Net) for _ in range(2)], [make(Net) for _ in range(2)]
    for number, job in enumerate(alone):
        with xbench.attach(*job, schedule=slow, wait="step"):
            train({number: job}, rank)
    with recorded(rank) as groups, ExitStack() as stack:
        for job in together:
            stack.enter_context(xbench.attach(*job, schedule=slow, wait="step"))
        train(dict(enumerate(together)), rank)
        with pytest.raises(UsageError, match="one setting in a process"):
            xbench.attach(*make(Net), schedule="horovod", wait="step")
    for (one, _), (other, _) in zip(alone, together, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    jobs_of = [{name.startswith("1.") for name in names} for names in groups]
    assert rank > 0 or ({True} in jobs_of and {False} in jobs_of and {True, False} not in jobs_of)
    with recorded(rank) as groups:
        hvd, number = WORLD.enter(Settings(cycle_ms=300))
        for handle in [hvd.allreduce_async_(torch.ones(9), name=name, op=hvd.Average) for name in ("a", "1.a")]:
            hvd.synchronize(handle)
        WORLD.leave(number)
    assert rank > 0 or groups == [{"a", "1.a"}]


def train(jobs: dict[int, tuple[nn.Module, torch.optim.Optimizer]], rank: int) -> None:
    """Take three steps of each job, by its number. All backward passes end before the first update."""
    for step in range(3):
        for number, (model, _) in jobs.items():
            torch.manual_seed(step)  # of dropout
            tokens, targets = batch(10 * step + number, rank)
            nn.functional.cross_entropy(model(tokens), targets).backward()
        for _, optimizer in jobs.values():
            optimizer.step()
            optimizer.zero_grad()


@contextmanager
def recorded(rank: int) -> Iterator[list[set[str]]]:
    """Yield the names of the gradients of each collective, which Horovod's timeline of rank 0 tells at the end."""
    groups: list[set[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        timeline = Path(folder, "timeline.json")
        os.environ["HOROVOD_TIMELINE"] = str(timeline)
        yield groups
        del os.environ["HOROVOD_TIMELINE"]
        events = json.loads(timeline.read_text()) if rank == 0 else []
    names: dict[int, str] = {}
    before = None
    for event in events:
        if event.get("name") == "process_name":
            name = event["args"].get("name", "")  # one tells the start of the clock
            names[event["pid"]] = name.removeprefix("allreduce.")
            continue
        if event.get("name") == "ALLREDUCE" and event["ph"] == "B":
            if before != "ALLREDUCE":
                groups.append(set())
            groups[-1].add(names[event["pid"]])
        before = event.get("name")


def gradients_in_flight_are_refused(rank: int, world: int) -> None:
    """Horovod's thread writes to them. What the loop removes or replaces meanwhile stays so, as under DDP."""
    model, optimizer = make(Net)
    tokens, targets = batch(50, rank)
    with xbench.attach(model, optimizer, schedule="horovod", wait="step") as handle:
        before = [p.detach().clone() for p in model.parameters()]
        nn.functional.cross_entropy(model(tokens), targets).backward()
        with pytest.raises(UsageError, match="gradients are used before they are averaged"):
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        handle.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(tokens), targets).backward()
        optimizer.zero_grad()
        optimizer.step()
        assert all(torch.equal(was, p) for was, p in zip(before, model.parameters(), strict=True))
        nn.functional.cross_entropy(model(tokens), targets).backward()
        model.first.weight.grad = torch.ones_like(model.first.weight)
        handle.synchronize()
        assert model.first.weight.grad.unique().tolist() == [1.0]
        with handle.no_sync():
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(tokens), targets).backward()
            assert model.first.weight.grad.isfinite().all()  # this rank's own
        nn.functional.cross_entropy(model(tokens), targets).backward()
        with pytest.raises(UsageError, match="gradients are used before they are averaged"):
            model.first.weight.grad.sum()


def clipped_without_a_wait(rank: int, world: int) -> None:
    """Horovod sends nothing in a world of one."""
    model, optimizer = make(Net)
    tokens, targets = batch(50, rank)
    before = model.first.weight.detach().clone()
    with xbench.attach(model, optimizer, schedule="horovod", wait="step"):
        nn.functional.cross_entropy(model(tokens), targets).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    assert not torch.equal(before, model.first.weight)


def detach_leaves_nothing(rank: int, world: int) -> None:
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
    assert_local(model, rank)  # the old graph is alive
    del loss, handle
    gc.collect()
    assert wrapper() is None


def momentum_is_allocated_before_the_first_step(rank: int, world: int) -> None:
    model, optimizer = make(Net)
    with xbench.attach(model, optimizer, schedule="horovod", wait="step"):
        assert {id(p) for p in optimizer.state} == {id(p) for p in model.parameters() if p.requires_grad}
        assert not any(state["momentum_buffer"].any() for state in optimizer.state.values())


def refusals(rank: int, world: int) -> None:
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


if __name__ == "__main__":
    code = run_scenarios(globals())
    sys.stdout.flush()
    os._exit(code)
