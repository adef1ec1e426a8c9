"""Estimates with intervals from a handful of blocks, and detection of odd ones. Nothing is ever deleted.

Blocks are few (6 to 50) and their noise has a long tail to the right. So everything here uses order statistics: the
median, the median absolute deviation (MAD), and intervals that assume no distribution if there are enough values. All
functions keep the unit of their values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from xbench.records import Estimate
from xbench.stats.location import MAD_TO_SIGMA, RESOLUTION, located, student_quantile, whole_launches

OUTLIER_THRESHOLD = 3.5
MIN_DISTRIBUTION_FREE = 6
MIN_WARMUP_VALUES = 6

_MIN_RELATIVE_SCALE = 1e-3
# Correction of the MAD of few normal values to its value for many (Croux & Rousseeuw 1992).
_MAD_SMALL_SAMPLE = {2: 1.196, 3: 1.495, 4: 1.363, 5: 1.206, 6: 1.200, 7: 1.140, 8: 1.129, 9: 1.107}


def median_estimate(values: Sequence[float]) -> Estimate:
    """The median and a 95 % interval of the median.

    From six values on: [x(k), x(n+1−k)] with the largest k whose coverage 1 − 2·P(Binomial(n, ½) < k) is at least 95 %,
    whatever the distribution (David & Nagaraja 2003, §7.1). Six values give their minimum and maximum, 96.9 %.

    Two to five values cannot give 95 % without an assumption (minimum to maximum covers 50 % at two, 94 % at five).
    Then it is Student's interval of the mean, widened to contain the minimum and the maximum; without negative values
    it is cut at 0. One value has shown no spread, and its interval is (v, v).

    Raises ValueError for no values, or for one that is not finite.
    """
    data = np.sort(_finite_array(values))
    count = len(data)
    median = float(np.median(data))
    if count == 1:
        return Estimate(median=median, ci95=(median, median))
    low, high = float(data[0]), float(data[-1])
    if count >= MIN_DISTRIBUTION_FREE:
        # The largest rank with 2·P(Binomial(count, ½) < rank) ≤ 5 %, in exact integers.
        tail, rank = 0, 0
        while 40 * (tail := tail + math.comb(count, rank)) <= 2**count:
            rank += 1
        return Estimate(median=median, ci95=(float(data[rank - 1]), float(data[count - rank])))
    mean = float(np.mean(data))
    half = student_quantile(0.975, count - 1) * float(np.std(data, ddof=1)) / math.sqrt(count)
    floor = 0.0 if low >= 0.0 else -math.inf
    return Estimate(median=median, ci95=(max(floor, min(low, mean - half)), max(high, mean + half)))


def grouped_estimate(values_by_launch: Sequence[Sequence[float]]) -> Estimate:
    """The median over all blocks of all launches, with a 95 % interval that respects launches.

    The interval is the union of two: `median_estimate`'s over all blocks, and that of `stats.location` on the scale of
    the values: Student's of the launches' centers where there are several launches, and the one for correlated rounds
    where there is one. That one speaks of this launch alone.

    Empty launches are left out. Raises ValueError for no values at all, or for one that is not finite.
    """
    launches = [_finite_array(launch) for launch in values_by_launch if len(launch)]
    if not launches:
        raise ValueError("an estimate needs at least one value")
    everything = np.concatenate(launches)
    within = median_estimate(everything.tolist())
    if sum(len(launch) for launch in whole_launches(launches)) < 2:
        return within
    location = located(launches, RESOLUTION * (abs(within.median) or 1.0))
    half = location.half_width(0.95)
    low, high = within.ci95
    floor = 0.0 if float(everything.min()) >= 0.0 else -math.inf
    return Estimate(
        median=within.median,
        ci95=(max(floor, min(low, location.center - half)), max(high, location.center + half)),
    )


def flag_outliers(values: Sequence[float]) -> list[bool]:
    """True for each value that lies further from the median than OUTLIER_THRESHOLD robust standard deviations.

    The modified z-score of Iglewicz & Hoaglin 1993 (their 3.5), with the MAD corrected for small samples and limited to
    at least 0.1 % of the median: a series that repeats itself to the last digit has no outlier at 0.01 %. Fewer than
    four values have no majority, and none is flagged.

    Raises ValueError for a value that is not finite.
    """
    if len(values) < 4:
        return [False] * len(values)
    data = _finite_array(values)
    center, scale = _center_and_scale(data)
    return [bool(distance > OUTLIER_THRESHOLD * scale) for distance in np.abs(data - center)]


def detect_warmup(values: Sequence[float]) -> int:
    """Number of leading values that are warm-up: 0 to len(values) // 2, for values in the order of measurement.

    The second half counts as steady. Its median ± its robust spread make a band, and the warm-up ends at two
    consecutive values inside: one lucky value between two compilations does not end it, and a lone disturbed block in
    the middle does not start it again. The band is 3.5 corrected MADs wide on either side, more for short series (whose
    spread is uncertain), and at least 1 % of the median.

    A slow drift is not warm-up: the second half drifts too, so its spread and the band are wide. Nothing is deleted;
    callers keep the leading values separately. Fewer than six values give 0.

    Raises ValueError for a value that is not finite.
    """
    count = len(values)
    if count < MIN_WARMUP_VALUES:
        return 0
    data = _finite_array(values)
    half = count // 2
    center, scale = _center_and_scale(data[half:])
    band = max(OUTLIER_THRESHOLD * (1.0 + 24.0 / (count - half) ** 2) * scale, 0.01 * abs(center))
    inside = np.abs(data - center) <= band
    for start in range(half):
        if inside[start] and inside[start + 1]:
            return start
    return half


def _finite_array(values: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    data = np.asarray(values, dtype=np.float64)
    if data.size == 0:
        raise ValueError("an estimate needs at least one value")
    if not np.all(np.isfinite(data)):
        raise ValueError(f"{data[~np.isfinite(data)][0]} is not a measurement")
    return data


def _center_and_scale(data: NDArray[np.float64]) -> tuple[float, float]:
    """Median, and a standard deviation estimated from the MAD."""
    center = float(np.median(data))
    correction = _MAD_SMALL_SAMPLE.get(len(data), len(data) / (len(data) - 0.8))
    scale = MAD_TO_SIGMA * correction * float(np.median(np.abs(data - center)))
    return center, max(scale, _MIN_RELATIVE_SCALE * abs(center))
