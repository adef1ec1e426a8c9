"""View of `xbench validate`: the claims that held, and the errors of predictions cell by cell.

Predicted times are simulated, measured ones real or emulated; headings say so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console

from xbench.modes import mode_info
from xbench.records import ErrorSummary, Label, Validation, ValidationCell, ValidationPoint
from xbench.report import markup
from xbench.report.answer import span_cell
from xbench.report.charts.validation import (
    AT_SPEED,
    errors_figure,
    errors_table,
    goals_table,
    skill_table,
    steps_figure,
)
from xbench.report.console import NARROW_COLUMNS, facts, filled_table, indented, say
from xbench.report.kinds.validation_skill import (
    NAIVE,
    SKILL,
    SKILL_COLUMNS,
    choice_lines,
    drawing_lines,
    skill_rows,
    visible,
)
from xbench.report.page.model import Block, Section, Sentences
from xbench.report.sentences import environment_line
from xbench.report.view import Case, Detail, Row, View, ends, fields
from xbench.stats.cells import name_of
from xbench.stats.validation import by_distance, summaries
from xbench.text import counted
from xbench.units import format_percent, format_seconds, format_signed_percent

ERROR_COLUMNS = ("group", "predictions", "median", "95 % within", "worst", "bias", "median at speed", "95 % at speed")
FORWARD = "auto might overlap the next forward pass too (--overlap forward), and so beat the backward-overlap bound."
_MODE_COLUMNS = 12


class ValidationView(View[Validation]):
    """Predictions beside measurements."""

    name = "Validation"

    def title(self) -> str:
        return f"{counted(len(visible(self.record)), 'cell')} of {counted(len(self.record.modes), 'mode')}"

    def headline(self) -> list[str]:
        record = self.record
        held = sum(goal.held for goal in record.goals)
        claims = f"{held} of {len(record.goals)} claims held" if record.goals else "No claim was checked"
        drawn = drawing_lines(record)[:1] if record.drawing is not None else []
        if not record.errors:
            return [f"{claims}; no prediction was compared with a measurement.", *drawn]
        every = record.errors[0]
        return [
            *drawn,
            f"{claims}. Predictions were off by {format_percent(every.median)} in the median, and 95 % of "
            f"{every.count} by at most {format_percent(every.p95)}.",
            "Predictions are simulated, from a profile alone, and made before anything was timed; measured steps are "
            "labelled beside them.",
        ]

    def labels(self) -> list[Label]:
        return [*dict.fromkeys(cell.fabric.label for cell in self.record.cells), "simulated"]

    def failures(self) -> list[str]:
        return _left_out(visible(self.record))

    def draw(self, console: Console, detail: Detail) -> None:
        record = self.record
        fitted, held_out = parts(record)
        if self.draw_incomplete(console):
            console.print()
        for line in drawing_lines(record):
            say(console, line)
        for goal in record.goals:
            style = "green" if goal.held else "red"
            say(console, f"{'held    ' if goal.held else 'NOT HELD'}  {goal.claim}: {goal.found}", style)
        if record.overlap == "forward":
            say(console, FORWARD, "italic")
        if record.goals:
            console.print()
        if record.errors:
            _errors(record, console)
        _skills(record, console)
        for title, cells in (("", fitted), ("Held-out sizes: ", held_out)):
            if cells and console.width >= NARROW_COLUMNS + _MODE_COLUMNS * max(0, len(record.modes) - 7):
                _tables(title, cells, record, console)
            elif cells:
                console.print()
                said = f"{title}measured step ({label_of(record)}), error of the prediction, time over DDP's"
                say(console, said, "italic")
                for cell in cells:
                    _cell(cell, console)
            for failure in _left_out(cells):
                say(console, failure, "red")
        if held_out:
            say(console, held_out_line(held_out), "bold")
        console.print()
        facts(console, [], record.warnings)

    def markdown(self) -> list[str]:
        return [
            f"### Predictions (simulated) beside measured steps ({label_of(self.record)})",
            markup.quoted(self.incomplete()),
            markdown(self.record).strip(),
            markup.warning_list(self.record.warnings),
            markup.details("Environment", markup.facts([("machine", environment_line(self.record.environment))])),
        ]

    def sections(self) -> list[Section]:
        record = self.record
        fitted, held_out = parts(record)
        freedom = [Sentences([FORWARD])] if record.overlap == "forward" else []
        drawn = [Sentences(lines)] if (lines := drawing_lines(record)) else []
        errors = [errors_table(ERROR_COLUMNS, error_rows(record))] if record.errors else []
        if record.skills:
            errors.append(skill_table(SKILL, SKILL_COLUMNS, skill_rows(record), NAIVE))
        choice = [Sentences(lines)] if (lines := choice_lines(record)) else []
        return [
            Section("goals", "Claims", [*drawn, goals_table(record), *freedom] if record.goals else drawn),
            Section("cells", "Predicted against measured", _figures(record, fitted, held_out)),
            Section("groups", "Errors by group", [*errors, *choice]),
        ]

    def tables(self) -> dict[str, list[Row]]:
        return {"points": [row for cell in visible(self.record) for row in _rows(self.record, cell)]}

    def cases(self, strict: bool) -> list[Case]:
        record = self.record
        found = [Case("goals", goal.claim, status="passed" if goal.held else "failed", message=goal.found)
                 for goal in record.goals]  # fmt: skip
        for cell in visible(record):
            group = f"{name_of(cell)} ({cell.fabric.label})"
            if cell.error is not None:
                found.append(Case(group, "the cell", status="error", message=cell.error))
            for point in cell.points:
                took = point.measured_step_s
                told = (
                    f"step {format_seconds(took.median)} [{span_cell(took, ', ')}] "
                    f"({cell.fabric.label}), predicted {format_seconds(point.predicted_step_s)} (simulated): "
                    f"{format_signed_percent(point.error)}"
                )
                found.append(Case(group, point.mode, took.median, message=told))
        return found


def _figures(record: Validation, fitted: Sequence[ValidationCell], held_out: Sequence[ValidationCell]) -> list[Block]:
    found: list[Block] = []
    if _any(fitted):
        found.append(errors_figure("errors", "How far off each prediction was", fitted, record.modes))
    if _any(held_out):
        found.append(errors_figure("held-out", "Held-out sizes: predicted from fewer workers", held_out, record.modes))
        found.append(Sentences([held_out_line(held_out)]))
    return [*found, *([steps_figure(record, visible(record))] if _any(visible(record)) else [])]


def _left_out(cells: Sequence[ValidationCell]) -> list[str]:
    return [f"{name_of(cell)}: left out: {cell.error}" for cell in cells if cell.error is not None]


def _any(cells: Sequence[ValidationCell]) -> bool:
    return any(cell.points for cell in cells)


def _rows(record: Validation, cell: ValidationCell) -> list[Row]:
    """Return one row per mode of a cell. A cell that could not be measured has one row with its error."""
    of = {
        "label": cell.fabric.label,
        **fields(record, "created", "complete"),
        "workload": cell.workload.title,
        "fabric": cell.fabric.spec,
        "batch": cell.workload.batch_size,
        "ranks": cell.fabric.world_size,
        "predicted_on_ranks": cell.predicted_on,
        "status": "failed" if cell.error is not None else "ok",
        "error": cell.error,
    }
    empty = dict.fromkeys(("mode", "step_s", "step_low_s", "step_high_s", "predicted_step_s_simulated",
                           "prediction_error", "prediction_error_at_speed", "ratio_to_ddp"))  # fmt: skip
    if not cell.points:
        return [{**of, **empty}]
    return [
        {
            **of,
            "mode": point.mode,
            "step_s": point.measured_step_s.median,
            **ends("step", point.measured_step_s.interval, "_s"),
            "predicted_step_s_simulated": point.predicted_step_s,
            "prediction_error": point.error,
            "prediction_error_at_speed": point.error_at_speed,
            "ratio_to_ddp": point.ratio_to_ddp,
        }
        for point in cell.points
    ]


def _errors(record: Validation, console: Console) -> None:
    say(console, f"Error of predictions: predicted (simulated) over measured ({label_of(record)}), minus one", "italic")
    rows = error_rows(record)
    if console.width < NARROW_COLUMNS:
        for row in rows:
            indented(console, f"  {row[0]}: {row[1]} predictions, median {row[2]}, 95 % within {row[3]}")
    else:
        console.print(filled_table("", ERROR_COLUMNS, rows, ("group",)))
    say(console, AT_SPEED, "dim")


def _skills(record: Validation, console: Console) -> None:
    """Draw the skill by link, and sentences on order and regret."""
    rows = skill_rows(record)
    if rows:
        console.print()
        say(console, SKILL, "italic")
        if console.width < NARROW_COLUMNS:
            for row in rows:
                indented(
                    console, f"  {row[0]}: median {row[2]}, as ddp {row[3]} ({row[4]}), one bucket {row[5]} ({row[6]})"
                )
        else:
            console.print(filled_table("", SKILL_COLUMNS, rows, ("group",)))
        say(console, NAIVE, "dim")
    for line in choice_lines(record):
        say(console, line)


def markdown(record: Validation) -> str:
    """Return the same as Markdown tables, for a docs page or a pull request."""
    fitted, held_out = parts(record)
    goals = [[goal.claim, goal.found, "held" if goal.held else markup.strong("not held")] for goal in record.goals]
    lines = [markup.plain(line) + "\n" for line in drawing_lines(record)]
    lines += [_left_table(["claim", "found", ""], goals)]
    lines += ["", FORWARD] if record.overlap == "forward" else []
    lines += ["", _left_table(ERROR_COLUMNS, error_rows(record)), "", AT_SPEED]
    if record.skills:
        lines += ["", _left_table(SKILL_COLUMNS, skill_rows(record)), "", NAIVE]
    lines += [part for line in choice_lines(record) for part in ("", markup.plain(line))]
    for title, cells in (("", fitted), ("Held-out sizes", held_out)):
        if not cells:
            continue
        modes = [mode for mode in record.modes if mode_info(mode).trains]
        lines += ["", f"**{title}: {held_out_line(cells)}**" if title else ""]
        lines += ["", _left_table(["cell", "compute", *modes], [_md_cell(cell, modes) for cell in cells])]
    return "\n".join(lines) + "\n"


def parts(record: Validation) -> tuple[list[ValidationCell], list[ValidationCell]]:
    """Return the cells predicted from their own fabric, and those predicted from another."""
    cells = visible(record)
    own = [cell for cell in cells if cell.predicted_on == cell.fabric.world_size]
    return own, [cell for cell in cells if cell.predicted_on != cell.fabric.world_size]


def held_out_line(cells: Sequence[ValidationCell]) -> str:
    """Describe the error of predictions for more workers than were measured, in one sentence for each number."""
    said = [
        f"{found.name}: at the speed of the computation there, median {format_percent(found.median)}, 95 % within "
        f"{format_percent(found.p95)}"
        for found in by_distance(cells)
    ]
    for found in summaries(cells)[:1]:
        said.append(f"with the computation as fast as on fewer, median {format_percent(found.median)}")
    return "; ".join(said)


def label_of(record: Validation) -> str:
    """Return the label of measured steps: real, or emulated over emulated links."""
    return " and ".join(dict.fromkeys(cell.fabric.label for cell in record.cells)) or "real"


def _tables(title: str, cells: Sequence[ValidationCell], record: Validation, console: Console) -> None:
    """Draw one row per cell and one column per mode: error, measured step, and ratio to DDP."""
    modes, label = record.modes, label_of(record)
    figures: list[tuple[str, Callable[[ValidationPoint], str]]] = [
        ("Error of the prediction", lambda point: _signed(point.error)),
        (f"Measured step ({label})", lambda point: format_seconds(point.measured_step_s.median)),
        (f"Time over DDP's ({label})", _ratio),
    ]
    for name, figure in figures:
        shown = [mode for mode in modes if figure is not _ratio or (mode_info(mode).trains and mode != "ddp")]
        if not shown:
            continue
        console.print()
        say(console, f"{title}{name}", "italic")
        rows = [_row(cell, shown, figure) for cell in cells if cell.points]
        console.print(filled_table("", ["cell", *shown], rows, ("cell",)))


def _cell(cell: ValidationCell, console: Console) -> None:
    if cell.error is not None:
        return
    said = [f"{point.mode} {_measured(point, ' ')}{_over_ddp(point)}" for point in cell.points]
    workers = f", {cell.fabric.world_size} workers" if cell.predicted_on != cell.fabric.world_size else ""
    indented(console, f"{name_of(cell)}{workers}: " + " · ".join(said))


def error_rows(record: Validation) -> list[list[str]]:
    """Return the errors of each group, with the columns of `ERROR_COLUMNS`."""
    again: dict[str, ErrorSummary] = {row.name: row for row in record.errors_at_speed}
    rows = []
    for row in record.errors:
        off = map(format_percent, (row.median, row.p95, row.worst))
        there = again.get(row.name)
        at_speed = map(format_percent, (there.median, there.p95) if there else (None, None))
        rows.append([row.name, str(row.count), *off, _signed(row.bias), *at_speed])
    return rows


def _md_cell(cell: ValidationCell, modes: Sequence[str]) -> list[str]:
    if cell.error is not None:
        why = markup.Markup(f"{markup.strong('left out')}: {markup.plain(cell.error)}")
        return [name_of(cell), why, *[""] * len(modes)]
    name, *figures = _row(cell, modes, lambda point: _measured(point, ", "))
    return [name, format_seconds(cell.compute_blocks_s or cell.compute_s), *figures]


def _row(cell: ValidationCell, modes: Sequence[str], figure: Callable[[ValidationPoint], str]) -> list[str]:
    points = {point.mode: point for point in cell.points}
    return [name_of(cell), *(figure(points[mode]) if mode in points else "–" for mode in modes)]


def _left_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return markup.table(headings, rows, left=len(headings))


def _over_ddp(point: ValidationPoint) -> str:
    if point.ratio_to_ddp is None or point.verdict == "reference" or not mode_info(point.mode).trains:
        return ""
    return f" ({point.ratio_to_ddp:.2f})"


def _ratio(point: ValidationPoint) -> str:
    return f"{point.ratio_to_ddp:.2f}" if point.ratio_to_ddp is not None else "–"


def _measured(point: ValidationPoint, between: str) -> str:
    return f"{format_seconds(point.measured_step_s.median)}{between}{_signed(point.error)}"


def _signed(value: float) -> str:
    return f"{value * 100:+.1f} %"
