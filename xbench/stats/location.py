"""Location of a quantity that was measured in rounds of one or more launches, with an interval that respects both.

Model: value j of launch i is x_ij = θ + u_i + e_ij, with the launch's own offset u_i and heavy-tailed, correlated e_ij.

**Several launches** are independent. The interval is Student's of their centers, each the mean of the middle half of
its rounds. It needs no model of what happens inside a launch.

**One launch** shows nothing of u_i: its interval is for θ + u_i. The correlation ρ of neighbouring rounds is averaged
over: for each ρ of a grid, generalised least squares gives Student's distribution of θ, weighted by the marginal
likelihood (Zellner & Tiao 1964) and a prior proportional to ρ²; with a flat one it covers 86 to 91 % at ρ = 0.8.

`benchmarks/verdict_simulation.py` simulates both; docs/how-it-measures.md has the table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]

MAD_TO_SIGMA = 1.4826
FAR = 6.0
"""Robust standard deviations from the median at which a round of a lone launch is cut."""

MOST_CORRELATED = 0.9
_CORRELATIONS = np.linspace(0.1, MOST_CORRELATED, 9)

RESOLUTION = 1e-4
"""Least standard deviation [of a log ratio]: no clock and no machine repeats a block to 0.01 %."""

WHOLE = 0.5
"""Share of the longest launch's rounds below which a launch was cut short. Its center would be one or two blocks."""

_PARTS = 16


class Student(NamedTuple):
    """Student's distributions of θ, each with a weight; the weights add up to 1."""

    weights: Vector
    centers: Vector
    errors: Vector
    df: float


@dataclass(frozen=True)
class Location:
    """An estimate of θ: its value, the number of launches that it is of, and its distribution."""

    center: float
    launches: int
    of: Student

    def outside(self, distances: Vector) -> Vector:
        """Probabilities that θ is further than each of `distances` from the center."""
        from scipy.special import stdtr

        offsets, errors = self.of.centers - self.center, self.of.errors
        beyond = distances[:, None]
        below, above = (-beyond - offsets) / errors, (offsets - beyond) / errors
        outside: Vector = np.asarray(stdtr(self.of.df, below) + stdtr(self.of.df, above), np.float64) @ self.of.weights
        return outside

    @property
    def p_zero(self) -> float:
        """Two-sided p of θ = 0. It is below 1 − confidence where the interval at this confidence excludes 0."""
        return min(1.0, float(self.outside(np.array([abs(self.center)]))[0]))

    def half_width(self, confidence: float) -> float:
        """Half of the interval at `confidence` (0.95 and the like), which is symmetric about the center."""
        quantile = student_quantile(0.5 + confidence / 2, self.of.df)
        if len(self.of.weights) == 1:
            return quantile * float(self.of.errors[0])
        low, high = 0.0, float(np.max(np.abs(self.of.centers - self.center) + quantile * self.of.errors))
        for _ in range(4):
            steps = np.linspace(low, high, _PARTS)
            place = int(np.argmax(self.outside(steps) <= 1 - confidence))  # the last step always is
            low, high = float(steps[max(place - 1, 0)]), float(steps[place])
        return high


def student_quantile(probability: float, df: float) -> float:
    """Quantile of Student's t at `df` degrees of freedom, which may be fractional."""
    from scipy.special import stdtrit

    return float(stdtrit(df, probability))


def whole_launches(launches: Sequence[Sequence[float] | Vector]) -> list[Vector]:
    """The launches with at least half as many rounds as the longest one, without empty ones."""
    longest = max(map(len, launches), default=0)
    return [np.asarray(one, dtype=np.float64) for one in launches if len(one) and len(one) >= WHOLE * longest]


def middle_mean(values: Sequence[float] | Vector) -> float:
    """Mean without the lowest and the highest quarter, each rounded down: all of three values, two of four."""
    cut = len(values) // 4
    return float(np.mean(np.sort(values)[cut : len(values) - cut]))


def located(launches: Sequence[Sequence[float] | Vector], resolution: float = RESOLUTION) -> Location:
    """θ of values grouped by launch, in the order of rounds, on a scale where noise is additive (log ratios).

    `resolution` is the least standard deviation that is believed, in the unit of the values.
    Launches that were cut short are left out (`whole_launches`). Raises ValueError for fewer than two values in what
    remains: they show no noise.
    """
    whole = whole_launches(launches)
    total = sum(map(len, whole))
    if total < 2:
        raise ValueError(f"a location needs at least two values, and there are {total}")
    if len(whole) == 1:
        return _of_one_launch(whole[0], resolution)
    centers = np.array([middle_mean(launch) for launch in whole])
    error = max(float(np.std(centers, ddof=1)), resolution) / math.sqrt(len(whole))
    center = float(np.mean(centers))
    return Location(center, len(whole), Student(np.ones(1), np.array([center]), np.array([error]), len(whole) - 1.0))


def _of_one_launch(rounds: Vector, resolution: float) -> Location:
    values = _without_far(rounds, resolution)
    count = len(values)
    ones = _correlated(count)
    centers = ones.weights @ values / ones.precisions
    residual = np.einsum("i,kij,j->k", values, ones.inverses, values) - ones.precisions * centers**2
    residual = np.maximum(residual, (count - 1) * resolution**2)
    likelihoods = ones.log_priors - 0.5 * (count - 1) * np.log(residual)
    shares = np.exp(likelihoods - likelihoods.max())
    shares /= shares.sum()
    errors = np.sqrt(residual / (count - 1) / ones.precisions)
    return Location(float(shares @ centers), 1, Student(shares, centers, errors, count - 1.0))


def _without_far(rounds: Vector, resolution: float) -> Vector:
    """The values, with those further than `FAR` robust standard deviations from the median moved to that distance."""
    median = float(np.median(rounds))
    deviations = np.sort(np.abs(rounds - median))
    informative = deviations[1:] if len(rounds) % 2 else deviations[2:]  # the median fits one value, or two, exactly
    scale = max(MAD_TO_SIGMA * float(np.median(informative)) if len(informative) else math.inf, resolution)
    return np.clip(rounds, median - FAR * scale, median + FAR * scale)


class _Correlated(NamedTuple):
    """What generalised least squares needs for each ρ of the grid."""

    inverses: Vector
    """Inverse of the correlation matrix: grid × rounds × rounds."""
    weights: Vector
    """Sums of its rows: grid × rounds."""
    precisions: Vector
    """Its sum: grid."""
    log_priors: Vector
    """The part of the log marginal likelihood that the values do not enter: grid."""


@lru_cache(maxsize=64)
def _correlated(count: int) -> _Correlated:
    places = np.arange(count)
    matrices = _CORRELATIONS[:, None, None] ** np.abs(places[:, None] - places)
    inverses = np.linalg.inv(matrices)
    weights = inverses.sum(axis=2)
    precisions = weights.sum(axis=1)
    log_priors = 2 * np.log(_CORRELATIONS) - 0.5 * (np.linalg.slogdet(matrices)[1] + np.log(precisions))
    return _Correlated(inverses, weights, precisions, log_priors)
