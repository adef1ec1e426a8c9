"""Random training loops under every schedule, on every rank: they train as by hand, or are refused.

A draw says who calls which model, and what else happens to the model: it is saved, loaded, copied, replaced, hooked,
frozen or read, by all ranks or by rank 0 alone. In one loop of three the model or the loop itself is unusual. The same
loop also runs with gradients averaged by hand. Each use has the same result in both, and both train the same network,
or the schedule refuses on every rank. A use by rank 0 alone may be refused on rank 0 alone; the other ranks then end
with an error of their collective. `SILENT_IN_DDP` lists the exceptions. A case is drawn from its seed alone, so that
all ranks draw the same one.

Arguments: first seed, number of cases.
"""

from __future__ import annotations

import contextlib
import random
import sys
import warnings
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from schedule_training import average_by_hand, buckets_of, run_scenarios
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from uses_in_loops import BEFORE, BY_ONE, PLAIN, POINTS, USES, Loop, Net, Shape, batch, optimizer_of

import xbench
from xbench.errors import XbenchError
from xbench.records import Plan
from xbench.schedules.served_parameters import trainable

STEPS = 4
DDP = ("ddp", "ddp-tuned", "zero1", "auto")
SHARDED = ("fsdp", "replicate")
PUT_OFF = ("dear", "priority")
SCHEDULES = (*DDP, "wfbp", "wfbp", "single", *PUT_OFF, *SHARDED)
OF_SHAPES = ("wfbp", "single", "optimal", "mgwfbp", "ddp", *PUT_OFF)
LIMIT = timedelta(seconds=3)
"""How long a collective waits for a rank that refused alone."""


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

    `buffer`: 'still', 'moving', or 'moving, broadcast', where `attach` is asked to broadcast it. `closure`: the
    optimizer calls the passes. `start`: whether ranks have equal parameters, or `attach` is asked to broadcast them.
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
    shape: Shape = PLAIN
    closure: bool = False
    start: str = "equal"

    @property
    def leaves_out(self) -> bool:
        """True if a parameter may get no gradient."""
        return self.shape.unused != "nothing" or self.shape.gradless


SILENT_IN_DDP = {
    "gradients_by_grad": DDP,  # no hook of DDP sees them; where a loop does it twice, it is refused
    "a_part_is_called": DDP,  # its reducer is prepared in the wrapper's forward pass alone
    "hooked_on_its_node": SCHEDULES,  # the hook runs after the gradient was copied to be sent
}
"""Uses that DDP trains wrongly without a word, as `ddp_is_silent` shows, with the schedules that do, too."""


def drawn(seed: int) -> Case:
    """The case of this seed whose model is plain. Most have one or two uses."""
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


def drawn_shape(seed: int) -> Case:
    """The case of this seed whose model or loop is unusual: features are rare enough that most have two or three."""
    draw = random.Random(seed)

    def rarely(likely: Any, *others: Any) -> Any:
        return likely if draw.random() < 0.85 else draw.choice(others)

    def at_each_step(name: str, at: str) -> tuple[Use, ...]:
        return tuple(Use(name, at, step, "all", settled=True) for step in range(STEPS))

    optimizer = rarely("SGD", "AdamW", "Adagrad", "LBFGS")
    uses = at_each_step("accumulated", "zeroed") * rarely(0, 1, 2)
    uses += at_each_step("clipped", "backward") * rarely(0, 1)
    return Case(
        schedule=draw.choice(OF_SHAPES),
        wait=draw.choice(["backward", "step"]),
        optimizer=optimizer,
        caller="handle",
        before="nothing",
        zeroes="to none",
        rate=1.0,
        buffer="still",
        uses=uses,
        shape=Shape(
            frozen=rarely("nothing", "head", "stem", "one bias"),
            checkpointed=draw.choice(["reentrant", "no", "without reentry"]),
            tied=rarely(False, True),
            unused=rarely("nothing", "everywhere", "on rank 1", "at odd steps"),
            gradless=rarely(False, True),
        ),
        closure=rarely(optimizer == "LBFGS", True),
        start=rarely("equal", "unequal", "broadcast"),
    )


def is_served_by_all(case: Case) -> bool:
    """True for a loop that no schedule may refuse: reads after `finish`, loads, clips after `synchronize`.

    Torch's DDP does not take nested passes together with unused or tied parameters.
    """
    settled = {
        ("stepped", name)
        for name in ("state_dict", "saved", "copied", "vector", "moments", "moving_average", "optimizer_saved")
    }
    settled |= {("backward", "clipped"), ("stepped", "loaded"), ("stepped", "clamped"), ("stepped", "validated")}
    settled |= {("zeroed", "accumulated")} if case.schedule in OF_SHAPES else set()
    if case.start == "unequal" or (case.closure and case.schedule in PUT_OFF):
        return False
    if case.shape.checkpointed == "reentrant" and (case.shape.tied or case.schedule == "ddp"):
        return False
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
        loop.model.step = step  # type: ignore[assignment]
        point("start", step)

        def closure(step: int = step) -> Tensor:
            if case.zeroes == "of the model":
                loop.call.zero_grad()
            elif case.zeroes != "never":
                loop.optimizer.zero_grad(set_to_none=case.zeroes == "to none")
            point("zeroed", step)
            loss = loop.loss(batch(step))
            loss.backward()
            loop.average()
            point("backward", step)
            return loss

        if case.closure:
            loop.optimizer.step(closure)  # type: ignore[arg-type]
        else:
            closure()
            loop.optimizer.step()
        for group in loop.optimizer.param_groups:
            group["lr"] *= case.rate
        point("stepped", step)


def nothing() -> None:
    """The loop by hand has nothing to settle."""


def made(case: Case) -> Loop:
    torch.manual_seed(5)
    model = Net(case.shape, moves=case.buffer != "still")
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
    loop.wrapper = loop.call = nn.parallel.DistributedDataParallel(
        loop.model, process_group=group, find_unused_parameters=case.leaves_out
    )
    loop.no_sync = loop.wrapper.no_sync
    train(loop, case, {})
    return loop


def trained_by_schedule(case: Case, group: dist.ProcessGroup | None) -> Loop:
    loop = made(case)
    loop.group = group
    if case.start != "equal" and dist.get_rank() == 1:
        with torch.no_grad():
            loop.model.blocks[1][0].weight.add_(0.5)  # type: ignore[index, union-attr, operator]
    plan: Any = None
    if case.schedule in ("optimal", "mgwfbp"):
        plan = buckets_of(loop.model, case.schedule)
    elif case.schedule in ("auto", "ddp-tuned", "single"):
        plan = [[*reversed(trainable(loop.model))]]
    if case.schedule == "auto":  # a tuned file or a plan may choose DDP itself
        nbytes = [sum(4 * parameter.numel() for parameter in loop.model.parameters())]
        plan = Plan(mode="auto", carrier="ddp", buckets=plan, bucket_bytes=nbytes, predicted_step_s=0.0,
                    predicted_exposed_s=0.0)  # fmt: skip
    with contextlib.ExitStack() as stack:

        def attach() -> None:
            stack.close()
            handle = xbench.attach(
                loop.model, loop.optimizer, schedule=case.schedule, wait=case.wait, process_group=group,  # type: ignore[arg-type]
                plan=plan, unused_parameters=case.leaves_out, broadcast=case.start == "broadcast",
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
            if isinstance(a, DTensor):  # it says that it is a part
                cut = any(placement.is_shard() for placement in a.placements)
                a, b = a.to_local(), b.chunk(dist.get_world_size())[dist.get_rank()] if cut else b
            if a.shape != b.shape or not torch.allclose(a.detach().to(b.dtype), b.detach(), rtol=1e-5, atol=1e-6):
                off = float((a - b).detach().abs().max()) if a.shape == b.shape else float("nan")
                return f"{what} is off by {off:.1e}"
    return ""


def on_this_rank(case: Case, expected: Loop, group: dist.ProcessGroup | None) -> str:
    """Return how the loop ended here: 'trained: DIGEST', 'refused: …', 'warned: …', 'raised …' or 'WRONG …'."""
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
    whole = torch.cat([parameter.detach().flatten() for parameter in loop.model.parameters()])
    return f"WRONG: {wrong}" if wrong else f"trained: {zlib.crc32(whole.numpy().tobytes())}"


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
        return "trained" if len({*ends}) == 1 else "WRONG"  # ranks are apart
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
    """All cases, of a shape at every second seed, and then how many of each schedule ended how."""
    ends: Counter[tuple[str, str]] = Counter()
    wrong = 0
    seeds = range(FIRST, FIRST + COUNT)
    for seed, case in [*((seed, drawn(seed)) for seed in seeds), *((seed, drawn_shape(seed)) for seed in seeds[::2])]:
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
    assert not wrong, f"{wrong} of {sum(ends.values())} loops are wrong"
    trained = sum(count for (_, found), count in ends.items() if found == "trained")
    assert trained > sum(ends.values()) / 4, "too few loops are served for the test to mean much"


if __name__ == "__main__":
    FIRST, COUNT = int(sys.argv[1]), int(sys.argv[2])
    sys.argv[1:] = []
    sys.exit(run_scenarios(globals()))
