"""The page of a validation: which claims held, and how far off each prediction was."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from xbench.records import ErrorSummary, Validation, ValidationCell, ValidationPoint
from xbench.report.cell_format import span_cell
from xbench.report.charts.axes import BELOW, marks, named, plain, rounded
from xbench.report.charts.bars import signed
from xbench.report.kinds.validation import AT_SPEED, FORWARD, held_out_line, parts
from xbench.report.page.common_sections import command_section, environment_section, moment, warnings_section
from xbench.report.page.model import Badge, Block, Cell, Column, Figure, Page, Section, Sentences, Table, Trace
from xbench.stats.validation import name_of
from xbench.units import format_percent, format_seconds


def validation_page(record: Validation) -> Page:
    """Predicted is simulated, measured is what its fabric was."""
    fitted, held_out = parts(record)
    labels = list(dict.fromkeys(cell.fabric.label for cell in record.cells))
    sections = [
        Section("goals", "Claims", [_goals(record), *_freedom(record)] if record.goals else []),
        Section("cells", "Predicted against measured", _figures(record, fitted, held_out)),
        Section("groups", "Errors by group", [_groups(record.errors, record.errors_at_speed)] if record.errors else []),
        environment_section(record.environment),
        *warnings_section(record.warnings),
        command_section(record.command),
    ]  # fmt: skip
    why = (record.error or "it ended before every cell was measured").rstrip(".")
    return Page(
        kind="Validation",
        warnings=len(record.warnings),
        title=f"{len(record.cells)} cells of {len(record.modes)} modes",
        subtitle=f"{moment(record.created)} · {record.environment.hostname}",
        labels=[*labels, "simulated"],
        answer=_answer(record),
        incomplete=None if record.complete else f"INCOMPLETE: {why}. What follows is what had been measured by then.",
        failures=[f"{name_of(cell)}: left out: {cell.error}" for cell in record.cells if cell.error is not None],
        sections=[section for section in sections if section.blocks],
    )


def _figures(record: Validation, fitted: Sequence[ValidationCell], held_out: Sequence[ValidationCell]) -> list[Block]:
    found: list[Block] = []
    if _any(fitted):
        found.append(errors_figure("errors", "How far off each prediction was", fitted, record.modes))
    if _any(held_out):
        found.append(errors_figure("held-out", "Held out: predicted from fewer workers", held_out, record.modes))
        found.append(Sentences([held_out_line(held_out)]))
    return [*found, *([steps_figure(record)] if _any(record.cells) else [])]


def _any(cells: Sequence[ValidationCell]) -> bool:
    return any(cell.points for cell in cells)


def _answer(record: Validation) -> list[str]:
    held = sum(goal.held for goal in record.goals)
    claims = f"{held} of {len(record.goals)} claims held" if record.goals else "No claim was checked"
    if not record.errors:
        return [f"{claims}; no prediction was compared with a measurement."]
    every = record.errors[0]
    return [
        f"{claims}. Predictions were off by {format_percent(every.median)} in the median, and 95 % of "
        f"{every.count} by at most {format_percent(every.p95)}.",
        "Predictions are simulated, from a profile alone, and made before anything was timed; measured steps are "
        "labelled beside them.",
    ]


def _goals(record: Validation) -> Table:
    rows: list[list[Cell]] = [
        [goal.claim, goal.found, Badge("held", "held") if goal.held else Badge("NOT HELD", "failed")]
        for goal in record.goals
    ]
    columns = [Column(name, figures=False) for name in ("claim", "found", "")]
    return Table("What was claimed, and what was found", columns, rows, opened=True)


def _freedom(record: Validation) -> list[Block]:
    return [Sentences([FORWARD])] if record.overlap == "forward" else []


def errors_figure(key: str, title: str, cells: Sequence[ValidationCell], modes: Sequence[str]) -> Figure:
    """A row a cell, a mark a mode: predicted over measured, minus one."""
    shown = [cell for cell in cells if cell.points]
    names = [plain(name_of(cell)).replace(", ", ",<br>", 1) for cell in shown]
    traces: list[Trace] = []
    for mode, mark in marks(modes).items():
        points = [(name, cell, point) for name, cell in zip(names, shown, strict=True) for point in cell.points
                  if point.mode == mode]  # fmt: skip
        if points:
            traces.append({
                "type": "scatter", "mode": "markers", "name": named(mode).replace("<br>", ""),
                "y": [name for name, _, _ in points], "x": [rounded(100 * point.error) for _, _, point in points],
                "marker": {"color": mark.colour, "symbol": mark.symbol, "size": 9, "opacity": 0.85},
                "customdata": [_said(cell, point) for _, cell, point in points],
                "hovertemplate": "%{customdata}<extra></extra>",
            })  # fmt: skip
    return Figure(
        key=key,
        title=title,
        labels=[*dict.fromkeys(cell.fabric.label for cell in shown), "simulated"],
        told="Predicted step (simulated) over measured step, minus one: right of zero, steps were faster than "
        "predicted.",
        traces=traces,
        layout={
            "xaxis": {"title": {"text": "error of the prediction [%]"}, "ticksuffix": " %"},
            "yaxis": {"categoryorder": "array", "categoryarray": names, "range": [len(names) - 0.5, -0.5],
                      "tickfont": {"size": 11}},
            "shapes": [{"type": "line", "x0": 0, "x1": 0, "yref": "paper", "y0": 0, "y1": 1,
                        "line": {"color": "--ink", "dash": "dot", "width": 1.5}}],
            "legend": BELOW,
            "margin": {"t": 8},
        },
        height=140 + 44 * len(names),
        table=_errors_table(f"{title}, in figures", shown, modes),
    )  # fmt: skip


def steps_figure(record: Validation) -> Figure:
    """Every prediction against its measurement, on logarithmic axes; on the diagonal they agree."""
    pairs = [(cell, point) for cell in record.cells for point in cell.points]
    ends_s = sorted(chain.from_iterable((p.predicted_step_s, p.measured_step_s.median) for _, p in pairs))
    low, high = rounded(ends_s[0] / 1.2), rounded(ends_s[-1] * 1.2)
    traces: list[Trace] = [
        {"type": "scatter", "mode": "lines", "x": [low, high], "y": [low, high], "name": "predicted = measured",
         "line": {"color": "--muted", "dash": "dot", "width": 1.5}, "hoverinfo": "skip"}
    ]  # fmt: skip
    for mode, mark in marks(record.modes).items():
        points = [(cell, point) for cell, point in pairs if point.mode == mode]
        if points:
            traces.append({
                "type": "scatter", "mode": "markers", "name": named(mode).replace("<br>", ""),
                "x": [rounded(point.measured_step_s.median) for _, point in points],
                "y": [rounded(point.predicted_step_s) for _, point in points],
                "marker": {"color": mark.colour, "symbol": mark.symbol, "size": 8, "opacity": 0.8},
                "customdata": [_said(cell, point) for cell, point in points],
                "hovertemplate": "%{customdata}<extra></extra>",
            })  # fmt: skip
    axis = {"type": "log", "tickformat": "~r", "dtick": "D2"}
    return Figure(
        key="steps",
        title="Predicted step against measured step",
        labels=[*dict.fromkeys(cell.fabric.label for cell in record.cells), "simulated"],
        told="Every mode of every cell, on logarithmic axes.",
        traces=traces,
        layout={
            "xaxis": {**axis, "title": {"text": "measured step [s]"}},
            "yaxis": {**axis, "title": {"text": "predicted step [s]"}},
            "legend": BELOW,
            "margin": {"t": 8},
        },
        height=480,
        table=_points_table("Every prediction in figures", record.cells),
    )


def _said(cell: ValidationCell, point: ValidationPoint) -> str:
    return (
        f"<b>{plain(point.mode)}</b>, {plain(name_of(cell))}<br>predicted {format_seconds(point.predicted_step_s)} "
        f"(simulated), measured {format_seconds(point.measured_step_s.median)} ({cell.fabric.label}): "
        f"{signed(point.error)}"
    )


def _errors_table(title: str, cells: Sequence[ValidationCell], modes: Sequence[str]) -> Table:
    rows: list[list[Cell]] = []
    for cell in cells:
        errors = {point.mode: point.error for point in cell.points}
        rows.append([name_of(cell), *(signed(errors.get(mode)) for mode in modes)])
    return Table(title, [Column("cell", figures=False), *map(Column, modes)], rows)


def _points_table(title: str, cells: Sequence[ValidationCell]) -> Table:
    rows: list[list[Cell]] = [
        [
            name_of(cell),
            point.mode,
            format_seconds(point.predicted_step_s),
            format_seconds(point.measured_step_s.median),
            span_cell(point.measured_step_s),
            signed(point.error),
            signed(point.error_at_speed),
            f"{point.ratio_to_ddp:.3f}" if point.ratio_to_ddp is not None else "–",
            Badge(point.verdict, point.verdict) if point.verdict is not None else "–",
            Badge(cell.fabric.label, cell.fabric.label),
        ]
        for cell in cells
        for point in cell.points
    ]
    columns = [Column("cell", figures=False), Column("mode", figures=False),
               *map(Column, ("predicted", "measured", "95 % CI", "error", "error at speed", "over ddp")),
               Column("verdict", figures=False), Column("label", figures=False)]  # fmt: skip
    return Table(title, columns, rows, AT_SPEED, bulk=True)


def _groups(errors: Sequence[ErrorSummary], at_speed: Sequence[ErrorSummary]) -> Table:
    again = {row.name: row for row in at_speed}
    rows: list[list[Cell]] = [
        [
            row.name,
            str(row.count),
            format_percent(row.median),
            format_percent(row.p95),
            format_percent(row.worst),
            signed(row.bias),
            format_percent(again[row.name].median) if row.name in again else "–",
            format_percent(again[row.name].p95) if row.name in again else "–",
        ]
        for row in errors
    ]
    columns = [Column("group", figures=False), *map(Column, ("predictions", "median", "95 % within", "worst", "bias")),
               *map(Column, ("median at speed", "95 % at speed"))]  # fmt: skip
    return Table("Error of predictions: predicted over measured, minus one", columns, rows, AT_SPEED, opened=True)
