"""Comparison of modes with a reference: a ratio, its interval, and one word for each mode (docs/how-it-measures.md).

Blocks are paired by (launch, round), so common disturbances cancel in their log ratio; `stats.location` gives the
interval. `faster` and `slower` hold for all modes of a run together: their p values are adjusted by Holm's method
(Holm 1979), so an interval that excludes 1 may stand beside `inconclusive`. `equivalent` holds for each mode by itself,
and never of one launch: each launch has its own offset.

A mode is fastest if, with it as the reference, every other mode is `slower` (comparisons with the best, Hsu 1984): the
error is at most one in twenty, although the mode was chosen because it looked best.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from xbench.records import Interval, Ratio, Verdict
from xbench.stats.location import Location, located, student_quantile
from xbench.stats.regression import holm

MARGIN = 0.02
MIN_PAIRS = 4
ERROR = 0.05
"""Chance of a false `faster` or `slower`, over all modes of a run."""

MAX_LAUNCHES = 100
"""Most launches that a precision is said to need."""

REFERENCE_RATIO = Ratio(value=1.0, ci95=(1.0, 1.0), verdict="reference")
"""The reference mode against itself: exactly 1, without a decision."""

_MAX_EXPONENT = 700.0
_NOTHING = 1e-3

Blocks = Sequence[tuple[int, int, float]]
"""`BlockValue`s of one mode, or plain tuples of launch, round and value."""


class BlockValue(NamedTuple):
    """One block of one mode: its launch, its round, and its metric (seconds per sample, or another positive number)."""

    launch: int
    round: int
    value: float


def ratios_to(reference: Blocks, modes: Mapping[str, Blocks], margin: float = MARGIN) -> dict[str, Ratio]:
    """The ratio mode / reference (below 1: the mode is faster) of every mode, with interval and verdict.

    Verdicts hold for all `modes` together. Modes without a common round are left out. Blocks without a partner in the
    same launch and round are ignored. Several of one mode in the same launch and round count once, by their median.

    Fewer than four pairs cannot separate noise from difference. Then the value is the pairs' geometric mean, the
    interval goes from half to twice the value, and further if a pair lies outside, and the verdict is `inconclusive`.
    (2× is the effect of one disturbed block.)

    Raises ValueError for a value that is not positive and finite.
    """
    launches = {name: log_ratios(blocks, reference) for name, blocks in modes.items()}
    pairs = {name: sum(map(len, values)) for name, values in launches.items()}
    found = {name: located(launches[name]) for name, count in pairs.items() if count >= MIN_PAIRS}
    judged = judge(found, margin)
    ratios = {}
    for name, count in pairs.items():
        if name in judged:
            ratios[name] = judged[name].model_copy(update={"pairs": count})
        elif count:
            values = [value for launch in launches[name] for value in launch]
            center = sum(values) / count
            low, high = min(center - math.log(2), *values), max(center + math.log(2), *values)
            ratios[name] = Ratio(
                value=_exp(center), ci95=(_exp(low), _exp(high)), verdict="inconclusive", pairs=count,
                launches=len(launches[name]),
            )  # fmt: skip
    return ratios


def paired_ratio(mode: Blocks, reference: Blocks, margin: float = MARGIN) -> Ratio:
    """The ratio of one mode by itself, as `ratios_to` gives it. Raises ValueError also for no pairs at all."""
    found = ratios_to(reference, {"": mode}, margin)
    if not found:
        raise ValueError("no launch and round holds a block of both modes")
    return found[""]


def judge(locations: Mapping[str, Location], margin: float = MARGIN) -> dict[str, Ratio]:
    """Ratios and verdicts from the log ratios' locations; verdicts hold for all of them together.

    The number of pairs is left open.
    """
    adjusted = dict(zip(locations, holm([one.p_zero for one in locations.values()]), strict=True))
    ratios = {}
    for name, one in locations.items():
        half = one.half_width(0.95)
        value = _exp(one.center)
        interval = (_exp(one.center - half), _exp(one.center + half))
        word = verdict(value, interval, margin, differs=adjusted[name] < ERROR)
        if word == "equivalent" and one.launches == 1:
            word = "inconclusive"
        ratios[name] = Ratio(value=value, ci95=interval, verdict=word, launches=one.launches)
    return ratios


def verdict(value: float, interval: Interval, margin: float = MARGIN, *, differs: bool = True) -> Verdict:
    """One word for a ratio and its interval. `differs`: whether the difference holds among all modes of the run.

    `equivalent`: the whole interval lies within 1 ± margin, whether or not it contains 1. Else `faster` or `slower`:
    the interval excludes 1, the mode differs, and the value is at least margin/2 away from 1, so that 0.5 % is no
    reason to reconfigure. Else `inconclusive`: more launches are needed.
    """
    low, high = interval
    if 1 - margin < low and high < 1 + margin:
        return "equivalent"
    if differs and high < 1 and value <= 1 - margin / 2:
        return "faster"
    if differs and low > 1 and value >= 1 + margin / 2:
        return "slower"
    return "inconclusive"


def launches_needed(ratio: Ratio, precision: float) -> int | None:
    """Launches of as many rounds with which the interval is about ± `precision` (0.02 is 2 %), by this one's width.

    None for the ratio of one launch, which shows nothing of the next, and for more than `MAX_LAUNCHES`.
    """
    launches = ratio.launches
    if launches is None or launches < 2:
        return None
    half = (math.log(ratio.ci95[1]) - math.log(ratio.ci95[0])) / 2
    deviation = half * math.sqrt(launches) / student_quantile(0.975, launches - 1)
    wanted = math.log1p(precision)
    enough = (n for n in range(2, MAX_LAUNCHES + 1) if student_quantile(0.975, n - 1) * deviation <= wanted * n**0.5)
    return next(enough, None)


def log_ratios(mode: Blocks, reference: Blocks) -> list[list[float]]:
    """log(mode / reference) of each round that has both, by launch, in order of launch and round."""
    mode_values, reference_values = _by_round(mode), _by_round(reference)
    launches: dict[int, list[float]] = defaultdict(list)
    for launch, round_ in sorted(mode_values.keys() & reference_values.keys()):
        launches[launch].append(math.log(mode_values[launch, round_]) - math.log(reference_values[launch, round_]))
    return list(launches.values())


def _by_round(blocks: Blocks) -> dict[tuple[int, int], float]:
    values: dict[tuple[int, int], list[float]] = defaultdict(list)
    for launch, round_, value in blocks:
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"the block of launch {launch}, round {round_} has the value {value}, which has no ratio")
        values[launch, round_].append(value)
    return {key: statistics.median(values_of_round) for key, values_of_round in values.items()}


def _exp(exponent: float) -> float:
    """e**exponent, limited to finite values: records refuse infinity."""
    return math.exp(max(-_MAX_EXPONENT, min(_MAX_EXPONENT, exponent)))


def removed_share(
    mode_step_s: float, reference_step_s: float, bound_s: float, reference_low_s: float | None = None
) -> float | None:
    """Share of the removable communication that a schedule removed: (reference − mode) / (reference − bound).

    `bound_s` [s] belongs to what the mode may overlap: `Bounds.of`. The share is below 0 for a schedule slower than the
    reference, and above 1 only if the bound's model was wrong. None if nothing is shown to be removable: the reference
    is within a thousandth of the bound or under it, or its interval, from `reference_low_s` on, contains the bound.
    """
    removable_s = reference_step_s - bound_s
    if removable_s <= _NOTHING * reference_step_s:
        return None
    if reference_low_s is not None and reference_low_s <= bound_s:
        return None
    return (reference_step_s - mode_step_s) / removable_s


def removed_interval(ratio_ci95: Interval, reference_ci95: Interval, bound_s: float) -> Interval | None:
    """Interval of `removed_share` = (1 − r)·R / (R − bound), from the intervals of the ratio r and the reference R [s].

    The extremes over both intervals, so it covers at least as often as they do. None where the reference's interval
    contains the bound.
    """
    if reference_ci95[0] <= bound_s:
        return None
    ends = [(1 - ratio) * step_s / (step_s - bound_s) for ratio in ratio_ci95 for step_s in reference_ci95]
    return min(ends), max(ends)
