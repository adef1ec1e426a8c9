"""Launches and steps in the order of time: they show warm-up, drift and outliers, before any median.

- every step of a comparison;
- every pair of launches of a check, as head over base.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from xbench.records import Case, Comparison, Label, LaunchPair, Measurement, MetricUnit, Sample
from xbench.report import regression_sentences as told
from xbench.report.charts.axes import BELOW, Mark, Unit, launch_divider, marks, named, plain, points, rounded, time_unit
from xbench.report.charts.forest import padded
from xbench.report.page.model import Badge, Cell, Figure, Layout, Table, Trace, columns
from xbench.units import format_seconds

HEIGHT_PX = 400
SPREAD = 0.6
"""Width of the marks of one pair, as a share of the distance between two pairs."""

GAP = 0.03
"""Room between two launches, as a share of the whole measured time."""

LEVEL: Layout = {"type": "line", "y0": 1, "y1": 1, "xref": "paper", "x0": 0, "x1": 1,
                 "line": {"color": "--ink", "dash": "dot", "width": 1.5}}  # fmt: skip
HIDE = "Click on a name in the legend to hide it, twice to see it alone."


class Point(NamedTuple):
    """One mark of a case."""

    place: int
    ratio: float
    said: str
    fresh: bool = False


def pairs_over_time(
    title: str, said: str, pairs: Sequence[LaunchPair], confirmation: Sequence[LaunchPair] = ()
) -> Figure | None:
    """Draw the ratio of every case in every pair. `said` explains them to the reader. None without a ratio."""
    label: dict[Case, Label] = {one.case: one.label for pair in (*pairs, *confirmation)
                                for one in (*pair.base, *pair.head)}  # fmt: skip
    found = {case: [*_points(case, pairs, 0), *_points(case, confirmation, len(pairs))] for case in label}
    found = {case: several for case, several in found.items() if several}
    if not found:
        return None
    parted = [launch_divider(len(pairs) + 0.5, "to confirm")] if confirmation else []
    hollow = " Hollow: pairs that were launched to confirm what the first ones suspected." if confirmation else ""
    alone = f" {HIDE}" if len(found) > 1 else ""
    count = len(pairs) + len(confirmation)
    return Figure(
        key="every-pair",
        title=title,
        labels=sorted({label[case] for case in found}),
        told=f"Each mark is head over base in one pair of launches; pairs in the order of time. {said}{hollow}{alone}",
        traces=_traces(found),
        layout={
            **_layout(found, count),
            "shapes": [LEVEL, *(line for line, _ in parted)],
            "annotations": [said for _, said in parted],
        },
        narrow={"xaxis.dtick": 5} if 10 < count <= 24 else {},
        height=HEIGHT_PX + 18 * (len(found) // 4),
        table=_pairs_table([("first", pairs), ("to confirm", confirmation)]),
    )


def _points(case: Case, pairs: Sequence[LaunchPair], before: int) -> list[Point]:
    made = []
    for place, pair in enumerate(pairs, start=1):
        ratio = pair.ratio(case)
        if ratio is not None:
            which = "pair to confirm" if before else "pair"
            said = f"{which} {place}, {pair.first} first: {ratio:.3f}"
            made.append(Point(before + place, ratio, said, fresh=before > 0))
    return made


def _traces(found: Mapping[Case, Sequence[Point]]) -> list[Trace]:
    """Return one trace per case, and one for all confirming pairs."""
    look = marks(map(told.name_of, found))
    shift = {case: SPREAD * ((number + 0.5) / len(found) - 0.5) for number, case in enumerate(found)}

    def drawn(name: str, marker: Layout, several: Sequence[tuple[Case, Point]]) -> Trace:
        x = [rounded(one.place + shift[case]) for case, one in several]
        y = [rounded(one.ratio) for _, one in several]
        said = [f"<b>{plain(told.name_of(case))}</b><br>{one.said}" for case, one in several]
        return points(x, y, said, name=name, marker=marker)

    traces = []
    for case, own in found.items():
        name = told.name_of(case)
        marker = {"color": look[name].colour, "symbol": look[name].symbol, "size": 9}
        traces.append(drawn(plain(name), marker, [(case, one) for one in own if not one.fresh]))
    fresh = [(case, one) for case, own in found.items() for one in own if one.fresh]
    mark = [look[told.name_of(case)] for case, _ in fresh]
    hollow = {"color": [one.colour for one in mark], "symbol": [f"{one.symbol}-open" for one in mark], "size": 10}
    return [trace for trace in [*traces, drawn("to confirm, of any", hollow, fresh)] if trace["x"]]


def _layout(found: Mapping[Case, Sequence[Point]], count: int) -> Layout:
    low, high = padded([one.ratio for own in found.values() for one in own])
    few = {"dtick": 1} if count <= 24 else {}
    return {
        "xaxis": {"title": {"text": "launch pair"}, "range": [0.4, count + 0.6], "tick0": 0, "showgrid": False,
                  "zeroline": False, **few},
        "yaxis": {"title": {"text": "head over base"}, "range": [rounded(low), rounded(high)], "zeroline": False},
        "legend": BELOW,
        "hovermode": "closest",
        "margin": {"t": 26},
    }  # fmt: skip


def _pairs_table(phases: Sequence[tuple[str, Sequence[LaunchPair]]]) -> Table:
    """Return one row per case and pair; '–' marks a missing measurement. With two phases there is a column for them."""
    rows: list[list[Cell]] = []
    parted = sum(bool(pairs) for _, pairs in phases) > 1
    for phase, pairs in phases:
        for place, pair in enumerate(pairs, start=1):
            base, head = ({one.case: one for one in side} for side in (pair.base, pair.head))
            for case in dict.fromkeys([*base, *head]):
                either = head.get(case) or base[case]
                ratio = pair.ratio(case)
                rows.append([
                    told.name_of(case), str(place), *([phase] if parted else []), pair.first,
                    _value(base.get(case), either.unit), _value(head.get(case), either.unit),
                    f"{ratio:.3f}" if ratio is not None else Badge("no ratio", "inconclusive"),
                    format_seconds(pair.started_s), Badge.of(either.label),
                ])  # fmt: skip
    headings = columns(("case", "pair", *(["phase"] if parted else []), "went first", "base", "head", "ratio",
                       "started after", "label"), ("case", "phase", "went first", "label"))  # fmt: skip
    return Table("Every pair in figures", headings, rows, bulk=True)


def _value(one: Measurement | None, unit: MetricUnit) -> str:
    return told.value(one.value if one is not None else None, unit)


class Step(NamedTuple):
    """One step: its end [s] since the first launch began, its duration [s], its block, and whether it is warm-up."""

    at_s: float
    step_s: float
    sample: Sample
    warming: bool


def over_time(record: Comparison) -> Figure | None:
    """Draw each step of each block as its mode's mark: hollow in warm-up, ringed if its block is flagged."""
    begins_s = _launches(record.samples)
    steps = [step for sample in record.samples for step in _steps(sample, begins_s[sample.launch])]
    if not steps:
        return None
    unit = time_unit(statistics.median(step.step_s for step in steps))
    look = marks(record.modes)
    timed = {mode: [step for step in steps if step.sample.mode == mode] for mode in record.modes}
    traces = [_steady(mode, own, look[mode], unit) for mode, own in timed.items() if own]
    warm = _warming(steps, look, unit)
    flagged = _flagged(steps, unit)
    partings = [launch_divider(rounded(at_s), f"launch {launch + 1}") for launch, at_s in begins_s.items()]
    return Figure(
        key="every-step",
        title="Every step over time",
        labels=sorted({record.modes[mode].label for mode, own in timed.items() if own}),
        told="Each mark is one step, at its place in the run; launches stand one after the other. Hollow: warm-up, "
        "which counts nowhere. Ringed: a block that was flagged as an outlier, and kept. A slope is drift, which "
        "alternating blocks of all modes divide out of ratios. " + HIDE,
        traces=[*traces, *([warm] if warm["x"] else []), *([flagged] if flagged["x"] else [])],
        layout={
            "xaxis": {"title": {"text": "time of measuring [s]"}, "rangemode": "tozero"},
            "yaxis": {"title": {"text": f"step [{unit.name}]"}, **_upright(steps, unit)},
            "shapes": [line for line, _ in partings[1:]],
            "annotations": [said for _, said in partings] if len(partings) <= 8 else [],
            "legend": BELOW,
            "hovermode": "closest",
            "margin": {"t": 26},
        },
        height=HEIGHT_PX + 30 + 18 * (len(traces) // 4),
        table=_steps_table(record),
    )


def _launches(samples: Sequence[Sample]) -> dict[int, float]:
    """Return the start [s] of each launch, if launches directly followed one another."""
    lasted: dict[int, float] = defaultdict(float)
    for sample in samples:
        end_s = sample.started_s + sum(sample.warmup_s) + sum(sample.steps_s)
        lasted[sample.launch] = max(lasted[sample.launch], end_s)
    gap_s = GAP * sum(lasted.values())
    begins, now_s = {}, 0.0
    for launch in sorted(lasted):
        begins[launch] = now_s
        now_s += lasted[launch] + gap_s
    return begins


def _steps(sample: Sample, began_s: float) -> list[Step]:
    now_s = began_s + sample.started_s
    made = []
    for place, step_s in enumerate([*sample.warmup_s, *sample.steps_s]):
        now_s += step_s
        made.append(Step(now_s, step_s, sample, place < len(sample.warmup_s)))
    return made


def _steady(mode: str, steps: Sequence[Step], mark: Mark, unit: Unit) -> Trace:
    """Return the timed steps of a mode. A second job's marks are smaller."""
    timed = [step for step in steps if not step.warming]
    sizes = [8 if step.sample.job == 0 else 5 for step in timed]
    marker = {"color": mark.colour, "symbol": mark.symbol, "size": sizes, "line": {"width": 0}}
    return _step_points(timed, unit, name=named(mode).replace("<br>", ""), marker=marker)


def _warming(steps: Sequence[Step], look: Mapping[str, Mark], unit: Unit) -> Trace:
    warm = [step for step in steps if step.warming and step.sample.mode in look]
    return _step_points(warm, unit, name="warm-up of any", marker={
        "color": [look[step.sample.mode].colour for step in warm], "size": 7, "opacity": 0.75,
        "symbol": [f"{look[step.sample.mode].symbol}-open" for step in warm],
    })  # fmt: skip


def _flagged(steps: Sequence[Step], unit: Unit) -> Trace:
    flagged = [step for step in steps if step.sample.outlier and not step.warming]
    marker = {"symbol": "circle-open", "size": 15, "color": "--bad", "line": {"width": 1.5}}
    silent = {"hoverinfo": "skip", "hovertemplate": None}
    return _step_points(flagged, unit, name="flagged as an outlier", marker=marker) | silent


def _step_points(steps: Sequence[Step], unit: Unit, **look: object) -> Trace:
    x, y = [rounded(step.at_s) for step in steps], unit.all(step.step_s for step in steps)
    return points(x, y, list(map(_said, steps)), **look)


def _said(step: Step) -> str:
    sample = step.sample
    warm = ", warm-up" if step.warming else ""
    return (
        f"<b>{plain(sample.mode)}</b> {format_seconds(step.step_s)}{warm}<br>launch {sample.launch + 1}, round "
        f"{sample.round + 1}, block {sample.position + 1}, job {sample.job + 1}"
    )


def _upright(steps: Sequence[Step], unit: Unit) -> Layout:
    """Return the axis of step times. If warm-up steps are much longer, it leaves them out until a double click."""
    longest_s = max(step.step_s for step in steps)
    typical_s = max((step.step_s for step in steps if not step.warming), default=longest_s)
    if longest_s <= 1.5 * typical_s:
        return {"rangemode": "tozero"}
    return {"range": [0, unit.of(1.25 * typical_s)]}


def _steps_table(record: Comparison) -> Table:
    """Return one row per block. Its median is the sample of the statistics."""
    rows: list[list[Cell]] = [
        [
            sample.mode,
            str(sample.launch + 1),
            str(sample.round + 1),
            str(sample.position + 1),
            str(sample.job + 1),
            format_seconds(sample.step_s),
            f"{format_seconds(min(sample.steps_s))} – {format_seconds(max(sample.steps_s))}" if sample.steps_s else "–",
            str(len(sample.steps_s)),
            str(len(sample.warmup_s)),
            "outlier, kept" if sample.outlier else "",
        ]
        for sample in record.samples
    ]
    names = ("mode", "launch", "round", "block", "job", "step", "least – most", "steps", "warm-up", "flag")
    headings = columns(names, ("mode", "flag"))
    note = "Step: what the block counts as, the median of its steps."
    return Table("Every block in figures", headings, rows, note, bulk=True)
