"""`xbench validate` for people: what held, how far off predictions were, cell by cell; in the terminal and as Markdown.

Predicted times are simulated, measured ones real; headings say so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console

from xbench.modes import mode_info
from xbench.records import ErrorSummary, Validation, ValidationCell, ValidationPoint
from xbench.report.drawing import NARROW_COLUMNS, fact, indented, say, titled_table
from xbench.report.markdown_parts import Markup, plain, strong, table
from xbench.stats.validation import name_of, summaries
from xbench.units import format_seconds


def render_validation(record: Validation, console: Console) -> None:
    """The goals, the errors by group, every cell, and what could not be measured."""
    fitted, held_out = parts(record)
    if not record.complete:
        why = (record.error or "it ended before everything was measured").rstrip(".")
        say(console, f"INCOMPLETE: {why}. What follows is what had been measured by then.", "bold yellow")
        console.print()
    for goal in record.goals:
        style = "green" if goal.held else "red"
        say(console, f"{'held    ' if goal.held else 'NOT HELD'}  {goal.claim}: {goal.found}", style)
    if record.overlap == "forward":
        say(console, FORWARD, "italic")
    if record.goals:
        console.print()
    if record.errors:
        say(console, "Error of predictions: predicted (simulated) over measured (real), minus one", "italic")
        if console.width < NARROW_COLUMNS:
            for row in _error_rows(record.errors, record.errors_at_speed):
                indented(console, f"  {row[0]}: {row[1]} predictions, median {row[2]}, 95 % within {row[3]}")
        else:
            table = titled_table("", ("group", "left"), *((name, "right") for name in ERROR_COLUMNS[1:]))
            for row in _error_rows(record.errors, record.errors_at_speed):
                table.add_row(*row)
            console.print(table)
        say(console, AT_SPEED, "dim")
    for title, cells in (("", fitted), ("Held out: ", held_out)):
        if cells and console.width >= NARROW_COLUMNS + _MODE_COLUMNS * max(0, len(record.modes) - 7):
            _tables(title, cells, record.modes, console)
        elif cells:
            console.print()
            say(console, f"{title}measured step (real), error of the prediction, time over DDP's", "italic")
            for cell in cells:
                _cell(cell, console)
        for cell in cells:
            if cell.error is not None:
                say(console, f"{name_of(cell)}: left out: {cell.error}", "red")
    if held_out:
        say(console, held_out_line(held_out), "bold")
    console.print()
    for warning in record.warnings:
        fact(console, "warning", warning, "yellow")


ERROR_COLUMNS = ("group", "predictions", "median", "95 % within", "worst", "bias", "median at speed", "95 % at speed")
_MODE_COLUMNS = 12
AT_SPEED = (
    "At speed: the computation predicted at the speed that it had while the modes were timed, which the control mode "
    "compute measures. Bias: the median of the signed errors; above zero, steps were faster than predicted."
)

FORWARD = "auto might overlap the next forward pass too (--overlap forward), and so beat the backward-overlap bound."


def markdown(record: Validation) -> str:
    """The same as Markdown tables, for a docs page or a pull request."""
    fitted, held_out = parts(record)
    goals = [[goal.claim, goal.found, "held" if goal.held else strong("not held")] for goal in record.goals]
    lines: list[str] = [_left_table(["claim", "found", ""], goals)]
    if record.overlap == "forward":
        lines += ["", FORWARD]
    lines += ["", _left_table(ERROR_COLUMNS, _error_rows(record.errors, record.errors_at_speed))]
    lines += ["", AT_SPEED]
    for title, cells in (("", fitted), ("Held out", held_out)):
        if not cells:
            continue
        modes = [mode for mode in record.modes if mode_info(mode).trains]
        lines += ["", f"**{title}: {held_out_line(cells)}**" if title else ""]
        lines += ["", _left_table(["cell", "compute", *modes], [_md_cell(cell, modes) for cell in cells])]
    return "\n".join(lines) + "\n"


def parts(record: Validation) -> tuple[list[ValidationCell], list[ValidationCell]]:
    """Cells predicted from their own fabric, and those predicted from another."""
    own = [cell for cell in record.cells if cell.predicted_on == cell.fabric.world_size]
    return own, [cell for cell in record.cells if cell.predicted_on != cell.fabric.world_size]


def held_out_line(cells: Sequence[ValidationCell]) -> str:
    """What carrying over to more workers cost in accuracy, in a sentence."""
    sizes = sorted({(cell.predicted_on, cell.fabric.world_size) for cell in cells})
    where = ", ".join(f"measured on {small}, predicted for {large} workers" for small, large in sizes)
    own, again = (next(iter(summaries(cells, at_speed=flag)), None) for flag in (False, True))
    said = [f"{where}:"]
    if again is not None:
        said.append(
            f"at the speed of the computation there, median {_share(again.median)}, worst {_share(again.worst)}"
        )
    if own is not None:
        said.append(
            f"{'; ' if again is not None else ''}with the computation as fast as on fewer, median {_share(own.median)}"
        )
    return " ".join(said).replace(" ;", ";")


def _tables(title: str, cells: Sequence[ValidationCell], modes: Sequence[str], console: Console) -> None:
    """A row a cell and a column a mode: how far off, how long, against DDP."""
    figures: list[tuple[str, Callable[[ValidationPoint], str]]] = [
        ("Error of the prediction", lambda point: _signed(point.error)),
        ("Measured step (real)", lambda point: format_seconds(point.measured_step_s.median)),
        ("Time over DDP's (real)", _ratio),
    ]
    for name, figure in figures:
        shown = [mode for mode in modes if figure is not _ratio or (mode_info(mode).trains and mode != "ddp")]
        if not shown:
            continue
        console.print()
        say(console, f"{title}{name}", "italic")
        table = titled_table("", ("cell", "left"), *((mode, "right") for mode in shown))
        for cell in cells:
            points = {point.mode: point for point in cell.points}
            if points:
                table.add_row(name_of(cell), *(figure(points[mode]) if mode in points else "–" for mode in shown))
        console.print(table)


def _cell(cell: ValidationCell, console: Console) -> None:
    if cell.error is not None:
        return
    said = [
        f"{point.mode} {format_seconds(point.measured_step_s.median)} {_signed(point.error)}{_over_ddp(point)}"
        for point in cell.points
    ]
    workers = f", {cell.fabric.world_size} workers" if cell.predicted_on != cell.fabric.world_size else ""
    indented(console, f"{name_of(cell)}{workers}: " + " · ".join(said))


def _error_rows(rows: Sequence[ErrorSummary], at_speed: Sequence[ErrorSummary]) -> list[list[str]]:
    again = {row.name: row for row in at_speed}
    return [
        [
            row.name,
            str(row.count),
            _share(row.median),
            _share(row.p95),
            _share(row.worst),
            _signed(row.bias),
            _share(again[row.name].median) if row.name in again else "–",
            _share(again[row.name].p95) if row.name in again else "–",
        ]
        for row in rows
    ]


def _md_cell(cell: ValidationCell, modes: Sequence[str]) -> list[str]:
    if cell.error is not None:
        return [name_of(cell), Markup(f"{strong('left out')}: {plain(cell.error)}"), *[""] * len(modes)]
    points = {point.mode: point for point in cell.points}
    row = [name_of(cell), format_seconds(cell.compute_blocks_s or cell.compute_s)]
    for mode in modes:
        point = points.get(mode)
        row.append(f"{format_seconds(point.measured_step_s.median)}, {_signed(point.error)}" if point else "–")
    return row


def _left_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return table(headings, rows, left=len(headings))


def _over_ddp(point: ValidationPoint) -> str:
    if point.ratio_to_ddp is None or point.verdict == "reference" or not mode_info(point.mode).trains:
        return ""
    return f" ({point.ratio_to_ddp:.2f})"


def _ratio(point: ValidationPoint) -> str:
    return f"{point.ratio_to_ddp:.2f}" if point.ratio_to_ddp is not None else "–"


def _share(value: float) -> str:
    return f"{value * 100:.1f} %"


def _signed(value: float) -> str:
    return f"{value * 100:+.1f} %"
