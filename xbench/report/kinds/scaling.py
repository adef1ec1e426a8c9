"""View of `xbench plan --workers 2..2048`: the findings in words, each mode at each size, and the assumptions.

Every number is simulated, and the heading of every table says so. On a narrow terminal, a size becomes a block of
lines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rich.console import Console
from rich.text import Text

from xbench.modes import mode_info
from xbench.records import Label, Scaling, ScalingPoint
from xbench.report import markup
from xbench.report.charts.axes import BELOW, marks, plain, rounded, time_unit
from xbench.report.console import NARROW_COLUMNS, as_text, fact, facts, headline, indented, say
from xbench.report.page.model import Facts, Figure, Layout, Section, Table, Trace, columns
from xbench.report.sentences import band_line, fabric_line, fabric_pairs, made_at, workload_pair
from xbench.report.view import Case, Detail, Row, View, caution_blocks, ends, fields
from xbench.stats.steps import short_step_caution
from xbench.text import counted
from xbench.units import format_bytes, format_count, format_percent, format_rate, format_seconds

PointCell = Callable[[ScalingPoint], str]

FINDINGS = 4
"""Findings shown without -v."""

TABLES = 2
"""Tables shown without -v: steps and efficiency."""

_WORKERS_COLUMNS = 10
_MODE_COLUMNS = 11
"""Columns of a terminal per mode; the widest name is `ddp-tuned`."""


class ScalingView(View[Scaling]):
    """Predicted steps on more workers than were measured."""

    name = "Scaling"

    def title(self) -> str:
        return f"{self.record.workload.title} on more workers: {self.record.topology}"

    def subtitle(self) -> str:
        return f"{made_at(self.record.created)} · from {self.record.source.path}"

    def headline(self) -> list[str]:
        return self.record.findings or ["Nothing was found."]

    def answer(self) -> list[str]:
        trained = [point for point in self.record.points if mode_info(point.mode).trains]
        best = sorted(trained, key=lambda point: (-point.workers, point.step_s))[:1]
        fallback = [f"{point.mode} is fastest on {point.workers} workers." for point in best]
        found = self.record.findings or fallback or ["Nothing was planned."]
        return [*found, "Everything here is simulated, from measurements on a few workers."]

    def labels(self) -> list[Label]:
        return ["simulated"]

    def compute_line(self) -> str:
        scale = "" if self.record.compute_scale == 1 else f" (as measured × {self.record.compute_scale:g})"
        return f"{format_seconds(self.record.compute_s)} a step on one worker without communication{scale}"

    def cautions(self) -> list[str]:
        return short_step_caution(point.step_s for point in self.record.points)

    def draw(self, console: Console, detail: Detail) -> None:
        record, verbose = self.record, detail.verbose
        headline(console, record.findings if verbose else record.findings[:FINDINGS])
        if record.findings:
            console.print()
        stacked = console.width < max(NARROW_COLUMNS, _WORKERS_COLUMNS + _MODE_COLUMNS * len(record.modes))
        if stacked:
            _stacked(record, console)
        else:
            _wide(record, console, verbose)
        exposed = "Exposed: the step beyond compute alone. " if verbose or stacked else ""
        efficiency = "Efficiency: samples/s over those of as many workers without communication. "
        say(console, f"{efficiency}{exposed}All of it is simulated. {band_line(record)}", "dim")
        for caution in self.cautions():
            say(console, caution, "yellow")
        console.print()
        assumed = [("" if number else "assumed", sentence) for number, sentence in enumerate(record.assumptions)]
        facts(console, [
            workload_pair(record.workload),
            ("compute", self.compute_line()),
            ("topology", record.topology),
            ("measured", fabric_line(record.fabric)),
            *assumed,
            ("from", f"{record.source.path}: {record.source.command}"),
        ], record.warnings)  # fmt: skip
        more = max(0, len(record.findings) - FINDINGS)
        findings = counted(more, "more finding") if more else ""
        tables = "" if stacked else "samples/s, exposed communication, buckets and the all-reduce by size"
        hidden = [one for one in (findings, tables) if one]
        if hidden and not verbose:
            fact(console, "-v", f"shows {', and '.join(hidden)} too")

    def markdown(self) -> list[str]:
        record = self.record
        rows = _rows(record, lambda p: f"{format_seconds(p.step_s)} ({format_percent(p.efficiency, 0)})")
        return [
            f"### {markup.plain(record.workload.title)} by {markup.code(record.topology)} (simulated)",
            markup.lead(self.headline()),
            markup.table(["workers", *map(markup.code, record.modes)], rows),
            f"Predicted step (scaling efficiency), all of it simulated. {markup.plain(band_line(record))}",
            *self.cautions(),
            markup.warning_list(record.warnings),
            markup.details("What it rests on", markup.facts([
                workload_pair(record.workload),
                ("measured", fabric_line(record.fabric)),
                *(("assumed", sentence) for sentence in record.assumptions),
                ("from", f"{record.source.path}: {record.source.command}"),
            ])),
        ]  # fmt: skip

    def sections(self) -> list[Section]:
        record = self.record
        pairs = [
            workload_pair(record.workload),
            ("compute", self.compute_line()),
            ("topology", record.topology),
            ("error band", band_line(record).removeprefix("Error band: ")),
            *fabric_pairs(record.fabric),
            *(("assumed" if number == 0 else "", sentence) for number, sentence in enumerate(record.assumptions)),
            ("from", f"{record.source.path}, a {record.source.kind} of {made_at(record.source.created)}"),
            ("made with", f"xbench {record.xbench}"),
        ]
        charts = figures(record)
        return [
            Section("steps", "Step by number of workers", [*charts[:1], *caution_blocks(self.cautions())]),
            Section("efficiency", "Efficiency and throughput", charts[1:]),
            Section("link", "One all-reduce", [links_table(record)]),
            Section("basis", "What it rests on", [Facts(pairs)]),
        ]

    def commands(self) -> list[str]:
        return [self.record.source.command, self.record.command]

    def tables(self) -> dict[str, list[Row]]:
        record = self.record
        rows = [
            {
                "label": record.label,
                "workload": record.workload.title,
                "topology": record.topology,
                **fields(point, "mode", "workers", "step_s"),
                **ends("step", point.step_band_s, "_s"),
                **fields(point, "exposed_s", "samples_per_s", "efficiency", "buckets", "largest_bucket_bytes"),
            }
            for point in record.points
        ]
        return {"points": rows}

    def cases(self, strict: bool) -> list[Case]:
        group = f"{self.record.workload.title} by {self.record.topology} (simulated)"
        return [
            Case(group, f"{point.mode} on {point.workers} workers", point.step_s,
                 message=f"step {format_seconds(point.step_s)}, efficiency {format_percent(point.efficiency)} "
                 "(simulated)")
            for point in self.record.points
        ]  # fmt: skip


def _wide(record: Scaling, console: Console, verbose: bool) -> None:
    tables: list[tuple[str, PointCell]] = [
        ("Step (simulated)", lambda point: format_seconds(point.step_s)),
        ("Scaling efficiency (simulated)", lambda point: format_percent(point.efficiency)),
        ("Samples/s, all workers (simulated)", _rate),
        ("Exposed communication (simulated)", lambda point: format_seconds(point.exposed_s)),
        ("Buckets (simulated)", lambda point: str(point.buckets)),
    ]
    for title, cell in tables if verbose else tables[:TABLES]:
        say(console, title, "italic")  # a table folds its title to its own width
        console.print(as_text(_matrix(title, record, cell)))
    if not verbose:
        return
    say(console, "One all-reduce: a + b·M of the line, and all gradients by the curve (simulated)", "italic")
    console.print(as_text(links_table(record)))


def _stacked(record: Scaling, console: Console) -> None:
    for workers in record.workers:
        say(console, f"{workers} workers (simulated)", "bold")
        for point in record.points:
            if point.workers == workers:
                step_s, exposed_s = format_seconds(point.step_s), format_seconds(point.exposed_s)
                rate, largest = _rate(point), format_bytes(point.largest_bucket_bytes)
                console.print(Text(f"  {point.mode}", style="bold"))
                efficiency = format_percent(point.efficiency)
                indented(console, f"  step {step_s}, exposed {exposed_s}, efficiency {efficiency}")
                indented(console, f"  {rate} samples/s; {counted(point.buckets, 'bucket')}, the largest {largest}")


def figures(record: Scaling) -> list[Figure]:
    """Draw the step, the efficiency and, where the batch is known, the throughput; empty without points."""
    if not record.points:
        return []
    percent: Layout = {"title": {"text": "efficiency [%]"}, "rangemode": "tozero"}
    rate: Layout = {"title": {"text": "samples/s"}, "type": "log", "tickformat": "~s", "dtick": 1}
    drawn = [
        _step_curves(record),
        _figure(record, "efficiency", "Scaling efficiency",
                "Samples per second over those of as many workers without communication.",
                lambda p: rounded(100 * p.efficiency), lambda p: format_percent(p.efficiency), percent,
                _matrix("Efficiency in figures", record, lambda p: format_percent(p.efficiency))),
    ]  # fmt: skip
    if any(point.samples_per_s for point in record.points):
        drawn.append(_figure(
            record, "throughput", "Throughput",
            "Of all workers together, on logarithmic axes: perfect scaling is a straight line.",
            lambda p: rounded(p.samples_per_s or 0.0), lambda p: f"{_rate(p)} samples/s", rate,
            _matrix("Samples per second in figures", record, _rate),
        ))  # fmt: skip
    return drawn


def _step_curves(record: Scaling) -> Figure:
    """Draw each mode's predicted step over the number of workers, and the step without communication."""
    unit = time_unit(max(point.step_band_s[1] for point in record.points))
    axis: Layout = {"title": {"text": f"step [{unit.name}]"}, "rangemode": "tozero"}
    if max(point.step_s for point in record.points) > 8 * max(record.compute_s, 1e-12):
        title = {"text": f"step [{unit.name}], logarithmic"}
        axis = {"type": "log", "title": title, "tickformat": "~r", "dtick": "D2"}
    figure = _figure(record, "steps", "Predicted step",
                     f"A batch a worker, whatever their number. {band_line(record)}",
                     lambda p: unit.of(p.step_s), lambda p: f"{format_seconds(p.step_s)}, error band {_band(p)}",
                     axis, _table(record))  # fmt: skip
    compute: Trace = {
        "type": "scatter", "mode": "lines", "name": "compute alone", "x": list(record.workers),
        "y": [unit.of(record.compute_s)] * len(record.workers), "line": {"color": "--ink", "dash": "dot", "width": 2},
        "hoverinfo": "skip",
    }  # fmt: skip
    return replace(figure, traces=[*figure.traces, compute], height=440)


def _figure(
    record: Scaling,
    key: str,
    title: str,
    told: str,
    figure: Callable[[ScalingPoint], float],
    said: PointCell,
    axis: Layout,
    table: Table,
) -> Figure:
    """Draw a curve per mode over the number of workers."""
    traces: list[Trace] = []
    for mode, mark in marks(record.modes).items():
        points = sorted((p for p in record.points if p.mode == mode), key=lambda point: point.workers)
        traces.append({
            "type": "scatter", "mode": "lines+markers", "name": plain(mode), "x": [point.workers for point in points],
            "y": [figure(point) for point in points],
            "line": {"color": mark.colour, "dash": mark.dash, "width": 2},
            "marker": {"color": mark.colour, "symbol": mark.symbol, "size": 9},
            "customdata": [f"<b>{plain(mode)}</b> on {point.workers} workers<br>{said(point)} (simulated)"
                           for point in points],
            "hovertemplate": "%{customdata}<extra></extra>",
        })  # fmt: skip
    workers = [str(size) for size in record.workers]
    layout = {
        "xaxis": {"type": "log", "title": {"text": "workers"}, "tickvals": list(record.workers), "ticktext": workers},
        "yaxis": axis,
        "legend": BELOW,
        "hovermode": "closest",
        "margin": {"t": 8},
    }
    return Figure(f"scaling-{key}", title, ["simulated"], told, traces, layout, height=400, table=table)


def _table(record: Scaling) -> Table:
    rows = [
        [
            f"{point.mode} on {point.workers}",
            format_seconds(point.step_s),
            _band(point),
            format_seconds(point.exposed_s),
            format_percent(point.efficiency),
            _rate(point),
            str(point.buckets),
            format_bytes(point.largest_bucket_bytes),
        ]
        for point in record.points
    ]
    first = "mode and workers"
    shown = columns(
        (first, "step", "error band", "exposed", "efficiency", "samples/s", "buckets", "largest bucket"), (first,)
    )
    note = (
        "Exposed: the step beyond compute alone. The error band is no confidence interval: it says where a measured "
        "step would lie if the prediction is off by as much as predictions were found to be, and it grows with the "
        "distance from the measured number of workers."
    )
    return Table("Every mode at every size (simulated)", shown, rows, note)


def _matrix(title: str, record: Scaling, cell: PointCell) -> Table:
    return Table(f"{title} (simulated)", columns(["workers", *record.modes]), _rows(record, cell))


def _rows(record: Scaling, cell: PointCell) -> list[list[str]]:
    """Return one row per number of workers, with one cell per mode. The findings name the best mode."""
    found = {(point.workers, point.mode): point for point in record.points}
    return [
        [str(size), *(cell(found[size, mode]) if (size, mode) in found else "–" for mode in record.modes)]
        for size in record.workers
    ]


def _rate(point: ScalingPoint) -> str:
    return format_count(point.samples_per_s)


def _band(point: ScalingPoint) -> str:
    return " – ".join(map(format_seconds, point.step_band_s))


def links_table(record: Scaling) -> Table:
    """Return the cost of one all-reduce at each size, by the extrapolated line."""
    grad_bytes = record.workload.grad_bytes
    rows = [
        [
            str(link.workers),
            format_seconds(link.a_s),
            format_seconds(link.b_s_per_byte * 1024**2),
            format_seconds(link.all_gradients_s),
            format_rate(8 * grad_bytes / link.all_gradients_s if link.all_gradients_s > 0 else None),
        ]
        for link in record.links
    ]
    title = "a + b·bytes of the line, and all gradients at once by the curve (simulated)"
    return Table(title, columns(("workers", "a", "b, a MiB", "all gradients", "rate of that")), rows, opened=True)
