"""Sustained rate of a link, which is lower than its rate in a short burst.

A link may have a burst allowance: a token bucket, a switch or a cloud network lets a burst pass at once. A message
within the allowance is faster than the link can be for long. T0 of a small all-reduce is measured after a short idle
time, so it contains such a burst.

In a ring of hundreds of workers, a large all-reduce is hundreds of such messages in a row. Converted without a limit,
more workers would take less time. So no all-reduce of M bytes ends before

    g · (bytes that a worker sends) − s        with s = max over M of g·(bytes sent for M) − T0(M), the most ever saved

Here g [s/B] is the final slope of the measured curve. Where the mean slope from the smallest to the largest measured
size is less, g is that, so that one stray point does not define the link. For a straight line, and for the measured
number of workers, this changes nothing. `bounds` applies the same rule to plans.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from xbench.planning.cost import CostCurve, ring
from xbench.records import CostModel


@dataclass(frozen=True)
class SustainedRate:
    """Sustained rate of a link: seconds per byte sent, and the seconds of burst credit after an idle link."""

    s_per_byte: float
    saved_s: float


UNPACED = SustainedRate(0.0, 0.0)
"""No limit: every message takes its time alone."""


def pace_of(measured: CostModel) -> SustainedRate:
    """The sustained rate of the measured ring. Raises ValueError for fewer than two workers."""
    curve = CostCurve.of(measured)
    g = curve.slope
    sizes = [point.nbytes for point in measured.points]
    if sizes and min(sizes) < max(sizes):
        g = min(g, (curve(float(max(sizes))) - curve(float(min(sizes)))) / (max(sizes) - min(sizes)))
    _, sent = ring(0.0, 1.0, 0.0, measured.world_size)
    return SustainedRate(g / sent, max(0.0, float(np.max(g * curve.sizes - curve.times))))


def no_sooner(curve: CostCurve, sent: float, pace: SustainedRate) -> CostCurve:
    """The maximum of the curve and the pace, where a worker sends `sent` bytes for each byte of an all-reduce."""
    slope = sent * pace.s_per_byte
    sizes, times = curve.sizes, curve.times
    if sizes[0] > 0:  # below the first knot a curve is constant
        sizes, times = np.concatenate([[0.0], sizes]), np.concatenate([times[:1], times])
    late = slope * sizes - pace.saved_s - times
    if np.all(late <= 0):
        return curve
    left, right = late[:-1], late[1:]
    crosses = left * right < 0
    met = sizes[:-1][crosses] + np.diff(sizes)[crosses] * (left / np.where(crosses, left - right, 1.0))[crosses]
    if late[-1] > 0 and curve.slope > slope * (1 + 1e-9):
        met = np.append(met, sizes[-1] + late[-1] / (curve.slope - slope))
    knots = np.union1d(sizes, met)
    knots = knots[knots >= min(float(curve.sizes[0]), float(met[0]))] if met.size else knots
    later = np.maximum(np.where(knots > 0, curve(knots), curve.times[0]), slope * knots - pace.saved_s)
    return CostCurve(knots, np.maximum.accumulate(later), max(curve.slope, slope))
