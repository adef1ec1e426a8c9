"""Charts of a validation: the error of each prediction, and every prediction against its measurement."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from xbench.records import Validation, ValidationCell, ValidationPoint
from xbench.report.answer import span_cell
from xbench.report.charts.axes import (
    BELOW,
    Mark,
    columns,
    marks,
    named,
    plain,
    points,
    rounded,
    rows_axis,
    vertical_line,
)
from xbench.report.charts.bars import signed
from xbench.report.page.common_sections import label_badge
from xbench.report.page.model import Badge, Cell, Figure, Table, Trace
from xbench.stats.cells import name_of
from xbench.units import format_seconds

AT_SPEED = (
    "At speed: the computation predicted at the speed that it had while the modes were timed, which the control mode "
    "compute measures. Bias: the median of the signed errors; above zero, steps were faster than predicted."
)


def goals_table(record: Validation) -> Table:
    """Return one row per claim."""
    rows: list[list[Cell]] = [
        [goal.claim, goal.found, Badge("held", "held") if goal.held else Badge("NOT HELD", "failed")]
        for goal in record.goals
    ]
    headings = ("claim", "found", "")
    return Table("What was claimed, and what was found", columns(*headings, words=headings), rows, opened=True)


def errors_figure(key: str, title: str, cells: Sequence[ValidationCell], modes: Sequence[str]) -> Figure:
    """Draw one row per cell, one mark per mode: predicted over measured, minus one."""
    shown = [cell for cell in cells if cell.points]
    names = [_row(cell) for cell in shown]
    traces = []
    for mode, mark, own in _by_mode(shown, modes):
        x, y = [rounded(100 * point.error) for _, point in own], [_row(cell) for cell, _ in own]
        marker = {"color": mark.colour, "symbol": mark.symbol, "size": 9, "opacity": 0.85}
        traces.append(points(x, y, _said(own), name=mode, marker=marker))
    return Figure(
        key=key,
        title=title,
        labels=[*dict.fromkeys(cell.fabric.label for cell in shown), "simulated"],
        told="Predicted step (simulated) over measured step, minus one: right of zero, steps were faster than "
        "predicted.",
        traces=traces,
        layout={
            "xaxis": {"title": {"text": "error of the prediction [%]"}, "ticksuffix": " %"},
            "yaxis": {**rows_axis(names), "tickfont": {"size": 11}},
            "shapes": [vertical_line(0)],
            "legend": BELOW,
            "margin": {"t": 8},
        },
        height=140 + 44 * len(names),
        table=_errors_table(f"{title}, in figures", shown, modes),
    )


def steps_figure(record: Validation, cells: Sequence[ValidationCell]) -> Figure:
    """Draw every prediction of these cells against its measurement, on logarithmic axes. They agree on the diagonal."""
    found = [point for cell in cells for point in cell.points]
    ends_s = [*(point.predicted_step_s for point in found), *(point.measured_step_s.median for point in found)]
    low, high = rounded(min(ends_s) / 1.2), rounded(max(ends_s) * 1.2)
    traces: list[Trace] = [
        {"type": "scatter", "mode": "lines", "x": [low, high], "y": [low, high], "name": "predicted = measured",
         "line": {"color": "--muted", "dash": "dot", "width": 1.5}, "hoverinfo": "skip"}
    ]  # fmt: skip
    for mode, mark, own in _by_mode(cells, record.modes):
        x = [rounded(point.measured_step_s.median) for _, point in own]
        y = [rounded(point.predicted_step_s) for _, point in own]
        marker = {"color": mark.colour, "symbol": mark.symbol, "size": 8, "opacity": 0.8}
        traces.append(points(x, y, _said(own), name=mode, marker=marker))
    axis = {"type": "log", "tickformat": "~r", "dtick": "D2"}
    return Figure(
        key="steps",
        title="Predicted step against measured step",
        labels=[*dict.fromkeys(cell.fabric.label for cell in cells), "simulated"],
        told="Every mode of every cell, on logarithmic axes.",
        traces=traces,
        layout={
            "xaxis": {**axis, "title": {"text": "measured step [s]"}},
            "yaxis": {**axis, "title": {"text": "predicted step [s]"}},
            "legend": BELOW,
            "margin": {"t": 8},
        },
        height=480,
        table=_points_table(cells),
    )


def _by_mode(
    cells: Sequence[ValidationCell], modes: Iterable[str]
) -> Iterator[tuple[str, Mark, list[tuple[ValidationCell, ValidationPoint]]]]:
    """Yield the name in the legend, the mark and the points of each mode that has some."""
    for mode, mark in marks(modes).items():
        own = [(cell, point) for cell in cells for point in cell.points if point.mode == mode]
        if own:
            yield named(mode).replace("<br>", ""), mark, own


def _row(cell: ValidationCell) -> str:
    return plain(name_of(cell)).replace(", ", ",<br>", 1)


def _said(pairs: Sequence[tuple[ValidationCell, ValidationPoint]]) -> list[str]:
    return [
        f"<b>{plain(point.mode)}</b>, {plain(name_of(cell))}<br>predicted {format_seconds(point.predicted_step_s)} "
        f"(simulated), measured {format_seconds(point.measured_step_s.median)} ({cell.fabric.label}): "
        f"{signed(point.error)}"
        for cell, point in pairs
    ]


def _errors_table(title: str, cells: Sequence[ValidationCell], modes: Sequence[str]) -> Table:
    rows: list[list[Cell]] = []
    for cell in cells:
        errors = {point.mode: point.error for point in cell.points}
        rows.append([name_of(cell), *(signed(errors.get(mode)) for mode in modes)])
    return Table(title, columns("cell", *modes, words=("cell",)), rows)


def _points_table(cells: Sequence[ValidationCell]) -> Table:
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
            label_badge(cell.fabric.label),
        ]
        for cell in cells
        for point in cell.points
    ]
    headings = columns("cell", "mode", "predicted", "measured", "95 % CI", "error", "error at speed", "over ddp",
                       "verdict", "label", words=("cell", "mode", "verdict", "label"))  # fmt: skip
    return Table("Every prediction in figures", headings, rows, AT_SPEED, bulk=True)


def errors_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Return one row per group of predictions."""
    shown = [[cell.replace("-", "−") if place == 5 else cell for place, cell in enumerate(row)] for row in rows]
    title = "Error of predictions: predicted over measured, minus one"
    return Table(title, columns(*headings, words=headings[:1]), shown, AT_SPEED, opened=True)


def skill_table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], note: str) -> Table:
    """Return one row per group of predictions, with the naive predictors' errors beside."""
    shown = [[row[0], *(cell.replace("-", "−") for cell in row[1:])] for row in rows]
    return Table(title, columns(*headings, words=headings[:1]), shown, note, opened=True)
