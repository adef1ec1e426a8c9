"""Fits to measurements: a ring to the times of steps, and a curve to losses.

| columns of a file | fit | needs |
| --- | --- | --- |
| gpus, batch, step_s | `fit_ring`: steps a second on any number of GPUs | the model's bytes |
| step, loss | `fit_loss`: number of steps of a job | a target |

Both report how well they fit, and how well they predict held-out measurements. Their results are valid in a `jobs.toml`
or a CSV of jobs.

**A ring** (`speeds`) is fitted by non-negative least squares on shares: each run's row is divided by its measured time,
so that a run of 1 s on 1 GPU and one of 0.1 s on 16 count alike. Runs of a single batch cannot separate θ0, θ2 and θ3:
1/w, 1 − 1/w and 1 are linearly dependent. T(w) is then still valid for that batch, and `RingFit.identified` is False.
The held-out error is that of each run predicted from the others.

**A loss curve** is loss(k) = 1/(β0·k + β1) + β2, β ≥ 0. Peng et al., Optimus (EuroSys 2018), section 3.1, and Capes et
al. (arXiv 1908.08082, 2019) predict the end of a job from it: stochastic gradient descent converges like 1/k. The loss
tends to β2. For a given β2 the curve is a line, 1/(loss − β2) = β0·k + β1, found by non-negative least squares. Its
rows are weighted by the curve's own height, found in a few rounds. That turns the errors of the line into errors of the
loss (Sanathanan and Koerner 1963). Without it, the last losses, which hardly differ from β2, would outweigh all others.
β2 itself is searched: a grid from 0 to just below the least loss, then a bounded scalar search near the best point. The
curve is smooth and flattens. It is wrong for a loss that falls in steps (a learning-rate schedule). `held_out_error`
shows that: the error of the last third of the points, predicted from the first two thirds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize_scalar, nnls

from xbench.cluster.speeds import RingSpeed, Theta
from xbench.cluster.traces.reading import above_zero, number, read_table, whole
from xbench.errors import SpecError
from xbench.units import format_percent, format_seconds

FloatArray = npt.NDArray[np.float64]

MIN_SIZES = 3
"""Least number of sizes. Two sizes lie on many rings; a third shows whether a ring fits."""

MIN_POINTS = 6
"""Least number of losses. Two thirds of them are still more than the three β."""

_STEP_ROUNDING = 1e-9
"""Share of a step that is only rounding."""

_GRID = 64
_ROUNDS = 8
_ROUNDING = 1e-20
"""Sums of squares of shares within this are equal. Of these the lowest β2 wins, because it promises least."""


class RingRun(NamedTuple):
    """One measured run: a step of `batch` samples in all took `step_s` on `gpus` GPUs."""

    gpus: int
    batch: float
    step_s: float


@dataclass(frozen=True)
class RingFit:
    """A ring fitted to runs. All shares are fitted over measured, minus one, in the order of the runs."""

    theta: Theta
    model_bytes: float
    runs: tuple[RingRun, ...]
    residuals: tuple[float, ...]
    held_out: tuple[float, ...]
    """Error of each run under the fit to all the others."""
    identified: bool
    """True if the runs determine all four θ. If not, only predictions for the runs' own batch are valid."""

    @property
    def residual(self) -> float:
        """The largest residual, as a share without its sign."""
        return max(abs(share) for share in self.residuals)

    @property
    def held_out_error(self) -> float:
        """The largest held-out error, as a share without its sign."""
        return max(abs(share) for share in self.held_out)

    def speed(self, batch: float) -> RingSpeed:
        """Speed of a job with that batch. Raises SpecError for a batch that the fit cannot predict (`identified`)."""
        batches = {run.batch for run in self.runs}
        if not self.identified and batch not in batches:
            known = ", ".join(f"{known_batch:g}" for known_batch in sorted(batches))
            raise SpecError(
                f"runs of batch {known} say nothing of batch {batch:g}", hint="fit runs of more batches and sizes"
            )
        return RingSpeed(self.theta, batch, self.model_bytes)


def fit_ring(runs: Sequence[RingRun], model_bytes: float) -> RingFit:
    """Fit θ ≥ 0 to runs of one model of `model_bytes` [B], by non-negative least squares on shares.

    Raises SpecError for fewer than three numbers of GPUs, for a time or a batch that is not finite and above zero, for
    less than one GPU, and for runs that leave a step on one GPU without any time.
    """
    for run in runs:
        if run.gpus < 1:
            raise SpecError(f"a run on {run.gpus} GPUs cannot be fitted")
        for name, value in (("batch", run.batch), ("step_s", run.step_s)):
            if not (math.isfinite(value) and value > 0):
                raise SpecError(f"a run on {run.gpus} GPUs has {name} = {value}, which is not a number above zero")
    if not (math.isfinite(model_bytes) and model_bytes >= 0):
        raise SpecError(f"{model_bytes} bytes of gradients cannot be fitted")
    sizes = sorted({run.gpus for run in runs})
    if len(sizes) < MIN_SIZES:
        raise SpecError(
            f"runs on {' and '.join(str(size) for size in sizes) or 'no'} GPUs do not make a ring",
            hint=f"measure at least {MIN_SIZES} numbers of GPUs",
        )
    terms = [[batch / gpus, gpus - 1.0, (gpus - 1.0) * model_bytes / gpus, 1.0] for gpus, batch, _ in runs]
    times = np.array([run.step_s for run in runs])
    shares = np.array(terms) / times[:, None]
    theta = _nonnegative(shares)
    fitted = (float(theta[0]), float(theta[1]), float(theta[2]), float(theta[3]))
    alone_s = fitted[0] * min(run.batch for run in runs) + fitted[3]
    if alone_s <= _STEP_ROUNDING * float(times.min()):
        raise SpecError(
            "no ring fits the runs: the nearest leaves a step on one GPU without any time",
            hint="add runs, one of them on one GPU",
        )
    return RingFit(
        fitted,
        model_bytes,
        tuple(runs),
        tuple(float(share) - 1.0 for share in shares @ theta),
        tuple(
            float(shares[index] @ _nonnegative(np.delete(shares, index, axis=0))) - 1.0 for index in range(len(runs))
        ),
        int(np.linalg.matrix_rank(_scaled(shares)[0])) == 4,
    )


def _scaled(shares: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Columns scaled to length one, and their lengths: bytes and samples differ by ten orders of magnitude."""
    lengths = np.linalg.norm(shares, axis=0)
    lengths[lengths == 0] = 1.0
    return shares / lengths, lengths


def _nonnegative(shares: FloatArray) -> FloatArray:
    """θ ≥ 0 whose rows come closest to 1."""
    columns, lengths = _scaled(shares)
    solution, _ = nnls(columns, np.ones(len(columns)))
    theta: FloatArray = np.asarray(solution, dtype=np.float64) / lengths
    return theta


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
    """β0 and β1 for a given β2, and the sum of squared errors of the losses.

    Weighted rounds fit 1/(loss - β2) by a line. The first line may be 0 at step 0, where a curve has no value, and a
    weighted line of losses that do not fall is above their mean. So the constant mean is a candidate too.
    """
    above = losses - floor
    weights = above
    mean = float(np.mean(above))
    best = ((0.0, 1.0 / mean), float(np.sum((mean - above) ** 2)))
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


RUNS: Mapping[str, Callable[[str, str], Any]] = {"gpus": whole, "batch": above_zero, "step_s": above_zero}
LOSSES: Mapping[str, Callable[[str, str], Any]] = {"step": number, "loss": number}


def fitted_lines(path: Path, model_bytes: float | None = None, target: float | None = None) -> list[str]:
    """The fit in lines of text. Raises SpecError for columns, rows and options that do not go together."""
    table = read_table(path, (), (*RUNS, *LOSSES))
    has_runs, has_losses = (bool(columns.keys() & table.column) for columns in (RUNS, LOSSES))
    if has_runs == has_losses:
        raise SpecError(
            f"{path} has columns of {'both runs and losses' if has_runs else 'neither runs nor losses'}",
            hint="runs: gpus,batch,step_s; losses: step,loss",
        )
    columns = RUNS if has_runs else LOSSES
    missing = [name for name in columns if name not in table.column]
    if missing:
        raise SpecError(f"{path} has no column {missing[0]!r}", hint=f"it takes {','.join(columns)}")
    if has_runs:
        if target is not None:
            raise SpecError(f"--target is for losses, and {path} has runs", hint="leave it out")
        if model_bytes is None:
            raise SpecError("a ring needs the bytes of its model's gradients", hint="--model-bytes 97.5MiB")
        return list(_ring_lines(fit_ring([RingRun(*run) for run in table.parsed(RUNS)], model_bytes)))
    if model_bytes is not None:
        raise SpecError(f"--model-bytes is for runs, and {path} has losses", hint="leave it out")
    rows = table.parsed(LOSSES)
    if not rows:
        raise SpecError(f"{table.file} has no losses")
    steps, losses = zip(*rows, strict=True)
    return list(_loss_lines(fit_loss(steps, losses), max(steps), target))


def _ring_lines(fit: RingFit) -> Iterator[str]:
    yield (
        f"A ring fits {len(fit.runs)} runs within {format_percent(fit.residual)}; each run predicted from the others "
        f"is off by {format_percent(fit.held_out_error)} at most."
    )
    if not fit.identified:
        yield "Other θ fit as well: the runs foretell their own batch on any number of GPUs, and no other batch."
    yield ""
    yield "  gpus     batch  measured    fitted  residual  held out"
    for run, residual, held_out in zip(fit.runs, fit.residuals, fit.held_out, strict=True):
        fitted_s = run.step_s * (1 + residual)
        yield (
            f"{run.gpus:6}  {run.batch:8g}  {format_seconds(run.step_s):>8}  {format_seconds(fitted_s):>8}  "
            f"{round(100 * residual, 1) + 0.0:+7.1f}%  {round(100 * held_out, 1) + 0.0:+7.1f}%"
        )
    sample_s, worker_s, byte_s, step_s = fit.theta
    yield ""
    yield (
        f"A step takes {sample_s:.4g} s a sample, {worker_s:.4g} s a further worker, {byte_s:.4g} s a byte, and "
        f"{step_s:.4g} s in any case."
    )
    yield ""
    theta = ", ".join(f"{value:.6g}" for value in fit.theta)
    yield f"ring = {{ theta = [{theta}], model_bytes = {fit.model_bytes:.0f} }}   # in a jobs.toml"
    sizes = sorted({run.gpus for run in fit.runs})
    for batch in sorted({run.batch for run in fit.runs}):
        speed = fit.speed(batch)
        yield f"{','.join(f'speed_{size}' for size in sizes)}   # in a CSV of jobs, batch {batch:g}"
        yield ",".join(f"{speed(size):.6g}" for size in sizes)


def _loss_lines(fit: LossFit, last: float, target: float | None) -> Iterator[str]:
    beta0, beta1, beta2 = fit.curve.beta
    yield (
        f"1/({beta0:.4g}·k + {beta1:.4g}) + {beta2:.4g} fits {fit.points} losses within {format_percent(fit.residual)} "
        f"(root mean square); their last third, predicted from the first two, is off by "
        f"{format_percent(fit.held_out_error)}."
    )
    if target is None:
        yield f"It tends to {beta2:.4g}; --target LOSS says after how many steps a loss is reached."
        return
    steps = fit.curve.steps_to(target)
    left = f", {steps - last:.0f} after the last of them" if steps > last else ", and is among them"
    yield f"A loss of {target:g} is reached after {steps:.0f} steps{left}."
    yield ""
    yield "loss_target,loss_beta0,loss_beta1,loss_beta2   # in a CSV of jobs"
    yield f"{target:g},{beta0:.6g},{beta1:.6g},{beta2:.6g}"
