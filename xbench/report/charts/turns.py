"""Two jobs that share a device in turns: who held it when, and how long gradients travelled on after a turn."""

from __future__ import annotations

from collections.abc import Sequence

from xbench.planning.turns import LETTERS
from xbench.records import Comparison, ModeResult, TurnTaken
from xbench.report.charts.steps import WAITS, Bar, Lane, figure_of
from xbench.report.charts.turn_waits import waits_before
from xbench.report.page.common_sections import label_badge
from xbench.report.page.model import Cell, Column, Figure, Table
from xbench.units import format_seconds

TOLD = (
    "The recorded turns of the first device, as rank 0 of each job saw them. Hatched: nobody holds the device, because "
    "the job whose turn is next waits for its gradients. Below, each job's gradients from the end of its turn on, "
    "until they have arrived."
)


def comparison_turns(record: Comparison) -> list[Figure]:
    """A figure for each mode whose turns were recorded."""
    shown = [result for result in record.modes.values() if result.turns]
    return [_figure(record, result, place) for place, result in enumerate(shown)]


def _figure(record: Comparison, result: ModeResult, place: int) -> Figure:
    titles = [job.workload.title for job in record.jobs]
    jobs = sorted({turn.job for turn in result.turns})
    ends_s = [max(turn.computed_s, turn.arrived_s or 0.0) for turn in result.turns]
    return figure_of(
        f"turns-{place}",
        f"Turns of {result.mode}",
        [Lane("device", _held(result.turns), 1), *(_travels(result.turns, job) for job in jobs)],
        [result.label],
        max(ends_s),
        table=_table(result, titles),
        told=f"{TOLD} {', '.join(f'{LETTERS[job]}: {titles[job]}' for job in jobs if job < len(titles))}.",
        axis="time since the first of these turns began",
    )


def _held(turns: Sequence[TurnTaken]) -> list[Bar]:
    """The turns, and between them when the device waited for gradients."""
    bars = [_bar(f"turn of {LETTERS[turn.job]}", turn.start_s, turn.computed_s) for turn in turns]
    return bars + [_bar(WAITS, *wait) for wait in waits_before(turns) if wait is not None]


def _travels(turns: Sequence[TurnTaken], job: int) -> Lane:
    own = [turn for turn in turns if turn.job == job]
    bars = [
        _bar("gradients travel", turn.computed_s, turn.arrived_s)
        for turn in own
        if turn.arrived_s is not None and turn.arrived_s > turn.computed_s
    ]
    return Lane(f"gradients<br>of {LETTERS[job]}", bars, 1)


def _bar(kind: str, start_s: float, end_s: float) -> Bar:
    took = f"{format_seconds(end_s - start_s)}: from {format_seconds(start_s)} to {format_seconds(end_s)}"
    return Bar(kind, 0, start_s, end_s, f"<b>{kind}</b><br>{took}")


def _table(result: ModeResult, titles: Sequence[str]) -> Table:
    rows: list[list[Cell]] = [
        [
            f"{LETTERS[turn.job]} ({titles[turn.job]})" if turn.job < len(titles) else LETTERS[turn.job],
            format_seconds(turn.start_s),
            format_seconds(turn.computed_s - turn.start_s),
            format_seconds(max(0.0, turn.arrived_s - turn.computed_s)) if turn.arrived_s is not None else "–",
            label_badge(result.label),
        ]
        for turn in result.turns
    ]
    columns = [
        Column("job", figures=False),
        *map(Column, ("turn begins", "holds the device", "gradients arrive after")),
        Column("label", figures=False),
    ]
    return Table(f"The turns of {result.mode} in figures", columns, rows)
