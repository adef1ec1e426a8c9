"""Ranks of the tests of loops that change gradients, hooks, groups or the model while a schedule is attached.

Each is served as by gradients averaged by hand, or refused in a sentence.
"""

from __future__ import annotations

import copy
import io
import itertools
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from schedule_training import Side, as_by_hand, average_by_hand, equal_on_all_ranks, run_scenarios, same
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

import xbench
from xbench.errors import AlikeError, UsageError

PUT_OFF = ("dear", "priority")
IN_SHARDS = ("fsdp", "replicate")


class Net(nn.Module):
    """A convolution and a linear layer, with a normalisation and dropout between."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.dropout = nn.Dropout(0.5)
        self.last = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.dropout(self.norm(self.stem(x)).relu().mean((2, 3)))
        return self.last(x).square().mean()


def made(*, channels_last: bool = False) -> tuple[Net, torch.optim.Optimizer]:
    torch.manual_seed(7)
    model = Net()
    model.dropout.p = 0.0
    if channels_last:
        model.to(memory_format=torch.channels_last)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def batch(step: int, rank: int) -> Tensor:
    return torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(10 * step + rank))


def changed(rank: int, change: Callable[[Net, int], None] = lambda model, step: None) -> Callable[[Side], None]:
    """A loop of three steps, with a change after each backward pass."""

    def loop(side: Side) -> None:
        for step in range(3):
            side.optimizer.zero_grad()
            side.call(batch(step, rank)).backward()
            side.average()
            change(side.model, step)
            side.optimizer.step()

    return loop


def remove_last(model: Net, _: int) -> None:
    """As a loop does that trains the last layer later."""
    model.last.weight.grad = None


def gradients_removed_or_replaced_in_flight(rank: int, world: int) -> None:
    """A gradient that is removed before it is averaged is not applied later; after `synchronize` it is gone."""
    for schedule in PUT_OFF:
        for change in (
            remove_last,
            lambda model, _: setattr(model.last.weight, "grad", torch.ones(2, 4)),
            lambda model, _: model.zero_grad(),
        ):
            model, optimizer = made()
            handle = xbench.attach(model, optimizer, schedule=schedule)
            for step in range(2):
                optimizer.zero_grad()
                handle.model(batch(step, rank)).backward()
                if not step:
                    optimizer.step()
            change(model, 0)
            with pytest.raises(UsageError, match="gradients were removed or replaced"):
                optimizer.step()
            handle.detach()
            as_by_hand(made, changed(rank, change), schedule, waits=True)


class Branched(nn.Module):
    """Two linear layers; rank 1 does not use the second."""

    def __init__(self) -> None:
        super().__init__()
        self.every, self.first = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor, rank: int) -> Tensor:
        found: Tensor = self.every(x)
        return (found if rank else found + self.first(x)).square().mean()


def gradients_that_one_rank_alone_computed(rank: int, world: int) -> None:
    """A loop that removes or replaces all gradients in flight does it on each rank, also where there was none."""
    for wait, compress, by in itertools.product(("backward", "step"), (None, "bf16"), (None, torch.full((3, 3), 2.0))):
        torch.manual_seed(7)
        model = Branched()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        before = copy.deepcopy(model)
        with xbench.attach(model, optimizer, schedule="wfbp", wait=wait, compress=compress) as handle:  # type: ignore[arg-type]
            for step in range(2):
                optimizer.zero_grad()
                handle.model(torch.ones(2, 3), rank).backward()
                for layer in (model.every, model.first):
                    assert layer.weight.grad is not None
                    layer.weight.grad = by
                optimizer.step()
                for layer, other in ((model.every, before.every), (model.first, before.first)):
                    expected = other.weight - 0.1 * (step + 1) * (0 if by is None else by)
                    torch.testing.assert_close(layer.weight, expected)
        equal_on_all_ranks(model, (wait, compress, by))


def grow(model: Net) -> None:
    model.last = nn.Linear(4, 2)


def swap(model: Net) -> None:
    """No served parameter gets a gradient then, so that no hook of a schedule runs in backward."""
    for part, trains in ((model.last, False), (model.stem, True), (model.norm, True)):
        part.requires_grad_(trains)


def thaw(model: Net) -> None:
    model.stem.requires_grad_(True)


def layers_that_train_later(rank: int, world: int) -> None:
    """No hook sends the gradients of a new layer or of one that is unfrozen, whoever updates it."""
    every = ("wfbp", "single", *PUT_OFF, "ddp")
    cases = [(schedule, {}, grow, given) for schedule in every for given in (True, False)]
    cases += [(schedule, {"wait": wait}, swap, True) for schedule in every for wait in ("backward", "step")]
    # Also ten times over: what an arrival launches must not depend on which rank is refused a moment earlier.
    cases += [(schedule, {"wait": "step"}, thaw, True) for schedule in (*every, *["dear"] * 10)]
    for schedule, options, change, given in cases:
        if schedule in PUT_OFF and not given:
            continue
        model, optimizer = made()
        if change is not grow:
            model.stem.requires_grad_(False)
            model.norm.requires_grad_(False)
        with xbench.attach(model, optimizer if given else None, schedule=schedule, **options) as handle:
            for step in range(3):
                if step == 2:
                    change(model)
                optimizer.zero_grad()
                with pytest.raises(UsageError, match="has become trainable") if step == 2 else nullcontext():
                    handle.model(batch(step, rank)).backward()
                    optimizer.step()
                    if step == 2 and change is grow:
                        torch.optim.SGD(model.last.parameters(), lr=0.1).step()


def groups_divided_later(rank: int, world: int) -> None:
    """A parameter that gets a learning rate of its own is updated with it; one that is taken out is refused."""

    def loop(side: Side) -> None:
        for step in range(4):
            if step == 2:
                last = side.optimizer.param_groups[0]["params"].pop(0)
                side.optimizer.add_param_group({"params": [last], "lr": 0.01})
            side.optimizer.zero_grad()
            side.call(batch(step, rank)).backward()
            side.average()
            side.optimizer.step()
        if side.handle:
            side.handle.finish()
            side.optimizer.param_groups.pop()
            side.call(batch(4, rank)).backward()
            with pytest.raises(UsageError, match=r"the optimizer does not have 'stem\.weight'"):
                side.optimizer.step()
            side.handle.synchronize()

    for schedule in PUT_OFF:
        as_by_hand(made, loop, schedule)


def parameters_exchanged_between_groups(rank: int, world: int) -> None:
    """Groups of the same sizes with other parameters: each is updated with its own settings, or the step is refused."""

    def two_groups() -> tuple[nn.Module, torch.optim.Optimizer]:
        model, _ = made()
        apart = {id(model.stem.weight), id(model.last.weight)}
        others = [parameter for parameter in model.parameters() if id(parameter) not in apart]
        groups: list[dict[str, Any]] = [
            {"params": [model.stem.weight], "lr": 0.5}, {"params": [model.last.weight], "lr": 0.01}, {"params": others},
        ]  # fmt: skip
        return model, torch.optim.SGD(groups, lr=0.1)

    def loop(side: Side, refused: bool = False) -> None:
        for step in range(3):
            if step == 1:
                first, second = side.optimizer.param_groups[:2]
                first["params"], second["params"] = second["params"], first["params"]
            side.optimizer.zero_grad()
            side.call(batch(step, rank)).backward()
            side.average()
            if refused and step == 1:
                with pytest.raises(UsageError, match="to the optimizer's groups, or moved"):
                    side.optimizer.step()
                return
            side.optimizer.step()

    for schedule in PUT_OFF:
        as_by_hand(two_groups, loop, schedule)
    model, optimizer = two_groups()
    with xbench.attach(model, optimizer, schedule="zero1") as handle:
        loop(Side(model, optimizer, handle.model, lambda: None), refused=True)


def hooks_of_every_optimizer(rank: int, world: int) -> None:
    """They would run before a deferred update, which is refused."""
    for schedule in PUT_OFF:
        model, optimizer = made()
        hook = register_optimizer_step_post_hook(lambda *_: None)
        with pytest.raises(UsageError, match="step hooks"):
            xbench.attach(model, optimizer, schedule=schedule)
        hook.remove()
        xbench.attach(model, optimizer, schedule=schedule).detach()


def hooks_registered_later(rank: int, world: int) -> None:
    """A hook that would change a gradient while it is sent is refused, and one from before runs before it is sent."""

    def clamp(parameter: Tensor) -> None:
        parameter.grad.clamp_(-1e-3, 1e-3)

    def clamping() -> tuple[Net, torch.optim.Optimizer]:
        model, optimizer = made()
        model.last.weight.register_post_accumulate_grad_hook(clamp)
        return model, optimizer

    for schedule in ("wfbp", "single", *PUT_OFF):
        model, optimizer = made()
        handle = xbench.attach(model, optimizer, schedule=schedule, wait="step")
        hook = model.last.weight.register_post_accumulate_grad_hook(clamp)
        with pytest.raises(UsageError, match=r"parameter 'last\.weight' got a hook after the schedule was attached"):
            handle.model(batch(0, rank)).backward()
        hook.remove()
        as_by_hand(clamping, changed(rank), schedule, waits=True, wait="step")


def parts_of_a_sharded_model(rank: int, world: int) -> None:
    """Modes, gradients and frozen parameters of the plain model's parts reach the shards, or are refused."""
    for schedule in IN_SHARDS:
        model, optimizer = made()
        model.dropout.p = 0.5
        with xbench.attach(model, optimizer, schedule=schedule) as handle:
            model.train()
            model.norm.eval()
            twin: Any = handle.model
            assert (twin.norm.training, twin.dropout.training, model.norm.training) == (False, True, False)
            handle.model(batch(0, rank)).backward()
            with pytest.raises(UsageError, match="parameters or gradients of the plain model are used"):
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            assert any(parameter.grad is not None for parameter in twin.parameters())
            model.zero_grad()
            assert all(parameter.grad is None for parameter in twin.parameters())
            model.zero_grad(set_to_none=False)
            model.stem.requires_grad_(False)
            with pytest.raises(UsageError, match=r"parameter 'stem\.weight' was frozen or unfrozen"):
                handle.model(batch(1, rank))
            model.stem.requires_grad_(True)
            handle.model(batch(1, rank)).backward()
            optimizer.step()
            handle.model.zero_grad()
        assert not {"train", "zero_grad"} & set(vars(model.norm)) | set(vars(model)) & {"train", "zero_grad"}
        assert all(parameter.grad is None for parameter in model.parameters())
        equal_on_all_ranks(model, schedule)


def copies_of_a_model_in_shards(rank: int, world: int) -> None:
    """A copy, and what was saved and loaded, have the values, and their modes are their own."""
    for schedule in IN_SHARDS:
        model, optimizer = made()
        with xbench.attach(model, optimizer, schedule=schedule) as handle:
            handle.model(batch(0, rank)).backward()
            optimizer.step()
            handle.finish()
            whole = io.BytesIO()
            torch.save(model, whole)
            whole.seek(0)
            for other in (copy.deepcopy(model), torch.load(whole, weights_only=False)):
                same(other, model, schedule)
                other.eval()
                assert not any(module.training for module in other.modules())
                assert all(module.training for tree in (model, handle.model) for module in tree.modules())
            handle.model(batch(1, rank)).backward()
            optimizer.step()


def whole_parameters_in_the_middle_of_a_step(rank: int, world: int) -> None:
    """`finish` between forward and backward would lose the step, which is refused."""
    for schedule in IN_SHARDS:
        model, optimizer = made()
        handle = xbench.attach(model, optimizer, schedule=schedule)
        loss = handle.model(batch(0, rank))
        handle.finish()
        with pytest.raises(UsageError, match=r"handle\.finish\(\) has given them to the plain model"):
            loss.backward()
        handle.detach()
        model, optimizer = made()
        handle = xbench.attach(model, optimizer, schedule=schedule)
        with handle.no_sync():
            handle.model(batch(0, rank)).backward()
        handle.finish()
        with pytest.raises(AlikeError, match=r"before the step, loses the step's gradients"):
            handle.model(batch(1, rank))
        model.zero_grad()
        handle.model(batch(1, rank)).backward()
        handle.detach()


def optimizers_that_cannot_be_divided(rank: int, world: int) -> None:
    for schedule in (*IN_SHARDS, "zero1"):
        model, _ = made()
        with pytest.raises(UsageError, match="LBFGS updates all of them together"):
            xbench.attach(model, torch.optim.LBFGS(model.parameters()), schedule=schedule)
    for schedule in IN_SHARDS:
        model, _ = made()
        with pytest.raises(UsageError, match="none was given"):
            xbench.attach(model, schedule=schedule)
        with pytest.raises(UsageError, match=r"the optimizer, which does not have 'stem\.weight'"):
            xbench.attach(model, torch.optim.SGD(model.last.parameters(), lr=0.1), schedule=schedule)


def state_in_channels_last(rank: int, world: int) -> None:
    """Every rank gets the owner's moments, whatever their layout in memory."""
    loop = changed(rank)
    expected, by_hand = made(channels_last=True)
    loop(Side(expected, by_hand, expected, lambda: average_by_hand(expected)))
    model, optimizer = made(channels_last=True)
    with xbench.attach(model, optimizer, schedule="zero1") as handle:
        loop(Side(model, optimizer, handle.model, handle.synchronize))
    same(model, expected, "zero1")
    for mine, other in zip(model.parameters(), expected.parameters(), strict=True):
        found, wanted = (it.state[of]["momentum_buffer"] for it, of in ((optimizer, mine), (by_hand, other)))
        assert found.stride() == wanted.stride()
        assert torch.allclose(found, wanted, rtol=1e-5, atol=1e-7)


def parameters_that_are_frozen_under_spb(rank: int, world: int) -> None:
    """A parameter that the loop freezes while it is computed stays frozen. Layers that were left out train again."""
    model, optimizer = made()
    with xbench.attach(model, optimizer, schedule="spb:variant=temporal,k=2") as handle:
        for step in range(4):
            if step == 2:
                model.last.bias.requires_grad_(False)
                before = model.last.bias.detach().clone()
            optimizer.zero_grad()
            handle.model(batch(step, rank)).backward()
            optimizer.step()
            assert model.last.bias.requires_grad == (step < 2)
    assert torch.equal(model.last.bias, before)
    assert [name for name, one in model.named_parameters() if not one.requires_grad] == ["last.bias"]


if __name__ == "__main__":
    sys.exit(run_scenarios(globals()))
