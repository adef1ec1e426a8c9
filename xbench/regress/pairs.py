"""Schedule of a check of wall-clock time: the length of a launch, the number of pairs, and their order.

The first launch of each side does not count. It fills the caches (a fresh checkout has no compiled modules) and
measures the length of steps and launches. Everything is decided from it, before the first pair that counts. The number
of pairs must not depend on their results, or the p value would be invalid. So a check runs all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from xbench.records import Suite
from xbench.regress.metrics import pairs_for
from xbench.runs.tune import format_minutes
from xbench.text import counted

TIMED_S = 1.2
"""Approximate timed steps of each mode in a launch [s]. More steps do not replace launches."""

ROUNDS = 2
"""Blocks of each mode in a launch, in mirrored order, so that a drift within the launch cancels."""

TURN_S = 0.1
"""Approximate length of a turn's timed steps [s]. In longer turns the machine changes more; shorter ones wait more."""

TURNS_S = 4.0
"""Approximate timed steps of each mode in a launch with turns [s]. More steps help here: they sample other moments."""

MIN_IN_TURN = 2
MIN_TURNS, MAX_TURNS = 2, 24
"""Limits of the turns of a block."""

MIN_STEPS, MAX_STEPS = 3, 60
FIRST_STEPS = 3
"""Timed steps of the launch that does not count."""

SPARE_PAIRS = 5
"""Pairs beyond the fewest that can reach the p value. Some launches may be disturbed, or deviate by chance."""

MORE_PAIRS = (16, 24, 32, 40)
"""Larger numbers of pairs to try if the noise floor of fewer is known to be too large."""


@dataclass(frozen=True)
class Shape:
    """Shape of every launch of a check: blocks of each mode, turns in each, and timed steps in each turn.

    With `turns` None the launch has the machine to itself, and a block is `steps` steps without interruption.
    """

    rounds: int
    steps: int
    turns: int | None = None

    @property
    def timed_steps(self) -> int:
        """Timed steps of each mode in a launch."""
        return self.rounds * self.steps * (self.turns or 1)


def shape_of(steps_s: Mapping[str, float], cycle: int = 1, *, turns: bool = False) -> Shape:
    """Return the shape for the step times [s] of each mode on the slower side. `turns`: two launches take turns."""
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
    """Predict the time of a launch of `shape` [s], from `first_s` [s] of one of shape `first` and its steps by mode."""
    return first_s + (shape.timed_steps - first.timed_steps) * sum(steps_s.values())


@dataclass(frozen=True)
class PairPlan:
    """Number of pairs, and the reason for it. `needed` is the smallest number that can find anything."""

    pairs: int
    needed: int
    pair_s: float
    reason: str

    @property
    def too_few(self) -> bool:
        """True if every wall-clock case must be inconclusive."""
        return self.pairs < self.needed


def pair_plan_of(
    suite: Suite,
    pair_s: float,
    *,
    pairs: int | None,
    left_s: float,
    quiet_enough: Callable[[int], bool] | None = None,
) -> PairPlan:
    """Return the pairs of a check: the user's number, else as many as resolve the thresholds within the budget.

    `pair_s` is the time of one pair of launches of every check, and `left_s` the rest of the budget [s].
    `quiet_enough(n)` returns whether the noise floor of n pairs is small enough on this machine. If it is None, spare
    pairs are added.
    """
    needed = pairs_for(suite)
    asked = pairs if pairs is not None else suite.pairs
    if asked is not None:
        return PairPlan(asked, needed, pair_s, "as asked for")
    wished = needed + SPARE_PAIRS
    reason = f"{needed} can reach a p below {suite.alpha:g}, and {SPARE_PAIRS} are to spare"
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


def pair_messages(plan: PairPlan, cases: int) -> Sequence[str]:
    """Return messages for the user before the first pair."""
    said = [
        f"{plan.pairs} pairs of launches for {counted(cases, 'wall-clock case')} ({plan.reason}): "
        f"about {format_minutes(plan.pairs * plan.pair_s)}, and as long again if a slow-down has to be confirmed"
    ]
    if plan.too_few:
        said.append(
            f"fewer than {plan.needed} pairs cannot reach the p that a verdict needs, so these cases will be "
            f"inconclusive whatever is measured: --pairs {plan.needed} or more"
        )
    return said
