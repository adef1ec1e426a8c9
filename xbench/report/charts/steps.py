"""One step on a time axis, measured above predicted, and two jobs that share a device in turns.

If the compute lane is empty while gradients are in flight, the device waits for them. That is exposed communication,
and it is hatched. Collectives in flight at once lie below each other in their lane.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from xbench.planning.turns import LETTERS
from xbench.records import Comparison, Label, ModeResult, Profile, Slice, Timeline, TurnTaken
from xbench.report.answer import ranking
from xbench.report.charts.axes import BELOW, HOVER, Unit, plain, rounded, time_axis, time_unit
from xbench.report.charts.bars import fastest_first
from xbench.report.charts.text import carries_parameters, step_note
from xbench.report.page.model import Badge, Cell, Figure, Layout, Table, Trace, columns
from xbench.units import format_bytes, format_seconds

MIN_WAIT = 0.002
"""Share of the step below which a gap is the time between two layers, and no wait."""

MAX_ROWS = 400
LANE_PX = 46
MARGIN_PX = 132
SCALE = "All steps here are drawn on one scale."
WAITS = "waits for communication: exposed"
PARAMETERS = "parameters travel"
KINDS = ("input", "forward", "backward", "optimizer", "compute")
STYLES: dict[str, Layout] = {
    "input": {"color": "--c4"},
    "forward": {"color": "--c6"},
    "backward": {"color": "--c1"},
    "optimizer": {"color": "--c3"},
    "compute": {"color": "--bar"},
    WAITS: {"color": "--wait", "pattern": {"shape": "/", "fgcolor": "--bad", "fillmode": "overlay", "size": 6}},
    "gradients travel": {"color": "--c5"},
    "gradients travel, next bucket": {"color": "--c2"},
    PARAMETERS: {"color": "--c7"},
    "turn of A": {"color": "--c1"},
    "turn of B": {"color": "--c6"},
}


class Lane(NamedTuple):
    """Row of the figure: its name, its slices, and the kind and the sub-row of each."""

    name: str
    slices: Sequence[Slice]
    kinds: Sequence[str]
    rows: Sequence[int]


def waits(timeline: Timeline) -> list[Slice]:
    """Return the device's waits for communication: gaps of the compute lane, in a step with collectives."""
    end_s = timeline.end_s
    if not timeline.communication or end_s <= 0:
        return []
    found, free_s = [], 0.0
    for part in [*sorted(timeline.compute, key=lambda part: part.start_s), Slice(name="", start_s=end_s, end_s=end_s)]:
        if part.start_s - free_s > MIN_WAIT * end_s:
            found.append(Slice(name=WAITS, start_s=free_s, end_s=part.start_s))
        free_s = max(free_s, part.end_s)
    return found


def sub_rows(slices: Sequence[Slice]) -> list[int]:
    """Return for each slice the first sub-row that is free when it starts."""
    ends_s: list[float] = []
    rows = [0] * len(slices)
    for place in sorted(range(len(slices)), key=lambda place: slices[place].start_s):
        start_s, end_s = slices[place].start_s, slices[place].end_s
        row = next((row for row, until_s in enumerate(ends_s) if until_s <= start_s + 1e-9), len(ends_s))
        ends_s[row : row + 1] = [end_s]
        rows[place] = row
    return rows


def comparison_steps(record: Comparison) -> list[Figure]:
    """Draw modes with a recorded step, and the best two, on one scale. All but the first two figures are folded."""
    order = [r.mode for r in ranking(record)]
    rivals = sorted(order[1:], key=lambda mode: mode != record.reference)
    first = [*order[:1], *rivals[:1]]
    places = {mode: place for place, mode in enumerate(dict.fromkeys([*first, *order]))}
    results = sorted(fastest_first(record), key=lambda r: places.get(r.mode, len(places)))
    shown = [(r, lines) for r in results if (lines := _lines(r)) and (r.timeline is not None or r.mode in first)]
    paired = {mode.text for mode in record.spec.modes if mode.paired}
    told = f"{SCALE} Of two jobs, it is a step of one by itself." if paired else SCALE
    remarks = [
        " ".join(filter(None, (told if place == 0 else "", step_note(record, r)))) for place, (r, _) in enumerate(shown)
    ]
    return _steps([(r.mode, lines) for r, lines in shown], remarks)


def profile_steps(record: Profile) -> list[Figure]:
    """Draw the predicted step of every plan on one scale. All but the first two figures are folded."""
    plans = sorted(record.plans.values(), key=lambda plan: plan.predicted_step_s)
    shown = [(plan.mode, {"predicted": plan.timeline}) for plan in plans if plan.timeline and plan.mode != "compute"]
    return _steps(shown, [SCALE] + [""] * len(shown))


def _lines(result: ModeResult) -> dict[str, Timeline]:
    """Return the timelines of a mode: measured, predicted, or both."""
    planned = result.plan.timeline if result.plan is not None else None
    both = {"measured": result.timeline, "predicted": planned}
    return {whose: line for whose, line in both.items() if line is not None and (line.compute or line.end_s > 0)}


def _steps(shown: Sequence[tuple[str, Mapping[str, Timeline]]], remarks: Sequence[str]) -> list[Figure]:
    """Draw the timelines of each mode on one scale. All but the first two figures are folded."""
    scale_s = max((line.end_s for _, lines in shown for line in lines.values()), default=0.0)
    figures = []
    for place, ((mode, lines), told) in enumerate(zip(shown, remarks, strict=False)):
        lanes = [lane for whose, line in lines.items() for lane in _lanes(whose, line)]
        labels: list[Label] = list(dict.fromkeys(line.label for line in lines.values()))
        table = _slices_table(mode, lines)
        figure = figure_of(f"step-{place}", f"One step of {mode}", lanes, labels, scale_s, table=table, told=told)
        figures.append(replace(figure, folded=place >= 2))
    return figures if scale_s > 0 else []


def _lanes(whose: str, timeline: Timeline) -> list[Lane]:
    compute = [*timeline.compute, *waits(timeline)]
    travels = [part for part in timeline.communication if part.end_s > part.start_s]
    kinds = [_travel_kind(part, number) for number, part in enumerate(travels)]
    lanes = [
        Lane(f"{whose}<br>compute", compute, [_kind(part) for part in compute], [0] * len(compute)),
        Lane(f"{whose}<br>link", travels, kinds, sub_rows(travels)),
    ]
    return [lane for lane in lanes if lane.slices]


def _travel_kind(part: Slice, number: int = 0) -> str:
    if carries_parameters(part):
        return PARAMETERS
    return "gradients travel, next bucket" if number % 2 else "gradients travel"


def _kind(part: Slice) -> str:
    first = part.name.split(" ", 1)[0]
    return WAITS if part.name == WAITS else first if first in KINDS else "compute"


def _said(part: Slice) -> str:
    size = f", {format_bytes(part.nbytes)}" if part.nbytes is not None else ""
    span = f"from {format_seconds(part.start_s)} to {format_seconds(part.end_s)}"
    return f"<b>{plain(part.name)}</b>{size}<br>{format_seconds(part.end_s - part.start_s)}: {span}"


def figure_of(
    key: str,
    title: str,
    lanes: Sequence[Lane],
    labels: Sequence[Label],
    scale_s: float,
    *,
    table: Table,
    told: str = "",
    axis: str = "time since the step began",
) -> Figure:
    """Draw lanes below each other on one time axis from 0 to `scale_s` [s]."""
    unit = time_unit(scale_s)
    traces = [_trace(kind, unit, lanes) for kind in STYLES]
    return Figure(
        key=key,
        title=title,
        labels=labels,
        told=told,
        traces=[trace for trace in traces if trace["x"]],
        layout={
            "barmode": "overlay",
            "xaxis": time_axis(axis, unit, range=[0, unit.of(1.01 * scale_s)]),
            "yaxis": {
                "tickvals": list(range(len(lanes))), "ticktext": [lane.name for lane in lanes],
                "range": [len(lanes) - 0.5, -0.5], "showgrid": False, "zeroline": False,
            },
            "legend": BELOW,
            "margin": {"t": 4, "r": 12},
        },
        height=MARGIN_PX + LANE_PX * len(lanes),
        table=table,
    )  # fmt: skip


def _trace(kind: str, unit: Unit, lanes: Sequence[Lane]) -> Trace:
    """Return bars of all slices of one kind. The sub-rows of a lane share a height of 0.84 of a row."""
    bars = [
        (part, place - 0.42 + width * (row + 0.5), width)
        for place, lane in enumerate(lanes)
        for width in [0.84 / (max(lane.rows, default=0) + 1)]
        for part, of, row in zip(lane.slices, lane.kinds, lane.rows, strict=True)
        if of == kind
    ]
    return {
        "type": "bar", "orientation": "h", "name": kind,
        "base": [unit.of(part.start_s) for part, _, _ in bars],
        "x": [unit.of(part.end_s - part.start_s) for part, _, _ in bars],
        "y": [rounded(y) for _, y, _ in bars],
        "width": [rounded(width) for _, _, width in bars],
        "customdata": [_said(part) for part, _, _ in bars],
        "hovertemplate": HOVER,
        "marker": {**STYLES[kind], "line": {"color": "--paper", "width": 0.5}},
    }  # fmt: skip


def _slices_table(mode: str, timelines: Mapping[str, Timeline]) -> Table:
    """Return each lane's totals, then every collective, up to MAX_ROWS of them."""
    rows: list[list[Cell]] = []
    travels: list[list[Cell]] = []
    for whose, timeline in timelines.items():
        label = Badge.of(timeline.label)
        slices = [(_kind(part), part) for part in (*timeline.compute, *waits(timeline))]
        slices += [(_travel_kind(part), part) for part in timeline.communication]
        for kind in dict.fromkeys(kind for kind, _ in slices):
            rows.append(_row(f"{whose}: {kind}", [part for one, part in slices if one == kind], label))
        travels += [_row(f"{whose}: {part.name}", [part], label) for part in timeline.communication]
    rows += travels[:MAX_ROWS]
    note = "Busy: the sum over slices, which may lie beside each other."
    if len(travels) > MAX_ROWS:
        note += f" {len(travels) - MAX_ROWS} more collectives are in the record."
    headings = columns(("what", "slices", "busy", "from", "to", "bytes", "label"), ("what", "label"))
    return Table(f"The step of {mode} in figures", headings, rows, note, bulk=True)


def _row(what: str, slices: Sequence[Slice], label: Badge) -> list[Cell]:
    sizes = [part.nbytes for part in slices if part.nbytes is not None]
    return [
        what,
        str(len(slices)),
        format_seconds(sum(part.end_s - part.start_s for part in slices)),
        format_seconds(min(part.start_s for part in slices)),
        format_seconds(max(part.end_s for part in slices)),
        format_bytes(sum(sizes)) if sizes else "–",
        label,
    ]


TOLD = (
    "The recorded turns of the first device, as rank 0 of each job saw them. Hatched: nobody holds the device, because "
    "the job whose turn is next waits for its gradients. Below, each job's gradients from the end of its turn on, "
    "until they have arrived."
)


def comparison_turns(record: Comparison) -> list[Figure]:
    """Draw one figure for each mode whose turns were recorded."""
    shown = [result for result in record.modes.values() if result.turns]
    return [_figure(record, result, place) for place, result in enumerate(shown)]


def _figure(record: Comparison, result: ModeResult, place: int) -> Figure:
    titles = [job.workload.title for job in record.jobs]
    jobs = sorted({turn.job for turn in result.turns})
    ends_s = [max(turn.computed_s, turn.arrived_s or 0.0) for turn in result.turns]
    return figure_of(
        f"turns-{place}",
        f"Turns of {result.mode}",
        [_held(result.turns), *(_travels(result.turns, job) for job in jobs)],
        [result.label],
        max(ends_s),
        table=_turn_table(result, titles),
        told=f"{TOLD} {', '.join(f'{LETTERS[job]}: {titles[job]}' for job in jobs if job < len(titles))}.",
        axis="time since the first of these turns began",
    )


def _held(turns: Sequence[TurnTaken]) -> Lane:
    """Return the lane of the turns, and of the device's waits for gradients between them."""
    held = [Slice(name=f"turn of {LETTERS[turn.job]}", start_s=turn.start_s, end_s=turn.computed_s) for turn in turns]
    waited = [Slice(name=WAITS, start_s=wait[0], end_s=wait[1]) for wait in waits_before(turns) if wait is not None]
    return _lane("device", [*held, *waited])


def _travels(turns: Sequence[TurnTaken], job: int) -> Lane:
    travels = [
        Slice(name="gradients travel", start_s=turn.computed_s, end_s=turn.arrived_s)
        for turn in turns
        if turn.job == job and turn.arrived_s is not None and turn.arrived_s > turn.computed_s
    ]
    return _lane(f"gradients<br>of {LETTERS[job]}", travels)


def _lane(name: str, slices: Sequence[Slice]) -> Lane:
    """Return a lane whose slices are named by their kind."""
    return Lane(name, slices, [part.name for part in slices], [0] * len(slices))


def _turn_table(result: ModeResult, titles: Sequence[str]) -> Table:
    rows: list[list[Cell]] = [
        [
            f"{LETTERS[turn.job]} ({titles[turn.job]})" if turn.job < len(titles) else LETTERS[turn.job],
            format_seconds(turn.start_s),
            format_seconds(turn.computed_s - turn.start_s),
            format_seconds(max(0.0, turn.arrived_s - turn.computed_s)) if turn.arrived_s is not None else "–",
            Badge.of(result.label),
        ]
        for turn in result.turns
    ]
    headings = columns(("job", "turn begins", "holds the device", "gradients arrive after", "label"), ("job", "label"))
    return Table(f"The turns of {result.mode} in figures", headings, rows)


MIN_WAIT_S = 1e-6
"""Gap [s] below which the cause is rounding."""


def waits_before(turns: Sequence[TurnTaken]) -> list[tuple[float, float] | None]:
    """Return for each turn the interval [s] in which no job held the device because its job's gradients were in flight.

    A job asks for its next turn when they have arrived. The rest of a gap is the time to pass the turn on. If the
    arrival is unknown, as before a job's first turn, the whole gap counts.
    """
    found: list[tuple[float, float] | None] = []
    arrived_s: dict[int, float | None] = {}
    free_s = turns[0].start_s if turns else 0.0
    for turn in turns:
        asked_s = arrived_s.get(turn.job)
        until_s = turn.start_s if asked_s is None else min(turn.start_s, asked_s)
        found.append((free_s, until_s) if until_s - free_s > MIN_WAIT_S else None)
        arrived_s[turn.job], free_s = turn.arrived_s, turn.computed_s
    return found
