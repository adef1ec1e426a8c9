"""Regression test on launch pairs: an exact p, an estimate, an exact interval, Holm's adjustment and a noise floor.

The figure of a pair is d = log(head / base). The only assumption is that without a change each d is as likely to be +x
as −x. The test is Wilcoxon's signed-rank test, exact, with midranks; the Hodges-Lehmann estimate and the interval
between two Walsh averages are its inversion, so p, estimate and interval never contradict each other. p is one-sided,
because the gate asks "slower?"; the interval is two-sided, and there is none below 6 pairs.

The **noise floor** F predicts a later check from a few A/A pairs: their mean distance from zero times a factor, which
allows for few pairs, heavy tails (Student's t with `FLOOR_TAIL_DF`) and noisier days (lognormal, `FLOOR_DAY`). A
threshold T is at least 2F, and an interval has to pass the line T/2 (`LINE`): docs/regress.md says why, with coverage.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from xbench.records import Interval

Vector = NDArray[np.float64]

LINE = 0.5
"""Share of the threshold that the lower end of a regression's interval has to pass."""

CONFIDENCE = 0.95
MIN_PAIRS = 6
"""2 · 2⁻⁶ is the first two-sided p below 5 %: with fewer pairs no 95 % interval is exact and finite."""

FLOOR_QUANTILE = 0.95
FLOOR_TAIL_DF = 3.0
FLOOR_DAY = 0.2
"""Standard deviation of the logarithm of a day's noise."""
FLOOR_DRAWS = 10_000
_DRAWS_AT_ONCE = 500


class SignedRank(NamedTuple):
    """The test of one case, and its estimate. `center` and `interval` are on the scale of the differences.

    `interval` is None for too few pairs. `p_slower` tests "not above zero", `p_faster` "not below".
    """

    pairs: int
    center: float
    interval: Interval | None
    p_slower: float
    p_faster: float


Word = Literal["regressed", "improved", "equivalent", "inconclusive"]


class PairsVerdict(NamedTuple):
    """One case of a family: its test, the p values adjusted over the family, and the word."""

    test: SignedRank
    p_slower_holm: float
    p_faster_holm: float
    word: Word


def verdicts(
    differences: Sequence[Sequence[float]], thresholds: Sequence[float], alpha: float, *, line: float = LINE
) -> list[PairsVerdict]:
    """One word for each case of a family that is judged together, from its pairs' log ratios and its threshold (share).

    `equivalent`: the whole interval lies within the threshold on both sides. Else `regressed`: the interval's lower end
    is above the line, `line` times the threshold, and Holm's p is below alpha; `improved`: the mirror image.
    `inconclusive`: none of these, or too few pairs to reach alpha at all.

    Raises ValueError for a case without pairs, and for a threshold that is not above zero.
    """
    tests = [signed_rank(values) for values in differences]
    slower = holm([test.p_slower for test in tests])
    faster = holm([test.p_faster for test in tests])
    enough = pairs_needed(alpha, len(tests)) if tests else 0
    return [
        PairsVerdict(test, up, down, _word(test, up < alpha, down < alpha, (line * threshold, threshold), enough))
        for test, up, down, threshold in zip(tests, slower, faster, thresholds, strict=True)
    ]


def deciding_pairs(test: SignedRank, threshold: float) -> int:
    """Return about how many pairs would decide an inconclusive case with an interval, if its estimate stays.

    An interval gets narrower with the square root of the pairs. It has to fit below the threshold, or above the line.
    """
    assert test.interval is not None
    center, half = abs(test.center), (test.interval[1] - test.interval[0]) / 2
    room = max(math.log1p(threshold) - center, center - math.log1p(LINE * threshold))
    return max(test.pairs + 1, math.ceil(test.pairs * (half / room) ** 2))


def agrees(fresh: PairsVerdict, threshold: float, alpha: float, *, line: float = LINE) -> bool:
    """True if fresh pairs of a suspected case confirm the suspicion.

    They do if Holm's p over the suspected cases is below alpha, the estimate (not the interval's end: the suspicion has
    passed that test) is above the line, and their interval does not rule a slow-down of the threshold out.
    """
    test = fresh.test
    slower = test.interval is not None and fresh.p_slower_holm < alpha and test.center > math.log1p(line * threshold)
    return slower and fresh.word != "equivalent"


def _word(test: SignedRank, slower: bool, faster: bool, shares: tuple[float, float], enough: int) -> Word:
    """Word of one case. `shares`: those of the line and of the threshold."""
    line, threshold = shares
    if threshold <= 0:
        raise ValueError(f"a threshold of {threshold} leaves no room for noise")
    if test.interval is None or test.pairs < enough:
        return "inconclusive"
    low, high = test.interval
    line, most = math.log1p(line), math.log1p(threshold)
    if -most < low and high < most:
        return "equivalent"
    if slower and low > line:
        return "regressed"
    if faster and high < -line:
        return "improved"
    return "inconclusive"


def signed_rank(differences: Sequence[float], confidence: float = CONFIDENCE) -> SignedRank:
    """Wilcoxon's exact signed-rank test of paired differences, with its estimate and interval.

    Zeros keep their ranks and have no sign (Pratt), ties share midranks. Raises ValueError for no differences, or for
    one that is not finite.
    """
    values = np.asarray(differences, dtype=np.float64)
    if values.ndim != 1 or not len(values) or not np.all(np.isfinite(values)):
        raise ValueError("a signed-rank test needs finite differences, and at least one")
    sizes = np.abs(values)
    below, up_to = (np.searchsorted(np.sort(sizes), sizes, side=side) for side in ("left", "right"))
    ranks = below + up_to + 1  # midranks times two, so that they are integers
    probabilities = _sum_probabilities(tuple(sorted(ranks[values != 0].tolist())))
    upper, lower = int(ranks[values > 0].sum()), int(ranks[values < 0].sum())
    averages = np.sort(_walsh_averages(values[None, :])[0])
    ends = _ends(len(values), confidence)
    interval = None if ends is None else (float(averages[ends]), float(averages[-1 - ends]))
    return SignedRank(
        len(values),
        float(np.median(averages)),
        interval,
        min(1.0, float(probabilities[upper:].sum())),
        min(1.0, float(probabilities[lower:].sum())),
    )


@lru_cache(maxsize=256)
def _sum_probabilities(doubled_ranks: tuple[int, ...]) -> Vector:
    """P(sum = s) for s = 0, 1, ..., if each rank is in the sum with probability ½."""
    probabilities = np.zeros(sum(doubled_ranks) + 1)
    probabilities[0] = 1.0
    for rank in doubled_ranks:
        probabilities[rank:] += probabilities[:-rank].copy()
        probabilities *= 0.5
    return probabilities


@lru_cache(maxsize=256)
def _ends(pairs: int, confidence: float) -> int | None:
    """Number of sorted Walsh averages outside the interval at each end; None without an interval."""
    below = np.cumsum(_sum_probabilities(tuple(range(1, pairs + 1))))
    outside = int(np.searchsorted(below, (1 - confidence) / 2 * (1 + 1e-12), side="right"))
    return outside - 1 if outside > 0 else None


def _walsh_averages(rows: Vector) -> Vector:
    """(values i and j) / 2 of each row, i ≤ j: rows × n(n+1)/2, unsorted."""
    first, second = np.triu_indices(rows.shape[1])
    averages: Vector = (rows[:, first] + rows[:, second]) / 2
    return averages


def log_ratios(ratios: Sequence[float]) -> list[float]:
    """log(head / base) of each pair. Raises ValueError for a ratio that is not positive and finite."""
    for ratio in ratios:
        if not (math.isfinite(ratio) and ratio > 0):
            raise ValueError(f"{ratio} is not a ratio of two times")
    return [math.log(ratio) for ratio in ratios]


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p values, in the order given: reject those below α, and the family's error is at most α."""
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for position, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - position) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def pairs_needed(alpha: float, cases: int) -> int:
    """The least number of pairs with which the smallest one-sided p of `cases` can be below `alpha` after Holm.

    At least 6, because an interval needs as many. Raises ValueError for an alpha outside (0, 1) or no cases.
    """
    if not 0 < alpha < 1 or cases < 1:
        raise ValueError(f"{cases} cases at alpha {alpha} need no number of pairs")
    pairs = MIN_PAIRS
    while cases * 0.5**pairs >= alpha:
        pairs += 1
    return pairs


def noise_floor(differences: Sequence[float], pairs: int) -> float | None:
    """The floor F, as a share, for checks of `pairs` pairs, learned from A/A log ratios; None below 6 of either."""
    values = np.asarray(differences, dtype=np.float64)
    if len(values) < MIN_PAIRS or pairs < MIN_PAIRS:
        return None
    return math.expm1(float(np.mean(np.abs(values))) * _floor_factor(len(values), pairs))


@lru_cache(maxsize=64)
def _floor_factor(measured: int, checked: int) -> float:
    """The floor over the mean distance from zero of `measured` A/A pairs. The same at every call: the seed is fixed."""
    ends = _ends(checked, CONFIDENCE)
    assert ends is not None  # MIN_PAIRS are enough for an interval
    random = np.random.default_rng(0)
    factors = []
    draws = FLOOR_DRAWS if checked <= 20 else FLOOR_DRAWS // 5  # averages grow with the square of the pairs
    for _ in range(draws // _DRAWS_AT_ONCE):
        distances = np.abs(random.standard_t(FLOOR_TAIL_DF, (_DRAWS_AT_ONCE, measured))).mean(axis=1)
        day = np.exp(FLOOR_DAY * random.normal(size=_DRAWS_AT_ONCE))
        averages = _walsh_averages(random.standard_t(FLOOR_TAIL_DF, (_DRAWS_AT_ONCE, checked)))
        averages.sort(axis=1)
        extents = np.maximum(-averages[:, ends], averages[:, -1 - ends])
        factors.append(day * extents / distances)
    return float(np.quantile(np.concatenate(factors), FLOOR_QUANTILE))
