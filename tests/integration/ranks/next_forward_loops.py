"""Loops that deferred updates train as a plain loop does: scenarios of `next_forward.py`.

Steps follow each other without a `finish` between them, so updates happen in the next forward pass, unless a scenario
is about something else. The models and the hand-written average are in `schedule_training.py`.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import uses_in_loops as uses
from schedule_training import (
    Images,
    Net,
    Side,
    TwoDtypes,
    as_by_hand,
    batch,
    buckets_of,
    check,
    make,
    nothing_more,
    one,
    training,
    values_of,
)
from torch import Tensor, nn
from uses_in_loops import Loop

from xbench.records.parts import Parts
from xbench.schedules import MODES
from xbench.schedules.base import AttachConfig, Handle, Schedule
from xbench.schedules.engine import PER_PARAMETER
from xbench.schedules.served_parameters import trainable

PUT_OFF = ("dear", "priority")


class Attending(nn.Module):
    """Layers that read others' parameters without calling them: attention, an LSTM, and a weight used by function."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.attention = nn.MultiheadAttention(8, 2)
        self.late = nn.Linear(8, 8)
        self.lstm = nn.LSTM(8, 8)
        self.norm = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))
        self.apart = nn.Linear(8, 8)
        self.own = nn.Parameter(torch.ones(8))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens).unsqueeze(1)
        x = nn.functional.linear(x, self.late.weight)
        x, _ = self.attention(x, x, x)
        x, _ = self.lstm(x)
        x = self.late(self.norm(x)) * self.own
        x = nn.functional.linear(x, self.apart.weight, self.apart.bias)
        return x.squeeze(1) @ self.embed.weight.t()


def parts_of(model: nn.Module, buckets: list[list[str]], nbytes: int, credit: int | None = 3) -> Parts:
    """Parts in an order that neither backward nor forward has, so many of them under way at once."""
    parameters = trainable(model)
    sizes = [sum(parameters[name].numel() * parameters[name].element_size() for name in names) for names in buckets]
    count = sum(-(-size // nbytes) for size in sizes)
    order = sorted(range(count), key=lambda number: (number * 7) % 5)
    return Parts(nbytes=nbytes, order=order, credit_bytes=credit * nbytes if credit is not None else None)


def attached(
    model: nn.Module, optimizer: torch.optim.Optimizer, schedule: str, nbytes: int | None = None, credit: int | None = 3
) -> Handle:
    """With the test's buckets, and for `priority` parts of so many bytes, so many of them under way at once."""
    kind: type[Schedule] = MODES.load(schedule)  # type: ignore[assignment]
    buckets = buckets_of(model, schedule)
    parts = parts_of(model, buckets, nbytes, credit) if nbytes is not None else None
    return kind().attach(AttachConfig(model, optimizer, buckets, None, "step", parts=parts))


def trained_in_every_loop(rank: int, world: int) -> None:
    for kind, schedule in itertools.product((Net, TwoDtypes, Images, Attending), PUT_OFF):
        check(kind, schedule, rank, steps=5, wait="step")
    every_loop: tuple[dict[str, Any], ...] = (
        {"compress": "bf16"},
        {"accumulating": True}, {"set_to_none": False}, {"clip": True}, {"grad_scaler": True, "clip": True},
        {"steps": 6, "sometimes": lambda step: (step + rank) % 2 == 0},
        {"steps": 6, "sometimes": lambda step: step % 2 == 1},
        {"steps": 6, "sometimes": lambda step: step > 2},
        {"steps": 6, "set_to_none": False, "sometimes": lambda step: (step + rank) % 2 == 0},
        {"steps": 6, "set_to_none": False, "sometimes": lambda step: step % 2 == 1},
        {"steps": 6, "set_to_none": False, "sometimes": lambda step: step > 2},
    )  # fmt: skip
    for schedule, options in itertools.product(PUT_OFF, every_loop):
        check(Net, schedule, rank, wait="step", **{"steps": 4} | options)


def groups_whose_backend_is_not_named(rank: int, world: int) -> None:
    """As `init_process_group()` makes them without a backend, and with one for each device."""
    for backend in ("undefined", "cpu:gloo"):
        group = dist.new_group(backend=backend)
        assert dist.get_backend(group) == backend
        for schedule in (*PUT_OFF, "wfbp"):
            check(Net, schedule, rank, wait="step", process_group=group)


def without_a_plan(rank: int, world: int) -> None:
    for schedule in PUT_OFF:
        as_by_hand(partial(make, Net), training(rank, 4), schedule)


def small_parts_in_a_strange_order(rank: int, world: int) -> None:
    def sometimes(step: int) -> bool:
        return (step + rank) % 2 == 0

    loop = training(rank, 4, sometimes=sometimes)
    for nbytes, credit in itertools.product((64, 272, 2**20), (3, None)):
        as_by_hand(partial(make, Net), loop, "priority", attach=attached, nbytes=nbytes, credit=credit)


def buckets_are_complete_when_they_go(rank: int, world: int) -> None:
    """A full bucket lets more urgent ones go first, and nothing else holds it back."""

    def sometimes(step: int) -> bool:
        return (step + rank) % 2 == 0

    def noted(number: int, complete: Callable[[], None]) -> Callable[[], None]:
        def call() -> None:
            completed.append(number)
            complete()

        return call

    def attach(model: nn.Module, optimizer: torch.optim.Optimizer, schedule: str) -> Handle:
        kind: type[Schedule] = MODES.load(schedule)  # type: ignore[assignment]
        parts = Parts(nbytes=2**20, order=order, credit_bytes=None)
        handle = kind().attach(AttachConfig(model, optimizer, buckets, None, "step", parts=parts))
        for number, bucket in enumerate(handle.engine.buckets):
            bucket.complete = noted(number, bucket.complete)
        return handle

    completed: list[int] = []
    buckets: Any = buckets_of(make(Net)[0], "priority")
    order = [*range(1, len(buckets)), 0]
    as_by_hand(partial(make, Net), training(rank, 4, sometimes=sometimes), "priority", attach=attach)
    assert completed == order * 4, completed


def every_optimizer_ends_in_the_bits_of_a_whole_step(rank: int, world: int) -> None:
    """Put off, finished after each step, and given up by `synchronize`: parameters and states are the same bits."""
    for schedule, credit in [*((schedule, 3) for schedule in PUT_OFF), ("priority", None)]:
        for kind in (None, *sorted(PER_PARAMETER, key=lambda kind: kind.__name__)):
            found = {}
            for way in ("put off", "finished", "synchronized"):
                model, optimizer = make(Net, kind)
                with attached(model, optimizer, schedule, 128, credit) as handle:
                    for step in range(4):
                        one(model, optimizer, rank, step, handle.synchronize if way == "synchronized" else nothing_more)
                        if way == "finished":
                            handle.finish()
                            handle.finish()
                found[way] = values_of(model, optimizer)
            for way, values in found.items():
                assert values.keys() == found["put off"].keys(), (schedule, kind, way)
                for name, value in values.items():
                    assert torch.equal(value, found["put off"][name]), (schedule, kind, way, name)


def beside(loop: Callable[[Side], Tensor | None], kind: Callable[[], nn.Module] = Net, **more: Any) -> None:
    """The loop under both schedules, with the test's buckets, as by hand."""
    for schedule in PUT_OFF:
        as_by_hand(partial(make, kind, **more), loop, schedule, within=(1e-3, 1e-4), attach=attached, nbytes=256)


def settings_are_those_of_the_step(rank: int, world: int) -> None:
    """A scheduler changes the learning rate after the step, before the update that is due."""

    def loop(side: Side) -> None:
        scheduler = torch.optim.lr_scheduler.StepLR(side.optimizer, 1, 0.3)
        for step in range(4):
            one(side.model, side.optimizer, rank, step, side.average)
            scheduler.step()
            side.optimizer.param_groups[0]["weight_decay"] = 0.1 * step

    beside(loop)
    beside(loop, Attending, optimizer_kind=torch.optim.AdamW)  # Net has gradients that are rounding alone


def every_use_between_steps_sees_the_update(rank: int, world: int) -> None:
    """Reads, copies, files, steps, passes and changes in place before the next forward pass, without `finish`."""

    def stepped_without_gradients(loop: Loop) -> list[Tensor]:
        loop.optimizer.zero_grad()
        loop.optimizer.step()
        return [loop.call(uses.batch(60, 0)).detach()]

    def called_in_inference_mode(loop: Loop) -> list[Tensor]:
        with torch.inference_mode():
            return [loop.call(uses.batch(70, 0)).clone()]

    def called_by_function(loop: Loop) -> list[Tensor]:
        parameters = dict(loop.model.named_parameters())
        return [torch.func.functional_call(loop.model, parameters, (uses.batch(50, 0),))]

    def one_is_read(loop: Loop) -> list[Tensor]:
        return [loop.model.head.weight.norm()]  # type: ignore[union-attr, operator]

    def loop(side: Side, use: Callable[[Loop], list[Tensor] | None]) -> Tensor:
        state = Loop(side.model, side.optimizer, side.call, side.call)
        heard = []
        for step in range(4):
            side.optimizer.zero_grad()
            side.call(uses.batch(step, rank)).square().mean().backward()
            side.average()
            side.optimizer.step()
            heard += use(state) or [torch.zeros(1)]
        return torch.cat([value.detach().flatten() for value in heard])

    served = (uses.state_dict, uses.saved, uses.saved_whole, uses.copied, uses.validated, uses.validated_plainly,
              uses.vector, uses.gradient_norms, uses.moments, uses.optimizer_copied, uses.moving_average, uses.clamped,
              uses.loaded, stepped_without_gradients, called_in_inference_mode, called_by_function,
              one_is_read)  # fmt: skip
    for use in served:
        beside(partial(loop, use=use), partial(uses.Net, uses.Shape(tied=True, unused="on rank 1")))


def gradients_stay_after_a_step(rank: int, world: int) -> None:
    """They are logged, used by a second step, or added to by the next backward pass, as in a plain loop."""

    def loop(side: Side) -> Tensor:
        heard = []
        model, optimizer = side.model, side.optimizer
        for step in range(6):
            if step == 3:  # the first two steps only add their gradients
                one(model, optimizer, rank, step, side.average)
                optimizer.step()
                continue
            torch.manual_seed(step)
            model.use_sometimes = (step + rank) % 2 == 0
            tokens, targets = batch(step, rank)
            (0.1 * nn.functional.cross_entropy(model(tokens), targets)).backward()
            side.average()
            optimizer.step()
            if step % 2:
                gradients = [p.grad for p in model.parameters() if p.grad is not None]
                heard.append(torch.stack([gradient.norm() for gradient in gradients]).norm())
                heard.append(nn.utils.clip_grad_norm_(model.parameters(), 0.01))
        return torch.stack(heard)

    beside(loop)


def a_second_step_on_the_same_gradients(rank: int, world: int) -> None:
    """After something else has completed the first one: a pass or a state dict. Also with zeros in their place."""

    def loop(side: Side) -> None:
        model, optimizer = side.model, side.optimizer
        for step, between in enumerate((lambda: model(batch(0, rank)[0]), model.state_dict, model.parameters) * 2):
            optimizer.zero_grad()
            one(model, optimizer, rank, step, side.average)
            optimizer.step()
            between()
            optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        model.state_dict()
        optimizer.step()

    beside(loop)


def a_layer_that_is_used_by_function_in_a_later_pass(rank: int, world: int) -> None:
    class Late(Net):
        passes = 0

        def forward(self, tokens: Tensor) -> Tensor:
            self.passes += 1
            early = self.norm.weight.mean() if self.passes > 1 else 1.0
            return super().forward(tokens) * early

    def loop(side: Side) -> None:
        for step in range(4):
            one(side.model, side.optimizer, rank, step, side.average)

    beside(loop, Late)


def compiled_after_attach(rank: int, world: int) -> None:
    """torch.compile leaves the waits of layers alone."""

    def loop(side: Side) -> None:
        torch._dynamo.reset()
        call = torch.compile(side.model, backend="eager") if side.handle else side.model
        for step in range(4):
            side.optimizer.zero_grad()
            torch.manual_seed(step)
            tokens, targets = batch(step, rank)
            nn.functional.cross_entropy(call(tokens), targets).backward()
            side.average()
            side.optimizer.step()

    beside(loop)


def copies_are_plain(rank: int, world: int) -> None:
    """A copy of the model, before and after the first pass, has no hook, and trains by itself."""
    for schedule in PUT_OFF:
        model, optimizer = make(Net)
        with attached(model, optimizer, schedule, 256):
            for step in range(2):
                plain = copy.deepcopy(model)
                for module in plain.modules():
                    tables = (module._forward_pre_hooks, module._forward_hooks, module._state_dict_pre_hooks)
                    assert not any((*tables, module._load_state_dict_pre_hooks))
                assert all(type(parameter) is nn.Parameter for parameter in plain.parameters())
                one(plain, torch.optim.SGD(plain.parameters(), lr=0.1), 0, step)
                one(model, optimizer, rank, step)
        assert all(type(parameter) is nn.Parameter for parameter in model.parameters())


def two_forwards_before_a_backward(rank: int, world: int) -> None:
    def loop(side: Side) -> None:
        for step in range(3):
            side.optimizer.zero_grad()
            torch.manual_seed(step)
            losses = []
            for number in range(2):
                tokens, targets = batch(10 * step + number, rank)
                losses.append(nn.functional.cross_entropy(side.model(tokens), targets))
            sum(losses).backward()  # type: ignore[union-attr]
            side.average()
            side.optimizer.step()

    beside(loop)


def checkpointed(rank: int, world: int) -> None:
    """Layers that run again in backward."""

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(20, 8)
            self.block = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
            self.head = nn.Linear(8, 20)

        def forward(self, tokens: Tensor) -> Tensor:
            x = self.embed(tokens)
            return self.head(torch.utils.checkpoint.checkpoint(self.block, x, use_reentrant=False))

    for schedule in PUT_OFF:
        check(Checkpointed, schedule, rank, steps=4, wait="step")


def others_collectives_do_not_get_between(rank: int, world: int) -> None:
    """A loop that all-reduces its loss while gradients travel."""

    def loop(side: Side) -> Tensor:
        losses = torch.zeros(8)
        for step in range(8):
            side.optimizer.zero_grad()
            torch.manual_seed(step)
            tokens, targets = batch(step, rank)
            loss = nn.functional.cross_entropy(side.model(tokens), targets)
            loss.backward()
            side.average()
            losses[step] = loss.detach()
            dist.all_reduce(losses[step])
            side.optimizer.step()
            dist.all_reduce(losses[step])
        return losses

    beside(loop)
