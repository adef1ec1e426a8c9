"""Validation: a matrix of comparisons, workloads × fabrics, that tests each prediction by its measurement.

A cell is an ordinary comparison. Predictions are made from its profile, which runs before anything is timed, and are
compared with its timed blocks. A machine may compute faster or slower in the blocks than in the profile, which no model
of schedules can predict. The control mode `compute`, timed among the others, measures that change. A second error is
that of predictions at the changed speed.

If the control shows a change of speed by more than a tenth, and large enough to matter in the steps, the cell is
measured again, once. The record names the first comparison, because such a cell measures the machine.

Held-out cells run on another number of hosts than their predictions come from. Cost model and contention are converted
by topology from the cell on fewer hosts. Computation is scaled to the speed of `compute` on the larger fabric. Hosts
that share a machine's cores slow each other down, which no measurement of fewer hosts shows.

The record is saved after every cell. A run that dies keeps its cells, and `resume` continues from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from rich.console import Console

from xbench import environment
from xbench.config import ValidateConfig
from xbench.errors import Interrupted, RunError, SpecError, XbenchError
from xbench.fabrics import parse_fabric
from xbench.interrupts import interrupts_held
from xbench.rank.program import BLOCK_S
from xbench.record_files import RECORD
from xbench.records import Comparison, Environment, Validation, ValidationCell, WorkloadRecord, load, of_kind
from xbench.runs.build_records import command_line, now
from xbench.runs.execute import execute
from xbench.runs.run_folder import Kept, keep, measure_and_keep, new_run_folder
from xbench.runs.validation_cells import cell_of, failed_cell, unsteady
from xbench.spec import Effort, FabricSpec, WorkloadSpec
from xbench.stats.validation import goals, summaries
from xbench.units import parse_rate
from xbench.workloads.probe import probe

LONG_STEP_S = 0.75
"""Step time from which a block has a computed number of steps [s]. Shorter steps fill the usual block time."""

VERY_LONG_STEP_S = 20.0
ROUNDS = (6, 5, 4)
GUESSED_COMPUTE_S = 0.5
AGAIN = 1


def validate(config: ValidateConfig, console: Console) -> Kept[Validation]:
    """Run every missing cell, and save the record after each.

    A cell that fails is kept with its reason, and the others run. Raises UsageError before anything is launched, also
    if the resumed record has other modes.
    """
    asked = [mode.text for mode in config.modes]
    if config.resume is not None and config.resume.modes != asked:
        raise SpecError(
            f"--resume: that validation is of {', '.join(config.resume.modes)}, and --modes asks for "
            f"{', '.join(asked)}",
            hint=f"write --modes {','.join(config.resume.modes)}",
        )
    if config.resume is not None and config.resume.overlap != config.overlap:
        raise SpecError(
            f"--resume: auto could overlap the {config.resume.overlap} pass in that validation, and --overlap is "
            f"{config.overlap}",
            hint=f"write --overlap {config.resume.overlap}",
        )
    if config.resume is not None and config.resume.collectives != "torch":
        raise SpecError(
            f"--resume: that validation went over the backend {config.resume.collectives}, which was removed",
            hint="leave --resume out, and every cell is measured over Gloo",
        )
    found = probe(list(config.workloads), config.device, max(f.world_size for f in config.matrix.all))
    workloads = [item.record for item in found.workloads]
    path = new_run_folder(config.output, "validation") / RECORD
    done = list(config.resume.cells) if config.resume is not None else []
    kept: list[ValidationCell] = []
    described = environment.capture(found.model_dump())
    cells = list(product(config.matrix.all, zip(found.specs, workloads, strict=True)))

    def so_far(error: XbenchError | None) -> Validation:
        complete = len(kept) == len(cells)
        known = kept if complete else [*kept, *_missing(done, kept)]
        told = str(error) if error is not None and not complete else None
        return record(config, described, known, complete=complete, error=told)

    def measure() -> None:
        for number, (fabric, (spec, workload)) in enumerate(cells):
            before = next((cell for cell in done if _same(cell, spec, fabric)), None)
            if before is not None:
                kept.append(before)
                continue
            effort = effort_for(workload, fabric, kept, config)
            console.print(f"cell {number + 1} of {len(cells)}: {workload.title} on {fabric}", highlight=False)
            cell, interrupted = _run_cell(config, spec, workload, fabric, effort, kept, console)
            with interrupts_held():
                kept.append(cell)
                keep(so_far(None), path)
            if interrupted is not None:
                raise interrupted

    made, kept_at, error = measure_and_keep(measure, so_far, lambda _: path)
    if error is None and all(cell.error is not None for cell in kept):
        error = RunError("no cell was measured", hint="its reasons are in the record")
    return Kept(made, kept_at, error)


def record(
    config: ValidateConfig,
    described: Environment,
    cells: Sequence[ValidationCell],
    *,
    complete: bool,
    error: str | None = None,
) -> Validation:
    """Build the record of these cells."""
    fitted = [cell for cell in cells if cell.predicted_on == cell.fabric.world_size]
    return Validation(
        created=now(),
        command=command_line(),
        environment=described,
        modes=[mode.text for mode in config.modes],
        overlap=config.overlap,
        complete=complete,
        error=error,
        cells=list(cells),
        errors=summaries(fitted),
        errors_at_speed=summaries(fitted, at_speed=True),
        goals=goals(fitted, config.overlap),
        warnings=environment.noise_warnings(),
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
    computed = [cell.compute_s for cell in known if cell.workload.spec == workload.spec and cell.compute_s > 0]
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
    spec: WorkloadSpec,
    workload: WorkloadRecord,
    fabric: FabricSpec,
    effort: Effort,
    kept: Sequence[ValidationCell],
    console: Console,
) -> tuple[ValidationCell, Interrupted | None]:
    """Run a cell. Return it, and an interruption after its measurement. Raises Interrupted for an earlier one."""
    asked = replace(
        config,
        workloads=[spec],
        reference="ddp" if any(mode.text == "ddp" for mode in config.modes) else None,
        fabric=fabric,
        effort=effort,
        timeout_s=max(config.timeout_s, 2 * VERY_LONG_STEP_S),
    )
    set_aside: list[str] = []
    first: ValidationCell | None = None
    try:
        source = _source(config, spec, fabric, kept)
        if source is None and fabric in config.matrix.held_out:
            raise RunError("nothing was measured on fewer hosts to predict this from")
        while True:
            result = execute(asked, console)
            if result.error is not None and not result.record.complete:
                raise result.error
            record = of_kind(result.record, Comparison)
            assert record is not None  # the request was for a comparison
            cell = cell_of(record, str(result.path), source)
            drift = (cell.compute_blocks_s or cell.compute_s) / cell.compute_s - 1
            interrupted = result.error if isinstance(result.error, Interrupted) else None
            if interrupted or source is not None or not unsteady(cell) or len(set_aside) == AGAIN:
                return cell.model_copy(update={"set_aside": set_aside}), interrupted
            first = first or cell
            set_aside.append(f"{result.path}: {drift:+.0%}")
            console.print(
                f"measured again: the computation took {drift:+.0%} while modes were timed of what it took before",
                highlight=False,
            )
    except Interrupted:
        raise
    except XbenchError as failed:
        if first is not None:
            console.print(f"the first measurement stands: {failed}", style="yellow", highlight=False)
            return first, None
        console.print(f"left out: {failed}", style="red", highlight=False)
        return failed_cell(workload, fabric, str(failed)), None


def _source(
    config: ValidateConfig, spec: WorkloadSpec, fabric: FabricSpec, kept: Sequence[ValidationCell]
) -> Comparison | None:
    """Return the comparison that predicts a held-out cell: the same workload and rate on the requested fabric."""
    if fabric not in config.matrix.held_out:
        return None
    for cell in kept:
        rate = parse_fabric(cell.fabric.spec).rate
        if cell.workload.spec == spec and rate == fabric.rate and cell.error is None:
            return of_kind(load(Path(cell.record)), Comparison)
    return None


def _same(cell: ValidationCell, spec: WorkloadSpec, fabric: FabricSpec) -> bool:
    return cell.error is None and cell.workload.spec == spec and cell.fabric.spec == str(fabric)


def _missing(done: Sequence[ValidationCell], kept: Sequence[ValidationCell]) -> list[ValidationCell]:
    """Return cells of the resumed record that have not been reached yet. An interrupted resume keeps them."""
    there = {(cell.workload.spec, cell.fabric.spec) for cell in kept}
    return [cell for cell in done if (cell.workload.spec, cell.fabric.spec) not in there]
