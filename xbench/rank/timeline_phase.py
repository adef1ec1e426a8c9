"""Timeline phase of a rank: after all blocks of the first launch, a few steps of each mode are recorded.

Every rank records its steps of a mode of one job. The step that took rank 0 the median time is written to the journals
of the first ranks, with its start time by rank 0's clock. For `crossover`, rank 0 of every job writes its turns. No
block follows these phases in a launch, so instruments disturb no sample. A failed recording is a warning and does not
end the run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from xbench.crossover.job import TurnTaker
from xbench.profilers.clock import Mark
from xbench.profilers.collectives import clock_offsets
from xbench.profilers.timeline import RecordedStep, TimelineRecorder
from xbench.rank.events import StepRecorded, TurnsRecorded, Warned
from xbench.rank.nvtx import HeldTurns
from xbench.rank.session import Session
from xbench.records import Label
from xbench.schedules import defers_update
from xbench.spec import ModeSpec

STEPS = 3
SLOW_STEP_S = 5.0
"""Limit of the predicted step time above which only one step is recorded [s]."""

TOO_SLOW_STEP_S = 20.0
"""Limit of the predicted step time above which no step is recorded [s]."""

MAX_RANKS = 8
"""Number of ranks whose steps are kept. More ranks add little, and a record should stay small."""

ROUNDS, WARM_ROUNDS = 4, 2
"""Rounds of turns that are recorded, and rounds of warm-up before them."""


def steps_to_record(predicted_s: float) -> int:
    """Return how many steps of this length [s] are recorded: an odd number, so that the median is one of them, or 0."""
    if predicted_s > TOO_SLOW_STEP_S:
        return 0
    return 1 if predicted_s > SLOW_STEP_S else STEPS


def record_timeline(session: Session, mode: ModeSpec) -> None:
    """Attach anew, warm up, record, detach, and write the timeline. Collective over the job."""
    plan = session.plans[session.job]
    steps = steps_to_record(plan.step_s.get(mode.carrier, plan.compute_s))
    if steps == 0:
        return
    what = f"timeline of {mode.text}"
    workload = session.workload
    label: Label = "real" if session.program.emulated is None else "emulated"
    in_order = dist.get_backend() == "nccl"
    recording = TimelineRecorder(workload.model, session.clock, in_order=in_order, label=label)
    ahead_s = clock_offsets(None, session.device).offset_s[session.rank]
    with recording as recorder, session.attach(mode) as handle:
        attached = workload.under(handle.model, handle.no_sync, handle.synchronize)
        watched = _agreed(session, mode, lambda: handle.watch(recorder.watch))
        handle.watch_waits(recorder.waiting)
        if watched:
            session.device_idle()
            origin_s, origin = time.perf_counter() - ahead_s, session.clock.mark()
            # The first step of an attached schedule differs from the others: DDP rebuilds its buckets after it.
            session.train(handle, session.run.effort.warmup_steps if steps > 1 else 1, f"{what}, warm-up", lambda: None)
            for step in range(steps):
                session.note(f"{what}, step {step + 1}")
                recorder.run_step(attached)
            session.device_idle()
            session.clock.flush()
    workload.optimizer.zero_grad(set_to_none=True)
    if watched:
        _write(session, mode, recorder, origin_s, origin)
    session.clock.reset()


def _agreed(session: Session, mode: ModeSpec, begin: Callable[[], bool]) -> bool:
    """True if all ranks could begin. A rank that trained alone would wait for the others for ever."""
    watched = False
    try:
        watched = begin()
    except Exception as error:
        _warn(session, mode, error)
    everyone = torch.tensor([float(watched)], device=session.device)
    dist.all_reduce(everyone, op=dist.ReduceOp.MIN)
    return bool(everyone.item())


def _write(session: Session, mode: ModeSpec, recorder: TimelineRecorder, origin_s: float, origin: Mark) -> None:
    """Write the step that rank 0 chose. `origin` is the instant at which rank 0's clock showed `origin_s` [s]."""
    recorded: list[RecordedStep] = []
    try:
        recorded = recorder.recorded()
        if defers_update(session.plans[session.job].carrier_of(mode)):
            recorded = recorded[1:] or recorded  # the first step waits for gradients that were sent before recording
    except Exception as error:
        _warn(session, mode, error)
    chosen = torch.tensor([_median(recorded)], device=session.device)
    dist.broadcast(chosen, src=0)
    place = int(chosen.item())
    if session.rank >= MAX_RANKS or not 0 <= place < len(recorded):
        return
    step = recorded[place]
    began_s = round(origin_s + session.clock.elapsed_s(origin, step.began), 7)
    session.journal.write(StepRecorded(mode=mode.text, began_s=began_s, timeline=step.timeline))


def _median(recorded: list[RecordedStep]) -> int:
    """Return the index of the step that took the median time; -1 if there are none."""
    by_length = sorted(range(len(recorded)), key=lambda place: recorded[place].step_s)
    return by_length[len(by_length) // 2] if by_length else -1


def record_turns(session: Session, mode: ModeSpec, number: int) -> None:
    """Record some rounds of `crossover`; rank 0 of each job writes its turns. Collective over all ranks of all jobs."""
    if any(steps_to_record(plan.step_s.get(mode.carrier, plan.compute_s)) < STEPS for plan in session.plans):
        return
    pattern = session.pattern(mode)
    turns = pattern.count(session.job) * (WARM_ROUNDS + ROUNDS)
    watched = Watched()
    with session.attach(mode) as handle:
        session.train_in_turns(
            handle, number, pattern, turns, f"turns of {mode.text}", lambda: None, watch=watched.over
        )
        session.device_idle()
    session.workload.optimizer.zero_grad(set_to_none=True)
    session.clock.flush()
    session.clock.reset()
    if session.rank == 0:
        taken = watched.taken()[pattern.count(session.job) * WARM_ROUNDS :]
        session.journal.write(TurnsRecorded(mode=mode.text, turns=taken))


class Watched:
    """Turns of a job, by the host's clock [s]. A turn begins at its grant, after the wait for gradients."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._asked_s: list[float] = []
        self._held_s: list[tuple[float, float]] = []

    def over(self, turns: TurnTaker) -> TurnTaker:
        """Return the same turns, recorded."""
        return HeldTurns(turns, self.turn)

    @contextmanager
    def turn(self, turns: TurnTaker) -> Iterator[None]:
        """Record one turn."""
        self._asked_s.append(self._clock())
        with turns.turn():
            since_s = self._clock()
            yield
            self._held_s.append((since_s, self._clock()))

    def taken(self) -> list[tuple[float, float, float | None]]:
        """Return start, end, and arrival of the gradients. A job requests its next turn at that arrival."""
        arrived_s = [*self._asked_s[1:], None]
        return [(since_s, until_s, arrived_s[place]) for place, (since_s, until_s) in enumerate(self._held_s)]


def _warn(session: Session, mode: ModeSpec, error: Exception) -> None:
    session.journal.write(Warned(message=f"no measured timeline of {mode.text}: {error}"))
