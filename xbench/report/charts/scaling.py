"""Curves of a scaling: step, efficiency and throughput over the number of workers, a curve a mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xbench.records import Scaling, ScalingPoint
from xbench.report.charts.axes import BELOW, Mark, Unit, marks, plain, rounded, time_unit
from xbench.report.page.model import Cell, Column, Figure, Layout, Table, Trace
from xbench.report.sentences import band_line
from xbench.units import format_bytes, format_count, format_percent, format_rate, format_seconds


def figures(record: Scaling) -> list[Figure]:
    """The step, the efficiency and the throughput; nothing of a record without points."""
    return [step_curves(record), *_more(record)] if record.points else []


def step_curves(record: Scaling) -> Figure:
    """The predicted step of each mode over the number of workers, and the step that all would take without a link."""
    unit = time_unit(max((point.step_band_s or (0.0, point.step_s))[1] for point in record.points))
    traces: list[Trace] = []
    for mode, mark in marks(record.modes).items():
        traces.append(_curve(mode, mark, _of(record, mode), lambda p: unit.of(p.step_s),
                             lambda p: f"{format_seconds(p.step_s)}, error band {_band(p)}"))  # fmt: skip
    compute: Trace = {
        "type": "scatter", "mode": "lines", "name": "compute alone", "x": list(record.workers),
        "y": [unit.of(record.compute_s)] * len(record.workers), "line": {"color": "--ink", "dash": "dot", "width": 2},
        "hoverinfo": "skip",
    }  # fmt: skip
    return Figure(
        key="scaling-steps",
        title="Predicted step",
        labels=["simulated"],
        told=f"A batch a worker, whatever their number. {band_line(record)}",
        traces=[*traces, compute],
        layout={**_axes(record), "yaxis": _steps_axis(record, unit)},
        height=440,
        table=_table(record),
    )


def _steps_axis(record: Scaling, unit: Unit) -> Layout:
    """A logarithmic axis where the slowest step is more than eight times the fastest."""
    steps_s = [point.step_s for point in record.points]
    if max(steps_s) <= 8 * max(record.compute_s, 1e-12):
        return {"title": {"text": f"step [{unit.name}]"}, "rangemode": "tozero"}
    return {"type": "log", "title": {"text": f"step [{unit.name}], logarithmic"}, "tickformat": "~r", "dtick": "D2"}


def _more(record: Scaling) -> list[Figure]:
    look = marks(record.modes)
    efficiency = [
        _curve(mode, mark, _of(record, mode), lambda p: rounded(100 * p.efficiency),
               lambda p: format_percent(p.efficiency))
        for mode, mark in look.items()
    ]  # fmt: skip
    throughput = [
        _curve(mode, mark, _of(record, mode), lambda p: rounded(p.samples_per_s),
               lambda p: f"{format_count(p.samples_per_s)} samples/s")
        for mode, mark in look.items()
    ]  # fmt: skip
    return [
        Figure(
            key="scaling-efficiency",
            title="Scaling efficiency",
            labels=["simulated"],
            told="Samples per second over those of as many workers without communication.",
            traces=efficiency,
            layout={**_axes(record), "yaxis": {"title": {"text": "efficiency [%]"}, "rangemode": "tozero"}},
            height=400,
            table=_matrix("Efficiency in figures", record, lambda p: format_percent(p.efficiency)),
        ),
        Figure(
            key="scaling-throughput",
            title="Throughput",
            labels=["simulated"],
            told="Of all workers together, on logarithmic axes: perfect scaling is a straight line.",
            traces=throughput,
            layout={**_axes(record), "yaxis": {"title": {"text": "samples/s"}, "type": "log", "tickformat": "~s",
                                               "dtick": 1}},
            height=400,
            table=_matrix("Samples per second in figures", record, lambda p: format_count(p.samples_per_s)),
        ),
    ]  # fmt: skip


def _of(record: Scaling, mode: str) -> list[ScalingPoint]:
    return sorted((point for point in record.points if point.mode == mode), key=lambda point: point.workers)


def _curve(
    mode: str,
    mark: Mark,
    points: Sequence[ScalingPoint],
    figure: Callable[[ScalingPoint], float],
    said: Callable[[ScalingPoint], str],
) -> Trace:
    return {
        "type": "scatter", "mode": "lines+markers", "name": plain(mode), "x": [point.workers for point in points],
        "y": [figure(point) for point in points],
        "line": {"color": mark.colour, "dash": mark.dash, "width": 2},
        "marker": {"color": mark.colour, "symbol": mark.symbol, "size": 9},
        "customdata": [f"<b>{plain(mode)}</b> on {point.workers} workers<br>{said(point)} (simulated)"
                       for point in points],
        "hovertemplate": "%{customdata}<extra></extra>",
    }  # fmt: skip


def _axes(record: Scaling) -> Layout:
    return {
        "xaxis": {"type": "log", "title": {"text": "workers"}, "tickvals": list(record.workers),
                  "ticktext": [str(size) for size in record.workers]},
        "legend": BELOW,
        "hovermode": "closest",
        "margin": {"t": 8},
    }  # fmt: skip


def _table(record: Scaling) -> Table:
    rows: list[list[Cell]] = [
        [
            f"{point.mode} on {point.workers}",
            format_seconds(point.step_s),
            _band(point),
            format_seconds(point.exposed_s),
            format_percent(point.efficiency),
            format_count(point.samples_per_s),
            str(point.buckets),
            format_bytes(point.largest_bucket_bytes),
        ]
        for point in record.points
    ]
    columns = [Column("mode and workers", figures=False), *map(Column, ("step", "error band", "exposed", "efficiency")),
               *map(Column, ("samples/s", "buckets", "largest bucket"))]  # fmt: skip
    note = (
        "Exposed: the step beyond compute alone. The error band is no confidence interval: it says where a measured "
        "step would lie if the prediction is off by as much as predictions were found to be, and is given where that "
        "was measured."
    )
    return Table("Every mode at every size (simulated)", columns, rows, note)


def _matrix(title: str, record: Scaling, cell: Callable[[ScalingPoint], str]) -> Table:
    """A row a number of workers, a column a mode."""
    found = {(point.workers, point.mode): point for point in record.points}
    rows: list[list[Cell]] = [
        [str(size), *(cell(found[size, mode]) if (size, mode) in found else "–" for mode in record.modes)]
        for size in record.workers
    ]
    return Table(f"{title} (simulated)", [Column("workers"), *map(Column, record.modes)], rows)


def _band(point: ScalingPoint) -> str:
    if point.step_band_s is None:
        return "unknown"
    low_s, high_s = point.step_band_s
    return f"{format_seconds(low_s)} – {format_seconds(high_s)}"


def links_table(record: Scaling) -> Table:
    """What one all-reduce costs at each size: the straight line carried over."""
    grad_bytes = record.workload.grad_bytes
    rows: list[list[Cell]] = [
        [
            str(link.workers),
            format_seconds(link.a_s),
            format_seconds(link.b_s_per_byte * 1024**2),
            format_seconds(link.all_gradients_s),
            format_rate(8 * grad_bytes / link.all_gradients_s if link.all_gradients_s > 0 else None),
        ]
        for link in record.links
    ]
    columns = list(map(Column, ("workers", "a", "b, a MiB", "all gradients", "rate of that")))
    return Table("a + b·bytes of the line, and all gradients at once by the curve (simulated)", columns, rows,
                 opened=True)  # fmt: skip
