"""Errors in a rank: their description, and modes that a job's model or ranks cannot run.

The description is the line of the user's code that raised the error, and its message. The rank writes both to its
journal, and the parent makes a sentence of them.

A mode that cannot be run fails, and the others continue. Ranks that took different branches would wait for each other
for ever. So a mode that fails on one rank is left out on all. Ranks agree while no collective of the mode is in
progress. That is after attaching, and after a parity check or a block that ended with an error that all ranks raise
alike: a schedule's UsageError, or one of torch.compile. `runs.launch_policy` handles memory that runs out within a
step."""

from __future__ import annotations

import os
import re
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist

from xbench.errors import UsageError, WorkloadError, XbenchError
from xbench.gpu_errors import lower_what, shortage_in
from xbench.host_tuning import raise_gloo_threads
from xbench.modes import mode_info
from xbench.rank.events import ModeFailed, RankFailed, UnitsWrapped
from xbench.rank.session import Session, noted
from xbench.rank.store import marker, put_everywhere
from xbench.schedules.base import Handle
from xbench.spec import ModeSpec, RunSpec
from xbench.torch_compile import failed_to_compile

MOST = 1200
"""Maximum length of an error's text [characters]: DDP's longest message, with the indices of a hundred parameters."""

_STACK = re.compile(
    r"\s*(?:Exception raised from|C\+\+ CapturedTraceback|frame #\d+:|To execute this test|"
    r"CUDA kernel errors might be asynchronously).*",
    re.DOTALL,
)


def message_of(error: BaseException) -> str:
    """Return 'ValueError: shapes differ', in one line without torch's C++ frames.

    If the error has no text, return its type alone.
    """
    kind = type(error).__name__
    text = " ".join(_STACK.sub("", str(error)).split())
    return f"{kind}: {shortened(text)}" if text else kind


def shortened(text: str, most: int = MOST) -> str:
    """Return the text, or as many whole words of it as fit, and an ellipsis."""
    if len(text) <= most:
        return text
    return text[:most].rpartition(" ")[0] + " …"


def place_of(error: BaseException) -> str | None:
    """Return 'train.py:12', the innermost line of the user's code that an error passed through; None if there is none.

    Code is the user's if it is neither ours nor torch's. Files outside the standard library and installed packages are
    preferred.
    """
    ours = (str(Path(__file__).parents[1]) + os.sep, str(Path(torch.__file__).parent) + os.sep, "<")
    installed = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(ours)]
    own = [frame for frame in frames if not frame.filename.startswith(installed)] or frames
    return f"{Path(own[-1].filename).name}:{own[-1].lineno}" if own else None


def failure_of(run: RunSpec, job: int, error: BaseException, under: str | None = None) -> RankFailed:
    """Return the event of an error that ends a rank of this job. `under`: the mode that was attached."""
    workload = run.workloads[job]
    said = shortage_in(workload, error)
    return RankFailed(
        message=message_of(error),
        place=place_of(error),
        kind=type(error).__name__,
        traceback="".join(traceback.format_exception(error)),
        told=str(error) if isinstance(error, XbenchError) else None,
        said=said,
        hint=lower_what(workload) if said is not None else getattr(error, "hint", None),
        short_in=under if said is not None else None,
    )


# --- modes that are refused ------------------------------------------------------------------------------------------


def refuses(session: Session, mode: ModeSpec, sessions: Sequence[Session]) -> bool:
    """True if a schedule refuses one of the jobs' models, or its buckets do not fit in memory. Tested once per mode.

    The mode is then left out on all ranks and for all jobs. `sessions` are those of this process that run it.
    """
    if mode.text not in session.refused:
        agreed = _agreed(session, mode, _first(_refusal(one, mode) for one in sessions))
        session.barrier(f"everybody has tried {mode.text}")
        session.refused[mode.text] = agreed or session.board.has(marker("refused", mode))
    return session.refused[mode.text]


def _first(reasons: Iterable[str | None]) -> str | None:
    """Return the first reason, after all were asked for: a rank that stopped early would leave others waiting."""
    return next((reason for reason in list(reasons) if reason is not None), None)


@contextmanager
def refusals() -> Iterator[list[str]]:
    """Catch a schedule's UsageError, which it raises on every rank alike, and yield the list that gets its sentence.

    A WorkloadError is raised: the loader has no next batch for any mode, and other ranks may still have one.
    """
    said: list[str] = []
    try:
        yield said
    except WorkloadError:
        raise
    except UsageError as error:
        said.append(str(error))


@contextmanager
def compiler_errors(session: Session, mode: ModeSpec) -> Iterator[None]:
    """Raise UsageError in place of an error of torch.compile, if it fails on every rank of the job."""
    try:
        yield
    except Exception as error:
        note = marker(f"compiler{session.job}", mode)
        if not failed_to_compile(error) or not put_everywhere(session.board, note, session.rank, dist.get_world_size()):
            raise
        raise UsageError(f"torch.compile failed: {message_of(error)}") from error


def attempt(session: Session, mode: ModeSpec, act: Callable[[], None]) -> None:
    """Call `act()`. If a schedule refuses in it (`refusals`), or torch.compile fails on all ranks, the mode has failed.

    An error in a turn ends the run, because the other job waits for its own turn.
    """
    if mode_info(mode.name).sharing == "in turns":
        act()
        said = []
    else:
        with refusals() as said, compiler_errors(session, mode):
            act()
    if said:
        session.snapshot.restore(session.workload)
    if _agreed(session, mode, said[0] if said else None):
        session.refused[mode.text] = True


def settle(session: Session, mode: ModeSpec) -> None:
    """After a parity check or a block, leave out for all jobs and processes a mode that failed for one."""
    if session.program.jobs > 1:
        session.barrier(f"{mode.text} is done")
        if session.board.has(marker("refused", mode)):
            session.refused[mode.text] = True


def _agreed(session: Session, mode: ModeSpec, refused: str | None) -> bool:
    """True if any rank of this job refuses. Collective."""
    if refused is not None:
        session.journal.write(ModeFailed(mode=mode.text, message=refused))
    anyone = torch.tensor([float(refused is not None)], device=session.device)
    dist.all_reduce(anyone, op=dist.ReduceOp.MAX)
    if anyone.item():
        session.board.put(marker("refused", mode), "")
    return bool(anyone.item())


def _refusal(session: Session, mode: ModeSpec) -> str | None:
    """Return why this rank cannot attach a mode, or None.

    A schedule that acts in the forward pass may refuse only in one, so a forward pass is run.
    """
    reference = session.reference
    if reference is not None and reference.ddp_refusal is not None and session.on_ddp(mode):
        return f"DDP cannot train this model: {reference.ddp_refusal}"
    try:
        with session.attach(mode) as handle:
            if session.run.backend == "gloo" and session.run.tunes_ranks:
                raise_gloo_threads()  # threads of groups that the schedule made for itself
            if handle.units and session.rank == 0:
                session.journal.write(UnitsWrapped(mode=mode.text, units=handle.units))
            if mode_info(session.plans[session.job].carrier_of(mode)).refuses_late:
                # Ranks meet next to detach, also those that refuse nothing.
                handle.alike = lambda error: isinstance(error, UsageError) and not isinstance(error, WorkloadError)
                session.note(noted(mode, f"trying {mode.text}"))
                refusal = _refusal_of_forward(session, handle)
                session.note(f"tried {mode.text}")
                return refusal
    except UsageError as error:
        return str(error)
    except (RuntimeError, MemoryError) as error:
        said = shortage_in(session.run.workloads[session.job], error)
        if said is None:
            raise
        return f"rank {session.rank} {said}"
    return None


def _refusal_of_forward(session: Session, handle: Handle) -> str | None:
    """Return the error of a forward pass, which torch's own schedules raise on every rank alike, or None.

    Raises UsageError for a refusal of ours, and RuntimeError or MemoryError where memory runs out.
    """
    try:
        with torch.no_grad():
            session.workload.forward_loss(handle.model)
    except (UsageError, MemoryError):
        raise
    except Exception as error:
        if shortage_in(session.run.workloads[session.job], error) is not None:
            raise
        return f"its first forward pass raised {message_of(error)}"
    return None
