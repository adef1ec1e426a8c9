"""What turns of two jobs say, whoever draws them."""

from __future__ import annotations

from collections.abc import Sequence

from xbench.records import TurnTaken

LEAST_WAIT_S = 1e-6
"""A shorter gap is rounding."""


def waits_before(turns: Sequence[TurnTaken]) -> list[tuple[float, float] | None]:
    """For each turn, from when to when [s] nobody held the device because its job's gradients were on their way.

    A job asks for its next turn when they have arrived; the rest of a gap is the turn being passed on. Where the record
    does not say when they arrived, as before a job's first turn, the whole gap counts.
    """
    found: list[tuple[float, float] | None] = []
    arrived_s: dict[int, float | None] = {}
    free_s = turns[0].start_s if turns else 0.0
    for turn in turns:
        asked_s = arrived_s.get(turn.job)
        until_s = turn.start_s if asked_s is None else min(turn.start_s, asked_s)
        found.append((free_s, until_s) if until_s - free_s > LEAST_WAIT_S else None)
        arrived_s[turn.job], free_s = turn.arrived_s, turn.computed_s
    return found
