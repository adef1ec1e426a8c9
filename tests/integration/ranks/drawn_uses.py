"""Random uses of a model and its optimizer in a training loop, under every schedule, on every rank.

A loop draws who calls which model, and what else happens to the model: it is saved, loaded, copied, replaced, hooked,
frozen or read, by all ranks or by rank 0 alone. The same loop also runs with gradients averaged by hand. Each use has
the same result in both, and both train the same network, or the schedule refuses on every rank. A use by rank 0 alone
may be refused on rank 0 alone; the other ranks then end with an error of their collective. `SILENT_IN_DDP` lists the
exceptions.

Arguments: first seed, number of cases.
"""

from __future__ import annotations

import contextlib
import copy
import io
import itertools
import random
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from schedule_training import average_by_hand, run_scenarios
from torch import Tensor, nn

import xbench
from xbench.errors import XbenchError
from xbench.records import Plan

STEPS = 4
DDP = ("ddp", "ddp-tuned", "zero1", "auto")
SHARDED = ("fsdp", "replicate")
SCHEDULES = (*DDP, "wfbp", "wfbp", "single", "dear", "priority", *SHARDED)
LIMIT = timedelta(seconds=3)
"""How long a collective waits for a rank that refused alone."""


class Net(nn.Module):
    """Three layers, which torch's FSDP wraps by block. `moves`: training passes move a buffer, which they also read."""

    def __init__(self, moves: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(2)])
        self.head = nn.Linear(6, 3)
        self.moves = moves
        self.register_buffer("centre", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        if self.moves and self.training and torch.is_grad_enabled():
            self.centre.lerp_(x.mean(0), 0.5)
        x = x - self.centre
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@dataclass(frozen=True)
class Use:
    """A use at a point of a step. `settled`: `synchronize` or `finish` comes first, on all ranks."""

    name: str
    at: str
    step: int
    by: str
    settled: bool


@dataclass(frozen=True)
class Case:
    """One loop. `before`: what the parameters have when the schedule is attached. `rate`: learning rate of each step.

    `buffer`: 'still', 'moving', or 'moving, broadcast', where `attach` is asked to broadcast it.
    """

    schedule: str
    wait: str
    optimizer: str
    caller: str
    before: str
    zeroes: str
    rate: float
    buffer: str
    uses: tuple[Use, ...]


@dataclass
class Loop:
    """The state of a loop; a use may replace each part. `found` keeps the results of its uses.

    `wrapper`: `handle.model`. `call`: the module that runs this step's forward pass, which is `model` or `wrapper`.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    wrapper: nn.Module
    call: nn.Module
    average: Callable[[], None] = lambda: None
    no_sync: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
    attach_again: Callable[[], None] = lambda: None
    group: dist.ProcessGroup | None = None
    is_by_hand: bool = False
    kept: list[Any] = field(default_factory=list)
    mean: list[Tensor] = field(default_factory=list)
    found: list[Tensor] = field(default_factory=list)

    def loss(self, x: Tensor) -> Tensor:
        """The loss of a training pass. By hand, the first rank's buffer is broadcast before it."""
        if self.is_by_hand:
            dist.broadcast(self.model.centre, src=0)  # type: ignore[arg-type]
        loss: Tensor = self.call(x).square().mean()
        return loss


def batch(step: int, rank: int | None = None) -> Tensor:
    rank = dist.get_rank() if rank is None else rank
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(50 * step + rank))


def initial() -> dict[str, Tensor]:
    torch.manual_seed(5)
    return Net().state_dict()


def optimizer_of(model: nn.Module, kind: str) -> torch.optim.Optimizer:
    options = {"SGD": {"momentum": 0.9}, "Adagrad": {}, "AdamW": {"eps": 1e-3}}[kind]
    return getattr(torch.optim, kind)(model.parameters(), lr=0.05, **options)  # type: ignore[no-any-return]


# Reads.


def state_dict(loop: Loop) -> list[Tensor]:
    return [value.clone() for value in loop.model.state_dict().values()]


def saved(loop: Loop) -> list[Tensor]:
    kept = io.BytesIO()
    torch.save(loop.model.state_dict(), kept)
    kept.seek(0)
    return list(torch.load(kept).values())


def saved_whole(loop: Loop) -> list[Tensor]:
    kept = io.BytesIO()
    torch.save(loop.model, kept)
    kept.seek(0)
    return run_alone(torch.load(kept, weights_only=False))


def copied(loop: Loop) -> list[Tensor]:
    return run_alone(copy.deepcopy(loop.model))


def run_alone(model: nn.Module) -> list[Tensor]:
    """A copy of the model is a plain one: it computes, and a backward pass fills its own gradients."""
    model.zero_grad()
    output = model(batch(99, rank=0))
    output.square().mean().backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    return [output.detach(), *(parameter.detach().clone() for parameter in model.parameters()), *gradients]


def validated(loop: Loop) -> list[Tensor]:
    loop.call.eval()
    with torch.no_grad():
        output = loop.call(batch(98, rank=0))
    loop.call.train()
    return [output]


def validated_plainly(loop: Loop) -> list[Tensor]:
    with torch.no_grad():
        return [loop.model(batch(98, rank=0))]


def vector(loop: Loop) -> list[Tensor]:
    return [nn.utils.parameters_to_vector(loop.model.parameters()).detach().clone()]


def gradient_norms(loop: Loop) -> list[Tensor]:
    return [p.grad.norm() for p in loop.model.parameters() if p.grad is not None]


def moments(loop: Loop) -> list[Tensor]:
    return moments_in(loop.optimizer.state_dict())


def moments_in(state_dict: dict[str, Any]) -> list[Tensor]:
    state = state_dict["state"]
    return [value.clone() for _, of in sorted(state.items()) for value in of.values() if torch.is_tensor(value)]


def optimizer_saved(loop: Loop) -> list[Tensor]:
    kept = io.BytesIO()
    torch.save(loop.optimizer.state_dict(), kept)
    kept.seek(0)
    return moments_in(torch.load(kept))


def optimizer_copied(loop: Loop) -> list[Tensor]:
    return moments_in(copy.deepcopy(loop.optimizer).state_dict())


def moving_average(loop: Loop) -> list[Tensor]:
    if not loop.mean:
        loop.mean = [torch.zeros(p.shape) for p in loop.model.parameters()]
    with torch.no_grad():
        for mean, parameter in zip(loop.mean, loop.model.parameters(), strict=True):
            mean.lerp_(parameter, 0.5)
    return [mean.clone() for mean in loop.mean]


# Writes.


def clamped(loop: Loop) -> None:
    with torch.no_grad():
        for parameter in loop.model.parameters():
            parameter.clamp_(-0.2, 0.2)


def loaded(loop: Loop) -> None:
    loop.model.load_state_dict(initial())


def assigned(loop: Loop) -> None:
    loop.model.load_state_dict(initial(), assign=True)


def assigned_with_a_new_optimizer(loop: Loop) -> None:
    assigned(loop)
    loop.optimizer = type(loop.optimizer)(loop.model.parameters(), lr=0.05)  # type: ignore[call-arg]


def new_head(loop: Loop) -> None:
    torch.manual_seed(8)
    loop.model.head = nn.Linear(6, 3)
    loop.optimizer = type(loop.optimizer)(loop.model.parameters(), lr=0.05)  # type: ignore[call-arg]


def optimizer_state_loaded(loop: Loop) -> None:
    loop.optimizer.load_state_dict(copy.deepcopy(loop.optimizer.state_dict()))


def other_dtype(loop: Loop) -> None:
    loop.model.double()
    loop.model.float()


def gradients_halved(loop: Loop) -> None:
    for parameter in loop.model.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(0.5)


def gradient_removed(loop: Loop) -> None:
    loop.model.head.bias.grad = None  # type: ignore[union-attr]


def clipped(loop: Loop) -> None:
    nn.utils.clip_grad_norm_(loop.call.parameters(), 0.1)


def zeros_kept(loop: Loop) -> None:
    loop.optimizer.zero_grad(set_to_none=False)


def frozen(loop: Loop) -> None:
    loop.model.blocks[0].requires_grad_(False)  # type: ignore[operator, index, union-attr]


def frozen_for_a_step(loop: Loop) -> None:
    weight = loop.model.blocks[1][0].weight  # type: ignore[index]
    weight.requires_grad_(not weight.requires_grad)  # type: ignore[operator, union-attr]


def hooked(loop: Loop) -> None:
    loop.model.head.weight.register_hook(lambda gradient: gradient * 0.5)  # type: ignore[operator, union-attr]


def hooked_after_accumulation(loop: Loop) -> None:
    loop.model.head.weight.register_post_accumulate_grad_hook(halve)  # type: ignore[operator, union-attr]


def hooked_on_its_node(loop: Loop) -> None:
    weight: Any = loop.model.head.weight
    node = weight.view_as(weight).grad_fn.next_functions[0][0]
    loop.kept += [node, node.register_hook(lambda *_: halve(weight))]


def halve(parameter: nn.Parameter) -> None:
    if parameter.grad is not None:
        parameter.grad.mul_(0.5)


def stepped_again(loop: Loop) -> None:
    loop.optimizer.step()


def gradients_by_grad(loop: Loop) -> None:
    parameters = [p for p in loop.model.parameters() if p.requires_grad]
    loss = loop.loss(batch(97))
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        parameter.grad = gradient
    if loop.is_by_hand:
        average_by_hand(loop.model)
    loop.optimizer.step()


def another_pass(loop: Loop) -> None:
    loop.loss(batch(96)).backward()
    if loop.is_by_hand:
        average_by_hand(loop.model)


def accumulated(loop: Loop) -> None:
    with loop.no_sync():
        loop.loss(batch(95)).backward()


def wrapped(loop: Loop) -> None:
    if not loop.is_by_hand:
        loop.wrapper = loop.call = nn.parallel.DistributedDataParallel(loop.wrapper, process_group=loop.group)


def attached_again(loop: Loop) -> None:
    loop.attach_again()


def a_part_is_called(loop: Loop) -> None:
    """A backward pass through a layer that the loop calls by itself."""
    loop.model.head(batch(94)).square().mean().backward()  # type: ignore[operator]
    if loop.is_by_hand:
        average_by_hand(loop.model)
    loop.optimizer.step()


READS = (state_dict, saved, saved_whole, copied, validated_plainly, vector, moments, optimizer_saved, optimizer_copied,
         moving_average)  # fmt: skip
ANYWHERE = (*READS, validated, loaded, clamped, assigned, assigned_with_a_new_optimizer, new_head,
            optimizer_state_loaded, other_dtype, frozen, frozen_for_a_step, hooked, hooked_after_accumulation,
            hooked_on_its_node, wrapped, attached_again)  # fmt: skip
AFTER_BACKWARD = (*ANYWHERE, gradient_norms, gradients_halved, gradient_removed, clipped, another_pass, zeros_kept)
AFTER_STEP = (*ANYWHERE, gradient_norms, stepped_again, gradients_by_grad, a_part_is_called, zeros_kept)
POINTS: dict[str, tuple[Callable[[Loop], Any], ...]] = {
    "start": ANYWHERE,
    "zeroed": (*ANYWHERE, accumulated, zeros_kept),
    "backward": AFTER_BACKWARD,
    "stepped": AFTER_STEP,
}
"""The uses at each point of a step: before the first one, before the forward pass, before and after the update."""

USES = {use.__name__: use for use in itertools.chain(*POINTS.values())}
BY_ONE = {*(use.__name__ for use in READS), "gradient_norms"}
"""Uses that rank 0 may do alone, because they change nothing and send nothing under DDP."""

SILENT_IN_DDP = {
    "gradients_by_grad": DDP,  # no hook of DDP sees them; where a loop does it twice, it is refused
    "a_part_is_called": DDP,  # its reducer is prepared in the wrapper's forward pass alone
    "hooked_on_its_node": SCHEDULES,  # the hook runs after the gradient was copied to be sent
}
"""Uses that DDP trains wrongly without a word, as `ddp_is_silent` shows, with the schedules that do, too."""


def mask(model: nn.Module) -> None:
    model.head.weight.register_hook(lambda gradient: gradient * torch.tensor([[1.0], [0.0], [1.0]]))  # type: ignore[operator, union-attr]


def halved(model: nn.Module) -> None:
    model.head.weight.register_post_accumulate_grad_hook(halve)  # type: ignore[operator, union-attr]


def stepped_in_backward(model: nn.Module) -> None:
    """The optimizer in the backward pass: each gradient is used and dropped as soon as it is there."""

    def act(parameter: nn.Parameter) -> None:
        with torch.no_grad():
            parameter.sub_(parameter.grad, alpha=0.05)  # type: ignore[arg-type]
        parameter.grad = None

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(act)


BEFORE = {each.__name__: each for each in (mask, halved, stepped_in_backward)}


def drawn(seed: int) -> Case:
    """The case of this seed. Most have one or two uses."""
    draw = random.Random(seed)

    def use() -> Use:
        at = draw.choice([*POINTS])
        name = draw.choice(POINTS[at]).__name__
        by = "rank 0" if name in BY_ONE and draw.random() < 0.25 else "all"
        return Use(name, at, draw.randrange(STEPS - 1), by, draw.random() < 0.5)

    uses = tuple(use() for _ in range(draw.choice([0, 1, 1, 2, 3])))
    # DDP broadcasts buffers before validation, too, and not before the pass after one under no_sync.
    still = any(use.name in ("accumulated", "validated") for use in uses)
    return Case(
        schedule=draw.choice(SCHEDULES),
        wait=draw.choice(["backward", "step"]),
        optimizer=draw.choice(["SGD", "AdamW", "Adagrad"]),
        caller=draw.choices(["handle", "plain", "by turns"], [8, 1, 1])[0],
        before=draw.choices(["nothing", *BEFORE], [12, 1, 1, 1])[0],
        zeroes=draw.choices(["to none", "of the model", "to zero", "never"], [6, 2, 2, 1])[0],
        rate=draw.choice([1.0, 0.5]),
        buffer="still" if still else draw.choices(["still", "moving", "moving, broadcast"], [6, 1, 1])[0],
        uses=uses,
    )


def is_served_by_all(case: Case) -> bool:
    """True for a loop that no schedule may refuse: reads after `finish`, loads, clips after `synchronize`."""
    settled = {
        ("stepped", name)
        for name in ("state_dict", "saved", "copied", "vector", "moments", "moving_average", "optimizer_saved")
    }
    settled |= {("backward", "clipped"), ("stepped", "loaded"), ("stepped", "clamped"), ("stepped", "validated")}
    fine = all(use.settled and (use.at, use.name) in settled for use in case.uses)
    return fine and case.caller == "handle" and case.before == "nothing"


def train(loop: Loop, case: Case, settle: dict[str, Callable[[], None]]) -> None:
    """Run the loop. `settle`: the call that settles a use at each point."""

    def point(at: str, step: int) -> None:
        for use in case.uses:
            if (use.at, use.step) == (at, step):
                if use.settled:
                    settle.get(at, nothing)()
                if use.by == "all" or dist.get_rank() == 0:
                    loop.found += USES[use.name](loop) or ()

    for step in range(STEPS):
        turned = case.caller == "plain" or (case.caller == "by turns" and step % 2 == 0)
        loop.call = loop.model if turned else loop.wrapper
        point("start", step)
        if case.zeroes == "of the model":
            loop.call.zero_grad()
        elif case.zeroes != "never":
            loop.optimizer.zero_grad(set_to_none=case.zeroes == "to none")
        point("zeroed", step)
        loop.loss(batch(step)).backward()
        loop.average()
        point("backward", step)
        loop.optimizer.step()
        for group in loop.optimizer.param_groups:
            group["lr"] *= case.rate
        point("stepped", step)


def nothing() -> None:
    """The loop by hand has nothing to settle."""


def made(case: Case) -> Loop:
    model = Net(moves=case.buffer != "still")
    model.load_state_dict(initial())
    if case.before in BEFORE:
        BEFORE[case.before](model)
    return Loop(model, optimizer_of(model, case.optimizer), model, model)


def trained_by_hand(case: Case) -> Loop:
    loop = made(case)
    loop.is_by_hand = True
    loop.average = lambda: average_by_hand(loop.model)
    train(loop, case, {})
    return loop


def trained_by_ddp(case: Case, group: dist.ProcessGroup | None) -> Loop:
    loop = made(case)
    loop.group = group
    loop.wrapper = loop.call = nn.parallel.DistributedDataParallel(loop.model, process_group=group)
    train(loop, case, {})
    return loop


def trained_by_schedule(case: Case, group: dist.ProcessGroup | None) -> Loop:
    loop = made(case)
    loop.group = group
    plan: Any = [[name for name, _ in reversed(list(loop.model.named_parameters()))]]
    if case.schedule == "auto":  # a tuned file or a plan may choose DDP itself
        nbytes = [sum(4 * parameter.numel() for parameter in loop.model.parameters())]
        plan = Plan(mode="auto", carrier="ddp", buckets=plan, bucket_bytes=nbytes, predicted_step_s=0.0,
                    predicted_exposed_s=0.0)  # fmt: skip
    with contextlib.ExitStack() as stack:

        def attach() -> None:
            stack.close()
            handle = xbench.attach(
                loop.model, loop.optimizer, schedule=case.schedule, wait=case.wait, process_group=group,  # type: ignore[arg-type]
                plan=plan if case.schedule in ("auto", "ddp-tuned", "single") else None,
                buffers="broadcast" if case.buffer == "moving, broadcast" else None,
            )  # fmt: skip
            stack.enter_context(handle)
            loop.wrapper = loop.call = handle.model
            loop.no_sync = handle.no_sync
            settle.update(start=handle.finish, backward=handle.synchronize, stepped=handle.finish)

        settle: dict[str, Callable[[], None]] = {}
        loop.attach_again = attach
        attach()
        train(loop, case, settle)
    return loop


def difference(loop: Loop, expected: Loop) -> str:
    """The first thing that is not as by hand, or ''."""
    if len(loop.found) != len(expected.found):
        return f"{len(loop.found)} results of uses in place of {len(expected.found)}"
    own, other = list(loop.model.parameters()), list(expected.model.parameters())
    for what, pairs in (("a result", zip(loop.found, expected.found, strict=True)),
                        ("a parameter", zip(own, other, strict=True))):  # fmt: skip
        for a, b in pairs:
            if a.shape != b.shape or not torch.allclose(a.detach().to(b.dtype), b.detach(), rtol=1e-5, atol=1e-6):
                off = float((a - b).detach().abs().max()) if a.shape == b.shape else float("nan")
                return f"{what} is off by {off:.1e}"
    return ""


def on_this_rank(case: Case, expected: Loop, group: dist.ProcessGroup | None) -> str:
    """How the loop ended here: 'trained', 'refused: …', 'warned: …', 'raised …' or 'WRONG …'."""
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            loop = trained_by_schedule(case, group)
    except XbenchError as error:
        return f"refused: {error}"
    except Exception as error:
        return f"raised {type(error).__name__}: {' '.join(str(error).split())[:200]}"
    wrong = difference(loop, expected)
    warned = [str(one.message) for one in said if "buffer 'centre'" in str(one.message)]
    if warned and case.buffer == "still":
        return f"WRONG: {warned[0]}"
    if wrong and warned:
        return f"warned: {warned[0]}"
    return f"WRONG: {wrong}" if wrong else "trained"


def ddp_raises(case: Case) -> bool:
    """True if torch's own DDP ends this loop by an error too, on all ranks."""
    try:
        trained_by_ddp(case, dist.new_group(timeout=LIMIT))
    except Exception:
        raised = torch.ones(1)
    else:
        raised = torch.zeros(1)
    dist.all_reduce(raised)
    return bool(raised == dist.get_world_size())


def verdict(case: Case, ends: list[str]) -> str:
    """'trained', 'refused', 'refused by one', 'warned', 'raised by torch', 'silent in DDP', or 'WRONG'."""
    kinds = [end.partition(":")[0] for end in ends]
    if set(kinds) <= {"trained", "warned"} and "warned" in kinds:
        return "warned"
    if set(kinds) == {"trained"}:
        return "WRONG" if case.before == "stepped_in_backward" else "trained"  # its ranks train apart by hand, too
    if "WRONG" in kinds:
        listed = any(case.schedule in SILENT_IN_DDP.get(use.name, ()) for use in case.uses)
        return "silent in DDP" if listed else "WRONG"
    if is_served_by_all(case):
        return "WRONG"
    if set(kinds) == {"refused"}:
        return "refused"
    alone = any(use.by == "rank 0" for use in case.uses)
    if alone and kinds[0] == "refused" and all(kind.startswith("raised") for kind in kinds[1:]):
        return "refused by one"
    if set(kinds) <= {"raised RuntimeError"}:
        if case.schedule in DDP and ddp_raises(case):
            return "raised by torch"
        if case.schedule in SHARDED and any(use.name in ("gradients_by_grad", "wrapped") for use in case.uses):
            return "raised by torch"  # autograd.grad and DDP do not know parameters in shards
    return "WRONG"


def ddp_is_silent(rank: int, world: int) -> None:
    """Every listed use is wrong under torch's own DDP, which raises nothing."""
    for name in SILENT_IN_DDP:
        at = next(point for point, uses in POINTS.items() if USES[name] in uses)
        case = Case(
            "ddp", "backward", "SGD", "handle", "nothing", "to none", 1.0, "still", (Use(name, at, 0, "all", False),)
        )
        assert difference(trained_by_ddp(case, None), trained_by_hand(case)), name


def uses(rank: int, world: int) -> None:
    """All cases, and then how many of each schedule ended how."""
    ends: Counter[tuple[str, str]] = Counter()
    wrong = 0
    for seed in range(FIRST, FIRST + COUNT):
        case = drawn(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = trained_by_hand(case)
            group = dist.new_group(timeout=LIMIT)
            here = on_this_rank(case, expected, group)
            everywhere: list[Any] = [None] * world
            dist.all_gather_object(everywhere, here)
            found = verdict(case, everywhere)
        ends[case.schedule, found] += 1
        if found == "WRONG":
            wrong += 1
            print(f"seed {seed}: {case}\n  {everywhere}", flush=True)
    for (schedule, found), count in sorted(ends.items()):
        print(f"{schedule}: {count} {found}", flush=True)
    assert not wrong, f"{wrong} of {COUNT} loops are wrong"
    trained = sum(count for (_, found), count in ends.items() if found == "trained")
    assert trained > COUNT / 4, "too few loops are served for the test to mean much"


if __name__ == "__main__":
    FIRST, COUNT = int(sys.argv[1]), int(sys.argv[2])
    sys.argv[1:] = []
    sys.exit(run_scenarios(globals()))
