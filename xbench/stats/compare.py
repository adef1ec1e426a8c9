"""Is this mode faster than the reference? A ratio, an interval that can be believed, and one word.

Blocks of the two modes are paired by (launch, round). Both blocks of a pair ran within seconds of each other, in an
order that is balanced over rounds, so what both suffered (temperature, a busy neighbour, the launch's own speed)
divides out of their ratio. Work is on log ratios, where "10 % faster" and "10 % slower" are the same distance from 0.

Method: `location.robust_location` (Tukey's biweight inside launches, a variance between launches that starts from an
assumption and learns), then Student's interval. Rank methods do worse at such sizes: of six pairs the
signed-rank and the order-statistic interval both reach from the smallest pair to the largest, so that a single block
disturbed 1.5× stretches the interval by 50 %, and yet 3.1 % of A/A comparisons come out as a difference.

Measured, 4000 simulated comparisons a cell (lognormal block noise; 5 % of blocks 1.3–2× too long; AR(1) drift of 5 %
across rounds and launch offsets of 5 %, common to both modes; 0.5 % offset of each mode in each launch):

| launches × rounds | noise | false alarms | finds 8 % | half-width |
| --- | --- | --- | --- | --- |
| 1 × 6 | 1 % | 0.8 % | 98 % | 2.9 % |
| 1 × 6 | 2 % | 1.1 % | 83 % | 5.3 % |
| 1 × 6 | 4 % | 1.8 % | 27 % | 11.1 % |
| 1 × 6 | 8 % | 1.8 % | 6 % | 24.4 % |
| 2 × 6 | 1 % | 1.3 % | 99 % | 1.8 % |
| 2 × 6 | 2 % | 1.1 % | 96 % | 3.1 % |
| 2 × 6 | 4 % | 0.9 % | 68 % | 6.4 % |
| 2 × 6 | 8 % | 0.7 % | 15 % | 14.3 % |
| 4 × 6 | 1 % | 1.7 % | 99 % | 1.1 % |
| 4 × 6 | 2 % | 1.8 % | 99 % | 1.8 % |
| 4 × 6 | 4 % | 1.6 % | 96 % | 3.7 % |
| 4 × 6 | 8 % | 1.2 % | 50 % | 8.3 % |

"False alarms" are A/A comparisons that came out `faster` or `slower`. They are rarer than the 5 % that a 95 % interval
allows on purpose: the interval speaks of what a *new* launch would show, which these launches have only sampled. Where
each mode's own offset in a launch is 2 % instead of 0.5 % (at 2 % noise), no method can see it in one launch, and false
alarms rise to 13 %; two launches and four bring them to 8 %. A surprising `faster` deserves more launches.
`tests/unit/stats/test_compare.py` repeats the simulation in small.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from xbench.records import Interval, Ratio, Verdict
from xbench.stats.location import robust_location

MARGIN = 0.02
MIN_PAIRS = 4
# Two modes, each with an offset of its own in a launch of 0.5 %: √2 · 0.005.
LAUNCH_FLOOR = 0.007

REFERENCE_RATIO = Ratio(value=1.0, ci95=(1.0, 1.0), verdict="reference")
"""The reference mode against itself: exactly 1, and nothing to decide."""

_MAX_EXPONENT = 700.0


class BlockValue(NamedTuple):
    """One block of one mode: where it ran, and its figure (seconds per sample, or any other positive number)."""

    launch: int
    round: int
    value: float


def paired_ratio(
    mode: Sequence[tuple[int, int, float]],
    reference: Sequence[tuple[int, int, float]],
    margin: float = MARGIN,
    confidence: float = 0.95,
) -> Ratio:
    """The ratio mode / reference (below 1: the mode is faster), its interval, and the verdict.

    Both take `BlockValue`s or plain (launch, round, value) tuples. Blocks without a partner in the same launch and
    round are ignored; several of one mode in the same launch and round count once, by their median.

    With fewer than four pairs there is no telling noise from difference: the value is the pairs' geometric mean, the
    interval goes from half to twice the value, and further where a pair lies outside, and the verdict is
    `inconclusive`. (2× is what one disturbed block does.)

    Raises ValueError for no pairs at all, or for a value that is not positive and finite.
    """
    launches = _log_ratios(mode, reference)
    pairs = [value for launch in launches for value in launch]
    if not pairs:
        raise ValueError("no launch and round holds a block of both modes")
    if len(pairs) < MIN_PAIRS:
        center = sum(pairs) / len(pairs)
        low, high = min(center - math.log(2), *pairs), max(center + math.log(2), *pairs)
        return Ratio(value=_exp(center), ci95=(_exp(low), _exp(high)), verdict="inconclusive", pairs=len(pairs))
    location = robust_location(launches, LAUNCH_FLOOR)
    half = location.half_width(confidence)
    value = _exp(location.center)
    interval = (_exp(location.center - half), _exp(location.center + half))
    return Ratio(value=value, ci95=interval, verdict=verdict(value, interval, margin), pairs=len(pairs))


def verdict(value: float, interval: Interval, margin: float = MARGIN) -> Verdict:
    """One word for a ratio and its interval.

    `equivalent`: the whole interval lies within 1 ± margin, whether or not it holds 1. Else `faster` or `slower`: the
    interval excludes 1 and the value is at least margin/2 away from it, so that nobody reconfigures for 0.5 %. Else
    `inconclusive`: more rounds or launches would tell.
    """
    low, high = interval
    if 1 - margin < low and high < 1 + margin:
        return "equivalent"
    if high < 1 and value <= 1 - margin / 2:
        return "faster"
    if low > 1 and value >= 1 + margin / 2:
        return "slower"
    return "inconclusive"


def _log_ratios(
    mode: Sequence[tuple[int, int, float]], reference: Sequence[tuple[int, int, float]]
) -> list[list[float]]:
    """log(mode / reference) of each round that has both, by launch, in order of launch and round."""
    ours, theirs = _by_round(mode), _by_round(reference)
    launches: dict[int, list[float]] = defaultdict(list)
    for launch, turn in sorted(ours.keys() & theirs.keys()):
        launches[launch].append(math.log(ours[launch, turn]) - math.log(theirs[launch, turn]))
    return list(launches.values())


def _by_round(blocks: Sequence[tuple[int, int, float]]) -> dict[tuple[int, int], float]:
    values: dict[tuple[int, int], list[float]] = defaultdict(list)
    for launch, turn, value in blocks:
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"the block of launch {launch}, round {turn} has the value {value}, which has no ratio")
        values[launch, turn].append(value)
    return {key: median(several) for key, several in values.items()}


def _exp(exponent: float) -> float:
    """e**exponent, kept finite: records refuse infinity."""
    return math.exp(max(-_MAX_EXPONENT, min(_MAX_EXPONENT, exponent)))
