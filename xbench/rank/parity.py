"""Parity check: whether a schedule trains the same network as DDP. docs/how-it-measures.md says why each part is there.

A reference takes k steps from one saved state (`rank.reference`). Then the schedule takes the same steps on the same
batches, each from the reference's state. After each step parameters must be bitwise equal across ranks, and close to
the reference's relative to the update of that step (`rank.parity_checker`):

    difference(p) = max|a - b| / (max|b - start| + 100 ε max|b| + 10⁻³ U),   U: the largest update of all parameters

with the schedule's a, the reference's b and the dtype's ε. A schedule that omits one small layer's gradient differs by
about 1 here, but invisibly relative to the parameter. The second term is rounding. The third applies with three or more
ranks, for gradients that are zero except for rounding, such as that of a bias which the next batch-norm cancels.

Means take the place of maxima in two cases. Compressed gradients: where ranks nearly cancel, rounding to bf16 may
change the sign of an element's mean, and Adam moves that element the other way. Such elements are few, and a layer that
was omitted is off by 1 in the mean as well. A compiled step (`schedules.compiled`), held to the eager reference with
eager's random numbers and rounding: the order of additions can move an activation across a ReLU's zero. In seven of
torchvision's networks that was up to 0.3 of the largest update, and at most 0.03 in the mean.

Deferred updates (`next_forward`) are judged after `Handle.finish`, then by k steps with a `finish` after each and k
without any: the same bits, or where a repeated step does not give those, as close as to DDP.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import Tensor

from xbench.equal_ranks import digest
from xbench.modes import mode_info
from xbench.rank.events import ParityChecked
from xbench.rank.parity_checker import TOLERANCE, Reference, copies, gathered, largest_difference, same_bits
from xbench.rank.program import whole_cycles
from xbench.rank.reference import checker_of, steps_of
from xbench.rank.session import Session, noted
from xbench.records import RANKS, Parity
from xbench.schedules import cycle_of, defers_update
from xbench.schedules.base import Handle
from xbench.spec import ModeSpec
from xbench.torch_compile import as_eager


def is_partial(mode: ModeSpec) -> bool:
    """True if a mode averages only some of DDP's gradients. Such a mode is checked only for equal ranks."""
    return mode_info(mode.carrier).gradients == "partial"


def gate(session: Session, mode: ModeSpec) -> None:
    """Take k steps of this mode and compare them with `session.reference`. Write the verdict to the journal."""
    steps = session.run.effort.parity_steps
    what = noted(mode, f"gate {mode.text}")
    if is_partial(mode):
        write_verdict(session, mode, agreement(session, mode, whole_cycles(steps, cycle_of(mode))))
        return
    reference = session.reference
    assert reference is not None

    judged = checker_of(session, reference, compiled=mode_info(mode.carrier).compiled)

    def judge() -> None:
        judged.step(session.loss, session.norm)

    def train(handle: Handle) -> None:
        def finished() -> None:
            handle.finish()
            judge()

        session.train(handle, steps, what, finished)

    with as_eager(mode_info(mode.carrier).compiled):
        steps_of(session, mode, train)
    late = None
    if defers_update(session.plans[session.job].carrier_of(mode)) and reference.comparable:

        def end(finish: bool) -> dict[str, Tensor]:
            ends: dict[str, Tensor] = {}

            def run(handle: Handle) -> None:
                session.train(handle, steps, what, handle.finish if finish else lambda: None)
                handle.finish()
                ends.update(copies(session.workload.model.named_parameters()))

            steps_of(session, mode, run)
            return ends

        late = read_too_early(end, reference.states[0], dist.group.WORLD)
    write_verdict(session, mode, explained(judged.verdict(late), reference, mode, on_ddp=session.on_ddp(mode)))


def write_verdict(session: Session, mode: ModeSpec, verdict: Parity) -> None:
    """Write a verdict to the journal."""
    session.journal.write(ParityChecked(mode=mode.text, verdict=verdict))


def explained(verdict: Parity, reference: Reference, mode: ModeSpec, *, on_ddp: bool) -> Parity:
    """Return the verdict with the reference's facts: its power, and a buffer that explains a difference.

    `on_ddp`: whether DDP's reducer sends the gradients, so that buffers are DDP's too.
    """
    found: dict[str, Any] = {"reference": reference.by}
    not_shown = reference.not_shown
    if not_shown is None and mode_info(mode.carrier).compiled:
        not_shown = reference.not_shown_compiled
    if verdict.ok and not_shown is not None:
        found |= {"shown": False, "message": not_shown}
    elif not verdict.ok and reference.buffer is not None and verdict.bitwise_across_ranks and not on_ddp:
        found["message"] = (
            f"the forward pass reads buffer {reference.buffer!r}, which each rank makes from its own batch; DDP "
            f"broadcasts rank 0's before each forward pass, and {mode.text} leaves each rank its own"
        )
    return verdict.model_copy(update=found)


def read_too_early(
    end: Callable[[bool], dict[str, Tensor]], start: dict[str, Tensor], group: dist.ProcessGroup | None
) -> str | None:
    """Return the parameter that changes on any rank if steps are not finished one by one; None if none does.

    `end(finish)` returns the parameters after k steps, each finished or not. Collective: every rank of the group must
    call it.
    """

    def first(a: dict[str, Tensor], b: dict[str, Tensor]) -> str | None:
        mine = next((name for name, value in a.items() if not same_bits(value, b[name])), None)
        return next((name for name in gathered(mine, group) if name is not None), None)

    finished = end(True)
    name = first(end(False), finished)
    if name is None:
        return None
    again = end(True)
    if first(again, finished) is None:
        return name
    worst, _ = largest_difference(end(False), finished, start, reordered=True)
    return None if all(gathered(worst <= TOLERANCE, group)) else name


def agreement(session: Session, mode: ModeSpec, steps: int) -> Parity:
    """Return the verdict on a mode whose gradients are not DDP's: all ranks must have the same bits after each step."""
    digests: dict[str, str] = {}

    def train(handle: Handle) -> None:
        def judge() -> None:
            handle.finish()
            for name, value in session.workload.model.named_parameters():
                digests[name] = digest(value, digests.get(name, ""))

        session.train(handle, steps, f"gate {mode.text}", judge)

    steps_of(session, mode, train)
    everyone = gathered(digests)
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
    )
