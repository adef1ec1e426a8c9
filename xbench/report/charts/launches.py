"""Launches in the order of time: pairs as head over base, and launches of a baseline over their median."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from xbench.records import Baseline, Case, Label, LaunchPair, Measurement, MetricUnit
from xbench.report import regression_sentences as told
from xbench.report.charts.axes import BELOW, Mark, marks, plain, rounded, upright
from xbench.report.charts.forest import padded
from xbench.report.page.common_sections import label_badge
from xbench.report.page.model import Badge, Cell, Column, Figure, Layout, Table, Trace
from xbench.units import format_seconds

HEIGHT_PX = 400
SPREAD = 0.6
"""Width of the marks of one pair, as a share of the distance between two pairs."""


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
    points = {case: [*_points(case, pairs, 0), *_points(case, confirmation, len(pairs))] for case in label}
    points = {case: found for case, found in points.items() if found}
    if not points:
        return None
    shapes, annotations = _parted(len(pairs)) if confirmation else ([], [])
    hollow = " Hollow: pairs that were launched to confirm what the first ones suspected." if confirmation else ""
    alone = " Click on a name in the legend to hide it, twice to see it alone." if len(points) > 1 else ""
    count = len(pairs) + len(confirmation)
    return Figure(
        key="every-pair",
        title=title,
        labels=sorted({label[case] for case in points}),
        told=f"Each mark is head over base in one pair of launches; pairs in the order of time. {said}{hollow}{alone}",
        traces=_traces(points),
        layout={
            **_layout(points, count, "launch pair", "head over base"),
            "shapes": [_level(), *shapes],
            "annotations": annotations,
        },
        narrow=_narrow(count),
        height=HEIGHT_PX + 18 * (len(points) // 4),
        table=_pairs_table([("first", pairs), ("to confirm", confirmation)]),
    )


def launches_over_time(record: Baseline) -> Figure | None:
    """Draw every launch of a baseline over the median of its case; drift is a slope. None without launches."""
    found: dict[Case, list[tuple[int, Measurement]]] = {}
    for place, launch in enumerate(record.launches, start=1):
        for one in launch:
            found.setdefault(one.case, []).append((place, one))
    middle = {case: statistics.median(one.value for _, one in several) for case, several in found.items()}
    points = {
        case: [Point(place, one.value / middle[case], f"launch {place}: {told.value(one.value, one.unit)}")
               for place, one in several]
        for case, several in found.items() if middle[case] > 0
    }  # fmt: skip
    if not points:
        return None
    rows: list[list[Cell]] = [
        [told.name_of(case), str(place), told.value(one.value, one.unit), str(len(one.samples)), label_badge(one.label)]
        for case, several in found.items()
        for place, one in several
    ]
    columns = [Column("case", figures=False), *map(Column, ("launch", "median", "samples")),
               Column("label", figures=False)]  # fmt: skip
    return Figure(
        key="every-launch",
        title="Every launch over time",
        labels=sorted({several[0][1].label for several in found.values()}),
        told="Each mark is one launch over the median of its case; later launches stand to the right.",
        traces=_traces(points),
        layout={**_layout(points, len(record.launches), "launch", "launch over median"), "shapes": [_level()]},
        narrow=_narrow(len(record.launches)),
        height=HEIGHT_PX + 18 * (len(points) // 4),
        table=Table("Every launch in figures", columns, rows, "Median: of the samples in one launch.", bulk=True),
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


def _traces(points: Mapping[Case, Sequence[Point]]) -> list[Trace]:
    """Return one trace per case, and one for all confirming pairs."""
    look = marks(map(told.name_of, points))
    shift = {case: SPREAD * ((number + 0.5) / len(points) - 0.5) for number, case in enumerate(points)}
    traces = [_trace(case, [one for one in found if not one.fresh], shift[case], look[told.name_of(case)])
              for case, found in points.items()]  # fmt: skip
    fresh = [(case, one) for case, found in points.items() for one in found if one.fresh]
    if fresh:
        traces.append({
            "type": "scatter", "mode": "markers", "name": "to confirm, of any",
            "x": [rounded(one.place + shift[case]) for case, one in fresh],
            "y": [rounded(one.ratio) for _, one in fresh],
            "customdata": [_hover(case, one) for case, one in fresh],
            "hovertemplate": "%{customdata}<extra></extra>",
            "marker": {"color": [look[told.name_of(case)].colour for case, _ in fresh], "size": 10,
                       "symbol": [f"{look[told.name_of(case)].symbol}-open" for case, _ in fresh]},
        })  # fmt: skip
    return [trace for trace in traces if trace["x"]]


def _trace(case: Case, points: Sequence[Point], shift: float, mark: Mark) -> Trace:
    return {
        "type": "scatter", "mode": "markers", "name": plain(told.name_of(case)),
        "x": [rounded(one.place + shift) for one in points], "y": [rounded(one.ratio) for one in points],
        "customdata": [_hover(case, one) for one in points], "hovertemplate": "%{customdata}<extra></extra>",
        "marker": {"color": mark.colour, "symbol": mark.symbol, "size": 9},
    }  # fmt: skip


def _hover(case: Case, point: Point) -> str:
    return f"<b>{plain(told.name_of(case))}</b><br>{point.said}"


def _layout(points: Mapping[Case, Sequence[Point]], count: int, across: str, upright: str) -> Layout:
    low, high = padded([one.ratio for found in points.values() for one in found])
    few = {"dtick": 1} if count <= 24 else {}
    return {
        "xaxis": {"title": {"text": across}, "range": [0.4, count + 0.6], "tick0": 0, "showgrid": False,
                  "zeroline": False, **few},
        "yaxis": {"title": {"text": upright}, "range": [rounded(low), rounded(high)], "zeroline": False},
        "legend": BELOW,
        "hovermode": "closest",
        "margin": {"t": 26},
    }  # fmt: skip


def _narrow(count: int) -> Layout:
    """Label every fifth launch on a narrow page."""
    return {"xaxis.dtick": 5} if 10 < count <= 24 else {}


def _level() -> Layout:
    return {"type": "line", "y0": 1, "y1": 1, "xref": "paper", "x0": 0, "x1": 1,
            "line": {"color": "--ink", "dash": "dot", "width": 1.5}}  # fmt: skip


def _parted(first: int) -> tuple[list[Layout], list[Layout]]:
    """Return a line between the first pairs and the confirming ones, and the label to its right."""
    at = first + 0.5
    line = upright(at, color="--grid-strong", width=1, dash="dot")
    said = {"x": at, "xanchor": "left", "y": 1, "yref": "paper", "yanchor": "bottom", "showarrow": False,
            "text": "to confirm", "font": {"size": 11, "color": "--muted"}}  # fmt: skip
    return [line], [said]


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
                    format_seconds(pair.started_s), label_badge(either.label),
                ])  # fmt: skip
    columns = [Column("case", figures=False), Column("pair"),
               *([Column("phase", figures=False)] if parted else []),
               Column("went first", figures=False), *map(Column, ("base", "head", "ratio", "started after")),
               Column("label", figures=False)]  # fmt: skip
    return Table("Every pair in figures", columns, rows, bulk=True)


def _value(one: Measurement | None, unit: MetricUnit) -> str:
    return told.value(one.value if one is not None else None, unit)
