"""The noise floor of each wall-clock case: the ratio of every A/A pair, and the floor as a band."""

from __future__ import annotations

from xbench.records import Case, Label, Noise, NoiseFloor
from xbench.regress.metrics import wall_clock
from xbench.report import sentences
from xbench.report.charts.axes import plain, rounded
from xbench.report.charts.forest import axis_name, band, case_rows, height, in_place, padded
from xbench.report.kinds import regression_sentences as told
from xbench.report.page.model import Cell, Column, Figure, Layout, Table, Trace


def floors_figure(record: Noise) -> Figure | None:
    """A row a wall-clock case: the ratio of every A/A pair, and the floor as a band. None without pairs."""
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
                *(_beside(rows[case], floor) for case, floor in floors.items()),
                *(in_place(row, text) for row, text in unknown),
            ],
            "margin": {"r": 170, "t": 8},
        },
        narrow={"margin.r": 12, "annotations": [in_place(row, text) for row, text in unknown]},
        height=height(names),
        table=floors_table(record),
    )


def floors_table(record: Noise) -> Table:
    """Every wall-clock case with its floor, or that it is not known."""
    rows: list[list[Cell]] = [list(row) for row in told.noise_rows(record)]
    columns = [Column("case", figures=False), Column("noise floor", figures=False), Column("least threshold")]
    labels = noise_labels(record)
    return Table(f"Noise floors in figures{f' ({sentences.and_of(labels)})' if labels else ''}", columns, rows,
                 f"{told.FLOORS}.", opened=True)  # fmt: skip


def noise_labels(record: Noise) -> list[Label]:
    """Labels of the figures."""
    return sorted({one.label for pair in record.pairs for one in (*pair.base, *pair.head)})


def _ratios(case: Case, record: Noise) -> list[tuple[int, float]]:
    """The number of every pair that measured the case, and its ratio."""
    found = ((number, pair.ratio(case)) for number, pair in enumerate(record.pairs, start=1))
    return [(number, ratio) for number, ratio in found if ratio is not None]


def _pairs(rows: dict[Case, int], ratios: dict[Case, list[tuple[int, float]]]) -> Trace:
    """A ring a pair: rings that overlap can be told apart."""
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


def _beside(row: int, floor: NoiseFloor) -> Layout:
    return {"x": 1, "xref": "paper", "xanchor": "left", "xshift": 10, "y": row, "yanchor": "middle", "align": "left",
            "text": told.floor_text(floor).replace(" in ", "<br>in "), "showarrow": False,
            "font": {"size": 11, "color": "--muted"}}  # fmt: skip
