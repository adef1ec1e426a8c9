"""Forest plot of wall-clock cases: each ratio with its interval, and the noise floor of unchanged code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from xbench.records import Baseline, Case, Found, Interval, Judged, Label, Regression, RegressionVerdict
from xbench.regress.metrics import wall_clock
from xbench.report import regression_sentences as told
from xbench.report.charts import axes
from xbench.report.page.model import Badge, Cell, Figure, Layout, Table, Trace, columns
from xbench.stats.regression import LINE
from xbench.text import capitalized, counted, cut

ROW_PX = 30
MARGIN_PX = 132
LONG_NAME = 22

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


def verdict_badge(case: Judged) -> Badge:
    """Return the verdict as a badge."""
    return Badge(case.verdict, LOOKS[case.verdict][2])


def axis_name(case: Case) -> str:
    """Return the name of a case beside a plot, with the metric on its own line. Long names have the mode on one too."""
    check, mode = axes.shortened(case.check), axes.shortened(case.mode)
    parting = "/<br>" if len(f"{case.check}/{case.mode}") > LONG_NAME else "/"
    return f"{check}{parting}{mode}<br>{case.metric}"


class Row(NamedTuple):
    """Ratio of a case, at its place from the top of the figure."""

    at: float
    case: Judged
    found: Found
    ratio: float

    @property
    def interval(self) -> Interval:
        """Interval of the ratio; without one, both ends are the ratio."""
        return self.found.ci95 or (self.ratio, self.ratio)


def _row(at: float, case: Judged, found: Found | None) -> list[Row]:
    """Return the row of a case; none if there is no ratio."""
    return [Row(at, case, found, found.ratio)] if found is not None and found.ratio is not None else []


def forest(cases: Sequence[Judged]) -> Figure | None:
    """Draw wall-clock cases in the order given, with confirmations below. None if no case has a ratio."""
    measured = [row for at, case in enumerate(cases) for row in _row(at, case, case.found)]
    if not measured:
        return None
    fresh = [again for row in measured for again in _row(row.at + 0.3, row.case, row.case.confirmation)]
    rows, shares = [row.at for row in measured], [row.case.threshold.share for row in measured]
    traces = [band(rows, shares, "within the threshold"), _line(rows, shares)]
    for verdict, (colour, symbol, _) in LOOKS.items():
        alike = [row for row in measured if row.case.verdict == verdict]
        if alike:
            traces.append(_points(alike, verdict, {"color": colour, "symbol": symbol, "size": 12}))
    if fresh:
        mark = {"color": "--ink", "symbol": "circle-open", "size": 9, "line": {"width": 2}}
        traces.append(_points(fresh, "fresh launches, to confirm", mark))
    names = [axis_name(case.case) for case in cases]
    low, high = _near(measured, fresh)
    far = [_at_the_end(row, low, high) for row in measured if not low <= row.ratio <= high]
    unmeasured = [(at, case) for at, case in enumerate(cases) if at not in rows]
    reasons = [
        axes.in_place(at, cut(f"{case.verdict}: {case.reason}", axes.REASON), "--warn") for at, case in unmeasured
    ]
    verdicts = [axes.in_place(at, case.verdict, "--warn") for at, case in unmeasured]
    return Figure(
        key="ratios",
        title="Head over base",
        labels=sorted({row.case.label for row in measured if row.case.label is not None}),
        told=_told(bool(fresh), bool(far)),
        traces=traces,
        layout={
            **case_rows(names, low, high, "head over base"),
            "annotations": [
                *(axes.row_text(row.at, f"{_short(row)}<br>{row.case.verdict}") for row in measured), *reasons, *far
            ],
            "margin": {"r": 160, "t": 8},
        },
        narrow={"margin.r": 12, "annotations": [*verdicts, *far]},
        height=axes.rows_px(names, ROW_PX, MARGIN_PX),
        table=wall_table(cases),
    )  # fmt: skip


def case_rows(names: Sequence[str], low: float, high: float, title: str) -> Layout:
    """Return a layout of rows, numbered from the top, over an axis of ratios with a line at 1."""
    return {
        "xaxis": {"title": {"text": title}, "range": [axes.rounded(low), axes.rounded(high)], "zeroline": False},
        "yaxis": {"tickvals": list(range(len(names))), "ticktext": list(names), "range": [len(names) - 0.5, -0.5],
                  "showgrid": False, "zeroline": False, "fixedrange": True},
        "shapes": [axes.vertical_line(1)],
        "legend": axes.BELOW,
        "hovermode": "closest",
        "margin": {"t": 8},
    }  # fmt: skip


def band(rows: Sequence[float], shares: Sequence[float], name: str) -> Trace:
    """Return a bar behind each row, from 1 / (1 + share) to 1 + share."""
    return {
        "type": "bar", "orientation": "h", "name": name, "hoverinfo": "skip", "width": 0.72,
        "y": list(rows), "base": [axes.rounded(1 / (1 + share)) for share in shares],
        "x": [axes.rounded(1 + share - 1 / (1 + share)) for share in shares],
        "marker": {"color": "--grid", "line": {"color": "--grid-strong", "width": 1}},
    }  # fmt: skip


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
            verdict_badge(case),
            Badge.of(case.label) if case.label is not None else "–",
            told.ratio(case.found),
            told.p_holm(case.found),
            str(case.found.pairs) if case.found is not None else "–",
            told.both(case) if case.base is not None else "–",
            told.threshold(case.threshold),
            *([told.ratio(case.confirmation)] if fresh else []),
        ]
        for case in cases
    ]
    headings = columns(("case", "verdict", "label", "ratio [95 % CI]", "p (Holm)", "pairs", "base → head", "threshold",
                       *(["fresh launches"] if fresh else [])), ("case", "verdict", "label", "threshold"))  # fmt: skip
    return Table("Wall-clock cases in figures", headings, rows, capitalized(told.COLUMNS), opened=True)


def _near(measured: Sequence[Row], fresh: Sequence[Row]) -> tuple[float, float]:
    """Return the ends of the axis without values far off, unless every case is far off."""
    share = max(row.case.threshold.share for row in measured)
    values = [value for row in (*measured, *fresh) for value in (row.ratio, *row.interval)]
    ends = padded([*values, 1 + share, 1 / (1 + share)])
    reach = max(MIN_REACH, REACH * share)
    low, high = max(ends[0], 1 / (1 + reach)), min(ends[1], 1 + reach)
    return (low, high) if any(low <= row.ratio <= high for row in measured) else ends


def _at_the_end(row: Row, low: float, high: float) -> Layout:
    """Return the ratio as text at the end of the axis that it exceeds."""
    above = row.ratio > high
    return {"x": int(above), "xref": "paper", "xanchor": "right" if above else "left", "y": row.at,
            "yanchor": "middle", "text": f"{row.ratio:.3f} ▸" if above else f"◂ {row.ratio:.3f}", "showarrow": False,
            "font": {"color": LOOKS[row.case.verdict][0], "weight": 700}}  # fmt: skip


def _line(rows: Sequence[float], shares: Sequence[float]) -> Trace:
    """Return the line that the interval's lower end of a regression exceeds."""
    return axes.points(
        [axes.rounded(1 + LINE * share) for share in shares],
        rows,
        [f"{told.percent(LINE * share)}, half the threshold of {told.percent(share)}" for share in shares],
        name="half the threshold",
        marker={"symbol": "line-ns-open", "size": 30, "color": "--bad", "line": {"width": 2}},
    )


def _points(rows: Sequence[Row], name: str, marker: Layout) -> Trace:
    x, y = [axes.rounded(row.ratio) for row in rows], [row.at for row in rows]
    bars = axes.whiskers((row.ratio, row.interval) for row in rows)
    return axes.points(x, y, list(map(_hover, rows)), name=name, marker=marker, error_x=bars, cliponaxis=False)


def _hover(row: Row) -> str:
    case, found = row.case, row.found
    which = "fresh launches" if found is case.confirmation else case.verdict
    return (
        f"<b>{axes.plain(told.name(case))}</b> ({case.label})<br>{told.ratio(found)}, p {told.p_holm(found)}, "
        f"{counted(found.pairs, 'pair')}<br>{which}; threshold {axes.plain(told.threshold(case.threshold))}"
    )


def _short(row: Row) -> str:
    """Format the ratio with its interval, short enough for the room beside the plot."""
    return f"{row.ratio:.3f}, no interval" if row.found.ci95 is None else told.ratio(row.found)


def _told(fresh: bool, far: bool) -> str:
    text = (
        "Right of 1 head is slower. Whiskers are 95 % confidence intervals of the ratio over launch pairs. A case is "
        "equivalent where its whole interval lies within the grey band, and is suspected where the whole interval is "
        "beyond the red line, it reaches past the band and p is below alpha; improved is the mirror image."
    )
    text += " Rings: fresh launches of what was suspected, which have to agree." if fresh else ""
    return f"{text} Triangles point to what is beyond the axis; a double click shows all." if far else text


def wall_clock_cases(record: Regression) -> list[Judged]:
    """Return the wall-clock cases, worst first."""
    return [case for case in told.worst_first(record.cases) if case.wall_clock]


def floors_figure(record: Baseline) -> Figure | None:
    """Draw one row per wall-clock case: the ratio of every A/A pair, and the floor as a band. None without pairs."""
    rows = {case: row for row, case in enumerate(wall_clock(record.suite.cases()))}
    ratios = {case: _ratios(case, record) for case in rows}
    floors = {floor.case: floor for floor in record.floors if floor.case in rows}
    if not any(ratios.values()):
        return None
    names = [axis_name(case) for case in rows]
    known = [(rows[case], floor.floor) for case, floor in floors.items()]
    ends = [end for _, floor in known for end in (1 + floor, 1 / (1 + floor))]
    low, high = padded([*ends, *(ratio for found in ratios.values() for _, ratio in found)])
    unknown = [axes.in_place(row, "too few pairs for a floor" if ratios[case] else "not measured", "--warn")
               for case, row in rows.items() if case not in floors]  # fmt: skip
    bands = [band([row for row, _ in known], [floor for _, floor in known], "noise floor")] if known else []
    return Figure(
        key="floors-by-case",
        title="The same code over itself",
        labels=noise_labels(record),
        told=f"Each mark is one A/A pair, in which nothing differs. {told.FLOORS}, the grey band: that is about the "
        "interval of a whole check, and single pairs may lie outside. Unless "
        "the suite says otherwise, a threshold is at least twice the floor.",
        traces=[*bands, _pairs(rows, ratios)],
        layout={
            **case_rows(names, low, high, "head over base"),
            "annotations": [
                *(
                    axes.row_text(rows[case], told.floor_text(floor).replace(" in ", "<br>in "))
                    for case, floor in floors.items()
                ),
                *unknown,
            ],
            "margin": {"r": 170, "t": 8},
        },
        narrow={"margin.r": 12, "annotations": unknown},
        height=axes.rows_px(names, ROW_PX, MARGIN_PX),
        table=floors_table(record),
    )


def floors_table(record: Baseline) -> Table:
    """Return every wall-clock case with its noise floor, or that it is unknown."""
    headings = columns(told.FLOOR_COLUMNS, ("case", "noise floor", "label"))
    return Table("Noise floors in figures", headings, told.noise_rows(record), f"{told.FLOORS}.", opened=True)


def noise_labels(record: Baseline) -> list[Label]:
    """Return the labels of the figures."""
    return sorted({one.label for pair in record.pairs for one in (*pair.base, *pair.head)})


def _ratios(case: Case, record: Baseline) -> list[tuple[int, float]]:
    """Return the number and ratio of every pair that measured the case."""
    found = ((number, pair.ratio(case)) for number, pair in enumerate(record.pairs, start=1))
    return [(number, ratio) for number, ratio in found if ratio is not None]


def _pairs(rows: dict[Case, int], ratios: dict[Case, list[tuple[int, float]]]) -> Trace:
    """Return one ring per pair, because overlapping rings can be told apart."""
    found = [(case, number, ratio) for case, pairs in ratios.items() for number, ratio in pairs]
    return axes.points(
        [axes.rounded(ratio) for _, _, ratio in found],
        [rows[case] for case, _, _ in found],
        [f"<b>{axes.plain(told.name_of(case))}</b><br>pair {number}: {ratio:.3f}" for case, number, ratio in found],
        name="one A/A pair",
        marker={"color": "--c1", "symbol": "circle-open", "size": 10, "line": {"width": 2}},
    )
