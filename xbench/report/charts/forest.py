"""Forest plot of wall-clock cases: each ratio with its interval, and the noise floor of unchanged code."""

from __future__ import annotations

from collections.abc import Sequence

from xbench.records import Case, Found, Judged, Label, Noise, NoiseFloor, Regression, RegressionVerdict
from xbench.regress.metrics import wall_clock
from xbench.report import regression_sentences as told
from xbench.report.charts.axes import BELOW, lines_of, plain, rounded, shortened, upright, whiskers
from xbench.report.page.common_sections import capital, label_badge
from xbench.report.page.model import Badge, Cell, Column, Figure, Layout, Table, Trace
from xbench.stats.regression import LINE
from xbench.text import and_of, counted

ROW_PX = 30
LINE_PX = 16
MARGIN_PX = 132
LONG_NAME = 22
REASON = 90
"""Characters of a reason that fit in place of an interval."""

REACH, MIN_REACH = 5.0, 0.25
"""Axis limit on either side of 1, in thresholds, and the lowest value of that limit as a share."""

LOOKS: dict[RegressionVerdict, tuple[str, str, str]] = {
    "regressed": ("--c2", "x", "failed"),
    "inconclusive": ("--c5", "square", "inconclusive"),
    "changed": ("--c2", "x", "failed"),
    "improved": ("--c3", "diamond", "faster"),
    "expected": ("--c5", "square", "inconclusive"),
    "equivalent": ("--c1", "circle", "plain"),
    "not comparable": ("--c5", "square", "inconclusive"),
    "missing": ("--c5", "square", "inconclusive"),
}
"""Colour and shape of each verdict's mark, and the kind of its badge."""


def word(case: Judged) -> Badge:
    """Return the verdict as a badge."""
    return Badge(case.verdict, LOOKS[case.verdict][2])


def axis_name(case: Case) -> str:
    """Return the name of a case beside a plot, with the metric on its own line. Long names have the mode on one too."""
    check, mode = shortened(case.check), shortened(case.mode)
    parting = "/<br>" if len(f"{case.check}/{case.mode}") > LONG_NAME else "/"
    return f"{check}{parting}{mode}<br>{case.metric}"


def forest(cases: Sequence[Judged]) -> Figure | None:
    """Draw wall-clock cases in the order given, with confirmations below. None if no case has a ratio."""
    measured = [(row, case, case.found) for row, case in enumerate(cases) if _ratio(case.found)]
    if not measured:
        return None
    fresh = [(row + 0.3, case, case.confirmation) for row, case, _ in measured if _ratio(case.confirmation)]
    traces = [
        band(
            [row for row, _, _ in measured], [case.threshold.share for _, case, _ in measured], "within the threshold"
        ),
        _line([row for row, _, _ in measured], [case.threshold.share for _, case, _ in measured]),
    ]
    for verdict, (colour, symbol, _) in LOOKS.items():
        alike = [one for one in measured if one[1].verdict == verdict]
        if alike:
            traces.append(
                {**_points(alike), "name": verdict, "marker": {"color": colour, "symbol": symbol, "size": 12}}
            )
    if fresh:
        mark = {"color": "--ink", "symbol": "circle-open", "size": 9, "line": {"width": 2}}
        traces.append({**_points(fresh), "name": "fresh launches, to confirm", "marker": mark})
    names = [axis_name(case.case) for case in cases]
    low, high = _near(_ends(measured, fresh), [case for _, case, _ in measured])
    far = [beyond for row, case, _ in measured if (beyond := _beyond(row, case, low, high)) is not None]
    unmeasured = [(row, case) for row, case in enumerate(cases) if not _ratio(case.found)]
    return Figure(
        key="ratios",
        title="Head over base",
        labels=sorted({case.label for _, case, _ in measured if case.label is not None}),
        told=_told(bool(fresh), bool(far)),
        traces=traces,
        layout={
            **case_rows(names, low, high, "head over base"),
            "annotations": [
                *(_beside(row, case) for row, case, _ in measured),
                *(in_place(row, _reason(case)) for row, case in unmeasured),
                *far,
            ],
            "margin": {"r": 160, "t": 8},
        },
        narrow={"margin.r": 12, "annotations": [*(in_place(row, case.verdict) for row, case in unmeasured), *far]},
        height=height(names),
        table=wall_table(cases),
    )


def case_rows(names: Sequence[str], low: float, high: float, title: str) -> Layout:
    """Return a layout of rows, numbered from the top, over an axis of ratios with a line at 1."""
    return {
        "xaxis": {"title": {"text": title}, "range": [rounded(low), rounded(high)], "zeroline": False},
        "yaxis": {"tickvals": list(range(len(names))), "ticktext": list(names), "range": [len(names) - 0.5, -0.5],
                  "showgrid": False, "zeroline": False, "fixedrange": True},
        "shapes": [upright(1)],
        "legend": BELOW,
        "hovermode": "closest",
        "margin": {"t": 8},
    }  # fmt: skip


def height(names: Sequence[str]) -> int:
    """Return the height [px] of a plot with one row per name."""
    return MARGIN_PX + sum(ROW_PX + LINE_PX * (lines_of(name) - 1) for name in names)


def band(rows: Sequence[int], shares: Sequence[float], name: str) -> Trace:
    """Return a bar behind each row, from 1 / (1 + share) to 1 + share."""
    return {
        "type": "bar", "orientation": "h", "name": name, "hoverinfo": "skip", "width": 0.72,
        "y": list(rows), "base": [rounded(1 / (1 + share)) for share in shares],
        "x": [rounded(1 + share - 1 / (1 + share)) for share in shares],
        "marker": {"color": "--grid", "line": {"color": "--grid-strong", "width": 1}},
    }  # fmt: skip


def in_place(row: int, text: str) -> Layout:
    """Return text for a row without an interval."""
    return {"x": 0, "xref": "paper", "xanchor": "left", "xshift": 6, "y": row, "yanchor": "middle", "text": plain(text),
            "showarrow": False, "font": {"color": "--warn", "weight": 700}}  # fmt: skip


def padded(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of an axis that shows all of these values and 1."""
    low, high = min(1.0, *values), max(1.0, *values)
    room = 0.06 * (high - low) or 0.01
    return low - room, high + room


def wall_table(cases: Sequence[Judged]) -> Table:
    """Return every wall-clock case and the basis of its verdict, with a column for fresh launches if there were any."""
    fresh = any(case.confirmation is not None for case in cases)
    rows: list[list[Cell]] = [
        [
            told.name(case),
            word(case),
            label_badge(case.label) if case.label is not None else "–",
            told.ratio(case.found),
            told.p_holm(case.found),
            str(case.found.pairs) if case.found is not None else "–",
            told.both(case) if case.base is not None else "–",
            told.threshold(case.threshold),
            *([told.ratio(case.confirmation)] if fresh else []),
        ]
        for case in cases
    ]
    columns = [*(Column(name, figures=False) for name in ("case", "verdict", "label")),
               *map(Column, ("ratio [95 % CI]", "p (Holm)", "pairs", "base → head")),
               Column("threshold", figures=False), *([Column("fresh launches")] if fresh else [])]  # fmt: skip
    return Table("Wall-clock cases in figures", columns, rows, capital(told.COLUMNS), opened=True)


Row = tuple[float, Judged, Found | None]


def _ratio(found: Found | None) -> bool:
    return found is not None and found.ratio is not None


def _ends(*rows: Sequence[Row]) -> tuple[float, float]:
    values: list[float] = []
    for _, case, found in (one for group in rows for one in group):
        share = case.threshold.share
        values += [1 + share, 1 / (1 + share)]
        if found is not None and found.ratio is not None:
            values += [found.ratio, *(found.ci95 or ())]
    return padded(values)


def _near(ends: tuple[float, float], cases: Sequence[Judged]) -> tuple[float, float]:
    """Return the ends of the axis without values far off, unless every case is far off."""
    reach = max(MIN_REACH, REACH * max(case.threshold.share for case in cases))
    low, high = max(ends[0], 1 / (1 + reach)), min(ends[1], 1 + reach)
    return (low, high) if any(_beyond(0, case, low, high) is None for case in cases) else ends


def _beyond(row: float, case: Judged, low: float, high: float) -> Layout | None:
    """Return the ratio as text at the end of the axis that it exceeds; None if it is on the axis."""
    ratio = case.found.ratio if case.found is not None else None
    if ratio is None or low <= ratio <= high:
        return None
    above = ratio > high
    return {"x": int(above), "xref": "paper", "xanchor": "right" if above else "left", "y": row,
            "yanchor": "middle", "text": f"{ratio:.3f} ▸" if above else f"◂ {ratio:.3f}", "showarrow": False,
            "font": {"color": LOOKS[case.verdict][0], "weight": 700}}  # fmt: skip


def _line(rows: Sequence[int], shares: Sequence[float]) -> Trace:
    """Return the line that the interval's lower end of a regression exceeds."""
    return {
        "type": "scatter", "mode": "markers", "name": "half the threshold",
        "x": [rounded(1 + LINE * share) for share in shares], "y": list(rows),
        "marker": {"symbol": "line-ns-open", "size": 30, "color": "--bad", "line": {"width": 2}},
        "customdata": [f"{told.percent(LINE * share)}, half the threshold of {told.percent(share)}"
                       for share in shares],
        "hovertemplate": "%{customdata}<extra></extra>",
    }  # fmt: skip


def _points(rows: Sequence[Row]) -> Trace:
    ratios = [(found.ratio, found.ci95 or (found.ratio, found.ratio)) for _, _, found in rows
              if found is not None and found.ratio is not None]  # fmt: skip
    return {
        "type": "scatter", "mode": "markers", "cliponaxis": False,
        "x": [rounded(ratio) for ratio, _ in ratios], "y": [row for row, _, _ in rows],
        "error_x": whiskers(ratios),
        "customdata": [_hover(case, found) for _, case, found in rows],
        "hovertemplate": "%{customdata}<extra></extra>",
    }  # fmt: skip


def _hover(case: Judged, found: Found | None) -> str:
    pairs = counted(found.pairs, "pair") if found is not None else ""
    which = "fresh launches" if found is case.confirmation else case.verdict
    return (
        f"<b>{plain(told.name(case))}</b> ({case.label})<br>{told.ratio(found)}, p {told.p_holm(found)}, {pairs}<br>"
        f"{which}; threshold {plain(told.threshold(case.threshold))}"
    )


def _beside(row: float, case: Judged) -> Layout:
    """Return ratio and verdict, to the right of the plot."""
    return {"x": 1, "xref": "paper", "xanchor": "left", "xshift": 10, "y": row, "yanchor": "middle",
            "text": f"{_short(case.found)}<br>{case.verdict}", "showarrow": False,
            "align": "left", "font": {"size": 11, "color": "--muted"}}  # fmt: skip


def _short(found: Found | None) -> str:
    """Format the ratio with its interval, short enough for the room beside the plot."""
    if found is not None and found.ratio is not None and found.ci95 is None:
        return f"{found.ratio:.3f}, no interval"
    return told.ratio(found)


def _reason(case: Judged) -> str:
    text = f"{case.verdict}: {case.reason}"
    return text if len(text) <= REASON else f"{text[: REASON - 1]}…"


def _told(fresh: bool, far: bool) -> str:
    text = (
        "Right of 1 head is slower. Whiskers are 95 % confidence intervals of the ratio over launch pairs. A case is "
        "equivalent where its whole interval lies within the grey band, and is suspected where the whole interval is "
        "beyond the red line, it reaches past the band and p is below alpha; improved is the mirror image."
    )
    text += " Rings: fresh launches of what was suspected, which have to agree." if fresh else ""
    return f"{text} Triangles point to what is beyond the axis; a double click shows all." if far else text


def walls(record: Regression) -> list[Judged]:
    """Return the wall-clock cases, worst first."""
    return [case for case in told.worst_first(record.cases) if case.wall_clock]


def floors_figure(record: Noise) -> Figure | None:
    """Draw one row per wall-clock case: the ratio of every A/A pair, and the floor as a band. None without pairs."""
    cases = wall_clock(record.suite.cases())
    rows = {case: row for row, case in enumerate(cases)}
    ratios = {case: _ratios(case, record) for case in cases}
    floors = {floor.case: floor for floor in record.floors if floor.case in rows}
    if not any(ratios.values()):
        return None
    names = [axis_name(case) for case in cases]
    known = [(rows[case], floor.floor) for case, floor in floors.items()]
    ends = [end for _, floor in known for end in (1 + floor, 1 / (1 + floor))]
    low, high = padded([*ends, *(ratio for found in ratios.values() for _, ratio in found)])
    unknown = [(rows[case], _unknown(case, ratios)) for case in cases if case not in floors]
    pairs = _pairs(rows, ratios)
    bands = [band([row for row, _ in known], [floor for _, floor in known], "noise floor")] if known else []
    return Figure(
        key="floors-by-case",
        title="The same code over itself",
        labels=noise_labels(record),
        told=f"Each mark is one A/A pair, in which nothing differs. {told.FLOORS}, the grey band: that is about the "
        "interval of a whole check, and single pairs may lie outside. Unless "
        "the suite says otherwise, a threshold is at least twice the floor.",
        traces=[*bands, pairs],
        layout={
            **case_rows(names, low, high, "head over base"),
            "annotations": [
                *(_floor_beside(rows[case], floor) for case, floor in floors.items()),
                *(in_place(row, text) for row, text in unknown),
            ],
            "margin": {"r": 170, "t": 8},
        },
        narrow={"margin.r": 12, "annotations": [in_place(row, text) for row, text in unknown]},
        height=height(names),
        table=floors_table(record),
    )


def floors_table(record: Noise) -> Table:
    """Return every wall-clock case with its noise floor, or that it is unknown."""
    rows: list[list[Cell]] = [list(row) for row in told.noise_rows(record)]
    columns = [Column("case", figures=False), Column("noise floor", figures=False), Column("least threshold")]
    labels = noise_labels(record)
    return Table(f"Noise floors in figures{f' ({and_of(labels)})' if labels else ''}", columns, rows,
                 f"{told.FLOORS}.", opened=True)  # fmt: skip


def noise_labels(record: Noise) -> list[Label]:
    """Return the labels of the figures."""
    return sorted({one.label for pair in record.pairs for one in (*pair.base, *pair.head)})


def _ratios(case: Case, record: Noise) -> list[tuple[int, float]]:
    """Return the number and ratio of every pair that measured the case."""
    found = ((number, pair.ratio(case)) for number, pair in enumerate(record.pairs, start=1))
    return [(number, ratio) for number, ratio in found if ratio is not None]


def _pairs(rows: dict[Case, int], ratios: dict[Case, list[tuple[int, float]]]) -> Trace:
    """Return one ring per pair, because overlapping rings can be told apart."""
    points = [(case, number, ratio) for case, found in ratios.items() for number, ratio in found]
    return {
        "type": "scatter", "mode": "markers", "name": "one A/A pair",
        "x": [rounded(ratio) for _, _, ratio in points], "y": [rows[case] for case, _, _ in points],
        "marker": {"color": "--c1", "symbol": "circle-open", "size": 10, "line": {"width": 2}},
        "customdata": [f"<b>{plain(told.name_of(case))}</b><br>pair {number}: {ratio:.3f}"
                       for case, number, ratio in points],
        "hovertemplate": "%{customdata}<extra></extra>",
    }  # fmt: skip


def _unknown(case: Case, ratios: dict[Case, list[tuple[int, float]]]) -> str:
    return "too few pairs for a floor" if ratios[case] else "not measured"


def _floor_beside(row: int, floor: NoiseFloor) -> Layout:
    return {"x": 1, "xref": "paper", "xanchor": "left", "xshift": 10, "y": row, "yanchor": "middle", "align": "left",
            "text": told.floor_text(floor).replace(" in ", "<br>in "), "showarrow": False,
            "font": {"size": 11, "color": "--muted"}}  # fmt: skip
