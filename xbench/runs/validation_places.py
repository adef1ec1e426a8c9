"""Cells that a validation measures: all of a matrix, or those of a drawing, without the ones measured before.

A drawing is a function of its arguments alone, so it is fixed before anything is measured. It is balanced: cells are
shuffled, and the next cell is always the one whose most drawn factor (`_levels`) was drawn least so far, for its
weight. So the first half of a drawing is balanced too. A quarter of the cells is held out: reports show them only when
every cell has been measured.

A drawing is measured in one or more sittings. Each finds the record of the last one in the output folder and saves to
the same file.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import NamedTuple

from xbench import environment
from xbench.config import ValidateConfig
from xbench.errors import RecordError, SpecError
from xbench.record_files import RECORD
from xbench.records import (
    Drawing,
    DrawnCell,
    Environment,
    Validation,
    ValidationCell,
    WorkloadRecord,
    load,
    of_kind,
)
from xbench.runs.prepare import check_links
from xbench.runs.run_folder import new_run_folder
from xbench.spec import FabricSpec, WorkloadSpec
from xbench.workloads.probe import probe

HELD_OUT = 4
"""One cell in so many is held out."""


class MatrixCell(NamedTuple):
    """A cell before it is measured."""

    workload: WorkloadSpec
    fabric: FabricSpec
    held_out: bool = False


class Place(NamedTuple):
    """A cell that is to be measured: as it was asked for, its workload resolved, and its number in a drawing."""

    cell: MatrixCell
    workload: WorkloadRecord
    number: int | None


def whole_matrix(workloads: Sequence[WorkloadSpec], fabrics: Sequence[FabricSpec]) -> list[MatrixCell]:
    """Every workload on every fabric, fabric by fabric."""
    return [MatrixCell(workload, fabric) for fabric, workload in product(fabrics, workloads)]


def draw(workloads: Sequence[WorkloadSpec], fabrics: Sequence[FabricSpec], count: int, seed: int) -> list[MatrixCell]:
    """`count` different cells. A fabric's rate and workers are weighted by how often `fabrics` has them.

    Same arguments, same cells. Raises SpecError if there are fewer cells.
    """
    cells = whole_matrix(workloads, list(dict.fromkeys(fabrics)))
    if count > len(cells):
        raise SpecError(
            f"--cells: {count} cells cannot be drawn from the {len(cells)} of --workloads, --rates and --hosts",
            hint=f"try --cells {len(cells)}, or name more",
        )
    generator = random.Random(seed)
    generator.shuffle(cells)
    weights = Counter(level for cell in whole_matrix(workloads, fabrics) for level in _levels(cell))
    uses: Counter[tuple[str, object]] = Counter()
    found: list[MatrixCell] = []
    while len(found) < count:
        cell = min(
            cells, key=lambda one: sorted((uses[level] / weights[level] for level in _levels(one)), reverse=True)
        )
        cells.remove(cell)
        uses.update(_levels(cell))
        found.append(cell)
    held_out = generator.sample(range(count), count // HELD_OUT)
    return [cell._replace(held_out=place in held_out) for place, cell in enumerate(found)]


def _levels(cell: MatrixCell) -> list[tuple[str, object]]:
    """The factors of a cell that are balanced, with their values here. A workload includes its batch size."""
    name, rate = cell.workload.name, cell.fabric.rate
    return [
        ("workload", cell.workload),
        ("rate", rate),
        ("workers", cell.fabric.world_size),
        ("name and rate", (name, rate)),
    ]


def check_resumed(config: ValidateConfig, before: Validation) -> None:
    """Raise SpecError if `config` asks for another validation than `before`."""
    asked = [mode.text for mode in config.modes]
    if before.modes != asked:
        raise SpecError(
            f"--resume: that validation is of {', '.join(before.modes)}, and --modes asks for {', '.join(asked)}",
            hint=f"write --modes {','.join(before.modes)}",
        )
    if before.collectives != "torch":
        raise SpecError(
            f"--resume: that validation went over the backend {before.collectives}, which was removed",
            hint="leave --resume out, and every cell is measured over Gloo",
        )


def check_kept(before: Validation, places: Sequence[Place], drawing: Drawing | None) -> None:
    """Raise SpecError if a cell that `before` has measured, or its drawing, is not asked for: it would be left out."""
    began = f"write the options that it began with: {before.command}"
    if before.drawing != drawing:
        raise SpecError("--resume: that validation has other cells than --cells and --seed draw", hint=began)
    lost = [cell for cell in before.cells if cell.error is None and not any(is_at(cell, place) for place in places)]
    if lost:
        first = f"{lost[0].workload.title} on {lost[0].fabric.spec}"
        raise SpecError(
            f"--resume: that validation has measured cells that are not asked for, such as {first}", hint=began
        )


@contextmanager
def hints_of_a_matrix() -> Iterator[None]:
    """Replace the hint of an error that names --fabric, which a matrix does not take."""
    try:
        yield
    except SpecError as error:
        if "--fabric" not in (error.hint or ""):
            raise
        raise SpecError(str(error), hint="try other --links, --modes or --device") from None


def places_of(config: ValidateConfig) -> tuple[list[Place], Environment]:
    """Return all cells in the order of measurement, with their workloads resolved, and the machine."""
    matrix = config.matrix
    if matrix.cells is None:
        cells = whole_matrix(config.workloads, matrix.all)
    else:
        cells = draw(config.workloads, matrix.fabrics, matrix.cells, matrix.seed)
    workloads = list(dict.fromkeys(cell.workload for cell in cells))
    most = [max(cell.fabric.processes for cell in cells if cell.workload == workload) for workload in workloads]
    found = probe(workloads, config.device, most)
    resolved = {
        asked: (spec, item.record) for asked, spec, item in zip(workloads, found.specs, found.workloads, strict=True)
    }
    with hints_of_a_matrix():
        for fabric in config.matrix.all:
            check_links(fabric, found.device)
    places = []
    for index, cell in enumerate(cells):
        spec, workload = resolved[cell.workload]
        number = None if matrix.cells is None else index + 1
        places.append(Place(cell._replace(workload=spec), workload, number))
    return places, environment.capture(found.environment_facts())


def drawing_of(config: ValidateConfig, places: Sequence[Place]) -> Drawing | None:
    """Return the drawing, which the record holds from the first cell on."""
    if config.matrix.cells is None:
        return None
    cells = [
        DrawnCell(workload=cell.workload, fabric=str(cell.fabric), held_out=cell.held_out) for cell, _, _ in places
    ]
    return Drawing(seed=config.matrix.seed, cells=cells)


def continued(
    config: ValidateConfig, places: Sequence[Place], drawing: Drawing | None, described: Environment
) -> tuple[Validation | None, Path]:
    """Return the record that is continued, if any, and the path to save at.

    Raises SpecError for a drawing that was measured to the end, or in part on another commit, and for a record with
    other cells.
    """
    found = None
    if drawing is not None and config.resume is None:
        found = _unfinished(config, drawing)
    before = found[0] if found is not None else config.resume
    if before is not None:
        check_kept(before, places, drawing)
    if drawing is not None and before is not None and _commit(before.environment) != _commit(described):
        raise SpecError(
            f"the cells of this drawing were measured on {_commit(before.environment)}, and this is "
            f"{_commit(described)}: one drawing is measured on one commit",
            hint="check that commit out, or write another --output to begin anew",
        )
    path = found[1] if found is not None else new_run_folder(config.output, "validation") / RECORD
    return before, path


def _unfinished(config: ValidateConfig, drawing: Drawing) -> tuple[Validation, Path] | None:
    """Return the newest record of this drawing in the output folder. Raises SpecError if it is finished."""
    for folder in sorted(config.output.glob("*-validation*"), reverse=True):
        path = folder / RECORD
        try:
            found = of_kind(load(path), Validation)
        except RecordError:
            continue
        asked = [mode.text for mode in config.modes]
        if found is None or (found.drawing, found.modes) != (drawing, asked):
            continue
        if found.complete and all(cell.error is None for cell in found.cells):
            raise SpecError(
                f"this drawing was measured to the end: {str(path)!r} has it, and a cell is measured once",
                hint="another --seed draws other cells",
            )
        return found, path
    return None


def _commit(described: Environment) -> str:
    """Return the code that measured: its commit, or its version outside a checkout."""
    return f"commit {described.commit}" if described.commit else f"version {described.xbench}"


def is_at(cell: ValidationCell, place: Place) -> bool:
    """True if this is the cell of that place, and measured."""
    fabric = str(place.cell.fabric)
    return cell.error is None and cell.workload.spec == place.cell.workload and cell.fabric.spec == fabric


def not_reached(done: Sequence[ValidationCell], kept: Sequence[ValidationCell]) -> list[ValidationCell]:
    """Return cells of the resumed record that have not been reached yet. An interrupted resume keeps them."""
    there = {(cell.workload.spec, cell.fabric.spec) for cell in kept}
    return [cell for cell in done if (cell.workload.spec, cell.fabric.spec) not in there]
