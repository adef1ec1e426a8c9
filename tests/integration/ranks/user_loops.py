"""Ranks of the tests of loops that differ from one forward pass, one backward pass and one step.

Two heads take turns, two models train at once, optimizers have hooks and load state. Each loop trains the same as with
gradients averaged by hand, or is refused.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
import torch.distributed as dist
from schedule_training import Side, as_by_hand, average_by_hand, equal_on_all_ranks, gradients_of, run_scenarios, same
from torch import Tensor, nn
from torch._dynamo import compiled_autograd

import xbench
from xbench.errors import UsageError
from xbench.schedules.base import Handle

OURS = ("wfbp", "single", "dear", "priority")


class Heads(nn.Module):
    """A trunk, and a head for each task."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(4, 6)
        self.heads = nn.ModuleList(nn.Linear(6, 1) for _ in range(2))

    def forward(self, x: Tensor, head: int) -> Tensor:
        return self.heads[head](torch.tanh(self.trunk(x))).square().mean()


def made(kind: Callable[[], nn.Module] = Heads) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(7)
    model = kind()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def batch(step: int, rank: int) -> Tensor:
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(10 * step + rank))


def plan_of(model: nn.Module) -> list[list[str]]:
    """Buckets of two tensors, so that one bucket holds a used parameter and an unused one."""
    names = [name for name, _ in model.named_parameters()][::-1]
    return [names[place : place + 2] for place in range(0, len(names), 2)]


def heads_of(step: int, rank: int) -> Sequence[tuple[int, int]]:
    """Heads of the two passes: the second unused in the last pass on all ranks, or on one."""
    return (1, 0), (1, rank), (1 - rank, rank)


def a_head_that_the_last_micro_step_leaves_out(rank: int, world: int) -> None:
    """Its gradient was accumulated under no_sync, and is averaged all the same."""

    def loop(side: Side, set_to_none: bool) -> None:
        for step in range(3):
            side.optimizer.zero_grad(set_to_none=set_to_none)
            first, last = heads_of(step, rank)[step]
            with side.no_sync():
                side.call(batch(step, rank), first).backward()
            side.call(batch(step + 5, rank), last).backward()
            side.average()
            side.optimizer.step()

    for schedule, set_to_none in itertools.product(OURS, (True, False)):
        as_by_hand(made, partial(loop, set_to_none=set_to_none), schedule, plan=plan_of(made()[0]))


def two_backward_passes_in_a_step(rank: int, world: int) -> None:
    """The second pass leaves out the first one's head, on all ranks or on one: both gradients are averaged."""

    def loop(side: Side) -> Tensor:
        gradients = []
        for step in range(3):
            side.optimizer.zero_grad()
            for number, head in enumerate(heads_of(step, rank)[step]):
                side.call(batch(step + 5 * number, rank), head).backward()
            side.average()
            gradients.append(gradients_of(side.model))
            side.optimizer.step()
        return torch.cat(gradients)

    for schedule in ("wfbp", "single"):
        as_by_hand(made, loop, schedule, plan=plan_of(made()[0]))


def hooks_of_the_optimizer(rank: int, world: int) -> None:
    """Hooks that are added after attach see all averaged gradients, or are refused."""

    def loop(side: Side) -> Tensor:
        norms: list[Tensor] = []
        side.optimizer.register_step_pre_hook(
            lambda *_: norms.append(nn.utils.clip_grad_norm_(side.model.parameters(), 0.01))
        )
        for step in range(3):
            side.optimizer.zero_grad()
            side.call(batch(step, rank), step % 2).backward()
            side.average()
            side.optimizer.step()
        return torch.stack(norms)

    for schedule in ("wfbp", "single"):
        as_by_hand(made, loop, schedule, plan=plan_of(made()[0]), wait="step")
    for schedule in ("dear", "priority"):
        model, optimizer = made()
        with xbench.attach(model, optimizer, schedule=schedule) as handle:
            hook = optimizer.register_step_pre_hook(lambda *_: None)
            handle.model(batch(0, rank), 0).backward()
            with pytest.raises(UsageError, match="step hooks"):
                optimizer.step()
            hook.remove()
            optimizer.step()


class Wide(nn.Module):
    """Larger than the credit of `priority`, so that its parts are launched one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(700, 700) for _ in range(8)))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).square().mean()


def two_models_at_once(rank: int, world: int) -> None:
    """Parts of one model are on their way while the other computes: they never meet."""
    for schedule in ("priority", "dear"):
        pairs, expected = [made(Wide) for _ in range(2)], [made(Wide) for _ in range(2)]
        inputs = [[torch.full((4, 700), 0.1 * (step + rank + 3 * n + 1)) for n in range(2)] for step in range(6)]
        with contextlib.ExitStack() as stack:
            calls = [stack.enter_context(xbench.attach(*pair, schedule=schedule)).model for pair in pairs]
            for of_step in inputs:
                for call, (_, optimizer), x in zip(calls, pairs, of_step, strict=True):
                    optimizer.zero_grad()
                    call(x).backward()
                    optimizer.step()
                    time.sleep(0.002 * rank)  # ranks launch what follows an arrival at another point of the loop
        for (model, by_hand), (other, _), number in zip(expected, pairs, range(2), strict=True):
            for of_step in inputs:
                by_hand.zero_grad()
                model(of_step[number]).backward()
                average_by_hand(model)
                by_hand.step()
            same(other, model, (schedule, number))


def state_that_zero1_loads(rank: int, world: int) -> None:
    """Loaded moments and learning rates count, hooks run, and parameters that come later are refused."""
    plain, by_hand = made()
    model, optimizer = made()
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append(1))
    with xbench.attach(model, optimizer, schedule="zero1", unused_parameters=True) as handle:
        for step in range(4):
            if step == 2:
                state = copy.deepcopy(by_hand.state_dict())
                for entry in state["state"].values():
                    entry["momentum_buffer"] = torch.full_like(entry["momentum_buffer"], 0.5)
                state["param_groups"][0]["lr"] = 0.02
                by_hand.load_state_dict(copy.deepcopy(state))
                optimizer.load_state_dict(state)
            for number, (one, its) in enumerate(((plain, by_hand), (handle.model, optimizer))):
                its.zero_grad()
                one(batch(step, rank), 0).backward()
                one(batch(step + 5, rank), 1).backward()
                if not number:
                    average_by_hand(plain)
                its.step()
        assert len(seen) == 4
        same(model, plain, "zero1")
        handle.finish()
        for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
            found = optimizer.state[mine]["momentum_buffer"]
            assert torch.allclose(found, by_hand.state[other]["momentum_buffer"], atol=1e-6)
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3))]})
        with pytest.raises(UsageError, match="added to the optimizer's groups, or moved, since"):
            optimizer.step()


class Counting(nn.Module):
    """A block whose forward pass assigns a new buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 1)])
        self.dropout = nn.Dropout(0.5)
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = self.dropout(block(x))
        self.mean = 0.5 * self.mean + 1
        return x.square().mean()


def the_plain_model_of_a_sharded_one(rank: int, world: int) -> None:
    """Buffers that a forward pass assigns are the plain model's too, and its train() and eval() reach the twin."""
    for schedule in ("fsdp", "replicate"):
        model, optimizer = made(Counting)
        with xbench.attach(model, optimizer, schedule=schedule) as handle:
            for _ in range(2):
                optimizer.zero_grad()
                handle.model(batch(0, rank)).backward()
                optimizer.step()
            handle.finish()
            assert float(model.mean) == 1.5
            assert model.eval() is model
            assert not any(module.training for tree in (model, handle.model) for module in tree.modules())
            assert torch.equal(handle.model(batch(0, rank)), handle.model(batch(0, rank)))
            model.train()
            assert all(module.training for tree in (model, handle.model) for module in tree.modules())
            handle.model(batch(0, rank)).backward()
        assert float(model.mean) == 1.5 / 8 + 1.75
        assert "train" not in vars(model)


def parameters_that_ddp_ignores(rank: int, world: int) -> None:
    """No schedule averages parameters that the model excludes from DDP."""
    for schedule in ("ddp", "wfbp", "dear"):
        model, optimizer = made()
        model._ddp_params_and_buffers_to_ignore = ["heads.1.weight", "heads.1.bias"]  # type: ignore[assignment]
        with torch.no_grad():
            model.heads[1].weight.fill_(0.1 * (rank + 1))  # type: ignore[index, union-attr]
        plan = plan_of(model) if schedule == "wfbp" else None
        with xbench.attach(model, optimizer, schedule=schedule, plan=plan, unused_parameters=True) as handle:
            optimizer.zero_grad()
            (handle.model(batch(0, rank), 1) if schedule == "ddp" else model(batch(0, rank), 1)).backward()
            handle.synchronize()
            mine = model.heads[1].weight.grad.clone()  # type: ignore[index, union-attr]
            everyone = [torch.empty_like(mine) for _ in range(world)]
            dist.all_gather(everyone, mine)
            assert not torch.equal(everyone[0], everyone[1]), schedule
            optimizer.step()
    for schedule in ("fsdp", "replicate", "zero1"):
        with pytest.raises(UsageError, match="cannot leave them alone"):
            xbench.attach(model, optimizer, schedule=schedule)


def a_second_schedule(rank: int, world: int) -> None:
    """It is refused whatever the first one is, and allowed after the first is detached."""
    for schedule in ("ddp", "wfbp", "fsdp", "zero1"):
        model, optimizer = made(Counting)
        handle = xbench.attach(model, optimizer, schedule=schedule)
        with pytest.raises(UsageError, match="another xbench schedule is attached"):
            xbench.attach(model, optimizer, schedule=schedule)
        handle.detach()
        xbench.attach(model, optimizer, schedule=schedule).detach()


def a_rank_outside_of_the_group(rank: int, world: int) -> None:
    """It is told so, and the others train."""
    group = dist.new_group([0])
    model, optimizer = made()
    if rank == 0:
        with xbench.attach(model, optimizer, schedule="wfbp", process_group=group) as handle:
            handle.model(batch(0, rank), 0).backward()
    else:
        with pytest.raises(UsageError, match="not in process_group"):
            xbench.attach(model, optimizer, schedule="wfbp", process_group=group)


def steps_that_are_compiled(rank: int, world: int) -> None:
    """torch.compile around the optimizer's step is served, and a compiled backward pass is refused by name."""

    def loop(side: Side) -> None:
        torch._dynamo.reset()
        step = torch.compile(side.optimizer.step, backend="eager")
        for number in range(3):
            side.optimizer.zero_grad()
            side.call(batch(number, rank), number % 2).backward()
            side.average()
            step()

    for schedule, wait in (("wfbp", "step"), ("wfbp", "backward"), ("dear", "step")):
        as_by_hand(made, loop, schedule, wait=wait)
        model, optimizer = made()
        with xbench.attach(model, optimizer, schedule=schedule, wait=wait) as handle:  # type: ignore[arg-type]
            loss = handle.model(batch(0, rank), 0)
            with (
                pytest.raises(UsageError, match="compiled autograd"),
                compiled_autograd._enable(torch.compile(backend="eager")),
            ):
                loss.backward()


def gradients_of_another_dtype(rank: int, world: int) -> None:
    """A bf16 model that accumulates in fp32 sends fp32; DDP refuses it by name."""

    def low() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(7)
        model = Heads().bfloat16()
        for parameter in model.trunk.parameters():
            parameter.grad_dtype = torch.float32
        return model, torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)

    def loop(side: Side) -> None:
        for number in range(3):
            side.optimizer.zero_grad()
            side.call(batch(number, rank).bfloat16(), number % 2).backward()
            side.average()
            assert side.model.trunk.weight.grad.dtype == torch.float32
            side.optimizer.step()

    for schedule, wait in itertools.product(OURS, ("backward", "step")):
        as_by_hand(low, loop, schedule, waits=True, wait=wait)
    with pytest.raises(UsageError, match=r"'trunk\.weight' has gradients of another dtype"):
        xbench.attach(*low(), schedule="ddp")


def a_second_step_on_the_same_gradients(rank: int, world: int) -> None:
    def loop(side: Side) -> None:
        side.model.dropout.p = 0.0
        for number in range(2):
            side.optimizer.zero_grad()
            side.call(batch(number, rank)).backward()
            side.average()
            side.optimizer.step()
            side.optimizer.step()

    for schedule, wait in itertools.product(("wfbp", "single", "ddp"), ("backward", "step")):
        as_by_hand(partial(made, Counting), loop, schedule, wait=wait)


def a_wait_that_raises(rank: int, world: int) -> None:
    """Hooks are removed all the same, so that another schedule can follow."""

    class Lost:
        def wait(self) -> bool:
            raise RuntimeError("the peer is gone")

        def is_completed(self) -> bool:
            return True

    def broken(handle: Handle) -> None:
        handle.engine.watch = lambda nbytes, start, kind="bucket": (start().wait(), Lost())[1]

    for wait in ("backward", "step"):
        model, optimizer = made()
        handle = xbench.attach(model, optimizer, schedule="single", wait=wait)  # type: ignore[arg-type]
        broken(handle)
        with contextlib.suppress(RuntimeError):
            handle.model(batch(0, rank), 0).backward()
        with pytest.raises(RuntimeError, match="the peer is gone"):
            handle.detach()
        optimizer.zero_grad()
        with xbench.attach(model, optimizer, schedule="wfbp") as again:
            again.model(batch(1, rank), 0).backward()
            optimizer.step()
        equal_on_all_ranks(model, wait)


if __name__ == "__main__":
    sys.exit(run_scenarios(globals()))
