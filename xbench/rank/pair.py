"""Phases of two jobs in turns in one process: parity check, timed blocks, recorded turns (`schedules.job_turns`).

The functions take the sessions of one process, by job. All ranks call them together.

Random numbers. The jobs of one process draw from the same generators. In the parity check each job has its own state of
them, which is set before its turn, so that dropout has the masks of the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist

from xbench.modes import mode_info
from xbench.profilers.clock import Clock, Mark
from xbench.rank import parity
from xbench.rank.events import TurnsRecorded
from xbench.rank.program import Phase
from xbench.rank.reference import checker_of, steps_of
from xbench.rank.session import Session
from xbench.rank.snapshot import RandomState
from xbench.rank.timeline_phase import STEPS, steps_to_record
from xbench.schedules.base import Handle
from xbench.schedules.bucket import Work
from xbench.schedules.job_turns import JobTurns, steps_in_turns
from xbench.spec import ModeSpec
from xbench.torch_compile import cut_by_ddp

ROUNDS, WARM_ROUNDS = 4, 2
"""Rounds of turns that are recorded, and rounds of warm-up before them."""


def in_pair(mode: ModeSpec) -> bool:
    """True if a mode has turns of two jobs."""
    return mode_info(mode.name).sharing == "in turns"


def turns_of(
    session: Session, handle: Handle, turns: int, what: str, mark: Callable[[], None] = lambda: None
) -> JobTurns:
    """Return a job's ordinary turns. `what` names the block in notes."""

    def forward_backward() -> None:
        session.note(f"{what}, job {session.job}: computing")
        session.forward_backward(handle)

    def update() -> None:
        session.update(handle)

    return JobTurns(turns, update, forward_backward, mark)


def _take(jobs: Sequence[JobTurns], pattern: Sequence[int], handles: Sequence[Handle]) -> None:
    """Take all turns. After an error, the rank's last note is of the turn that failed: detaching notes nothing."""
    try:
        steps_in_turns(jobs, pattern)
    except BaseException:
        for handle in handles:
            if handle.engine is not None:
                handle.engine.note = None
        raise


# --- parity check ------------------------------------------------------------------------------------------------


def gate(sessions: Sequence[Session], mode: ModeSpec) -> None:
    """Let all jobs take k steps in turns, and compare each with its reference. Write the verdicts to the journal."""
    references = [session.reference for session in sessions]
    judged = [checker_of(session, made) for session, made in zip(sessions, references, strict=True) if made is not None]
    steps, what = sessions[0].run.effort.parity_steps, f"gate {mode.text}"

    def attached(handles: Sequence[Handle]) -> None:
        jobs = [turns_of(session, handle, steps, what) for session, handle in zip(sessions, handles, strict=True)]
        own = [_judged(job, session, checker) for job, session, checker in zip(jobs, sessions, judged, strict=True)]
        _take(own, range(len(sessions)), handles)

    _with_all(sessions, mode, attached, ())
    for session, checker, made in zip(sessions, judged, references, strict=True):
        assert made is not None
        verdict = parity.explained(checker.verdict(), made, mode, on_ddp=session.on_ddp(mode))
        parity.write_verdict(session, mode, verdict)


def _with_all(
    sessions: Sequence[Session],
    mode: ModeSpec,
    train: Callable[[Sequence[Handle]], None],
    handles: tuple[Handle, ...],
) -> None:
    """Call `train` with the mode attached to every job, each from its snapshot's state (`reference.steps_of`)."""
    if len(handles) == len(sessions):
        train(handles)
        return
    steps_of(sessions[len(handles)], mode, lambda handle: _with_all(sessions, mode, train, (*handles, handle)))


def _judged(job: JobTurns, session: Session, checker: Any) -> JobTurns:
    """Return the turns of a job with its own random numbers, and its checker after each update."""

    def update() -> None:
        job.update()
        checker.step(session.loss, session.norm)

    session.random = session.snapshot.random
    return replace(with_own_random(session, job), update=update)


def with_own_random(session: Session, job: JobTurns) -> JobTurns:
    """Return the same turns, each with the job's own state of the generators: `session.random`."""

    def forward_backward() -> None:
        session.random.restore()
        job.forward_backward()
        session.random = RandomState()

    return replace(job, forward_backward=forward_backward)


# --- timed blocks ------------------------------------------------------------------------------------------------


def time_block(sessions: Sequence[Session], phase: Phase, mode: ModeSpec, steps: int, warmup: int) -> None:
    """Time one block: attach, take turns, detach, report. `steps` and `warmup` are rounds of the pattern."""
    lead = sessions[0]
    what = f"round {phase.round + 1} {mode.text}"
    pattern = lead.pattern(mode)
    stamps: list[list[Any]] = [[] for _ in sessions]
    with ExitStack() as stack:
        handles = [attached(stack, session, mode) for session in sessions]
        origins = [session.origin() for session in sessions]
        dist.all_reduce(torch.zeros(1, device=lead.device))
        jobs = []
        for session, handle, own in zip(sessions, handles, stamps, strict=True):
            mark = marking(session.clock, own)
            mark()
            turns = pattern.count(session.job) * (steps + warmup)
            jobs.append(turns_of(session, handle, turns, what, mark))
        _take(jobs, pattern, handles)
        lead.device_idle()
    for session, origin, own in zip(sessions, origins, stamps, strict=True):
        session.workload.optimizer.zero_grad(set_to_none=True)
        session.tell_loss(mode, what)
        untimed = pattern.count(session.job) * warmup
        session.tell_block(mode, (phase.round, phase.position), untimed, origin, own, pattern)


def attached(stack: ExitStack, session: Session, mode: ModeSpec) -> Handle:
    """Attach a mode to a job until the stack is left."""
    stack.enter_context(cut_by_ddp(session.workload.model, session.on_ddp(mode)))
    return stack.enter_context(session.attach(mode))


def marking(clock: Clock, stamps: list[Any]) -> Callable[[], None]:
    """Return a function that appends a mark of the clock to `stamps`."""
    return lambda: stamps.append(clock.mark())


# --- recorded turns ----------------------------------------------------------------------------------------------


@dataclass
class Recorded:
    """Marks of one turn: its begin after the wait for gradients, its end, and the arrival of each bucket."""

    began: Mark = None
    ended: Mark = None
    arrived: list[Mark] = field(default_factory=list)


class TurnRecorder:
    """Recorder of one job's turns."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.turns: list[Recorded] = []

    def watch(self, nbytes: int, start: Callable[[], Work], kind: str = "bucket") -> Work:
        """Start a collective, and mark its completion. For `Handle.watch`."""
        turn = self.turns[-1]
        work: Any = start()
        with suppress(Exception):  # a backend without futures, whose turns have no arrival
            work.get_future().add_done_callback(lambda _: turn.arrived.append(self._clock.mark()))
        started: Work = work
        return started

    def recorded(self, job: JobTurns, handle: Handle) -> JobTurns:
        """Return the same turns, recorded. The wait for gradients comes before the beginning of a turn."""

        def begin() -> None:
            if self.turns[-1].began is None:  # the first turn has no update, and the last update has no turn
                self.turns[-1].began = self._clock.mark()

        def update() -> None:
            handle.synchronize()
            begin()
            job.update()

        def forward_backward() -> None:
            begin()
            job.forward_backward()
            self.turns[-1].ended = self._clock.mark()

        @contextmanager
        def hold() -> Iterator[None]:
            self.turns.append(Recorded())
            yield

        return JobTurns(job.turns, update, forward_backward, job.mark, hold)

    def taken(self, origin: tuple[float, Mark]) -> list[tuple[float, float, float | None]]:
        """Return start, end, and arrival of the gradients of each turn [s], after the clock's `flush()`."""
        origin_s, began = origin

        def at_s(mark: Mark) -> float:
            return origin_s + self._clock.elapsed_s(began, mark)

        return [(at_s(turn.began), at_s(turn.ended), max(map(at_s, turn.arrived), default=None)) for turn in self.turns]


def record_turns(sessions: Sequence[Session], mode: ModeSpec) -> None:
    """Record some rounds; rank 0 writes the turns of each job."""
    lead = sessions[0]
    if any(steps_to_record(plan.step_s.get(mode.carrier, plan.compute_s)) < STEPS for plan in lead.plans):
        return
    pattern, clock = lead.pattern(mode), lead.clock
    recorders = [TurnRecorder(clock) for _ in sessions]
    with ExitStack() as stack:
        handles = [attached(stack, session, mode) for session in sessions]
        jobs = []
        for session, recorder, handle in zip(sessions, recorders, handles, strict=True):
            handle.watch(recorder.watch)
            turns = pattern.count(session.job) * (WARM_ROUNDS + ROUNDS)
            jobs.append(recorder.recorded(turns_of(session, handle, turns, f"turns of {mode.text}"), handle))
        origin = lead.origin()
        _take(jobs, pattern, handles)
        lead.device_idle()
    clock.flush()
    for session, recorder in zip(sessions, recorders, strict=True):
        session.workload.optimizer.zero_grad(set_to_none=True)
        if session.rank == 0:
            warm = pattern.count(session.job) * WARM_ROUNDS
            session.journal.write(TurnsRecorded(mode=mode.text, turns=recorder.taken(origin)[warm:]))
    clock.reset()
