"""The correctness gate: does a schedule train the network that DDP trains?

A reference takes k steps from one saved state: DDP, or where DDP cannot train the model, averaging by hand
(`runtime.reference`). Then the schedule takes them on the same batches, each of its steps from where the reference's
own had left off: from three ranks on the order in which an all-reduce adds depends on the buckets, and training
amplifies what that changes, whoever adds. After each step parameters must be bitwise equal across ranks, and close to
the reference's, measured against how far that step moved them (`runtime.differences`):

    difference(p) = max|a - b| / (max|b - start| + 100 ε max|b| + 10⁻³ U),   U: the largest update of all parameters

with the schedule's a, the reference's b and the dtype's ε. The denominator is the update, not the parameter: a schedule
that forgot to send one small layer's gradient differs by about 1 here, and by nothing visible against the parameter
itself. The second term is rounding: one unit in the last place counts for a hundredth. The third is there from three
ranks on alone, for gradients that are zero but for rounding, such as that of a bias which the next batch-norm takes out
again. A layer that is forgotten is then still seen when its update is more than 2·10⁻⁵ of the largest.

After the last step the optimizer's first moment (momentum of SGD, the running mean of Adam) is held to the reference's
by the same formula, with start = 0. It is a fixed sum of all averaged gradients, whose size Adam's updates do not show:
a schedule that sums in place of averaging is seen there.

What a pass is worth depends on the model and on the batches. `runtime.parity_power` lets wrong schedules take the same
steps; where the gate would pass one of them, a schedule that passes is "not shown" to train the same network.

Where gradients are compressed, the reference's steps are taken without compression all the same, and every mode, DDP's
own among them, is judged by the same formula with means in place of maxima, against COMPRESSED_TOLERANCE. Rounding to
bf16 is off by up to 2⁻⁹ of each rank's gradient, so where ranks nearly cancel, an element's mean may have the other
sign, and an optimizer that normalises (Adam) moves that element the other way: the largest difference is then 2,
whatever the schedule. Such elements are few, so the mean hardly moves. A layer that was forgotten, or had another
step's gradients, is off by 1 in the mean as well, and one whose mean over two ranks was taken twice by 0.5. First
moments are not normalised, so their means are held to COMPRESSED_MOMENTUM. Ranks must be bitwise equal as ever.

A schedule that puts updates off into the next forward pass (`next_forward`) is judged after `Handle.finish`, which is
the only moment at which its parameters are those of a step. What it is there for, a forward pass beside gradients that
travel, is then gated by itself: it takes k steps with a `finish` after each and k steps without any, from the same
state. That is the same arithmetic in the same order, so both must end in the same bits; a layer that ran before its
update had come would see to it that they do not. Where a step does not end in the same bits twice either (some kernels
of GPUs), both must agree as closely as with DDP.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from xbench.equal_ranks import digest
from xbench.modes import mode_info
from xbench.records import RANKS, Parity
from xbench.runtime.differences import differences, largest, largest_difference, mean, same_bits, worst_of
from xbench.runtime.program import block_id, whole_cycles
from xbench.runtime.reference import Reference, copies, momentum_of, weighted
from xbench.runtime.snapshot import trained
from xbench.schedules import cycle_of, puts_off
from xbench.schedules.base import Handle
from xbench.spec import ModeSpec
from xbench.workloads.build import Workload

if TYPE_CHECKING:
    from xbench.runtime.worker import Rank

TOLERANCE = 0.02
COMPRESSED_TOLERANCE = 0.25
"""Of means: half of the least that a wrong schedule is off by, and many times what rounding to bf16 is."""

COMPRESSED_MOMENTUM = 0.05
"""Tolerance of means of first moments: ten times the rounding to bf16, where ranks cancel as independent samples do."""


def is_partial(mode: ModeSpec) -> bool:
    """True for a mode that averages other gradients than DDP, so that it can be held to nothing but equal ranks."""
    return mode_info(mode.carrier).gradients == "partial"


def gate(rank: Rank, mode: ModeSpec) -> None:
    """k steps of this mode beside those of `rank.reference`, on the same data; the verdict goes to the journal."""
    steps = rank.run.effort.parity_steps
    what = f"gate {mode.text}"
    if is_partial(mode):
        rank.journal.write("parity", mode=mode.text, **agreement(rank, mode, whole_cycles(steps, cycle_of(mode))))
        return
    reference = rank.reference
    assert reference is not None

    def steps_of(train: Callable[[Handle], None]) -> None:
        def attached() -> None:
            with rank.attach(mode) as handle, weighted(rank):
                train(handle)

        trained(rank.workload, rank.snapshot, attached)

    judged = beside(rank, reference)

    def judge() -> None:
        judged.step(rank.loss)

    if mode_info(mode.name).sharing == "in turns":
        block, pattern = block_id("gate", mode), tuple(range(rank.program.jobs))
        steps_of(
            lambda handle: rank.train_in_turns(handle, block, pattern, steps, what, mark=lambda: None, applied=judge)
        )
    else:

        def alone(handle: Handle) -> None:
            def finished() -> None:
                handle.finish()
                judge()

            rank.train(handle, steps, what, finished)

        steps_of(alone)
    late = None
    if puts_off(rank.plans[rank.job].carrier_of(mode)) and reference.comparable:

        def end(finish: bool) -> dict[str, Tensor]:
            ends: dict[str, Tensor] = {}

            def run(handle: Handle) -> None:
                rank.train(handle, steps, what, handle.finish if finish else lambda: None)
                handle.finish()
                ends.update(copies(rank.workload.model.named_parameters()))

            steps_of(run)
            return ends

        late = read_too_early(end, reference.states[0], dist.group.WORLD)
    verdict = judged.verdict(late)
    rank.journal.write("parity", mode=mode.text, **explained(verdict, reference, mode).model_dump())


def beside(rank: Rank, reference: Reference, *, exact: bool = False) -> Beside:
    """A judgement that is about to begin. `exact`: gradients are not compressed, whatever the run does.

    Verdicts go by the group that is real, also where collectives are emulated.
    """
    return Beside(
        rank.workload,
        reference.states,
        dist.group.WORLD,
        momentum=reference.momentum,
        compressed=rank.run.compress is not None and not exact,
        comparable=reference.comparable,
    )


def explained(verdict: Parity, reference: Reference, mode: ModeSpec) -> Parity:
    """The verdict with what the reference knows: what it is worth, and a buffer that explains a difference."""
    found: dict[str, Any] = {"reference": reference.by}
    if verdict.ok and reference.not_shown is not None:
        found |= {"shown": False, "message": reference.not_shown}
    elif (
        not verdict.ok
        and reference.buffer is not None
        and verdict.bitwise_across_ranks
        and mode_info(mode.carrier).reducer != "ddp"
    ):
        found["message"] = (
            f"the forward pass reads buffer {reference.buffer!r}, which each rank makes from its own batch; DDP "
            f"broadcasts rank 0's before each forward pass, and {mode.text} leaves each rank its own"
        )
    return verdict.model_copy(update=found)


def read_too_early(
    end: Callable[[bool], dict[str, Tensor]], start: dict[str, Tensor], group: dist.ProcessGroup | None
) -> str | None:
    """The parameter that ends otherwise when steps are not finished one by one, on any rank; None if there is none.

    `end(finish)`: parameters after k steps, each finished or not. Collective: every rank of the group must call it.
    """

    def first(a: dict[str, Tensor], b: dict[str, Tensor]) -> str | None:
        mine = next((name for name, value in a.items() if not same_bits(value, b[name])), None)
        found: list[str | None] = [None] * dist.get_world_size(group)
        dist.all_gather_object(found, mine, group=group)
        return next((name for name in found if name is not None), None)

    finished = end(True)
    name = first(end(False), finished)
    if name is None:
        return None
    again = end(True)
    if first(again, finished) is None:
        return name
    worst, _ = largest_difference(end(False), finished, start, reordered=True)
    found = [False] * dist.get_world_size(group)
    dist.all_gather_object(found, worst <= TOLERANCE, group=group)
    return None if all(found) else name


def agreement(rank: Rank, mode: ModeSpec, steps: int) -> dict[str, Any]:
    """What a mode can be held to whose gradients are not DDP's: after each step all ranks have the same bits."""
    digests: dict[str, str] = {}

    def digested() -> None:
        for name, value in rank.workload.model.named_parameters():
            digests[name] = digest(value, digests.get(name, ""))

    def attached() -> None:
        with rank.attach(mode) as handle:

            def judge() -> None:
                handle.finish()
                digested()

            rank.train(handle, steps, f"gate {mode.text}", judge)

    trained(rank.workload, rank.snapshot, attached)
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, digests)
    unequal = [name for name in digests if any(other[name] != digests[name] for other in everyone)]
    return Parity(
        ok=not unequal,
        max_relative_difference=None,
        tolerance=0.0,
        bitwise_across_ranks=not unequal,
        steps=steps,
        worst_parameter=unequal[0] if unequal else None,
        reference=RANKS,
        message=f"ranks disagree on {unequal[0]!r}" if unequal else None,
    ).model_dump()


class Beside:
    """A schedule's steps beside a reference's.

    `states`: the reference's parameters before the first step and after each of its k. `momentum`: its optimizer's
    first moments after the last, by parameter. `comparable` False: parameters are not held to the reference, and go
    their own way; ranks must be equal all the same.
    """

    def __init__(
        self,
        workload: Workload,
        states: Sequence[Mapping[str, Tensor]],
        group: dist.ProcessGroup | None,
        *,
        momentum: Mapping[str, Tensor] | None = None,
        compressed: bool = False,
        comparable: bool = True,
    ) -> None:
        self._workload = workload
        self._states = states
        self._momentum = momentum or {}
        self._group = group
        self._comparable = comparable
        self._size = mean if compressed else largest
        self._tolerance = COMPRESSED_TOLERANCE if compressed else TOLERANCE
        self._momentum_tolerance = COMPRESSED_MOMENTUM if compressed else TOLERANCE
        self._reordered = dist.get_world_size(group) > 2  # a sum of two is the same in either order
        self._taken = 0
        self._differences: dict[str, float] = {}
        self._moments: dict[str, float] = {}
        self._digests: dict[str, str] = {}
        self._lost: tuple[int, float] | None = None

    def step(self, loss: Tensor | None = None) -> None:
        """A step was taken: judge it, and go on from the reference's state. A step too many is left to `verdict`.

        `loss`: the step's, on this rank.
        """
        self._taken += 1
        if self._taken >= len(self._states):
            return
        before, there = self._states[self._taken - 1], self._states[self._taken]
        mine = dict(self._workload.model.named_parameters())
        if loss is not None and self._lost is None and not math.isfinite(float(loss.sum())):
            self._lost = (self._taken, float(loss.sum()))
        if self._comparable:
            self._compare({n: value.detach() for n, value in mine.items()}, there, before)
        with torch.no_grad():
            for n, value in mine.items():
                self._digests[n] = digest(value, self._digests.get(n, ""))
                if self._comparable:
                    value.copy_(there[n])

    def _compare(self, mine: Mapping[str, Tensor], there: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> None:
        found = differences(mine, there, before, reordered=self._reordered, size=self._size)
        for name, value in found.items():
            known = self._differences.get(name, 0.0)
            if not value <= known and not math.isnan(known):
                self._differences[name] = value
        if self._taken < len(self._states) - 1 or not self._momentum:
            return
        moments = momentum_of(self._workload)
        zeros = {name: torch.zeros_like(value) for name, value in self._momentum.items()}
        self._moments = differences(
            {name: moments.get(name, zeros[name]) for name in zeros},
            self._momentum,
            zeros,
            reordered=self._reordered,
            size=self._size,
        )

    def tolerances(self) -> dict[str, float]:
        """Deviation [tolerances] of each parameter on this rank: the larger of its value's and its first moment's."""
        found = {name: value / self._tolerance for name, value in self._differences.items()}
        for name, value in self._moments.items():
            found[name] = max(found.get(name, 0.0), value / self._momentum_tolerance)
        return found

    def verdict(self, late: str | None = None) -> Parity:
        """On every rank alike: the worst rank decides. Collective: every rank of the group must call it.

        `late`: the parameter that was read before its update, if one was; see `read_too_early`.
        """
        steps = len(self._states) - 1
        found: list[Any] = [None] * dist.get_world_size(self._group)
        said = (self._digests, worst_of(self._differences), worst_of(self._moments), self._taken, self._lost)
        dist.all_gather_object(found, said, group=self._group)
        first = found[0][0]
        unequal = [name for name in first if any(rank[0].get(name) != first[name] for rank in found)]
        worst, worst_name = max((rank[1] for rank in found), key=_worse)
        moment, moment_name = max((rank[2] for rank in found), key=_worse)
        message, name = None, worst_name
        taken = next((rank[3] for rank in found if rank[3] != steps), steps)
        lost = next(((number, *rank[4]) for number, rank in enumerate(found) if rank[4] is not None), None)
        if taken != steps:
            message = f"it took {taken} steps in place of {steps}"
        elif lost is not None and self._comparable:
            message = f"the loss of rank {lost[0]} is {lost[2]} at step {lost[1]}, and the reference's is not"
        elif unequal and (self._comparable or lost is None):
            message = f"ranks disagree on {unequal[0]!r}" + (
                f" and {len(unequal) - 1} more" if len(unequal) > 1 else ""
            )
        elif not worst <= self._tolerance:
            message = (
                f"{worst_name!r} differs from the reference's by {worst:.3g} of its update "
                f"(tolerance {self._tolerance:g})"
            )
        elif not moment <= self._momentum_tolerance:
            name = moment_name
            message = (
                f"the averaged gradients of {moment_name!r} differ from the reference's by {moment:.3g} of their size "
                f"(tolerance {self._momentum_tolerance:g})"
            )
        elif late is not None:
            message = f"{late!r} ends otherwise when its update is put off than when each step is finished"
        return Parity(
            ok=message is None,
            max_relative_difference=worst if math.isfinite(worst) and self._comparable else None,
            tolerance=self._tolerance,
            bitwise_across_ranks=not unequal,
            steps=steps,
            worst_parameter=unequal[0] if unequal else late or name,
            message=message,
        )


def _worse(pair: tuple[float, str | None]) -> tuple[bool, float]:
    return math.isnan(pair[0]), pair[0]


def compressed(compress: str) -> str:
    """What the record says of a run whose gradients are compressed."""
    return (
        f"fp32 gradients travel as {compress}, in every mode; the gate compares mean differences with DDP's exact "
        f"steps (tolerance {COMPRESSED_TOLERANCE:g} in place of {TOLERANCE:g} of the largest)"
    )
