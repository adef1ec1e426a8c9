"""Validation: a matrix of comparisons, or cells drawn from it, that tests each prediction by its measurement.

A cell is an ordinary comparison. Predictions are made from its profile, which runs before anything is timed, and are
compared with its timed blocks. A machine may compute faster or slower in the blocks than in the profile, which no model
of schedules can predict. The control mode `compute`, timed among the others, measures that change. A second error is
that of predictions at the changed speed.

If the control shows a change of speed by more than a tenth, and large enough to matter in the steps, the cell is
measured again, once. The record names the first comparison, because such a cell measures the machine. A drawn cell
keeps its first measurement. Only a launch whose links changed is repeated, and the record counts it.

Cells of held-out sizes run on another number of hosts than their predictions come from. Cost model and contention are
converted by topology from the cell on fewer hosts. Computation is scaled to the speed of `compute` on the larger
fabric. Hosts that share a machine's cores slow each other down, which no measurement of fewer hosts shows.

The record is saved after every cell. A run that dies keeps its cells, and `resume` continues from them. A drawing
finds its own record in the output folder and continues it, on the same commit only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from xbench import environment
from xbench.config import ValidateConfig
from xbench.errors import FabricError, Interrupted, RunError, XbenchError
from xbench.fabrics import parse_fabric
from xbench.interrupts import interrupts_held
from xbench.rank.program import BLOCK_S
from xbench.record_files import command_line, now
from xbench.records import (
    Comparison,
    Drawing,
    Environment,
    Validation,
    ValidationCell,
    WorkloadRecord,
    load,
    of_kind,
)
from xbench.runs.execute import execute
from xbench.runs.prepare import check_request, check_unprobed
from xbench.runs.run_folder import Kept, check_output, keep, measure_and_keep
from xbench.runs.validation_cells import cell_of, failed_cell, unsteady
from xbench.runs.validation_places import (
    Place,
    check_resumed,
    continued,
    drawing_of,
    hints_of_a_matrix,
    is_at,
    not_reached,
    places_of,
)
from xbench.spec import Effort, FabricSpec, WorkloadSpec
from xbench.stats.cells import shown_cells
from xbench.stats.non_inferiority import non_inferiority
from xbench.stats.prediction_skill import order, regret, skills
from xbench.stats.validation import goals, summaries
from xbench.units import parse_rate

LONG_STEP_S = 0.75
"""Step time from which a block has a computed number of steps [s]. Shorter steps fill the usual block time."""

VERY_LONG_STEP_S = 20.0
ROUNDS = (6, 5, 4)
GUESSED_COMPUTE_S = 0.5
AGAIN = 1
"""Times that a cell of a whole matrix is measured again because the machine changed its speed."""

REPEATS = 3
"""Launches of a cell that may be discarded because its links changed. The cell fails at the next one."""


def validate(config: ValidateConfig, console: Console) -> Kept[Validation]:
    """Run every missing cell, and save the record after each.

    A cell that fails is kept with its reason, and the others run. Raises UsageError before anything is launched, also
    if the resumed record has other modes.
    """
    check_output(config.output)
    if config.resume is not None:
        check_resumed(config, config.resume)
    _check_matrix(config)
    places, described = places_of(config)
    drawing = drawing_of(config, places)
    before, path = continued(config, places, drawing, described)
    done = list(before.cells) if before is not None else []
    discarded = list(before.discarded) if before is not None else []
    kept: list[ValidationCell] = []
    if before is not None and drawing is not None:
        measured = sum(cell.error is None for cell in done)
        console.print(f"{path} is continued: it has {measured} of {len(places)} cells", highlight=False)

    def so_far(error: XbenchError | None) -> Validation:
        complete = len(kept) == len(places)
        known = kept if complete else [*kept, *not_reached(done, kept)]
        told = str(error) if error is not None and not complete else None
        return record(config, described, known, complete=complete, error=told, drawing=drawing, discarded=discarded)

    def measure() -> None:
        for index, place in enumerate(places):
            earlier = next((cell for cell in done if is_at(cell, place)), None)
            if earlier is not None:
                kept.append(earlier)
                continue
            effort = effort_for(place.workload, place.cell.fabric, kept, config)
            title = f"{place.workload.title}, batch {place.workload.batch_size}, on {place.cell.fabric}"
            console.print(f"cell {index + 1} of {len(places)}: {title}", highlight=False)
            try:
                cell, interrupted = _run_cell(config, place, effort, kept, discarded, console)
            except Interrupted as stopped:
                discarded.append(f"cell {index + 1}, {title}: {stopped}")
                raise
            with interrupts_held():
                if cell.error is not None:
                    discarded.append(f"cell {index + 1}, {title}: {cell.error}")
                kept.append(cell)
                keep(so_far(None), path)
            if interrupted is not None:
                raise interrupted

    made, kept_at, error = measure_and_keep(measure, so_far, lambda _: path)
    if error is None and all(cell.error is not None for cell in kept):
        error = RunError("no cell was measured", hint="its reasons are in the record")
    return Kept(made, kept_at, error)


def _check_matrix(config: ValidateConfig) -> None:
    """Check every workload and fabric as a comparison of them does, before the probe. Raises UsageError."""
    asked = replace(config, reference=None)
    for workload in config.workloads:
        check_request(replace(asked, workloads=[workload]))
    with hints_of_a_matrix():
        for fabric in config.matrix.all:
            check_unprobed(replace(asked, workloads=config.workloads[:1], fabric=fabric))


def record(
    config: ValidateConfig,
    described: Environment,
    cells: Sequence[ValidationCell],
    *,
    complete: bool,
    error: str | None = None,
    drawing: Drawing | None = None,
    discarded: Sequence[str] = (),
) -> Validation:
    """Build the record of these cells. Figures of held-out cells are made only when all cells are there."""
    shown = shown_cells(cells, complete=complete)
    fitted = [cell for cell in shown if cell.predicted_on == cell.fabric.world_size]
    warnings = environment.noise_warnings()
    if drawing is not None and (described.commit or "").endswith("+"):
        warnings.append("files of the checkout differed from its commit while cells were measured")
    return Validation(
        created=now(),
        command=command_line(),
        environment=described,
        modes=[mode.text for mode in config.modes],
        complete=complete,
        error=error,
        cells=list(cells),
        drawing=drawing,
        discarded=list(discarded),
        errors=summaries(fitted),
        errors_at_speed=summaries(fitted, at_speed=True),
        skills=skills(fitted),
        order=order(fitted),
        regret=regret(fitted),
        non_inferiority=non_inferiority(fitted),
        goals=goals(fitted),
        warnings=warnings,
    )


def effort_for(
    workload: WorkloadRecord, fabric: FabricSpec, known: Iterable[ValidationCell], config: ValidateConfig
) -> Effort:
    """Return rounds and steps that fit a cell's time, from gradient bytes, rate and earlier cells' computation.

    There are at least four rounds, which an interval needs, of two steps. There is one round if a step takes longer
    than 20 s.
    """
    link_s = 0.0
    if fabric.rate is not None:
        link_s = 2 * (fabric.world_size - 1) / fabric.world_size * 8 * workload.grad_bytes / parse_rate(fabric.rate)
    computed = [
        cell.compute_s * workload.batch_size / cell.workload.batch_size
        for cell in known
        if cell.workload.spec.name == workload.spec.name and cell.compute_s > 0
    ]
    step_s = link_s + (computed[-1] if computed else GUESSED_COMPUTE_S)
    if step_s < LONG_STEP_S:
        blocks = 60 * config.cell_minutes / (BLOCK_S * len(config.modes))
        return Effort(launches=1, rounds=next((r for r in ROUNDS if blocks >= r), ROUNDS[-1]))
    if step_s > VERY_LONG_STEP_S:
        return Effort(launches=1, rounds=1, steps=2, warmup_steps=1, parity_steps=1, profile_steps=8)
    afforded = 60 * config.cell_minutes / (step_s * len(config.modes))
    rounds = next((r for r in ROUNDS if afforded / r >= 3), ROUNDS[-1])
    steps = max(2, int(afforded / rounds) - 1)
    return Effort(launches=1, rounds=rounds, steps=steps, warmup_steps=1, parity_steps=2)


def _run_cell(
    config: ValidateConfig,
    place: Place,
    effort: Effort,
    kept: Sequence[ValidationCell],
    discarded: list[str],
    console: Console,
) -> tuple[ValidationCell, Interrupted | None]:
    """Run a cell. Return it, and an interruption after its first measurement. Raises Interrupted for an earlier one."""
    spec, fabric, held_out = place.cell
    asked = replace(
        config,
        workloads=[spec],
        reference="ddp" if any(mode.text == "ddp" for mode in config.modes) else None,
        fabric=fabric,
        effort=effort,
        timeout_s=max(config.timeout_s, 2 * VERY_LONG_STEP_S),
    )
    again = AGAIN if place.number is None else 0
    set_aside: list[str] = []
    first: ValidationCell | None = None
    try:
        source = _source(config, spec, fabric, kept)
        if source is None and fabric in config.matrix.held_out:
            raise RunError("nothing was measured on fewer hosts to predict this from")
        while True:
            record, path, interrupted = _undisturbed(asked, discarded, console)
            cell = cell_of(record, path, source)
            cell = cell.model_copy(update={"number": place.number, "held_out": held_out})
            drift = (cell.compute_blocks_s or cell.compute_s) / cell.compute_s - 1
            if interrupted or source is not None or not unsteady(cell) or len(set_aside) == again:
                return cell.model_copy(update={"set_aside": set_aside}), interrupted
            first = first or cell
            set_aside.append(f"{path}: {drift:+.0%}")
            console.print(
                f"measured again: the computation took {drift:+.0%} while modes were timed of what it took before",
                highlight=False,
            )
    except Interrupted as stopped:
        if first is None:
            raise
        return first, stopped
    except XbenchError as failed:
        if first is not None:
            console.print(f"the first measurement stands: {failed}", style="yellow", highlight=False)
            return first, None
        console.print(f"left out: {failed}", style="red", highlight=False)
        cell = failed_cell(place.workload, fabric, str(failed))
        return cell.model_copy(update={"number": place.number, "held_out": held_out}), None


def _undisturbed(
    asked: ValidateConfig, discarded: list[str], console: Console
) -> tuple[Comparison, str, Interrupted | None]:
    """Measure until the links stay as they are. Return the comparison, its path, and an interruption after its end.

    Adds each comparison whose links changed to `discarded`. Raises the error of one that failed otherwise.
    """
    for repeat in range(REPEATS + 1):
        result = execute(asked, console)
        if isinstance(result.error, FabricError) and repeat < REPEATS:
            discarded.append(f"{result.path}: {result.error}")
            console.print(f"measured again: {result.error}", style="yellow", highlight=False)
            continue
        if result.error is not None and not result.record.complete:
            raise result.error
        break
    record = of_kind(result.record, Comparison)
    assert record is not None  # the request was for a comparison
    return record, str(result.path), result.error if isinstance(result.error, Interrupted) else None


def _source(
    config: ValidateConfig, spec: WorkloadSpec, fabric: FabricSpec, kept: Sequence[ValidationCell]
) -> Comparison | None:
    """Return the comparison that predicts a cell of a held-out size: the same workload and rate, as measured."""
    if fabric not in config.matrix.held_out:
        return None
    for cell in kept:
        rate = parse_fabric(cell.fabric.spec).rate
        if cell.workload.spec == spec and rate == fabric.rate and cell.error is None:
            return of_kind(load(Path(cell.record)), Comparison)
    return None
