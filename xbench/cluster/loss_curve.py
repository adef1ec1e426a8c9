"""Loss curve loss(k) = 1/(β0·k + β1) + β2, fitted to a job's losses, and the steps that remain until a loss.

Peng et al., Optimus (EuroSys 2018), section 3.1, and Capes et al. (arXiv 1908.08082, 2019) predict the end of a job
from this curve: stochastic gradient descent converges like 1/k. β ≥ 0; the loss tends to β2.

For a given β2 the curve is a line, 1/(loss − β2) = β0·k + β1, found by non-negative least squares. Its rows are
weighted by the curve's own height, found in a few rounds. That turns the errors of the line into errors of the loss
(Sanathanan and Koerner 1963). Without it, the last losses, which hardly differ from β2, would outweigh all others.
β2 itself is searched: a grid from 0 to just below the least loss, then a bounded scalar search near the best point.

The curve is smooth and flattens. It is wrong for a loss that falls in steps (a learning-rate schedule).
`held_out_error` shows that: the error of the last third of the points, predicted from the first two thirds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize_scalar, nnls

from xbench.errors import SpecError

FloatArray = npt.NDArray[np.float64]

MIN_POINTS = 6
"""Least number of points. Two thirds of them are still more than the three β."""

_GRID = 64
_ROUNDS = 8
_ROUNDING = 1e-20
"""Sums of squares of shares within this are equal. Of these the lowest β2 wins, because it promises least."""


@dataclass(frozen=True)
class LossCurve:
    """loss(k) = 1/(β0·k + β1) + β2, all β ≥ 0. Raises SpecError for invalid β."""

    beta: tuple[float, float, float]

    def __post_init__(self) -> None:
        if len(self.beta) != 3 or not all(math.isfinite(value) and value >= 0 for value in self.beta):
            raise SpecError(f"a loss curve's β is three numbers, none below zero, and {self.beta} is not")
        if self.beta[0] + self.beta[1] <= 0:
            raise SpecError("a loss curve of β0 = β1 = 0 is infinite")

    def __call__(self, step: float) -> float:
        """Loss after `step` steps; infinite at step 0 if β1 is 0."""
        height = self.beta[0] * step + self.beta[1]
        return (1.0 / height if height > 0 else math.inf) + self.beta[2]

    def steps_to(self, target: float) -> float:
        """Step, not rounded, after which the loss is `target`; 0 if it starts at or below.

        Raises SpecError for a target that the curve never reaches.
        """
        slope, start, floor = self.beta
        if not math.isfinite(target) or target <= floor:
            raise SpecError(f"a loss of {target:g} is never reached: the curve tends to {floor:g}")
        if 1.0 / (target - floor) <= start:
            return 0.0
        if slope == 0:
            raise SpecError(f"a loss of {target:g} is never reached: the curve stays at {self(0):g}")
        return (1.0 / (target - floor) - start) / slope

    def remaining_steps(self, target: float, done: float) -> float:
        """Steps from `done` to that loss; 0 if it has been reached. Raises SpecError as `steps_to` does."""
        return max(0.0, self.steps_to(target) - done)


@dataclass(frozen=True)
class LossFit:
    """A curve fitted to losses. Both errors are root mean squares of fitted over measured, minus one."""

    curve: LossCurve
    residual: float
    held_out_error: float
    """Error of the last third of the points, by a curve fitted to the first two thirds."""
    points: int


def fit_loss(steps: Sequence[float], losses: Sequence[float]) -> LossFit:
    """Fit the curve to losses after the given steps, in any order.

    Raises SpecError for fewer than six different steps, for lists of unequal length, for a step below zero and for a
    loss that is not finite and above zero.
    """
    if len(steps) != len(losses):
        raise SpecError(f"{len(steps)} steps and {len(losses)} losses do not belong together")
    for step, loss in zip(steps, losses, strict=True):
        if not (math.isfinite(step) and step >= 0):
            raise SpecError(f"a loss cannot be seen after {step} steps")
        if not (math.isfinite(loss) and loss > 0):
            raise SpecError(f"the loss after {step:g} steps is {loss}, which is not a number above zero")
    if len(set(steps)) < MIN_POINTS:
        raise SpecError(
            f"the losses of {len(set(steps))} different steps do not determine a curve",
            hint=f"give at least {MIN_POINTS}",
        )
    order = np.argsort(np.asarray(steps, dtype=np.float64), kind="stable")
    steps_seen = np.asarray(steps, dtype=np.float64)[order]
    losses_seen = np.asarray(losses, dtype=np.float64)[order]
    curve = _fit(steps_seen, losses_seen)
    split = len(losses_seen) - len(losses_seen) // 3
    early = _fit(steps_seen[:split], losses_seen[:split])
    return LossFit(
        curve,
        _error(curve, steps_seen, losses_seen),
        _error(early, steps_seen[split:], losses_seen[split:]),
        points=len(losses_seen),
    )


def _error(curve: LossCurve, steps: FloatArray, losses: FloatArray) -> float:
    shares = np.array([curve(float(step)) for step in steps]) / losses - 1.0
    return float(np.sqrt(np.mean(shares**2)))


def _fit(steps: FloatArray, losses: FloatArray) -> LossCurve:
    """Find the best β2 on a grid, then by a bounded search in the two adjacent cells."""
    longest, highest = float(max(steps.max(), 1.0)), float(losses.max())
    scaled_steps, scaled = steps / longest, losses / highest
    floors = np.linspace(0.0, float(scaled.min()), _GRID, endpoint=False)
    errors = [_line(scaled_steps, scaled, floor)[1] for floor in floors]
    best = next(index for index, error in enumerate(errors) if error <= min(errors) + _ROUNDING)
    floor = float(floors[best])
    cell = float(floors[1])
    result = minimize_scalar(
        lambda value: _line(scaled_steps, scaled, value)[1],
        bounds=(max(0.0, floor - cell), min(floor + cell, float(scaled.min()) * (1 - 1e-9))),
        method="bounded",
        options={"xatol": 1e-12},
    )
    if result.fun < errors[best] - _ROUNDING:
        floor = float(result.x)
    (slope, start), _ = _line(scaled_steps, scaled, floor)
    return LossCurve((slope / (longest * highest), start / highest, floor * highest))


def _line(steps: FloatArray, losses: FloatArray, floor: float) -> tuple[tuple[float, float], float]:
    """β0 and β1 for a given β2, and the sum of squared errors of the losses."""
    above = losses - floor
    weights = above
    best: tuple[tuple[float, float], float] = ((0.0, 1.0), math.inf)
    for _ in range(_ROUNDS):
        rows = (weights * above)[:, None] * np.stack([steps, np.ones_like(steps)], axis=1)
        (slope, start), _ = nnls(rows, weights)
        if slope < 1e-12 * start:  # all steps scaled to at most 1: a rise that is only rounding
            slope = 0.0
        heights = slope * steps + start
        if heights.min() <= 0:
            break
        curve = 1.0 / heights
        error = float(np.sum((curve - above) ** 2))
        if error < best[1]:
            best = ((float(slope), float(start)), error)
        weights = curve
    return best
