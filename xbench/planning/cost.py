"""T(M): the time of one collective of M bytes, from measured points.

The model is the α–β (Hockney) line T(M) = α + βM: a latency and a time per byte. `fit` finds the line. The planner
calls T as a `CostCurve`: the line, or the measured curve where one line does not hold.

Sizes span five orders of magnitude, so residuals are relative to the measured time. A line that is right for 100 MiB
and wrong by a factor of three at 1 KiB is a bad line. The candidates are all lines through two of the points, and those
through one point with α or β at zero. `fit` takes the one with the least sum of |log(fitted / measured)|, where α, β ≥
0. That is least absolute deviations: only the side of a far point counts, not its distance, so one outlier does not
move the line. Trying all pairs needs no start value and no tolerance.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, overload

import numpy as np
import numpy.typing as npt

from xbench import records

FloatArray = npt.NDArray[np.float64]

LINE_TOLERANCE = 0.10
"""A line whose largest relative residual is above this does not hold."""

SEGMENT_TOLERANCE = 0.05
"""Segments are added until the largest relative residual is at most this."""

MAX_SEGMENTS = 5

MAX_WORKERS = 1_000_000
"""Largest number of workers that can be asked for."""

_DRAWS = 400
_STRAY_POINTS = 5
"""With at least this many sizes, a single inner size off the line counts as a stray."""


class CostFunction(Protocol):
    """T for the planner: seconds for an array of sizes in bytes, of the same shape. `CostCurve` is one."""

    def __call__(self, nbytes: FloatArray, /) -> FloatArray:
        """Seconds for each size."""
        ...


@dataclass(frozen=True, eq=False)
class CostCurve:
    """T(bytes) [s], monotone and piecewise linear. T(0) = 0: zero bytes need no collective.

    `sizes` [B] and `times` [s], both ascending and of one length, are its knots. Below the first knot T is constant: no
    collective is faster than the smallest measured. Above the last knot T continues with `slope` [s/B].
    """

    sizes: FloatArray
    times: FloatArray
    slope: float

    def __post_init__(self) -> None:
        numbers = np.concatenate([self.sizes, self.times, [self.slope]])
        if self.sizes.size == 0 or self.sizes.shape != self.times.shape:
            raise ValueError("a curve needs as many times as sizes, and at least one")
        if not np.all(np.isfinite(numbers)) or np.any(numbers < 0):
            raise ValueError("a curve's sizes, times and slope must be finite and not below zero")
        if np.any(np.diff(self.sizes) <= 0) or np.any(np.diff(self.times) < 0):
            raise ValueError("a curve's sizes must ascend and its times must not fall")

    @classmethod
    def line(cls, alpha_s: float, beta_s_per_byte: float) -> CostCurve:
        """T(M) = α + βM. Raises ValueError for a negative or non-finite α or β."""
        return cls(np.zeros(1), np.array([alpha_s], dtype=np.float64), float(beta_s_per_byte))

    @classmethod
    def measured(cls, points: Sequence[records.CostPoint]) -> CostCurve:
        """Linear between the measured points and made monotone; beyond the largest, the last slope continues.

        With a single size, T beyond it is proportional to bytes. Raises ValueError without a valid point.
        """
        sizes, times = _by_size(points)
        times = _monotone(times)
        if sizes.size == 1:
            return cls(sizes, times, float(times[0] / sizes[0]))
        return cls(sizes, times, float((times[-1] - times[-2]) / (sizes[-1] - sizes[-2])))

    @classmethod
    def of(cls, model: records.CostModel) -> CostCurve:
        """The simplest form that holds: the line, else the segments, else the measured points."""
        if not model.segments:
            return cls.line(model.alpha_s, model.beta_s_per_byte)
        residual = model.segmented_max_relative_residual
        if residual is not None and residual > LINE_TOLERANCE:
            return cls.measured(model.points)
        sizes = np.array([segment.from_bytes for segment in model.segments], dtype=np.float64)
        times = np.array([s.alpha_s + s.beta_s_per_byte * s.from_bytes for s in model.segments], dtype=np.float64)
        return cls(sizes, np.maximum.accumulate(times), model.segments[-1].beta_s_per_byte)

    @overload
    def __call__(self, nbytes: float, /) -> float: ...
    @overload
    def __call__(self, nbytes: FloatArray, /) -> FloatArray: ...
    def __call__(self, nbytes: float | FloatArray, /) -> float | FloatArray:
        """Seconds for `nbytes` [B], a number or an array of any shape. Raises ValueError for a negative size."""
        asked = np.asarray(nbytes, dtype=np.float64)
        if asked.size and asked.min() < 0:
            raise ValueError(f"a collective of {asked.min():g} bytes: sizes are not below zero")
        # A product and a sum for the line: np.interp would make the exact planner four times as slow.
        inside = self.times[0] if self.sizes.size == 1 else np.interp(asked, self.sizes, self.times)
        seconds = inside + self.slope * np.maximum(asked - self.sizes[-1], 0.0)
        seconds = np.where(asked > 0, seconds, 0.0)
        return float(seconds) if seconds.ndim == 0 else seconds


def fit(points: Sequence[records.CostPoint], *, backend: str, world_size: int) -> records.CostModel:
    """The cost model of one collective from its measured sizes.

    α and β: least absolute log residuals, neither below zero. Their 95 % intervals come from 400 refits to redrawn
    times. The spread at each point is the larger of the point's own interval and the spread of the residuals (1.4826 ×
    their median, times √(n / (n − 2))). The seed is fixed, so the same points give the same model.

    `segments` are given where the line does not hold (a residual above 10 %). They are the fewest straight pieces
    between measured points, continuous and monotone, that keep every residual within 5 %, at most five. Among equal
    numbers, the pieces have the least largest residual. A single stray size between the ends of at least five is no
    reason for segments.

    Raises ValueError for fewer than two distinct sizes, or a size or time that is not above zero.
    """
    sizes, times = _raw(points)
    if np.unique(sizes).size < 2:
        raise ValueError(f"a cost model needs at least 2 distinct sizes, and there are {np.unique(sizes).size}")
    alpha_s, beta_s_per_byte = _line(sizes, times)
    residuals = np.abs(alpha_s + beta_s_per_byte * sizes - times) / times
    alpha_ci95, beta_ci95 = _intervals(points, sizes, alpha_s, beta_s_per_byte, residuals)
    worst = float(residuals.max())
    segments: list[records.CostSegment] = []
    segmented: float | None = None
    if worst > LINE_TOLERANCE and not _one_stray(sizes, residuals):
        found, error = _segments(*_by_size(points))
        if error < worst:
            segments, segmented = found, error
    return records.CostModel(
        backend=backend,
        world_size=world_size,
        alpha_s=alpha_s,
        beta_s_per_byte=beta_s_per_byte,
        alpha_ci95=alpha_ci95,
        beta_ci95=beta_ci95,
        max_relative_residual=worst,
        points=sorted(points, key=lambda point: point.nbytes),
        segments=segments,
        segmented_max_relative_residual=segmented,
    )


def _raw(points: Sequence[records.CostPoint]) -> tuple[FloatArray, FloatArray]:
    """Sizes and times of the points, checked."""
    for point in points:
        if point.nbytes <= 0 or not math.isfinite(point.transfer_s) or point.transfer_s <= 0:
            raise ValueError(f"a cost point of {point.nbytes} bytes in {point.transfer_s} s: both must be above zero")
    sizes = np.array([point.nbytes for point in points], dtype=np.float64)
    return sizes, np.array([point.transfer_s for point in points], dtype=np.float64)


def _by_size(points: Sequence[records.CostPoint]) -> tuple[FloatArray, FloatArray]:
    """Distinct sizes, ascending, and the median time of each."""
    sizes, times = _raw(points)
    if sizes.size == 0:
        raise ValueError("there are no cost points")
    distinct = np.unique(sizes)
    return distinct, np.array([np.median(times[sizes == size]) for size in distinct], dtype=np.float64)


def _monotone(times: FloatArray) -> FloatArray:
    """The mean of the lowest rising curve above and the highest rising curve below; rising times are unchanged."""
    above = np.maximum.accumulate(times)
    below = np.minimum.accumulate(times[::-1])[::-1]
    middle: FloatArray = above + (below - above) / 2
    return middle


def _line(sizes: FloatArray, times: FloatArray) -> tuple[float, float]:
    """(α, β) ≥ 0 of the candidate line with the least sum of |log((α + βM) / T)|; the module lists the candidates."""
    left, right = np.triu_indices(sizes.size, k=1)
    left, right = left[sizes[left] != sizes[right]], right[sizes[left] != sizes[right]]
    beta = (times[right] - times[left]) / (sizes[right] - sizes[left])
    alpha = times[left] - beta * sizes[left]
    possible = (alpha >= 0) & (beta >= 0)
    zeros = np.zeros(sizes.size)
    alpha = np.concatenate([alpha[possible], zeros, times])
    beta = np.concatenate([beta[possible], times / sizes, zeros])
    loss = np.abs(np.log((alpha[:, None] + beta[:, None] * sizes) / times)).sum(axis=1)
    best = int(np.argmin(loss))
    return float(alpha[best]), float(beta[best])


def _intervals(
    points: Sequence[records.CostPoint],
    sizes: FloatArray,
    alpha_s: float,
    beta_s_per_byte: float,
    residuals: FloatArray,
) -> tuple[records.Interval, records.Interval]:
    """95 % intervals of α and β; each contains its estimate."""
    fitted = alpha_s + beta_s_per_byte * sizes
    freedom = math.sqrt(sizes.size / max(1, sizes.size - 2))
    misfit = 1.4826 * float(np.median(residuals)) * freedom
    own = np.array([(point.ci95[1] - point.ci95[0]) / 3.92 for point in points], dtype=np.float64) / fitted
    spread = np.maximum(own, misfit)
    random = np.random.default_rng(0)
    draws = np.empty((_DRAWS, 2))
    for draw in draws:
        draw[:] = _line(sizes, fitted * np.maximum(1.0 + spread * random.standard_normal(sizes.size), 1e-3))
    low, high = np.percentile(draws, [2.5, 97.5], axis=0)
    return (
        (min(float(low[0]), alpha_s), max(float(high[0]), alpha_s)),
        (min(float(low[1]), beta_s_per_byte), max(float(high[1]), beta_s_per_byte)),
    )


def _one_stray(sizes: FloatArray, residuals: FloatArray) -> bool:
    """True if only one size strictly between the ends is off the line: then the point is a stray."""
    outside = np.unique(sizes[residuals > LINE_TOLERANCE])
    enough = np.unique(sizes).size >= _STRAY_POINTS
    return enough and outside.size == 1 and bool(sizes.min() < outside[0] < sizes.max())


def _segments(sizes: FloatArray, times: FloatArray) -> tuple[list[records.CostSegment], float]:
    """The fewest chords between measured points that meet SEGMENT_TOLERANCE, and their largest relative residual.

    Least largest residual with k chords up to point j: min over i of max(that with k−1 up to i, residual of chord i→j).
    """
    count = sizes.size
    knots = _monotone(times)
    chord = np.full((count, count), np.inf)
    for i in range(count):
        for j in range(i + 1, count):
            along = np.interp(sizes[i : j + 1], sizes[[i, j]], knots[[i, j]])
            chord[i, j] = np.max(np.abs(along - times[i : j + 1]) / times[i : j + 1])
    reached = np.where(np.arange(count) == 0, 0.0, np.inf)
    came_from: list[npt.NDArray[np.intp]] = []
    best: tuple[float, list[int]] = (math.inf, [])
    for _ in range(min(MAX_SEGMENTS, count - 1)):
        worst = np.maximum(reached[:, None], chord)
        came_from.append(np.argmin(worst, axis=0))
        reached = worst.min(axis=0)
        if reached[-1] < best[0]:
            path = [count - 1]
            for step in reversed(came_from):
                path.append(int(step[path[-1]]))
            best = (float(reached[-1]), path[::-1])
        if reached[-1] <= SEGMENT_TOLERANCE:
            break
    error, path = best
    segments = []
    for i, j in itertools.pairwise(path):
        beta = float((knots[j] - knots[i]) / (sizes[j] - sizes[i]))
        alpha = float(knots[i] - beta * sizes[i])
        segments.append(records.CostSegment(from_bytes=int(sizes[i]), alpha_s=alpha, beta_s_per_byte=beta))
    return segments, error


def ring(alpha: float, beta: float, workers: int) -> tuple[float, float]:
    """(a [s], b [s/B]) of a ring all-reduce over `workers`: 2(N−1)α and 2(N−1)/N·β.

    `alpha` [s] latency of a message, `beta` [s/B] of the link and of the reduction (Thakur et al. 2005; `topology`).
    Like the other algorithms, it raises ValueError for fewer than two workers.
    """
    check_workers(workers)
    return 2 * (workers - 1) * alpha, 2 * ((workers - 1) / workers) * beta


def double_binary_trees(alpha: float, beta: float, workers: int) -> tuple[float, float]:
    """(a, b) of double binary trees: 2α·log2 N and β. Arguments as for `ring`."""
    check_workers(workers)
    return 2 * alpha * math.log2(workers), beta


def check_workers(workers: int) -> None:
    """Raise ValueError for fewer than two workers."""
    if workers < 2:
        raise ValueError(f"an all-reduce needs at least 2 workers, and there are {workers}")
