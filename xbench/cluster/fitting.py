"""Fits to a file of measurements: a ring fitted to step times, or a curve fitted to losses.

| columns | fit | needs |
| --- | --- | --- |
| gpus, batch, step_s | `speeds.fit_ring`: steps a second on any number of GPUs | the model's bytes |
| step, loss | `loss_curve.fit_loss`: number of steps of a job | a target |

Both report how well they fit, and how well they predict held-out measurements. Their results are valid in a `jobs.toml`
or a CSV of jobs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from xbench.cluster.loss_curve import LossFit, fit_loss
from xbench.cluster.speeds import RingFit, RingRun, fit_ring
from xbench.cluster.traces.reading import Table, above_zero, number, read_table, whole
from xbench.errors import SpecError
from xbench.units import format_percent, format_seconds

RUNS = ("gpus", "batch", "step_s")
LOSSES = ("step", "loss")
EVERY = (*RUNS, *LOSSES)


def fitted_lines(path: Path, model_bytes: float | None = None, target: float | None = None) -> list[str]:
    """The fit in lines of text. Raises SpecError for columns, rows and options that do not go together."""
    table = read_table(path, (), EVERY)
    has_runs, has_losses = (set(names) & set(table.column) for names in (RUNS, LOSSES))
    if bool(has_runs) == bool(has_losses):
        raise SpecError(
            f"{path} has columns of {'both runs and losses' if has_runs else 'neither runs nor losses'}",
            hint="runs: gpus,batch,step_s; losses: step,loss",
        )
    wanted = RUNS if has_runs else LOSSES
    missing = [name for name in wanted if name not in table.column]
    if missing:
        raise SpecError(f"{path} has no column {missing[0]!r}", hint=f"it takes {','.join(wanted)}")
    if has_runs:
        if target is not None:
            raise SpecError(f"--target is for losses, and {path} has runs", hint="leave it out")
        if model_bytes is None:
            raise SpecError("a ring needs the bytes of its model's gradients", hint="--model-bytes 97.5MiB")
        return list(_ring_lines(fit_ring(_runs(table), model_bytes)))
    if model_bytes is not None:
        raise SpecError(f"--model-bytes is for runs, and {path} has losses", hint="leave it out")
    steps, losses = _losses(table)
    return list(_loss_lines(fit_loss(steps, losses), max(steps), target))


def _cells(table: Table, names: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    for row, cells in table.numbered():
        try:
            table.check_width(cells)
        except ValueError as problem:
            raise SpecError(f"{table.file}: row {row}: {problem}") from None
        yield row, [cells[table.column[name]].strip() for name in names]


def _runs(table: Table) -> list[RingRun]:
    runs = []
    for row, (gpus, batch, step_s) in _cells(table, RUNS):
        try:
            runs.append(RingRun(whole(gpus, "gpus"), above_zero(batch, "batch"), above_zero(step_s, "step_s")))
        except ValueError as problem:
            raise SpecError(f"{table.file}: row {row}: {problem}") from None
    return runs


def _losses(table: Table) -> tuple[list[float], list[float]]:
    steps, losses = [], []
    for row, (step, loss) in _cells(table, LOSSES):
        try:
            steps.append(number(step, "step"))
            losses.append(number(loss, "loss"))
        except ValueError as problem:
            raise SpecError(f"{table.file}: row {row}: {problem}") from None
    if not steps:
        raise SpecError(f"{table.file} has no losses")
    return steps, losses


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
