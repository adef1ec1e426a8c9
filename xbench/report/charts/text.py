"""Text drawings: recorded steps as two lanes per mode, and bars with an interval.

A column of a lane is filled if the lane was busy for at least half of its time. If the compute lane is empty, the
device waits for gradients. That is exposed communication, and it is shaded. A record without timelines has no lanes. A
bar is `██████├─┼─┤`, or `██████│` if the interval is narrower than a column.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from xbench.records import Comparison, Interval, ModeResult, Slice, Timeline
from xbench.report.answer import ranking
from xbench.report.console import say
from xbench.units import format_percent, format_seconds

COMPUTING, WAITING, TRAVELLING = "█", "░", "▄"
MIN_COLUMNS, MAX_COLUMNS = 10, 80
FAR_OFF = 0.1
"""Relative difference between a recorded step and the mode's median above which a warning is shown."""

_MARGIN = 22


def render_timelines(record: Comparison, console: Console) -> None:
    """Draw recorded steps of the best mode and of the reference (or the next best mode)."""
    drawn = _shown(record)
    scale_s = max((_end_s(timeline) for _, timeline in drawn), default=0.0)
    if scale_s <= 0:
        return
    labels = " and ".join(sorted({timeline.label for _, timeline in drawn}))
    console.print()
    say(console, f"One recorded step each ({labels}), on one scale", "italic")
    names = max(len(mode) for mode, _ in drawn)
    columns = max(MIN_COLUMNS, min(MAX_COLUMNS, console.width - _MARGIN - names))
    grid = Table.grid(padding=(0, 1))
    grid.add_column(overflow="fold")
    for _ in range(3):
        grid.add_column(no_wrap=True)
    for mode, timeline in drawn:
        end_s = _end_s(timeline)
        compute = lane(timeline.compute, scale_s, columns, COMPUTING)
        compute = "".join(
            WAITING if cell == " " and (column + 0.5) / columns * scale_s < end_s else cell
            for column, cell in enumerate(compute)
        )
        link = lane(timeline.communication, scale_s, columns, TRAVELLING)
        grid.add_row(Text(f" {mode}"), "compute", compute, format_seconds(end_s))
        grid.add_row("", "link", link, "")
    console.print(grid)
    say(console, f"{COMPUTING} computes, {WAITING} waits for gradients: exposed, {TRAVELLING} gradients travel", "dim")
    for sentence in (far_off(record, record.modes[mode]) for mode, _ in drawn):
        if sentence is not None:
            say(console, sentence, "yellow")


def far_off(record: Comparison, result: ModeResult) -> str | None:
    """Say how far the recorded step is from the mode's median; None if it is near or not comparable.

    A recorded step belongs to the first job. It is comparable if the mode is not paired and all jobs are equal.
    """
    paired = {mode.text for mode in record.spec.modes if mode.paired}
    equal = all(job.workload == record.jobs[0].workload for job in record.jobs)
    if result.timeline is None or result.step_s is None or result.mode in paired or not equal:
        return None
    took_s, median_s = _end_s(result.timeline), result.step_s.median
    off = took_s / median_s - 1 if median_s > 0 else 0.0
    if abs(off) <= FAR_OFF:
        return None
    return (
        f"The recorded step of {result.mode} took {format_seconds(took_s)}, {format_percent(abs(off))} "
        f"{'more' if off > 0 else 'less'} than its median step, {format_seconds(median_s)}: take times from the tables."
    )


def lane(slices: Sequence[Slice], scale_s: float, columns: int, mark: str) -> str:
    """Return `columns` characters for 0 to `scale_s` [s]: `mark` where slices fill at least half of one, else ' '."""
    busy: list[tuple[float, float]] = []
    for start_s, end_s in sorted((part.start_s, part.end_s) for part in slices):
        if busy and start_s <= busy[-1][1]:
            busy[-1] = (busy[-1][0], max(busy[-1][1], end_s))
        else:
            busy.append((start_s, end_s))
    cells = []
    for column in range(columns):
        low_s, high_s = column / columns * scale_s, (column + 1) / columns * scale_s
        filled_s = sum(max(0.0, min(end_s, high_s) - max(start_s, low_s)) for start_s, end_s in busy)
        cells.append(mark if 2 * filled_s >= high_s - low_s else " ")
    return "".join(cells)


def _shown(record: Comparison) -> list[tuple[str, Timeline]]:
    """Return the best mode with a recorded step, and the reference, or the next best if the reference is best."""
    recorded = [(result.mode, result.timeline) for result in ranking(record) if result.timeline is not None]
    others = sorted(recorded[1:], key=lambda pair: pair[0] != record.reference)
    return [*recorded[:1], *others[:1]]


def _end_s(timeline: Timeline) -> float:
    return max((part.end_s for part in (*timeline.compute, *timeline.communication)), default=0.0)


FILLED, LOW, HIGH, MEDIAN, BETWEEN, NARROW = "█", "├", "┤", "┼", "─", "│"
LEGEND = f"bar: time per sample from 0, {LOW}{BETWEEN}{HIGH} or {NARROW} its 95 % interval"


def bar(value: float, interval: Interval, longest: float, columns: int) -> str:
    """Return at most `columns` characters for 0 to `longest`, which is above 0 and not below the interval's end."""

    def column(at: float) -> int:
        return min(columns - 1, max(0, int(at / longest * columns)))

    low, middle, high = column(interval[0]), column(value), column(interval[1])
    if low >= high:
        return FILLED * middle + NARROW
    inside = "".join(MEDIAN if at == middle else BETWEEN for at in range(low + 1, high))
    return f"{FILLED * low}{LOW}{inside}{HIGH}"
