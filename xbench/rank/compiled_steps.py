"""Steps of a mode under torch.compile: steps before the warm-up, in which it compiles, and code that is compiled late.

The first step of an attachment compiles the forward and the backward pass. A later one may compile again, as when
gradients exist for the first time. So the warm-up of a block begins after a step in which no rank compiled anything. If
code is compiled while a block is timed, the record has a warning.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from xbench.modes import mode_info
from xbench.rank.events import Warned
from xbench.rank.session import Session
from xbench.schedules.base import Handle
from xbench.spec import ModeSpec
from xbench.torch_compile import COMPILING, compilations

MAX_STEPS = 10
"""Steps after which a mode that still compiles is timed all the same, with a warning."""


def noted(mode: ModeSpec, what: str) -> str:
    """Return the note of steps of a mode, in which its code may be compiled."""
    return f"{what}: {COMPILING}" if mode_info(mode.carrier).compiled else what


def settle(session: Session, mode: ModeSpec, handle: Handle, what: str) -> None:
    """Take steps until no rank has compiled in one. Do nothing for a mode that is not compiled. Collective."""
    if not mode_info(mode.carrier).compiled:
        return
    for _ in range(MAX_STEPS):
        before = compilations()
        session.train(handle, 1, noted(mode, what), lambda: None)
        compiled = torch.tensor([float(compilations() > before)], device=session.device)
        dist.all_reduce(compiled, op=dist.ReduceOp.MAX)
        if not compiled.item():
            return
    session.journal.write(Warned(message=f"{mode.text}: torch.compile has not come to an end in {MAX_STEPS} steps"))


@contextmanager
def late_compilations(session: Session, mode: ModeSpec, what: str) -> Iterator[None]:
    """Context of the warm-up and the timed steps of a block. Write a warning if code of the mode is compiled in it."""
    before = compilations()
    yield
    late = compilations() - before if mode_info(mode.carrier).compiled else 0
    if late:
        session.journal.write(Warned(message=f"{what}: torch.compile ran again while it was timed ({late} times)"))
