"""When has tuning been answered? From the blocks of a reference and its candidates: a choice, and if it is settled.

A candidate is worth a change when it takes less than 1 − margin of the reference's time, and its interval (95 %, paired
within rounds, see `compare`) says on which side of that line it lies:

    interval below the line        worth it
    interval not below the line    not worth it: a gain of `margin` is ruled out
    interval across the line       open

The choice is the fastest candidate that is worth it; else the reference, when every candidate is not worth it or is
clearly slower than the fastest one; else it is open. A candidate that is not worth it, or clearly slower than the
fastest, need not be timed again.

The question is asked after every launch and of several candidates at once, and each time chance has another go. So an
answer is settled only after two launches, because what one launch does to a mode cannot be seen in one; the intervals
of `compare` err on the wide side (1 to 2 % of A/A comparisons come out as a difference, not 5 %); and the line lies a
margin away from 1. Two launches that agree give an interval of ±1.4 % (`compare.LAUNCH_FLOOR`), so a margin below that
needs more of them. Between candidates nobody waits for a difference that `compare` calls equivalent.
`tests/unit/stats/test_tuning_choice.py` simulates it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from xbench.records import Ratio
from xbench.stats.compare import MARGIN, paired_ratio

MIN_LAUNCHES = 2

Blocks = Mapping[str, Sequence[tuple[int, int, float]]]
"""(launch, round, seconds per sample) of every block, by mode."""


@dataclass(frozen=True)
class Choice:
    """What the blocks say so far."""

    kind: Literal["faster", "reference", "open"]
    """A candidate is worth the change; none is; or it cannot be said yet."""
    best: str | None
    """The candidate that is worth it, or else the one with the smallest ratio; None where none was timed."""
    ratios: dict[str, Ratio]
    """Of every candidate with blocks, to the reference."""
    close: tuple[str, ...]
    """Candidates that `best` was not told from."""
    out: frozenset[str]
    """Candidates that need not be timed again."""
    settled: bool
    """Whether more launches are not expected to change the answer."""

    @property
    def winner(self) -> str | None:
        """The candidate to use: worth the change, or at least faster for sure. None: stay with the reference."""
        if self.best is None or self.kind == "reference":
            return None
        return self.best if self.kind == "faster" or self.ratios[self.best].ci95[1] < 1 else None


def choose(blocks: Blocks, reference: str, margin: float = MARGIN) -> Choice:
    """The choice among the modes of `blocks` that are not the reference. Modes without a common round are left out.

    Raises ValueError for a margin outside [0, 1) or a value that is not positive and finite.
    """
    if not 0 <= margin < 1:
        raise ValueError(f"a margin of {margin} is no share of a time")
    line = 1 - margin
    base = blocks.get(reference, ())
    turns = _turns(base)
    ratios = {
        name: paired_ratio(values, base, margin)
        for name, values in blocks.items()
        if name != reference and turns & _turns(values)
    }
    if not ratios:
        return Choice("open", None, {}, (), frozenset(), settled=False)
    worth = [name for name, ratio in ratios.items() if ratio.ci95[1] < line]
    best = min(worth or ratios, key=lambda name: ratios[name].value)
    out = {name for name, ratio in ratios.items() if ratio.ci95[0] >= line}
    close, beaten = [], True
    for name in ratios:
        if name == best:
            continue
        most = _most(blocks[best], blocks[name])
        if most < 1:
            out.add(name)
        else:
            close.append(name)
            beaten = beaten and (most <= 1 + max(margin, MARGIN) or name in out)
    enough = len({launch for launch, _ in turns}) >= MIN_LAUNCHES
    if worth:
        return Choice("faster", best, ratios, tuple(close), frozenset(out), beaten and enough)
    if len(out) == len(ratios):
        return Choice("reference", best, ratios, tuple(close), frozenset(out), enough)
    return Choice("open", best, ratios, tuple(close), frozenset(out), settled=False)


def _most(best: Sequence[tuple[int, int, float]], other: Sequence[tuple[int, int, float]]) -> float:
    """The upper end of best over other; infinite where they have no round in common."""
    if not _turns(best) & _turns(other):
        return math.inf
    return paired_ratio(best, other).ci95[1]


def _turns(values: Sequence[tuple[int, int, float]]) -> set[tuple[int, int]]:
    return {(launch, turn) for launch, turn, _ in values}
