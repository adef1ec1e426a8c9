"""`xbench scale` in the terminal: what was found, in words; each mode at each size; what was assumed.

Every number is simulated, and the heading of every table says so. Below 84 columns each size becomes a block of lines.
"""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from xbench.records import Scaling, ScalingPoint
from xbench.report.console import NARROW_COLUMNS, fact, indented, say, titled_table
from xbench.report.sentences import fabric_line, workload_line
from xbench.units import format_bytes, format_count, format_percent, format_rate, format_seconds

Cell = Callable[[ScalingPoint], str]

FINDINGS = 4
"""Findings that are shown without -v."""

TABLES = 2
"""Tables that are shown without -v: of steps and of efficiency."""

_WORKERS_COLUMNS = 10
_MODE_COLUMNS = 11
"""Columns of a terminal that one mode takes: the widest name is `ddp-tuned`."""


def render_scaling(record: Scaling, console: Console, *, verbose: bool = False) -> None:
    """The first findings, tables of steps and of efficiency by size, and what it all rests on.

    `verbose`: every finding, and tables of throughput, exposed time, buckets and all-reduces.
    """
    for position, sentence in enumerate(record.findings if verbose else record.findings[:FINDINGS]):
        say(console, sentence, "bold" if position == 0 else "")
    if record.findings:
        console.print()
    stacked = console.width < max(NARROW_COLUMNS, _WORKERS_COLUMNS + _MODE_COLUMNS * len(record.modes))
    if stacked:
        _stacked(record, console)
    else:
        _wide(record, console, verbose)
    exposed = "Exposed: the step beyond compute alone. " if verbose or stacked else ""
    say(
        console,
        "Efficiency: samples/s over those of as many workers without communication. "
        f"{exposed}All of it is simulated. {band_line(record)}",
        "dim",
    )
    console.print()
    fact(console, "workload", workload_line(record.workload))
    scale = "" if record.compute_scale == 1 else f" (as measured × {record.compute_scale:g})"
    fact(console, "compute", f"{format_seconds(record.compute_s)} a step on one worker without communication{scale}")
    fact(console, "topology", record.topology)
    fact(console, "measured", fabric_line(record.fabric))
    for number, sentence in enumerate(record.assumptions):
        fact(console, "" if number else "assumed", sentence)
    fact(console, "from", f"{record.source.path}: {record.source.command}")
    for warning in record.warnings:
        fact(console, "warning", warning, "yellow")
    more = max(0, len(record.findings) - FINDINGS)
    findings = f"{more} more finding{'' if more == 1 else 's'}" if more else ""
    tables = "" if stacked else "samples/s, exposed communication, buckets and the all-reduce by size"
    hidden = [one for one in (findings, tables) if one]
    if hidden and not verbose:
        fact(console, "-v", f"shows {', and '.join(hidden)} too")


def band_line(record: Scaling) -> str:
    """How far off steps may be at the sizes where that was checked, and that it is unknown beyond them."""
    band = record.error_band
    unknown = f"how far off predictions for more than {band.workers} workers are is not known"
    if all(point.step_band_s is None for point in record.points):
        return f"There is no error band: {unknown}."
    where = "a" if band.workers is None else f"on up to {band.workers} workers a"
    text = (
        f"Error band: {where} measured step would take {_factor(1 / (1 + band.share))} to "
        f"{_factor(1 / (1 - band.share))} times what is shown, if predictions are off by up to "
        f"{format_percent(band.share)}: {band.source}."
    )
    return f"{text} Beyond there is none: {unknown}." if any(p.step_band_s is None for p in record.points) else text


def _wide(record: Scaling, console: Console, verbose: bool) -> None:
    columns: list[tuple[str, Cell]] = [
        ("Step (simulated)", lambda point: format_seconds(point.step_s)),
        ("Scaling efficiency (simulated)",
         lambda point: format_percent(point.efficiency)),
        ("Samples/s, all workers (simulated)", lambda point: format_count(point.samples_per_s)),
        ("Exposed communication (simulated)", lambda point: format_seconds(point.exposed_s)),
        ("Buckets (simulated)", lambda point: str(point.buckets)),
    ]  # fmt: skip
    for title, cell in columns if verbose else columns[:TABLES]:
        say(console, title, "italic")  # a table folds its title to its own width
        console.print(_table(record, cell))
    if not verbose:
        return
    say(console, "One all-reduce: a + b·M of the line, and all gradients by the curve (simulated)", "italic")
    console.print(_link_table(record))


def _table(record: Scaling, cell: Cell) -> Table:
    """One figure: a row a size, a column a mode. The best mode needs no mark: the findings name it."""
    shown = titled_table("", ("workers", "right"), *((mode, "right") for mode in record.modes))
    found = {(point.workers, point.mode): point for point in record.points}
    for workers in record.workers:
        cells = [found.get((workers, mode)) for mode in record.modes]
        shown.add_row(str(workers), *(cell(point) if point else "–" for point in cells))
    return shown


def _link_table(record: Scaling) -> Table:
    """What one all-reduce costs at each size: the straight line carried over."""
    shown = titled_table(
        "",
        ("workers", "right"), ("a", "right"), ("b, a MiB", "right"), ("all gradients", "right"),
        ("rate of that", "right"),
    )  # fmt: skip
    for link in record.links:
        whole_s = link.all_gradients_s
        shown.add_row(
            str(link.workers),
            format_seconds(link.a_s),
            format_seconds(link.b_s_per_byte * 1024**2),
            format_seconds(whole_s),
            format_rate(8 * record.workload.grad_bytes / whole_s if whole_s > 0 else None),
        )
    return shown


def _stacked(record: Scaling, console: Console) -> None:
    for workers in record.workers:
        say(console, f"{workers} workers (simulated)", "bold")
        for point in record.points:
            if point.workers == workers:
                plural = "" if point.buckets == 1 else "s"
                console.print(Text(f"  {point.mode}", style="bold"))
                indented(
                    console,
                    f"  step {format_seconds(point.step_s)}, exposed {format_seconds(point.exposed_s)}, "
                    f"efficiency {format_percent(point.efficiency)}",
                )
                indented(
                    console,
                    f"  {format_count(point.samples_per_s)} samples/s; {point.buckets} bucket{plural}, the largest "
                    f"{format_bytes(point.largest_bucket_bytes)}",
                )


def _factor(value: float) -> str:
    return f"{value:.2f}"
