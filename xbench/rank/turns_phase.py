"""Record of the turns of `crossover`: after all blocks of the first launch, rank 0 of every job writes some of its own.

No block follows, as after the timelines (`xbench.rank.timeline_phase`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from xbench.crossover.job import TurnTaker
from xbench.rank.events import TurnsRecorded
from xbench.rank.session import Session
from xbench.rank.timeline_phase import STEPS, steps_to_record
from xbench.spec import ModeSpec

ROUNDS, WARM_ROUNDS = 4, 2
"""Rounds of turns that are recorded, and rounds of warm-up before them."""


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


class HeldTurns:
    """Turns of one block, each of which is the context that `hold` makes of them."""

    def __init__(self, turns: TurnTaker, hold: Callable[[TurnTaker], AbstractContextManager[None]]) -> None:
        self._turns, self._hold = turns, hold

    def turn(self) -> AbstractContextManager[None]:
        """Hold the device for the body of a `with`."""
        return self._hold(self._turns)

    def end_block(self) -> None:
        """Take no more turns in this block."""
        self._turns.end_block()
