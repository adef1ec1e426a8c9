"""Robust location of a quantity measured in several launches, with a standard error that respects launches.

Model: pair j of launch i is x_ij = θ + u_i + e_ij. θ is the result. u_i is the launch's own offset (memory layout, port
numbers, the core that got an interrupt), with variance τ². e_ij is block noise with variance s² and a heavy tail
(another process woke up for one block). Averaging more blocks of one launch never averages u_i away.

Within launches: Tukey's biweight around each launch's median, with one scale for all launches, because six pairs alone
cannot show how noisy they are. The tuning constant is 6 σ (9 MAD) and the degrees of freedom are 0.7 (N − L), both from
Mosteller & Tukey 1977. The variance is Huber's s² = N/(N−L) · Σψ²/N / (Σψ'/N)². A far outlier gets weight zero, so it
moves neither the location nor the interval; the estimate holds until half of a launch is bad. The price is paid at
small n: four of six values that are close by chance make the other two look like outliers, and the scale collapses. A
launch's variance s²/n is therefore multiplied by 1 + 8/(N−L), a factor set by simulation (the table in `compare`).

Between launches: one launch cannot show τ², and two show it badly (one degree of freedom: Student's t would be 12.7).
So τ² starts from an assumption worth `PRIOR_DF` degrees of freedom: floor² + (s/5)². `floor` is the usual disagreement
of two launches of the same thing, and s/5 assumes that a machine that varies from block to block varies from launch to
launch too. The observed variance (a method-of-moments estimate, as DerSimonian & Laird 1986) replaces the assumption at
once if it is larger (and then the assumption is worth no more than one degree of freedom), and gradually, with many
launches, if it is smaller. Satterthwaite's rule combines the degrees of freedom of the two variances.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
