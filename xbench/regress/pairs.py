"""How a check of wall-clock time goes: how long a launch is, how many pairs there are, and who goes first.

Everything is decided before the first pair that counts, from the first launch of each side, which does not: it fills
the caches (a fresh checkout has no compiled modules) and says how long steps and launches take. How many pairs there
are must not depend on what they show, or the p value would not mean what it says; so a check runs all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from xbench.records import Suite
from xbench.regress import pairs_for
from xbench.runs.tune import format_minutes

TIMED_S = 1.2
"""Timed steps of each mode in a launch, about: more steps do not make up for fewer launches."""

ROUNDS = 2
"""Blocks of each mode in a launch, in mirrored order, so that a drift within the launch cancels."""

TURN_S = 0.1
"""Timed steps of a turn, about: the longer, the more the machine changes meanwhile; the shorter, the more is waited."""

TURNS_S = 4.0
"""Timed steps of each mode in a launch that takes turns, about. Here more do help: they meet another moment."""

MIN_IN_TURN = 2
MIN_TURNS, MAX_TURNS = 2, 24
"""Of a block."""

MIN_STEPS, MAX_STEPS = 3, 60
FIRST_STEPS = 3
"""Timed steps of the launch that does not count."""

SPARE_PAIRS = 5
"""Beyond the fewest that can reach the p: so many launches may be disturbed, or point the other way by chance."""


MORE_PAIRS = (16, 24, 32, 40)
"""How many are tried where the noise floor of fewer is known to be too large."""


@dataclass(frozen=True)
class Shape:
    """Of every launch of a check: blocks of each mode, turns in each, and timed steps in each turn.

    `turns` None: the launch has the machine to itself, and a block is `steps` steps in one go.
    """

    rounds: int
    steps: int
    turns: int | None = None

    @property
    def timed_steps(self) -> int:
        """Of each mode in a launch."""
        return self.rounds * self.steps * (self.turns or 1)


def shape_of(steps_s: Mapping[str, float], cycle: int = 1, *, turns: bool = False) -> Shape:
    """From the seconds that a step of each mode took on the slower side. `turns`: whether two launches take turns."""
    slowest_s = max(steps_s.values(), default=0.0)

    def steps_of(whole_s: float, fewest: int) -> int:
        wanted = whole_s / slowest_s if slowest_s > 0 else MAX_STEPS
        return math.ceil(min(MAX_STEPS, max(fewest, round(wanted))) / cycle) * cycle

    if not turns:
        return Shape(ROUNDS, steps_of(TIMED_S / ROUNDS, MIN_STEPS))
    steps = steps_of(TURN_S, MIN_IN_TURN)
    wanted = round(TURNS_S / ROUNDS / (steps * slowest_s)) if slowest_s > 0 else MAX_TURNS
    return Shape(ROUNDS, steps, min(MAX_TURNS, max(MIN_TURNS, wanted)))


def launch_s(first_s: float, first: Shape, shape: Shape, steps_s: Mapping[str, float]) -> float:
    """What a launch of `shape` takes [s], when one of shape `first` took `first_s` with these steps [s] by mode."""
    more = shape.timed_steps - first.timed_steps
    return first_s + more * sum(steps_s.values())


@dataclass(frozen=True)
class PairPlan:
    """How many pairs, and why so many. `needed`: the fewest that can find anything."""

    pairs: int
    needed: int
    pair_s: float
    reason: str

    @property
    def takes_s(self) -> float:
        """All pairs, about [s]."""
        return self.pairs * self.pair_s

    @property
    def too_few(self) -> bool:
        """Whether every wall-clock case is bound to be inconclusive."""
        return self.pairs < self.needed


def course_of(
    suite: Suite,
    pair_s: float,
    *,
    pairs: int | None,
    left_s: float,
    quiet_enough: Callable[[int], bool] | None = None,
) -> PairPlan:
    """The pairs of a check: as many as were asked for, else as many as find the thresholds, if the budget has room.

    `pair_s`: one pair of launches of every check; `left_s`: of the budget [s]; `quiet_enough(n)`: whether the noise
    floor of n pairs is small enough on this machine, None where that is not known. Then there are some to spare.
    """
    needed = pairs_for(suite)
    asked = pairs if pairs is not None else suite.pairs
    if asked is not None:
        return PairPlan(asked, needed, pair_s, "as asked for")
    wished, reason = (
        needed + SPARE_PAIRS,
        f"{needed} can reach a p below {suite.alpha:g}, and {SPARE_PAIRS} are to spare",
    )
    if quiet_enough is not None:
        sizes = [*range(needed, wished + 1), *(count for count in MORE_PAIRS if count > wished)]
        wished = next((count for count in sizes if quiet_enough(count)), sizes[-1])
        reason = "with so many this machine is quiet enough for the thresholds"
        if not quiet_enough(wished):
            reason = "the most that are tried: this machine is too noisy for the thresholds"
    room = max(1, int(left_s / pair_s)) if pair_s > 0 else wished
    if room < wished:
        return PairPlan(room, needed, pair_s, f"what the budget of {suite.budget_minutes:g} min has room for")
    return PairPlan(wished, needed, pair_s, reason)


def told(course: PairPlan, cases: int) -> Sequence[str]:
    """What a user should know before the first pair: sentences."""
    said = [
        f"{course.pairs} pairs of launches for {cases} wall-clock {'case' if cases == 1 else 'cases'} "
        f"({course.reason}): about {format_minutes(course.takes_s)}"
    ]
    if course.too_few:
        said.append(
            f"fewer than {course.needed} pairs cannot reach the p that a verdict needs, so these cases will be "
            "inconclusive whatever is measured"
        )
    return said
