"""Ranks of the tests of sharded modes: what else a loop does with a model whose parameters or optimizer are in shards.

Each use gives what it gives without a schedule, or is refused in a sentence of ours.
"""

from __future__ import annotations

import copy
import io
import itertools
import pickle
import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from schedule_training import Side, as_by_hand, average_by_hand, run_scenarios, same
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

import xbench
from xbench.errors import AlikeError, UsageError
from xbench.schedules.base import Handle

IN_SHARDS = ("fsdp", "replicate")
Part = tuple[nn.Module, torch.optim.Optimizer]


class Net(nn.Module):
    """Two blocks, which are units, and a parameter of the root."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 3))
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(x) * self.scale


def made() -> Part:
    torch.manual_seed(3)
    model = Net()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def loss_of(model: nn.Module, number: int, rank: int) -> Tensor:
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * number + rank))
    loss: Tensor = (model(x) - 1.0).square().mean()
    return loss


def attached(schedule: str) -> tuple[nn.Module, torch.optim.Optimizer, Handle]:
    model, optimizer = made()
    return model, optimizer, xbench.attach(model, optimizer, schedule=schedule)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int, rank: int, *, by_hand: bool = False) -> None:
    optimizer.zero_grad()
    loss_of(model, number, rank).backward()
    if by_hand:
        average_by_hand(model)
    optimizer.step()


def in_shards_or_whole(schedule: str, rank: int, whole: bool) -> tuple[nn.Module, torch.optim.Optimizer, Handle]:
    """An attached model after a step."""
    model, optimizer, handle = attached(schedule)
    step(handle.model, optimizer, 0, rank)
    if whole:
        handle.finish()
    return model, optimizer, handle


# --- clearing gradients ----------------------------------------------------------------------------------------------

CLEARING: dict[str, Callable[[nn.Module, nn.Module, torch.optim.Optimizer, bool], None]] = {
    "model": lambda model, twin, optimizer, none: model.zero_grad(none),
    "handle.model": lambda model, twin, optimizer, none: twin.zero_grad(none),
    "optimizer": lambda model, twin, optimizer, none: optimizer.zero_grad(none),
    "parts": lambda model, twin, optimizer, none: [  # type: ignore[dict-item, return-value]
        part.zero_grad(none)
        for part in (model.blocks, twin)  # type: ignore[operator]
    ],
}


def gradients_that_are_cleared(rank: int, world: int) -> None:
    """Before, after and between passes, of one pass or of several under `no_sync`, they are gone in every form."""

    def loop(side: Side, name: str, none: bool) -> None:
        def clear() -> None:
            CLEARING[name](side.model, side.call, side.optimizer, none)

        def end() -> None:
            side.average()
            side.optimizer.step()

        loss_of(side.call, 0, rank).backward()
        end()
        loss = loss_of(side.call, 1, rank)
        clear()  # between forward and backward
        loss.backward()
        end()
        clear()
        with side.no_sync():
            loss_of(side.call, 2, rank).backward()
        clear()  # an accumulated gradient
        with side.no_sync():
            loss_of(side.call, 3, rank).backward()
        loss_of(side.call, 4, rank).backward()
        end()
        if side.handle:
            side.handle.finish()
        clear()  # of the whole parameters
        loss_of(side.call, 5, rank).backward()
        end()

    for schedule, name, none in itertools.product(IN_SHARDS, CLEARING, (True, False)):
        trained = as_by_hand(made, partial(loop, name=name, none=none), schedule)
        assert not {"zero_grad", "load_state_dict"} & set(vars(trained.model))
        assert not {"zero_grad", "__reduce_ex__"} & set(vars(trained.optimizer))


# --- reading and writing ---------------------------------------------------------------------------------------------


def assigned(model: nn.Module) -> None:
    model.load_state_dict({name: value.clone() for name, value in made()[0].state_dict().items()}, assign=True)


def whole_state() -> dict[str, Any]:
    model, optimizer = made()
    step(model, optimizer, 0, 0)
    return optimizer.state_dict()


REFUSED_IN_SHARDS: dict[str, Callable[[nn.Module, torch.optim.Optimizer], object]] = {
    "state_dict": lambda model, _: model.state_dict(),
    "state_dict of a part": lambda model, _: model.blocks[2].state_dict(),  # type: ignore[index, union-attr, operator]
    "load_state_dict": lambda model, _: model.load_state_dict(made()[0].state_dict()),
    "load_state_dict(assign=True)": lambda model, _: assigned(model),
    "load_state_dict of a part": lambda model, _: model.blocks.load_state_dict(made()[0].blocks.state_dict()),  # type: ignore[union-attr, operator]
    "validation": lambda model, _: model(torch.ones(1, 6)),
    "deepcopy": lambda model, _: copy.deepcopy(model),
    "AveragedModel": lambda model, _: torch.optim.swa_utils.AveragedModel(model),
    "torch.save": lambda model, _: torch.save(model, io.BytesIO()),
    "double": lambda model, _: model.double(),
    "grad = None": lambda model, _: [setattr(p, "grad", None) for p in model.parameters()],
    "torch.save of the optimizer's state": lambda _, optimizer: torch.save(optimizer.state_dict(), io.BytesIO()),
    "optimizer.load_state_dict": lambda _, optimizer: optimizer.load_state_dict(whole_state()),
    "deepcopy of the optimizer": lambda _, optimizer: copy.deepcopy(optimizer),
    "torch.save of the optimizer": lambda _, optimizer: torch.save(optimizer, io.BytesIO()),
}


def uses_of_a_model_in_shards(rank: int, world: int) -> None:
    """They are refused, and right after `finish`. The next pass takes over what they wrote."""
    for schedule in IN_SHARDS:
        model, optimizer, handle = in_shards_or_whole(schedule, rank, whole=False)
        expected, by_hand = made()
        step(expected, by_hand, 0, rank, by_hand=True)
        for name, use in REFUSED_IN_SHARDS.items():
            with pytest.raises(UsageError, match=" in shards") as caught:
                use(model, optimizer)
            assert "handle.finish() on all ranks" in str(caught.value.hint), name
        handle.finish()
        same(model, expected, schedule)
        assert pickle.dumps(optimizer)
        state = copy.deepcopy(optimizer.state_dict())
        for entry in state["state"].values():
            entry["momentum_buffer"].fill_(0.5)
        optimizer.load_state_dict(state)
        by_hand.load_state_dict(copy.deepcopy(state))
        for one in (model, expected):
            one.load_state_dict(made()[0].state_dict())
        with torch.no_grad():  # a loop may call a part alone
            x = torch.ones(1, 6)
            assert torch.equal(handle.model.blocks(x), expected.blocks(x))  # type: ignore[operator]
        step(handle.model, optimizer, 1, rank)
        step(expected, by_hand, 1, rank, by_hand=True)
        handle.detach()
        same(model, expected, schedule)


def checkpoints_of_shards(rank: int, world: int) -> None:
    """torch's functions for checkpoints save and load the shards, and others read the optimizer's state there."""
    for schedule in IN_SHARDS:
        model, optimizer, handle = in_shards_or_whole(schedule, rank, whole=False)
        expected, by_hand = made()
        step(expected, by_hand, 0, rank, by_hand=True)
        theirs = by_hand.state_dict()["state"]
        for key, state in copy.deepcopy(optimizer.state_dict())["state"].items():
            assert torch.allclose(state["momentum_buffer"].full_tensor(), theirs[key]["momentum_buffer"], atol=1e-6)
        full = StateDictOptions(full_state_dict=True)
        saved = [copy.deepcopy(get_state_dict(handle.model, optimizer, options=o)) for o in (None, full)]
        shards = copy.deepcopy(optimizer.state_dict())
        for number, (of_model, of_optimizer) in enumerate(saved):
            step(handle.model, optimizer, 9, rank)  # undone by what is loaded
            set_state_dict(
                handle.model, optimizer, model_state_dict=of_model, optim_state_dict=of_optimizer,
                options=full if number else None,
            )  # fmt: skip
        step(handle.model, optimizer, 1, rank)
        step(expected, by_hand, 1, rank, by_hand=True)
        handle.finish()
        same(model, expected, schedule)
        with pytest.raises(
            UsageError, match="shards of the optimizer's state are loaded, and its parameters are whole"
        ):
            optimizer.load_state_dict(shards)
        handle.detach()


def passes_in_inference_mode(rank: int, world: int) -> None:
    """Before the first training pass, and after `finish`: training goes on with ordinary tensors."""

    def loop(side: Side) -> None:
        for number in range(2):
            with torch.inference_mode():
                side.call(torch.ones(1, 6))
            step(side.call, side.optimizer, number, rank, by_hand=side.handle is None)
            if side.handle:
                with torch.inference_mode():
                    side.handle.finish()

    for schedule in IN_SHARDS:
        as_by_hand(made, loop, schedule)


REFUSED_OF_SHARDS: list[Callable[[nn.Module], object]] = [
    lambda twin: twin.state_dict(),
    lambda twin: twin.load_state_dict({}),
    lambda twin: nn.utils.clip_grad_norm_(twin.parameters(), 1.0),
    lambda twin: next(twin.parameters()).mul_(2.0),
    lambda twin: twin.double(),
]


def uses_of_the_shards_of_a_whole_model(rank: int, world: int) -> None:
    for schedule in IN_SHARDS:
        _, optimizer, handle = in_shards_or_whole(schedule, rank, whole=True)
        for use in REFUSED_OF_SHARDS:
            with pytest.raises(UsageError, match=r"handle\.finish\(\) has given them to the plain model"):
                use(handle.model)
        twin = handle.model
        step(twin, optimizer, 1, rank)
        assert twin.state_dict()
        handle.detach()
        with pytest.raises(UsageError, match="after the schedule was detached"):
            twin(torch.ones(1, 6))


def a_model_that_is_compiled_around_the_shards(rank: int, world: int) -> None:
    def loop(side: Side) -> None:
        call = torch.compile(side.call, backend="eager") if side.handle else side.call
        for number in range(2):
            step(call, side.optimizer, number, rank, by_hand=side.handle is None)
            if side.handle:
                side.handle.finish()

    for schedule in IN_SHARDS:
        as_by_hand(made, loop, schedule)
        torch._dynamo.reset()


# --- changes of the model --------------------------------------------------------------------------------------------


def hooked(model: nn.Module) -> None:
    next(model.parameters()).register_hook(lambda gradient: gradient)


def layer_more(model: nn.Module) -> None:
    model.more = nn.Linear(2, 2)


def other_layer(model: nn.Module) -> None:
    model.blocks[2] = nn.Linear(7, 3)  # type: ignore[index, operator]


def a_layer_less(model: nn.Module) -> None:
    model.blocks[2] = nn.Identity()  # type: ignore[index, operator]


CHANGES: dict[str, tuple[Callable[[nn.Module], object], str]] = {
    "more": (layer_more, r"parameter 'more\.weight' was added"),
    "other": (other_layer, r"parameter 'blocks\.2\.weight' was added or replaced"),
    "less": (a_layer_less, "a parameter was removed"),
}
OF_THE_WHOLE_MODEL: dict[str, tuple[Callable[[nn.Module], object], str]] = {
    "assigned": (assigned, "was added or replaced"),
    "converted": (lambda model: model.double(), "was converted"),
    "hooked": (hooked, r"parameter '\w+(\.0\.weight)?' got a hook"),
    "frozen": (lambda model: model.blocks.requires_grad_(False), "was frozen"),  # type: ignore[union-attr, operator]
}
OF_THE_TWIN: dict[str, tuple[Callable[[nn.Module], object], str]] = {
    "converted": (lambda model: model.double(), "was"),
    "hooked": (hooked, "got a hook"),
}


def changes_of_one_of_both_models(rank: int, world: int) -> None:
    """The next forward pass refuses what only one of them has, and the model can be attached again."""
    every = [(False, False, change) for change in (CHANGES | OF_THE_TWIN).values()]
    every += [(True, True, change) for change in (CHANGES | OF_THE_WHOLE_MODEL).values()]
    every += [(True, False, change) for change in CHANGES.values()]
    for schedule in IN_SHARDS:
        for of_plain, whole, (change, said) in every:
            model, _, handle = in_shards_or_whole(schedule, rank, whole)
            change(model if of_plain else handle.model)
            with pytest.raises(AlikeError, match=said), handle:
                loss_of(handle.model, 1, rank)
            assert handle.model is model
            assert all(type(parameter) is nn.Parameter for parameter in model.parameters())


def hooks_of_parameters(rank: int, world: int) -> None:
    """Torch's own gradients are of other parameters, which have no hooks of the user's."""
    for schedule in IN_SHARDS:
        for register in ("register_hook", "register_post_accumulate_grad_hook"):
            model, optimizer = made()
            handle = getattr(model.scale, register)(lambda _: None)
            with pytest.raises(UsageError, match="parameter 'scale' has a hook on its gradient"):
                xbench.attach(model, optimizer, schedule=schedule)
            handle.remove()
            xbench.attach(model, optimizer, schedule=schedule).detach()


# --- the optimizer of zero1 ------------------------------------------------------------------------------------------


class Clipped(torch.optim.SGD):
    """An optimizer with an argument, and an attribute that it writes, that are no settings of a group."""

    def __init__(self, params: Any, lr: float, most: float) -> None:
        super().__init__(params, lr=lr, momentum=0.9)
        self.most = most
        self.steps = 0

    def step(self, closure: Any = None) -> Any:
        self.steps += 1
        if closure is not None:
            return super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.clamp_(-self.most, self.most)
        return super().step(closure)


def optimizers_with_something_of_their_own(rank: int, world: int) -> None:
    """Arguments, attributes, step hooks and closures act under zero1 as without it."""

    def clipped() -> Part:
        model, _ = made()
        optimizer = Clipped(model.parameters(), lr=0.1, most=1e-3)
        optimizer.register_step_pre_hook(lambda own, *_: seen.append(len(own.param_groups[0]["params"])))
        optimizer.register_step_post_hook(lambda *_: model.scale.data.clamp_(max=1.0005))  # type: ignore[union-attr, operator]
        return model, optimizer

    def attach(model: nn.Module, optimizer: torch.optim.Optimizer, schedule: str) -> Handle:
        with pytest.warns(UserWarning, match="zero1 steps Clipped on each rank for some parameters alone"):
            return xbench.attach(model, optimizer, schedule=schedule)

    def loop(side: Side) -> None:
        optimizer: Any = side.optimizer

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = loss_of(side.call, optimizer.steps, rank)
            loss.backward()
            side.average()
            return loss

        for _ in range(2):
            closure()
            optimizer.step()
            optimizer.most = 1e-2
        optimizer.step(closure)
        assert optimizer.steps == 3

    seen: list[int] = []
    as_by_hand(clipped, loop, "zero1", attach=attach)
    assert set(seen) == {5}


def state_that_zero1_has_divided(rank: int, world: int) -> None:
    """It can be saved after `finish` and after loading, and not after a step."""
    model, optimizer, handle = attached("zero1")
    expected, by_hand = made()
    assert optimizer.state_dict()["state"] == {}
    for number in range(3):
        step(handle.model, optimizer, number, rank)
        step(expected, by_hand, number, rank, by_hand=True)
        for use in (optimizer.state_dict, lambda: copy.deepcopy(optimizer), lambda: pickle.dumps(optimizer)):
            with pytest.raises(UsageError, match="zero1 has divided it among the ranks since the last step"):
                use()
        held = len(optimizer.state)
        if number < 2:
            handle.finish()
            theirs = by_hand.state_dict()["state"]
            for each in (optimizer, copy.deepcopy(optimizer)):
                for key, entry in each.state_dict()["state"].items():
                    assert torch.allclose(entry["momentum_buffer"], theirs[key]["momentum_buffer"], atol=1e-6)
        counts = torch.tensor([held])
        dist.all_reduce(counts)
        assert int(counts) == 5, "each rank has the state of its own parameters again"
    optimizer.load_state_dict(copy.deepcopy(by_hand.state_dict()))
    assert len(optimizer.state_dict()["state"]) == 5
    handle.detach()
    same(model, expected, "zero1")


def a_step_that_other_code_has_replaced(rank: int, world: int) -> None:
    model, optimizer = made()
    optimizer.step = lambda *_: None  # type: ignore[method-assign]
    with pytest.raises(UsageError, match="other code has replaced it already"):
        xbench.attach(model, optimizer, schedule="zero1")
    model, optimizer = made()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    with xbench.attach(model, optimizer, schedule="zero1") as handle, warnings.catch_warnings():
        warnings.simplefilter("error")
        step(handle.model, optimizer, 0, rank)
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.05


if __name__ == "__main__":
    sys.exit(run_scenarios(globals()))
