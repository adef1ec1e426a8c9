"""Modes that one of the jobs' models, or its ranks, cannot serve: they fail, and the others go on.

Ranks that went different ways would wait for each other for ever, so a mode that fails on one rank is left out on all.
They agree on it where no collective of the mode is under way: after attaching, and after a gate or a block that a
schedule ended with a UsageError, which it raises on all ranks alike. Memory that runs out within a step is another
matter: see `runtime.shortage`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from xbench.errors import UsageError, XbenchError
from xbench.host.tuning import raise_gloo_threads
from xbench.planning.plans import DDP_REDUCER
from xbench.runtime.program import block_id
from xbench.runtime.rank_errors import shortage_of
from xbench.schedules import puts_off
from xbench.spec import ModeSpec

if TYPE_CHECKING:
    from xbench.runtime.worker import Rank


def refuses(rank: Rank, mode: ModeSpec) -> bool:
    """True if a schedule refuses one of the jobs' models, or its buckets find no memory: tried once a mode.

    The mode is then left out on all ranks and for all jobs.
    """
    if mode.text not in rank.refused:
        agreed = _agreed(rank, mode, _refusal(rank, mode))
        rank.barrier(f"everybody has tried {mode.text}")
        rank.refused[mode.text] = agreed or rank.board.has(_marker(mode))
    return rank.refused[mode.text]


def attempt(rank: Rank, mode: ModeSpec, act: Callable[[], None]) -> None:
    """Call `act()`; where a schedule raises a UsageError in it, the mode has failed.

    An error in a turn ends the run, since the other job waits for its own turn.
    """
    refused: str | None = None
    try:
        act()
    except UsageError as error:
        if mode.name == "crossover":
            raise
        refused = _sentence(error)
        rank.snapshot.restore(rank.workload)
    if _agreed(rank, mode, refused):
        rank.refused[mode.text] = True


def settle(rank: Rank, mode: ModeSpec) -> None:
    """After a gate or a block: a mode that failed for one job is left out for all, which meet here."""
    if rank.program.jobs > 1:
        rank.barrier(f"{mode.text} is done")
        if rank.board.has(_marker(mode)):
            rank.refused[mode.text] = True


def _agreed(rank: Rank, mode: ModeSpec, refused: str | None) -> bool:
    """True if any rank of this job refuses. Collective."""
    if refused is not None:
        rank.journal.write("failed", mode=mode.text, message=refused)
    anyone = torch.tensor([float(refused is not None)], device=rank.device)
    dist.all_reduce(anyone, op=dist.ReduceOp.MAX)
    if anyone.item():
        rank.board.put(_marker(mode), "")
    return bool(anyone.item())


def _marker(mode: ModeSpec) -> str:
    return f"refused-{block_id('', mode)}"


def _refusal(rank: Rank, mode: ModeSpec) -> str | None:
    """Why this rank cannot attach a mode, or None. What waits in the forward pass must see one to know."""
    reference = rank.reference
    if reference is not None and reference.ddp_refusal is not None and mode.carrier in DDP_REDUCER:
        return f"DDP cannot train this model: {reference.ddp_refusal}"
    try:
        with rank.attach(mode) as handle:
            if rank.run.over_gloo and rank.run.tunes_ranks:
                raise_gloo_threads()  # of groups that the schedule made for itself
            if puts_off(rank.plans[rank.job].carrier_of(mode)):
                with torch.no_grad():
                    rank.workload.forward_loss(handle.model)
    except UsageError as error:
        return _sentence(error)
    except (RuntimeError, MemoryError) as error:
        said = shortage_of(rank.run, rank.job, error)
        if said is None:
            raise
        return f"rank {rank.rank} {said}"
    return None


def _sentence(error: XbenchError) -> str:
    return str(error)
