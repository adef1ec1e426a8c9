"""Rank side of the tests of next-forward overlap: when updates happen, what is refused, and how a schedule ends.

Started as `schedules.py` is. The scenarios that compare a loop with a plain one are in `next_forward_loops.py`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import next_forward_loops
import pytest
import torch
import torch.distributed as dist
from next_forward_loops import PUT_OFF, attached
from schedule_training import (
    Images,
    Net,
    assert_local,
    average_by_hand,
    batch,
    collectives,
    gradients_of,
    make,
    one,
    run_scenarios,
    same,
)
from torch import Tensor, nn

import xbench.schedules.dear as dear_module
from xbench.errors import UsageError
from xbench.modes import MODES
from xbench.schedules.base import AttachConfig, Schedule
from xbench.schedules.dear import PairwiseAllToAll
from xbench.schedules.served_parameters import engine_of, trainable


def updates_wait_for_the_forward_pass(rank: int, world: int) -> None:
    """Parameters change in the next forward pass, a layer's when it is called at the latest."""
    for schedule in PUT_OFF:
        model, optimizer = make(Images)
        names = [name for name, _ in reversed(list(trainable(model).items()))]
        kind: type[Schedule] = MODES.load(schedule)  # type: ignore[assignment]
        with kind().attach(AttachConfig(model, optimizer, [[name] for name in names])) as handle:
            one(model, optimizer, rank, 0)
            handle.finish()
            memory = {
                name: parameter.detach() for name, parameter in model.named_parameters()
            }  # reads complete nothing
            one(model, optimizer, rank, 1)
            before = {name: values.clone() for name, values in memory.items()}
            changed: dict[str, set[str]] = {}

            def look(path: str, before: dict[str, Tensor] = before, memory: dict[str, Tensor] = memory,
                     changed: dict[str, set[str]] = changed) -> None:  # fmt: skip
                changed[path] = {name for name, values in memory.items() if not torch.equal(values, before[name])}

            handles = [
                module.register_forward_pre_hook(lambda module, _, path=path: look(path))
                for path, module in model.named_modules() if path in ("embed", "first", "block.0", "head")
            ]  # fmt: skip
            look("nothing")
            model(batch(2, rank)[0])
            for one_handle in handles:
                one_handle.remove()
        assert changed["nothing"] == set(), schedule
        assert changed["embed"] >= {"embed.weight"}, (schedule, changed)
        assert changed["first"] >= {"embed.weight", "first.weight", "first.bias"}, (schedule, changed)
        nearly_zero = {"block.0.bias"}  # the batch-norm after it takes its gradient out, all of it or nearly
        assert changed["head"] | nearly_zero == set(before), (schedule, changed)


def refusals(rank: int, world: int) -> None:
    """One sentence each, on every rank, and nothing is left attached."""

    def of(
        kind: Callable[[], nn.Module], change: Callable[[nn.Module], Any], use: Callable[..., Any] | None = None
    ) -> str:
        model, _ = make(kind)
        try:
            with Dear().attach(AttachConfig(model, change(model))) as handle:
                if use is not None:
                    use(model, handle.engine.optimizer)  # type: ignore[union-attr]
        except UsageError as error:
            assert engine_of(next(iter(trainable(model).values()))) is None
            assert not any(module._forward_pre_hooks for module in model.modules())
            return str(error)
        return "not refused"

    def sgd(model: nn.Module, fused: bool = False) -> torch.optim.Optimizer:
        return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, fused=fused)

    def hooked(model: nn.Module) -> torch.optim.Optimizer:
        optimizer = sgd(model)
        optimizer.register_step_post_hook(lambda *_: None)
        return optimizer

    def loss_of(model: nn.Module, step: int = 0) -> Tensor:
        return nn.functional.cross_entropy(model(batch(step, rank)[0]), batch(step, rank)[1])

    def two_backwards(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for step in range(2):
            loss_of(model, step).backward()

    def scaler(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(loss_of(model)).backward()
        scaler.step(optimizer)

    def twice() -> nn.Module:
        layer = nn.Linear(8, 8)
        return nn.Sequential(nn.Embedding(20, 8), layer, nn.Tanh(), layer, nn.Linear(8, 20))

    def alone() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 3))

    Dear: type[Schedule] = MODES.load("dear")  # type: ignore[assignment]
    assert "calls '1' twice" in of(twice, sgd, lambda model, _: model(batch(0, rank)[0]))
    assert "called none" in of(alone, sgd, lambda model, _: model[0].forward(torch.ones(2, 3)).sum().backward())
    assert "another backward pass" in of(Net, sgd, two_backwards)

    assert "a closure cannot be" in of(Net, sgd, lambda _, optimizer: optimizer.step(lambda: 0.0))
    assert "none was given" in of(Net, lambda model: None)
    assert "LBFGS" in of(Net, lambda model: torch.optim.LBFGS(model.parameters()))
    assert "step hooks" in of(Net, hooked)
    assert "does not have 'second.weight'" in of(
        Net, lambda model: torch.optim.SGD([p for n, p in model.named_parameters() if n != "second.weight"], lr=0.1)
    )
    assert "no layers" in of(lambda: torch.compile(Net(), backend="aot_eager"), sgd)  # type: ignore[arg-type,return-value]
    assert "clipping, a GradScaler" in of(Net, sgd, scaler)
    assert "GradScaler" in of(Net, partial(sgd, fused=True), scaler)


def detach_leaves_nothing(rank: int, world: int) -> None:
    for schedule in PUT_OFF:
        model, optimizer = make(Net)
        for _ in range(2):
            with attached(model, optimizer, schedule, 256):
                for step in range(3):
                    one(model, optimizer, rank, step)
            for module in model.modules():
                assert not module._forward_pre_hooks
                assert not module._forward_hooks
                assert not module._state_dict_pre_hooks
                assert not module._load_state_dict_pre_hooks
            assert not optimizer._optimizer_step_pre_hooks
            assert not any(p._post_accumulate_grad_hooks for p in model.parameters())
        assert_local(model, rank)


def detach_completes_the_last_step(rank: int, world: int) -> None:
    """Also where gradients were sent and no step was taken: they are averaged, and there."""
    for schedule in PUT_OFF:
        model, optimizer = make(Net)
        expected, expected_optimizer = make(Net)
        for step in range(2):
            one(expected, expected_optimizer, rank, step, lambda model=expected: average_by_hand(model))
        with attached(model, optimizer, schedule, 256):
            for step in range(2):
                one(model, optimizer, rank, step)
        same(model, expected, schedule)
        for trained, step in ((expected, None), (model, schedule)):
            trained.zero_grad()
            torch.manual_seed(0)
            with attached(trained, optimizer, step, 256) if step else contextlib.nullcontext():
                nn.functional.cross_entropy(trained(batch(3, rank)[0]), batch(3, rank)[1]).backward()
        average_by_hand(expected)
        found, wanted = gradients_of(model), gradients_of(expected)
        assert torch.allclose(found, wanted, rtol=1e-5, atol=1e-6, equal_nan=True), (schedule, found, wanted)


def one_order_on_every_rank(rank: int, world: int) -> None:
    """What is launched is the same on every rank, whatever each of them leaves out."""
    for schedule in PUT_OFF:
        exchanges: list[tuple[int, int]] = []

        class Counted(PairwiseAllToAll):
            def __init__(
                self, group: Any, sends: Any, receives: Any, tag: int, seen: list[tuple[int, int]] = exchanges
            ) -> None:
                seen.append((tag, sends[0][1].numel()))
                super().__init__(group, sends, receives, tag)

        model, optimizer = make(Net)
        with pytest.MonkeyPatch.context() as patch, collectives() as calls:
            patch.setattr(dear_module, "PairwiseAllToAll", Counted)
            with attached(model, optimizer, schedule, 128):
                for step in range(5):
                    one(model, optimizer, rank, step)
        launched = exchanges + [(0, tensor.numel()) for _, tensor, options in calls if options.get("async_op")]
        everyone: list[Any] = [None] * world
        dist.all_gather_object(everyone, launched)
        assert all(other == launched for other in everyone), schedule
        assert len(launched) % 5 == 0
        assert len(launched) >= 5 * (6 if schedule == "dear" else 10), (schedule, len(launched))


if __name__ == "__main__":
    sys.exit(run_scenarios(vars(next_forward_loops), globals()))
