"""Comparison of a mode with the reference: a ratio, a robust interval, and one word.

Blocks of the two modes are paired by (launch, round). Both blocks of a pair ran within seconds of each other, in an
order that is balanced over rounds. So common disturbances (temperature, a busy neighbour, the launch's own speed)
cancel in their ratio. The analysis uses log ratios, where "10 % faster" and "10 % slower" have the same distance from
0.

Method: `robust_location` (Tukey's biweight inside launches, a variance between launches that starts from an
assumption and learns), then Student's interval. Rank methods are worse at such sizes. The signed-rank and the
order-statistic interval of six pairs both reach from the smallest pair to the largest. So a single block disturbed 1.5×
widens the interval by 50 %, and yet 3.1 % of A/A comparisons come out as a difference.

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

"False alarms" are A/A comparisons that came out `faster` or `slower`. They are deliberately rarer than the 5 % of a
95 % interval: the interval is for a *new* launch, and these launches are only a sample. If each mode's own offset in a
launch is 2 % instead of 0.5 % (at 2 % noise), no method can see it in one launch, and false alarms rise to 13 %; two
launches and four reduce them to 8 %. A surprising `faster` deserves more launches. `tests/unit/stats/test_compare.py`
repeats a small version of the simulation.

**Location.** Robust location of a quantity measured in several launches, with a standard error that respects launches.

Model: pair j of launch i is x_ij = θ + u_i + e_ij. θ is the result. u_i is the launch's own offset (memory layout, port
numbers, the core that got an interrupt), with variance τ². e_ij is block noise with variance s² and a heavy tail
(another process woke up for one block). Averaging more blocks of one launch never averages u_i away.

Within launches: Tukey's biweight around each launch's median, with one scale for all launches, because six pairs alone
cannot show how noisy they are. The tuning constant is 6 σ (9 MAD) and the degrees of freedom are 0.7 (N − L), both from
Mosteller & Tukey 1977. The variance is Huber's s² = N/(N−L) · Σψ²/N / (Σψ'/N)². A far outlier gets weight zero, so it
moves neither the location nor the interval; the estimate holds until half of a launch is bad. The price is paid at
small n: four of six values that are close by chance make the other two look like outliers, and the scale collapses. A
launch's variance s²/n is therefore multiplied by 1 + 8/(N−L), a factor set by simulation (the table above).

Between launches: one launch cannot show τ², and two show it badly (one degree of freedom: Student's t would be 12.7).
So τ² starts from an assumption worth `PRIOR_DF` degrees of freedom: floor² + (s/5)². `floor` is the usual disagreement
of two launches of the same thing, and s/5 assumes that a machine that varies from block to block varies from launch to
launch too. The observed variance (a method-of-moments estimate, as DerSimonian & Laird 1986) replaces the assumption at
once if it is larger (and then the assumption is worth no more than one degree of freedom), and gradually, with many
launches, if it is smaller. Satterthwaite's rule combines the degrees of freedom of the two variances.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from xbench.records import Interval, Ratio, Verdict

MARGIN = 0.02
MIN_PAIRS = 4
# Two modes, each with its own offset in a launch of 0.5 %: √2 · 0.005.
LAUNCH_FLOOR = 0.007

REFERENCE_RATIO = Ratio(value=1.0, ci95=(1.0, 1.0), verdict="reference")
"""The reference mode against itself: exactly 1, without a decision."""

_MAX_EXPONENT = 700.0
_NOTHING = 1e-3

Vector = NDArray[np.float64]

MAD_TO_SIGMA = 1.4826
BIWEIGHT_SIGMAS = 6.0
BIWEIGHT_DF_SHARE = 0.7
SMALL_SAMPLE = 8.0
LAUNCH_NOISE_SHARE = 0.2
PRIOR_DF = 3.0
MIN_GROUP = 3

# Log ratios that differ by less are the same: no clock and no machine repeats a block to 0.01 %.
_MIN_SCALE = 1e-4
# The mean slope of psi is near 0.8 for clean data; below this the variance formula divides by almost nothing.
_MIN_SLOPE = 0.25


class BlockValue(NamedTuple):
    """One block of one mode: its launch, its round, and its metric (seconds per sample, or another positive number)."""

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
    round are ignored. Several of one mode in the same launch and round count once, by their median.

    Fewer than four pairs cannot separate noise from difference. Then the value is the pairs' geometric mean, the
    interval goes from half to twice the value, and further if a pair lies outside, and the verdict is `inconclusive`.
    (2× is the effect of one disturbed block.)

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

    `equivalent`: the whole interval lies within 1 ± margin, whether or not it contains 1. Else `faster` or `slower`:
    the interval excludes 1 and the value is at least margin/2 away from it, so that 0.5 % is no reason to reconfigure.
    Else `inconclusive`: more rounds or launches are needed.
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
    mode_values, reference_values = _by_round(mode), _by_round(reference)
    launches: dict[int, list[float]] = defaultdict(list)
    for launch, round_ in sorted(mode_values.keys() & reference_values.keys()):
        launches[launch].append(math.log(mode_values[launch, round_]) - math.log(reference_values[launch, round_]))
    return list(launches.values())


def _by_round(blocks: Sequence[tuple[int, int, float]]) -> dict[tuple[int, int], float]:
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


@dataclass(frozen=True)
class Location:
    """An estimate of θ: its value, its standard error, and the degrees of freedom of the error."""

    center: float
    standard_error: float
    df: float

    def half_width(self, confidence: float) -> float:
        """Half of the two-sided Student interval at `confidence` (0.95 and the like)."""
        return student_quantile(0.5 + confidence / 2, self.df) * self.standard_error


def student_quantile(probability: float, df: float) -> float:
    """Quantile of Student's t at `df` degrees of freedom, which may be fractional."""
    from scipy.special import stdtrit

    return float(stdtrit(df, probability))


def merge_small_groups(groups: Sequence[Sequence[float]]) -> list[Vector]:
    """Groups that can be located. Those of fewer than three values are merged, and join the last if still too few.

    A launch that was cut short after one round, or a run of many launches with one round each, would otherwise have
    medians that are single values and show no scatter. Empty groups vanish.
    """
    large = [np.asarray(group, dtype=np.float64) for group in groups if len(group) >= MIN_GROUP]
    rest = np.asarray([value for group in groups if len(group) < MIN_GROUP for value in group], dtype=np.float64)
    if len(rest) >= MIN_GROUP or (len(rest) and not large):
        return [*large, rest]
    if len(rest):
        large[-1] = np.concatenate([large[-1], rest])
    return large


def robust_location(groups: Sequence[Sequence[float]], floor: float) -> Location:
    """θ of values grouped by launch, on a scale where noise is additive (log ratios, for example).

    `floor`: standard deviation between launches that is assumed even if none is observed, in units of the values.
    Raises ValueError for fewer than two values: they show no noise.
    """
    launches = merge_small_groups(groups)
    total = sum(len(launch) for launch in launches)
    if total < 2:
        raise ValueError(f"a location needs at least two values, and there are {total}")
    count = len(launches)
    sizes = np.array([len(launch) for launch in launches], dtype=np.float64)
    centers, noise_variance, noise_df = _biweight(launches)
    # Raised as uncertainty of the result; not raised where it would explain the scatter of launches away.
    center_variances = noise_variance * (1.0 + SMALL_SAMPLE / (total - count)) / sizes

    def combine(launch_variance: float) -> tuple[Vector, float]:
        weights = 1.0 / (launch_variance + center_variances)
        weights /= weights.sum()
        return weights, float(weights @ centers)

    assumed = floor**2 + LAUNCH_NOISE_SHARE**2 * noise_variance
    launch_variance = assumed
    weights, center = combine(launch_variance)
    if count > 1:
        between = float(np.sum((centers - center) ** 2)) / (count - 1)
        observed = max(0.0, between - float(np.mean(noise_variance / sizes)))
        blended = (PRIOR_DF * assumed + (count - 1) * observed) / (PRIOR_DF + count - 1)
        launch_variance = max(observed, blended)
        weights, center = combine(launch_variance)
    within_part = float(np.sum(weights**2 * center_variances))
    between_part = float(np.sum(weights**2)) * launch_variance
    variance = within_part + between_part
    if variance == 0.0:
        return Location(center, 0.0, noise_df)
    # An assumption that the launches contradict is worth less, but never less than one launch more.
    prior_df = max(1.0, PRIOR_DF * min(1.0, assumed / launch_variance)) if launch_variance else PRIOR_DF
    df = variance**2 / (within_part**2 / noise_df + between_part**2 / (prior_df + count - 1))
    return Location(center, math.sqrt(variance), df)


def _biweight(launches: list[Vector]) -> tuple[Vector, float, float]:
    """Each launch's location [launches], the variance of one value around it, and the variance's degrees of freedom."""
    count, total = len(launches), sum(len(launch) for launch in launches)
    medians = [float(np.median(launch)) for launch in launches]
    deviations = [np.abs(launch - median) for launch, median in zip(launches, medians, strict=True)]
    # Each median has fitted one value of its launch exactly (two, halfway): those say nothing about the noise.
    informative = np.sort(np.concatenate(deviations))[count:]
    pooled = max(MAD_TO_SIGMA * float(np.median(informative)), _MIN_SCALE)

    centers, psi, slopes, inliers = [], [], [], 0
    for launch, median, deviation in zip(launches, medians, deviations, strict=True):
        cut = BIWEIGHT_SIGMAS * pooled
        if np.count_nonzero(deviation < cut) * 2 < len(launch):
            # Much noisier than the others: by their scale it would have no values left.
            cut = BIWEIGHT_SIGMAS * MAD_TO_SIGMA * float(np.median(deviation))
        center = median
        for _ in range(50):
            weights = np.clip(1.0 - ((launch - center) / cut) ** 2, 0.0, None) ** 2
            previous, center = center, float(weights @ launch / weights.sum())
            if abs(center - previous) <= 1e-9 * cut:
                break
        residuals = launch - center
        square = (residuals / cut) ** 2
        inside = square < 1.0
        centers.append(center)
        psi.append(np.where(inside, residuals * (1.0 - square) ** 2, 0.0))
        slopes.append(np.where(inside, (1.0 - square) * (1.0 - 5.0 * square), 0.0))
        inliers += int(np.count_nonzero(inside))
    slope = max(float(np.mean(np.concatenate(slopes))), _MIN_SLOPE)
    variance = float(np.sum(np.concatenate(psi) ** 2)) / (total - count) / slope**2
    return np.array(centers), variance, max(1.0, BIWEIGHT_DF_SHARE * (inliers - count))
