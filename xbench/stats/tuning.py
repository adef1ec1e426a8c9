"""Choice among tuning candidates, from blocks of a reference and its candidates, and a test whether it is settled.

A candidate is worth a change if its whole interval (95 %, paired within rounds, see `compare`) is below 1 − margin, not
worth it if none of the interval is, and else open. The choice is the fastest candidate that is worth it; else the
reference, if every candidate is not worth it or clearly slower than the fastest; else it is open.

The test is repeated after every launch, and each repetition adds a chance of error. So a choice is settled only after
two launches, and the line is a margin away from 1. `tests/unit/stats/test_tuning_choice.py` simulates it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from xbench.records import Ratio
from xbench.stats.compare import MARGIN, ratios_to

MIN_LAUNCHES = 2

Blocks = Mapping[str, Sequence[tuple[int, int, float]]]
"""(launch, round, seconds per sample) of every block, by mode."""


@dataclass(frozen=True)
class Choice:
    """Choice so far."""

    kind: Literal["faster", "reference", "open"]
    """A candidate is worth the change; none is; or it is not known yet."""
    best: str | None
    """The candidate that is worth it, or else the one with the smallest ratio; None if none was timed."""
    ratios: dict[str, Ratio]
    """Ratio of every candidate with blocks to the reference."""
    close: tuple[str, ...]
    """Candidates that are not distinguished from `best`."""
    out: frozenset[str]
    """Candidates that need not be timed again."""
    settled: bool
    """True if more launches are not expected to change the answer."""

    @property
    def winner(self) -> str | None:
        """The candidate to use: worth the change, or at least faster for sure. None: stay with the reference."""
        if self.best is None or self.kind == "reference":
            return None
        return self.best if self.kind == "faster" or self.ratios[self.best].ci95[1] < 1 else None


def choose(blocks: Blocks, reference: str, margin: float = MARGIN) -> Choice:
    """The choice among the modes of `blocks` without the reference. Modes without a common round are left out.

    Raises ValueError for a margin outside [0, 1) or a value that is not positive and finite.
    """
    if not 0 <= margin < 1:
        raise ValueError(f"a margin of {margin} is not a share of a time")
    line = 1 - margin
    base = blocks.get(reference, ())
    ratios = ratios_to(base, {name: values for name, values in blocks.items() if name != reference}, margin)
    if not ratios:
        return Choice("open", None, {}, (), frozenset(), settled=False)
    worth = [name for name, ratio in ratios.items() if ratio.ci95[1] < line]
    best = min(worth or ratios, key=lambda name: ratios[name].value)
    out = {name for name, ratio in ratios.items() if ratio.ci95[0] >= line}
    close, beaten = [], True
    for name in ratios:
        if name == best:
            continue
        found = ratios_to(blocks[name], {"": blocks[best]})
        upper = found[""].ci95[1] if found else math.inf  # without a common round
        if upper < 1:
            out.add(name)
        else:
            close.append(name)
            beaten = beaten and (upper <= 1 + max(margin, MARGIN) or name in out)
    enough = len({launch for launch, *_ in base}) >= MIN_LAUNCHES
    if worth:
        return Choice("faster", best, ratios, tuple(close), frozenset(out), beaten and enough)
    if len(out) == len(ratios):
        return Choice("reference", best, ratios, tuple(close), frozenset(out), enough)
    return Choice("open", best, ratios, tuple(close), frozenset(out), settled=False)
