"""Training loops that would train wrongly in silence, and are served or refused: one scenario each, on every rank."""

from __future__ import annotations

import copy
import itertools
import re
import sys
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from schedule_training import average_by_hand, equal_on_all_ranks, run_scenarios
from torch import Tensor, nn

import xbench
from xbench.errors import UsageError
from xbench.schedules.base import Handle

PUT_OFF = ("dear", "priority")
SCHEDULES = ("wfbp", "single", *PUT_OFF, "ddp")


class Net(nn.Module):
    """Two layers. `inner`: the first forward pass with gradients runs a backward pass of its own."""

    def __init__(self, inner: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        if self.inner:
            self.inner = False
            self(x).square().mean().backward()
            self.zero_grad()
        return self.second(self.first(x).relu())


def made(seed: int = 0) -> tuple[Net, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = Net()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def refused(sentence: str) -> pytest.RaisesExc[UsageError]:
    """The block ends with a UsageError that has this sentence in it."""
    return pytest.raises(UsageError, match=re.escape(sentence))


def loss_of(call: nn.Module, step: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
    loss: Tensor = call(torch.randn(4, 6, generator=generator)).square().mean()
    return loss


def steps(handle: Handle, optimizer: torch.optim.Optimizer, count: int = 3) -> None:
    for step in range(count):
        optimizer.zero_grad()
        loss_of(handle.model, step).backward()
        optimizer.step()


def refuses(
    sentence: str,
    schedules: Iterable[str],
    use: Callable[[Net, torch.optim.Optimizer, Handle], object] = lambda *_: None,
    *,
    before: Callable[[Net, torch.optim.Optimizer], object] = lambda model, optimizer: None,
    **given: Any,
) -> None:
    """Each schedule refuses a use of the model, or the model as it was `before` attach."""
    for schedule in schedules:
        model, optimizer = made()
        before(model, optimizer)
        with refused(sentence), xbench.attach(model, optimizer, schedule=schedule, **given) as handle:
            use(model, optimizer, handle)


def ranks_that_start_apart_are_refused(rank: int, world: int) -> None:
    for schedule in SCHEDULES:
        model, optimizer = made(seed=rank)
        with refused("ranks start with different parameters: 'first.weight' and 3 more"):
            xbench.attach(model, optimizer, schedule=schedule, wait="step")


def statistics_of_each_rank_may_differ(rank: int, world: int) -> None:
    model, optimizer = made()
    model.register_buffer("mean", torch.full((2,), float(rank)))
    xbench.attach(model, optimizer, schedule="wfbp").detach()
    assert model.mean.tolist() == [rank, rank]


def broadcast_makes_ranks_equal(rank: int, world: int) -> None:
    for schedule in SCHEDULES:
        model, optimizer = made(seed=rank)
        model.register_buffer("offset", torch.full((2,), float(rank)))
        if schedule != "ddp":  # it sends buffers in each forward pass, and not those of every dtype
            for dtype in (torch.int16, torch.uint16, torch.float8_e4m3fn, torch.complex64, torch.bool):
                model.register_buffer(str(dtype).removeprefix("torch."), torch.tensor(rank).to(dtype))
        with xbench.attach(model, optimizer, schedule=schedule, wait="step", broadcast=True) as handle:
            steps(handle, optimizer)
        equal_on_all_ranks(model, schedule)
        assert model.offset.tolist() == [0.0, 0.0]
        assert not any(buffer.to(torch.complex64).any() for buffer in model.buffers())


def sparse_gradients_are_refused(rank: int, world: int) -> None:
    def with_table(model: Net, optimizer: torch.optim.Optimizer) -> None:
        model.table = nn.Parameter(torch.ones(10, 3))
        optimizer.add_param_group({"params": [model.table]})

    def use(model: Net, optimizer: torch.optim.Optimizer, handle: Handle) -> None:
        rows = nn.functional.embedding(torch.tensor([1, 2]), model.table, sparse=True)
        (loss_of(handle.model) + rows.sum()).backward()

    refuses("parameter 'table' has a sparse gradient", ("wfbp", "single", "dear"), use, before=with_table, wait="step")


def a_backward_pass_inside_forward(rank: int, world: int) -> None:
    for schedule in ("wfbp", "dear", "priority"):
        model, optimizer = made()
        model.inner = True
        if schedule != "wfbp":
            with refused("a backward pass ran inside it"), xbench.attach(model, optimizer, schedule=schedule) as handle:
                loss_of(handle.model)
            continue
        expected, by_hand = made()
        with xbench.attach(model, optimizer, schedule=schedule) as handle:
            loss_of(handle.model).backward()
        optimizer.step()
        loss_of(expected).backward()
        average_by_hand(expected)
        by_hand.step()
        assert torch.equal(model.first.weight, expected.first.weight)


def a_pass_after_one_that_raised_is_refused(rank: int, world: int) -> None:
    class Trap(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, *grads: Tensor) -> Tensor:
            raise MemoryError("planted")

    for schedule in ("wfbp", "single", "dear"):
        model, optimizer = made()
        with (
            refused("the last backward pass raised an error"),
            xbench.attach(model, optimizer, schedule=schedule, process_group=dist.new_group()) as handle,
        ):
            loss = model.second(Trap.apply(model.first(torch.ones(4, 6)).relu())).sum()
            with pytest.raises(MemoryError):
                loss.backward()
            loss_of(handle.model).backward()


def two_passes_over_different_layers_are_refused(rank: int, world: int) -> None:
    def use(model: Net, optimizer: torch.optim.Optimizer, handle: Handle) -> None:
        model.first(torch.ones(4, 6)).sum().backward()
        model.second(torch.ones(4, 8)).sum().backward()

    refuses("gradients are used before they are averaged", ("wfbp", "single"), use, wait="step")


def gradients_in_flight_are_refused(rank: int, world: int) -> None:
    """A GradScaler and clipping before `synchronize`; afterwards both are served."""
    words = "gradients are used before they are averaged"
    cases = [*itertools.product(("wfbp", "single", "optimal"), (False, True)), *((name, False) for name in PUT_OFF)]
    for schedule, fused in cases:
        model, _ = made()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        plan = [[name] for name, _ in model.named_parameters()]
        with xbench.attach(model, optimizer, schedule=schedule, plan=plan, wait="step") as handle:
            uses = (scaler.unscale_, scaler.step, lambda _: nn.utils.clip_grad_norm_(model.parameters(), 0.1))  # noqa: B023
            for step, use in enumerate(uses[-1:] * 2 if schedule in PUT_OFF else uses):
                optimizer.zero_grad()
                scaler.scale(loss_of(handle.model, step)).backward()
                with refused(words):
                    use(optimizer)
                handle.synchronize()
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                scaler.step(optimizer)
                scaler.update(4.0)
        equal_on_all_ranks(model, schedule)


def an_object_that_holds_an_optimizer(rank: int, world: int) -> None:
    class Holder:
        def __init__(self, inner: torch.optim.Optimizer) -> None:
            self.inner, self.param_groups = inner, inner.param_groups

    model, optimizer = made()
    with refused("Holder takes no step hooks"):
        xbench.attach(model, Holder(optimizer), schedule="wfbp", wait="step")  # type: ignore[arg-type]
    xbench.attach(model, Holder(optimizer), schedule="wfbp").detach()  # type: ignore[arg-type]


def passes_of_the_model_itself(rank: int, world: int) -> None:
    """A schedule of DDP sends nothing of them: refused with gradients, unless the model is frozen."""
    plan = [[name] for name, _ in made()[0].named_parameters()]
    for schedule in ("ddp", "ddp-tuned", "zero1"):
        model, optimizer = made()
        with xbench.attach(
            model, optimizer, schedule=schedule, plan=plan if schedule == "ddp-tuned" else None
        ) as handle:
            with refused("sends gradients only of passes through handle.model"):
                loss_of(model)
            with torch.no_grad():
                loss_of(model)
            model.requires_grad_(False)
            loss_of(model)
            model.requires_grad_(True)
            loss_of(handle.model).backward()
            optimizer.step()
            copied = copy.deepcopy(model)
        equal_on_all_ranks(model, schedule)
        loss_of(copied).backward()
        loss_of(model).backward()


def parameters_that_are_frozen_under_ddp(rank: int, world: int) -> None:
    """DDP would wait for their gradients, and leave the rest of their bucket unaveraged until it raises."""
    for schedule in ("ddp", "zero1"):
        for unused in (False, True):
            model, optimizer = made()
            with xbench.attach(model, optimizer, schedule=schedule, unused_parameters=unused) as handle:
                loss_of(handle.model).backward()
                model.second.requires_grad_(False)
                optimizer.step()
                optimizer.zero_grad()
                if not unused:
                    with refused("parameter 'second.weight' was frozen after the schedule was attached"):
                        loss_of(handle.model, 1)
                    with handle.no_sync():
                        loss_of(handle.model, 1).backward()
                    model.second.requires_grad_(True)
                loss_of(handle.model, 1).backward()
                optimizer.step()
            equal_on_all_ranks(model, schedule)


class Centred(Net):
    """A buffer that is made from the batch, read in forward, and one that is not changed."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(6))
        self.register_buffer("places", torch.arange(6.0))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int8))
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.centre.lerp_(x.mean(0), 0.5)  # type: ignore[operator]
            self.seen += 1  # type: ignore[operator]
        return self.second(self.norm(self.first(x - self.centre + self.places)).relu())


def buffers_that_are_made_from_the_batch(rank: int, world: int) -> None:
    """With buffers="broadcast" a schedule trains what DDP does. Else the first pass warns of them, by name."""
    trained = {}
    for schedule in (*reversed(SCHEDULES), "fsdp"):
        torch.manual_seed(0)
        model = Centred()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        with xbench.attach(model, optimizer, schedule=schedule, buffers="broadcast") as handle:
            steps(handle, optimizer)
        trained[schedule] = model
        pairs = zip(model.parameters(), trained["ddp"].parameters(), strict=True)
        assert all(torch.allclose(one, other, atol=1e-6) for one, other in pairs), schedule
        assert not any(hooks for hooks in (model._forward_pre_hooks, model._forward_hooks))
    for schedule, kind, expected in (
        ("wfbp", Centred, ["centre"]), ("dear", Centred, ["centre"]), ("fsdp", Centred, ["centre"]),
        ("ddp", Centred, []), ("wfbp", Net, []),
    ):  # fmt: skip
        model = kind()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with (
            warnings.catch_warnings(record=True) as said,
            xbench.attach(model, optimizer, schedule=schedule, broadcast=True) as handle,
        ):
            warnings.simplefilter("always")
            with torch.no_grad():
                handle.model(torch.ones(4, 6))
            steps(handle, optimizer, 2)
        named = [str(one.message) for one in said if "the forward pass changes buffer" in str(one.message)]
        assert len(named) == len(expected), (schedule, named)
        assert all(f"buffer '{name}', " in text for name, text in zip(expected, named, strict=True)), named


def models_that_average_already_are_refused(rank: int, world: int) -> None:
    model, _ = made()
    with refused("the model is wrapped in DistributedDataParallel"):
        xbench.attach(nn.parallel.DistributedDataParallel(model), schedule="wfbp")
    from torch.distributed.fsdp import fully_shard

    model, _ = made()
    fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (world,)))
    with refused("parameter 'first.weight' is a DTensor"):
        xbench.attach(model, schedule="wfbp")


def gradients_of_no_backward_pass_are_refused(rank: int, world: int) -> None:
    """As in pytorch/pytorch#63929. An optimizer need not be handed over for that."""
    for schedule, given in itertools.product(SCHEDULES, (True, False)):
        if schedule in PUT_OFF and not given:
            continue
        model, optimizer = made()
        with xbench.attach(model, optimizer if given else None, schedule=schedule) as handle:
            gradients = torch.autograd.grad(loss_of(handle.model), list(model.parameters()))
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.grad = gradient
            with refused("parameter 'first.weight' has a gradient, and no backward pass"):
                optimizer.step()


def hooks_of_nodes_are_refused(rank: int, world: int) -> None:
    kept = []

    def hook(model: Net, optimizer: torch.optim.Optimizer) -> None:
        node = model.first.bias.expand_as(model.first.bias).grad_fn.next_functions[0][0]
        kept.append((node, node.register_hook(lambda *_: None)))

    refuses("AccumulateGrad node of parameter 'first.bias'", ("wfbp", "single", *PUT_OFF), before=hook)


def models_that_are_wrapped_later_are_refused(rank: int, world: int) -> None:
    def use(model: Net, optimizer: torch.optim.Optimizer, handle: Handle) -> None:
        loss_of(nn.parallel.DistributedDataParallel(handle.model)).backward()

    sentence = "the model is wrapped in DistributedDataParallel"
    refuses(sentence, ("wfbp",), use)
    refuses(sentence, ("single", *PUT_OFF), use, wait="step")


def a_model_inside_the_forward_pass_of_another_one_is_served(rank: int, world: int) -> None:
    """It is no part of the module that DistributedDataParallel has wrapped."""

    class Outer(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))
            self.others = (inner,)

        def forward(self, x: Tensor) -> Tensor:
            return self.scale * self.others[0](x)

    model, optimizer = made()
    with xbench.attach(model, optimizer, schedule="wfbp") as handle:
        loss_of(nn.parallel.DistributedDataParallel(Outer(handle.model))).backward()
        optimizer.step()
    equal_on_all_ranks(model, "inside another one")


def others_in_the_optimizer_are_told(rank: int, world: int) -> None:
    """Of a head beside the attached model, at attach or when it joins the optimizer."""
    for schedule in SCHEDULES:
        model, _ = made()
        head = nn.Linear(3, 2)
        optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)
        with pytest.warns(UserWarning, match=r"2 trainable parameter\(s\) .* first of shape \(2, 3\)"):
            xbench.attach(model, optimizer, schedule=schedule).detach()
    model, optimizer = made()
    with xbench.attach(model, optimizer, schedule="wfbp") as handle:
        optimizer.add_param_group({"params": list(head.parameters())})
        with pytest.warns(UserWarning, match="2 trainable"):
            head(handle.model(torch.ones(4, 6))).sum().backward()


if __name__ == "__main__":
    sys.exit(run_scenarios(globals()))
