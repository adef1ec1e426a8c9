"""Ranks of the tests of next-forward overlap: whatever happens between steps, they train what a plain loop trains.

Started as `schedules.py` is, whose models and hand-written average it uses. Steps here follow each other without a
`finish` between them, so updates happen in the next forward pass, unless a scenario is about something else.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from schedule_training import (
    Images,
    Net,
    TwoDtypes,
    average_by_hand,
    batch,
    buckets_of,
    make,
    nothing_more,
    train,
)
from schedules import check, run_scenarios
from torch import Tensor, nn

import xbench
import xbench.schedules.dear as dear_module
from xbench.errors import UsageError
from xbench.modes import MODES
from xbench.records.measured_parts import Parts
from xbench.schedules.base import Handle, Schedule, Setup
from xbench.schedules.engine import PER_PARAMETER, trainable
from xbench.schedules.exchange import Exchange
from xbench.schedules.next_forward import NextForward

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


class Twice(nn.Module):
    """Calls one layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.layer = nn.Linear(8, 8)
        self.head = nn.Linear(8, 20)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layer(torch.tanh(self.layer(self.embed(tokens)))))


def parts_of(model: nn.Module, buckets: list[list[str]], nbytes: int, credit: int | None = 3) -> Parts:
    """Parts in an order that neither backward nor forward has, so many of them under way at once."""
    parameters = trainable(model)
    sizes = [sum(parameters[name].numel() * parameters[name].element_size() for name in names) for names in buckets]
    count = sum(-(-size // nbytes) for size in sizes)
    order = sorted(range(count), key=lambda number: (number * 7) % 5)
    return Parts(nbytes=nbytes, order=order, credit_bytes=credit * nbytes if credit is not None else None)


def attached(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: str,
    nbytes: int | None = None,
    credit: int | None = 3,
) -> Handle:
    """With the test's buckets, and for `priority` parts of so many bytes, so many of them under way at once."""
    kind: type[Schedule] = MODES.load(schedule)  # type: ignore[assignment]
    buckets = buckets_of(model, schedule)
    assert buckets is not None
    parts = parts_of(model, buckets, nbytes, credit) if nbytes is not None else None
    return kind().attach(Setup(model, optimizer, buckets, None, "step", parts=parts))


def same(actual: nn.Module, expected: nn.Module, what: object) -> None:
    """Close to what was trained by hand, and equal on all ranks."""
    for (name, a), (_, b) in zip(actual.named_parameters(), expected.named_parameters(), strict=True):
        tolerance = 1e-6 if dist.get_world_size() == 2 else 1e-4  # a sum of two is the same in either order
        assert torch.allclose(a.float(), b.float(), rtol=tolerance, atol=tolerance), (
            what, name, (a.float() - b.float()).abs().max(),
        )  # fmt: skip
        others = [torch.zeros_like(a.detach().float()) for _ in range(dist.get_world_size())]
        dist.all_gather(others, a.detach().float().contiguous())
        assert all(torch.equal(other, others[0]) for other in others), (what, name, "differs between ranks")


def plain(rank: int, world: int) -> None:
    for schedule in PUT_OFF:
        for kind in (Net, TwoDtypes, Images, Attending):
            check(kind, schedule, rank, steps=5, wait="step")
        check(Net, schedule, rank, steps=4, wait="step", copies="fused")
        check(Net, schedule, rank, steps=4, wait="step", compress="bf16")
        check(Net, schedule, rank, steps=4, wait="step", copies="fused", compress="bf16")


def without_a_plan(rank: int, world: int) -> None:
    for schedule in PUT_OFF:
        model, optimizer = make(Net)
        expected, expected_optimizer = make(Net)
        train(expected, expected_optimizer, expected, steps=4, rank=rank,
              after_backward=lambda model=expected: average_by_hand(model))  # fmt: skip
        with xbench.attach(model, optimizer, schedule=schedule) as handle:
            train(model, optimizer, handle.model, steps=4, rank=rank, after_backward=nothing_more)
        same(model, expected, schedule)


def small_parts_in_a_strange_order(rank: int, world: int) -> None:
    for nbytes, credit in itertools.product((64, 272, 2**20), (3, None)):
        model, optimizer = make(Net)
        expected, expected_optimizer = make(Net)
        train(expected, expected_optimizer, expected, steps=4, rank=rank,
              after_backward=lambda model=expected: average_by_hand(model),
              sometimes=lambda step: (step + rank) % 2 == 0)  # fmt: skip
        with attached(model, optimizer, "priority", nbytes, credit) as handle:
            train(model, optimizer, handle.model, steps=4, rank=rank, after_backward=nothing_more,
                  sometimes=lambda step: (step + rank) % 2 == 0)  # fmt: skip
        same(model, expected, (nbytes, credit))


def buckets_are_complete_when_they_go(rank: int, world: int) -> None:
    """Where a bucket that is full has to let others go first, and nothing else holds it."""
    model, optimizer = make(Net)
    expected, expected_optimizer = make(Net)
    train(expected, expected_optimizer, expected, steps=4, rank=rank,
          after_backward=lambda model=expected: average_by_hand(model),
          sometimes=lambda step: (step + rank) % 2 == 0)  # fmt: skip
    buckets = buckets_of(model, "priority")
    assert buckets is not None
    order = [*range(1, len(buckets)), 0]
    kind: type[Schedule] = MODES.load("priority")  # type: ignore[assignment]
    completed: list[int] = []

    def noted(number: int, complete: Callable[[], None]) -> Callable[[], None]:
        def call() -> None:
            completed.append(number)
            complete()

        return call

    parts = Parts(nbytes=2**20, order=order, credit_bytes=None)
    with kind().attach(Setup(model, optimizer, buckets, None, "step", parts=parts)) as handle:
        for number, bucket in enumerate(handle.engine.buckets):
            bucket.complete = noted(number, bucket.complete)
        train(model, optimizer, handle.model, steps=4, rank=rank, after_backward=nothing_more,
              sometimes=lambda step: (step + rank) % 2 == 0)  # fmt: skip
    same(model, expected, "complete when they go")
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
                values = {name: value.detach() for name, value in model.named_parameters()}
                for place, state in optimizer.state_dict()["state"].items():
                    values |= {f"{place}.{name}": value for name, value in state.items() if torch.is_tensor(value)}
                found[way] = values
            for way, values in found.items():
                assert values.keys() == found["put off"].keys(), (schedule, kind, way)
                for name, value in values.items():
                    assert torch.equal(value, found["put off"][name]), (schedule, kind, way, name)


def one(
    model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int, after: Callable[[], None] = nothing_more
) -> None:
    """A step with the gradients zeroed before it."""
    torch.manual_seed(step)
    model.use_sometimes = (step + rank) % 2 == 0  # type: ignore[assignment]
    optimizer.zero_grad()
    tokens, targets = batch(step, rank)
    nn.functional.cross_entropy(model(tokens), targets).backward()
    after()
    optimizer.step()


Loop = Callable[[nn.Module, torch.optim.Optimizer, Handle | None], Any]


def beside(rank: int, loop: Loop, kind: Callable[[], nn.Module] = Net, **made: Any) -> None:
    """`loop` on a model under each schedule, and on one whose gradients are averaged by hand."""
    for schedule in PUT_OFF:
        expected, expected_optimizer = make(kind, **made)
        said = loop(expected, expected_optimizer, None)
        model, optimizer = make(kind, **made)
        with attached(model, optimizer, schedule, 256) as handle:
            heard = loop(model, optimizer, handle)
        assert said is None or torch.allclose(said, heard, rtol=1e-3, atol=1e-4), (schedule, said, heard)
        same(model, expected, schedule)


def settings_are_those_of_the_step(rank: int, world: int) -> None:
    """A scheduler changes the learning rate after the step, before the update that is due."""

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer, handle: Handle | None) -> None:
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.3)
        for step in range(4):
            one(model, optimizer, rank, step, nothing_more if handle else lambda: average_by_hand(model))
            scheduler.step()
            optimizer.param_groups[0]["weight_decay"] = 0.1 * step

    beside(rank, loop)
    beside(rank, loop, Attending, optimizer_kind=torch.optim.AdamW)  # Net has gradients that are rounding alone


def accumulation(rank: int, world: int) -> None:
    for schedule in PUT_OFF:
        check(Net, schedule, rank, steps=4, wait="step", accumulating=True)
        check(Net, schedule, rank, steps=4, wait="step", set_to_none=False)


def clipping_and_grad_scaler(rank: int, world: int) -> None:
    for schedule in PUT_OFF:
        check(Net, schedule, rank, wait="step", clip=True)
        check(Net, schedule, rank, wait="step", grad_scaler=True, clip=True)


def used_on_some_ranks(rank: int, world: int) -> None:
    for schedule in PUT_OFF:
        check(Net, schedule, rank, steps=6, wait="step", sometimes=lambda step: (step + rank) % 2 == 0)
        check(Net, schedule, rank, steps=6, wait="step", sometimes=lambda step: step % 2 == 1)
        check(Net, schedule, rank, steps=6, wait="step", sometimes=lambda step: step > 2)


def what_reads_parameters_between_steps_gets_new_ones(rank: int, world: int) -> None:
    """Validation, state dicts, a forward pass too many, and a step that is followed by another."""

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer, handle: Handle | None) -> Tensor:
        heard = []
        average = nothing_more if handle else (lambda: average_by_hand(model))
        for step in range(5):
            one(model, optimizer, rank, step, average)
            if step == 0:
                model.eval()
                with torch.no_grad():
                    heard.append(model(batch(50, 0)[0]).sum())
                model.train()
            if step == 1:
                heard += [value.sum() for value in model.state_dict().values() if value.is_floating_point()]
            if step == 2:
                states = optimizer.state_dict()["state"]
                heard += [states[place]["momentum_buffer"].sum() for place in sorted(states)]
            if step == 3:
                optimizer.zero_grad()
                optimizer.step()
                torch.manual_seed(9)
                heard.append(model(batch(60, 0)[0]).detach().sum())
            if step == 4:
                with torch.inference_mode():
                    heard.append(model(batch(70, 0)[0]).sum().clone())
        one(model, optimizer, rank, 5, average)
        return torch.stack([value.detach().float() for value in heard])

    beside(rank, loop)


def two_forwards_before_a_backward(rank: int, world: int) -> None:
    def loop(model: nn.Module, optimizer: torch.optim.Optimizer, handle: Handle | None) -> None:
        for step in range(3):
            optimizer.zero_grad()
            torch.manual_seed(step)
            losses = []
            for number in range(2):
                tokens, targets = batch(10 * step + number, rank)
                losses.append(nn.functional.cross_entropy(model(tokens), targets))
            sum(losses).backward()  # type: ignore[union-attr]
            if handle is None:
                average_by_hand(model)
            optimizer.step()

    beside(rank, loop)


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

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer, handle: Handle | None) -> None:
        for step in range(4):
            one(model, optimizer, rank, step, nothing_more if handle else lambda: average_by_hand(model))

    beside(rank, loop, Checkpointed)


def others_collectives_do_not_get_between(rank: int, world: int) -> None:
    """A loop that all-reduces its loss while gradients travel."""

    def loop(model: nn.Module, optimizer: torch.optim.Optimizer, handle: Handle | None) -> Tensor:
        losses = torch.zeros(8)
        for step in range(8):
            optimizer.zero_grad()
            torch.manual_seed(step)
            tokens, targets = batch(step, rank)
            loss = nn.functional.cross_entropy(model(tokens), targets)
            loss.backward()
            if handle is None:
                average_by_hand(model)
            losses[step] = loss.detach()
            dist.all_reduce(losses[step])
            optimizer.step()
            dist.all_reduce(losses[step])
        return losses

    beside(rank, loop)


def updates_wait_for_the_forward_pass(rank: int, world: int) -> None:
    """Parameters change in the next forward pass, a layer's when it is called at the latest, and gradients are gone."""
    for schedule in PUT_OFF:
        model, optimizer = make(Images)
        names = [name for name, _ in reversed(list(trainable(model).items()))]
        kind: type[Schedule] = MODES.load(schedule)  # type: ignore[assignment]
        with kind().attach(Setup(model, optimizer, [[name] for name in names])) as handle:
            one(model, optimizer, rank, 0)
            handle.finish()
            one(model, optimizer, rank, 1)
            assert all(parameter.grad is None for parameter in model.parameters())
            before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
            changed: dict[str, set[str]] = {}

            def look(path: str, before: dict[str, Tensor] = before, model: nn.Module = model,
                     changed: dict[str, set[str]] = changed) -> None:  # fmt: skip
                changed[path] = {n for n, p in model.named_parameters() if not torch.equal(p.detach(), before[n])}

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

    def of(kind: Callable[[], nn.Module], change: Callable[[nn.Module], Any], use: Callable[..., None] | None = None,
           **more: Any) -> str:  # fmt: skip
        model, _ = make(kind)
        try:
            with Dear().attach(Setup(model, change(model), **more)) as handle:
                if use is not None:
                    use(model, handle.engine.optimizer, handle)  # type: ignore[union-attr]
        except UsageError as error:
            assert not hasattr(next(iter(trainable(model).values())), "_xbench_engine")
            assert not any(module._forward_pre_hooks for module in model.modules())
            return str(error)
        return "not refused"

    def sgd(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)

    def hooked(model: nn.Module) -> torch.optim.Optimizer:
        optimizer = sgd(model)
        optimizer.register_step_post_hook(lambda *_: None)
        return optimizer

    def twice(model: nn.Module, optimizer: torch.optim.Optimizer, handle: Handle) -> None:
        model(batch(0, rank)[0])

    def by_forward(model: nn.Module, optimizer: torch.optim.Optimizer, handle: Handle) -> None:
        model.linear.forward(torch.ones(2, 3)).sum().backward()  # type: ignore[operator,union-attr]

    def two_backwards(model: nn.Module, optimizer: torch.optim.Optimizer, handle: Handle) -> None:
        for step in range(2):
            nn.functional.cross_entropy(model(batch(step, rank)[0]), batch(step, rank)[1]).backward()

    def closure(model: nn.Module, optimizer: torch.optim.Optimizer, handle: Handle) -> None:
        optimizer.step(lambda: 0.0)

    def scaler(model: nn.Module, optimizer: torch.optim.Optimizer, handle: Handle) -> None:
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(nn.functional.cross_entropy(model(batch(0, rank)[0]), batch(0, rank)[1])).backward()
        scaler.step(optimizer)

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)

    Dear: type[Schedule] = MODES.load("dear")  # type: ignore[assignment]
    assert "calls 'layer' twice" in of(Twice, sgd, twice)
    assert "called none" in of(Wrapped, sgd, by_forward)
    assert "twice before its bucket" in of(Net, sgd, two_backwards)
    assert "a closure cannot be" in of(Net, sgd, closure)
    assert "none was given" in of(Net, lambda model: None)
    assert "LBFGS" in of(Net, lambda model: torch.optim.LBFGS(model.parameters()))
    assert "step hooks" in of(Net, hooked)
    assert "does not have 'second.weight'" in of(
        Net, lambda model: torch.optim.SGD([p for n, p in model.named_parameters() if n != "second.weight"], lr=0.1)
    )
    assert "no layers" in of(lambda: torch.compile(Net(), backend="aot_eager"), sgd)  # type: ignore[arg-type,return-value]
    assert "coalesced" in of(Net, sgd, copies="coalesced")
    with contextlib.suppress(AssertionError):  # torch's own words: it finds no gradients
        of(Net, sgd, scaler)
        raise RuntimeError("a GradScaler was not noticed")
    fused = lambda model: torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, fused=True)  # noqa: E731
    assert "GradScaler" in of(Net, fused, scaler)


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
        optimizer.zero_grad()
        one(model, optimizer, rank, 7)
        gradients = [torch.zeros_like(model.first.weight) for _ in range(world)]
        dist.all_gather(gradients, model.first.weight.grad)
        assert not torch.equal(gradients[0], gradients[1]), schedule


def detach_completes_the_last_step(rank: int, world: int) -> None:
    """Also where gradients were sent and no step was taken: they are averaged, and there."""
    for schedule in PUT_OFF:
        model, optimizer = make(Net)
        expected, expected_optimizer = make(Net)
        for step in range(2):
            one(expected, expected_optimizer, rank, step, lambda model=expected: average_by_hand(model))
        with attached(model, optimizer, schedule, 256) as handle:
            for step in range(2):
                one(model, optimizer, rank, step)
            assert isinstance(handle.engine, NextForward)
        same(model, expected, schedule)
        for trained, step in ((expected, None), (model, schedule)):
            trained.zero_grad()
            torch.manual_seed(0)
            with attached(trained, optimizer, step, 256) if step else contextlib.nullcontext():
                nn.functional.cross_entropy(trained(batch(3, rank)[0]), batch(3, rank)[1]).backward()
        average_by_hand(expected)
        for (name, a), (_, b) in zip(model.named_parameters(), expected.named_parameters(), strict=True):
            assert (a.grad is None) == (b.grad is None), name
            assert a.grad is None or torch.allclose(a.grad, b.grad, rtol=1e-5, atol=1e-6), name


def one_order_on_every_rank(rank: int, world: int) -> None:
    """What is launched is the same on every rank, whatever each of them leaves out."""
    names = ("all_reduce",)
    for schedule in PUT_OFF:
        calls: list[tuple[str, int]] = []
        originals = {name: getattr(dist, name) for name in names}

        def counting(name: str, calls: list[tuple[str, int]] = calls, originals: dict[str, Any] = originals) -> Any:
            def call(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
                if kwargs.get("async_op"):
                    calls.append((name, tensor.data_ptr() and tensor.numel()))
                return originals[name](tensor, *args, **kwargs)

            return call

        class Counted(Exchange):
            def __init__(
                self, group: Any, sends: Any, receives: Any, tag: int, calls: list[tuple[str, int]] = calls
            ) -> None:
                calls.append((f"exchange {tag}", sends[0][1].numel()))
                super().__init__(group, sends, receives, tag)

        model, optimizer = make(Net)
        for name in names:
            setattr(dist, name, counting(name))
        dear_module.Exchange = Counted  # type: ignore[misc]
        try:
            with attached(model, optimizer, schedule, 128):
                for step in range(5):
                    one(model, optimizer, rank, step)
        finally:
            for name in names:
                setattr(dist, name, originals[name])
            dear_module.Exchange = Exchange  # type: ignore[misc]
        everyone: list[Any] = [None] * world
        dist.all_gather_object(everyone, calls)
        assert all(other == calls for other in everyone), schedule
        assert len(calls) % 5 == 0
        assert len(calls) >= 5 * (6 if schedule == "dear" else 10), (schedule, len(calls))


SCENARIOS = {
    f.__name__: f
    for f in (plain, without_a_plan, small_parts_in_a_strange_order, buckets_are_complete_when_they_go,
              every_optimizer_ends_in_the_bits_of_a_whole_step,
              settings_are_those_of_the_step, accumulation, clipping_and_grad_scaler, used_on_some_ranks,
              what_reads_parameters_between_steps_gets_new_ones, two_forwards_before_a_backward, checkpointed,
              others_collectives_do_not_get_between, updates_wait_for_the_forward_pass, refusals,
              detach_leaves_nothing, detach_completes_the_last_step, one_order_on_every_rank)
}  # fmt: skip

if __name__ == "__main__":
    sys.exit(run_scenarios(SCENARIOS))
