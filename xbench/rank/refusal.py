"""Refusal of modes that a job's model or ranks cannot run: such modes fail, and the others continue.

Ranks that took different branches would wait for each other for ever. So a mode that fails on one rank is left out on
all. Ranks agree while no collective of the mode is in progress. That is after attaching, and after a parity check or a
block that a schedule ended with a UsageError, which it raises on all ranks alike. `runs.oom` handles memory that runs
out within a step.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from xbench.errors import UsageError, XbenchError
from xbench.host.tuning import raise_gloo_threads
from xbench.modes import mode_info
from xbench.rank.program import block_id
from xbench.rank.rank_errors import shortage_of
from xbench.rank.session import Session
from xbench.schedules import defers_update
from xbench.spec import ModeSpec


def refuses(session: Session, mode: ModeSpec) -> bool:
    """True if a schedule refuses one of the jobs' models, or its buckets do not fit in memory. Tested once per mode.

    The mode is then left out on all ranks and for all jobs.
    """
    if mode.text not in session.refused:
        agreed = _agreed(session, mode, _refusal(session, mode))
        session.barrier(f"everybody has tried {mode.text}")
        session.refused[mode.text] = agreed or session.board.has(_marker(mode))
    return session.refused[mode.text]


def attempt(session: Session, mode: ModeSpec, act: Callable[[], None]) -> None:
    """Call `act()`. If a schedule raises a UsageError in it, the mode has failed.

    An error in a turn ends the run, because the other job waits for its own turn.
    """
    refused: str | None = None
    try:
        act()
    except UsageError as error:
        if mode_info(mode.name).sharing == "in turns":
            raise
        refused = _sentence(error)
        session.snapshot.restore(session.workload)
    if _agreed(session, mode, refused):
        session.refused[mode.text] = True


def settle(session: Session, mode: ModeSpec) -> None:
    """After a parity check or a block, leave out for all jobs a mode that failed for one."""
    if session.program.jobs > 1:
        session.barrier(f"{mode.text} is done")
        if session.board.has(_marker(mode)):
            session.refused[mode.text] = True


def _agreed(session: Session, mode: ModeSpec, refused: str | None) -> bool:
    """True if any rank of this job refuses. Collective."""
    if refused is not None:
        session.journal.write("failed", mode=mode.text, message=refused)
    anyone = torch.tensor([float(refused is not None)], device=session.device)
    dist.all_reduce(anyone, op=dist.ReduceOp.MAX)
    if anyone.item():
        session.board.put(_marker(mode), "")
    return bool(anyone.item())


def _marker(mode: ModeSpec) -> str:
    return f"refused-{block_id('', mode)}"


def _refusal(session: Session, mode: ModeSpec) -> str | None:
    """Return why this rank cannot attach a mode, or None.

    A schedule that waits in the forward pass refuses only in one, so a forward pass is run.
    """
    reference = session.reference
    if reference is not None and reference.ddp_refusal is not None and mode_info(mode.carrier).reducer == "ddp":
        return f"DDP cannot train this model: {reference.ddp_refusal}"
    try:
        with session.attach(mode) as handle:
            if session.run.backend == "gloo" and session.run.tunes_ranks:
                raise_gloo_threads()  # threads of groups that the schedule made for itself
            if defers_update(session.plans[session.job].carrier_of(mode)):
                with torch.no_grad():
                    session.workload.forward_loss(handle.model)
    except UsageError as error:
        return _sentence(error)
    except (RuntimeError, MemoryError) as error:
        said = shortage_of(session.run, session.job, error)
        if said is None:
            raise
        return f"rank {session.rank} {said}"
    return None


def _sentence(error: XbenchError) -> str:
    return str(error)
