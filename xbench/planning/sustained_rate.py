"""How fast a link is for long, which is less than it may be at once.

A link that rests may save up: a token bucket, a switch or a cloud lets a burst pass at once, and a message that fits
into it is faster than the link can be for long. T0 of a small all-reduce finds the link a little rested.
Carried over to a ring of hundreds, where a large all-reduce is hundreds of such messages in a row, that alone would
have more workers take less time. Whatever the messages, no all-reduce of M bytes ends before

    g · (bytes that a worker sends) − s        with s = max over M of g·(bytes sent for M) − T0(M), the most ever saved

where g [s/B] is the slope with which the measured curve ends or, where that is less, its rise from the smallest to the
largest size measured over the bytes between them: one stray point is not taken for the link. For a straight line, and
on the workers that were measured, this changes nothing. `bounds` holds plans to the same rule.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from xbench.planning.cost import CostCurve, ring
from xbench.records import CostModel


@dataclass(frozen=True)
class SustainedRate:
    """How fast a link is for long: seconds a byte sent, and the seconds that it may be ahead after it rested."""

    s_per_byte: float
    saved_s: float


UNPACED = SustainedRate(0.0, 0.0)
"""Every message takes what it took alone."""


def pace_of(measured: CostModel) -> SustainedRate:
    """The pace of the ring that was measured, see the module. Raises ValueError for fewer than two workers."""
    curve = CostCurve.of(measured)
    g = curve.slope
    sizes = [point.nbytes for point in measured.points]
    if sizes and min(sizes) < max(sizes):
        g = min(g, (curve(float(max(sizes))) - curve(float(min(sizes)))) / (max(sizes) - min(sizes)))
    _, sent = ring(0.0, 1.0, 0.0, measured.world_size)
    return SustainedRate(g / sent, max(0.0, float(np.max(g * curve.sizes - curve.times))))


def no_sooner(curve: CostCurve, sent: float, pace: SustainedRate) -> CostCurve:
    """The curve, and the pace where that is later, for `sent` bytes sent by a worker for each byte of an all-reduce."""
    slope = sent * pace.s_per_byte
    sizes, times = curve.sizes, curve.times
    if sizes[0] > 0:  # below the first knot a curve is flat
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
