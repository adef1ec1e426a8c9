"""Charts of a validation: the error of each prediction, and every prediction against its measurement."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from xbench.records import Validation, ValidationCell, ValidationPoint
from xbench.report.answer import span_cell
from xbench.report.charts.axes import BELOW, marks, named, plain, rounded, upright
from xbench.report.charts.bars import signed
from xbench.report.page.model import Badge, Cell, Column, Figure, Table, Trace
from xbench.stats.validation import name_of
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
    columns = [Column(name, figures=False) for name in ("claim", "found", "")]
    return Table("What was claimed, and what was found", columns, rows, opened=True)


def errors_figure(key: str, title: str, cells: Sequence[ValidationCell], modes: Sequence[str]) -> Figure:
    """Draw one row per cell, one mark per mode: predicted over measured, minus one."""
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
            "shapes": [upright(0)],
            "legend": BELOW,
            "margin": {"t": 8},
        },
        height=140 + 44 * len(names),
        table=_errors_table(f"{title}, in figures", shown, modes),
    )  # fmt: skip


def steps_figure(record: Validation) -> Figure:
    """Draw every prediction against its measurement on logarithmic axes. They agree on the diagonal."""
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


def errors_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Return one row per group of predictions."""
    columns = [Column(name, figures=place > 0) for place, name in enumerate(headings)]
    shown = [[cell.replace("-", "−") if place == 5 else cell for place, cell in enumerate(row)] for row in rows]
    return Table("Error of predictions: predicted over measured, minus one", columns, shown, AT_SPEED, opened=True)
