"""The pages of a check for regressions, and a baseline, number by number."""

from __future__ import annotations

import pytest
import sample_regressions as made

from xbench.records import Case, Environment, Suite
from xbench.report import regression_sentences as told
from xbench.report.charts.forest import (
    LOOKS,
    axis_name,
    floors_figure,
    forest,
    verdict_badge,
    wall_clock_cases,
    wall_table,
)
from xbench.report.charts.launches import pairs_over_time
from xbench.report.formats.html import contents, render
from xbench.report.kinds import view_of
from xbench.report.page.model import Badge, Figure, Page, Table, figures

HOSTILE = '</script><script>alert("x")</script><b>'


def found(figure: Figure | None) -> Figure:
    assert figure is not None
    return figure


def drawn(figure: Figure, name: str) -> dict[str, object]:
    return next(dict(trace) for trace in figure.traces if trace["name"] == name)


def tables(page: Page, section: str) -> list[Table]:
    return [block for one in page.sections if one.key == section for block in one.blocks if isinstance(block, Table)]


def environment(**changes: object) -> Environment:
    return made.ENVIRONMENT.model_copy(update=changes)


def test_every_verdict_is_a_mark_at_its_ratio_with_its_interval() -> None:
    record = made.slower()
    cases = wall_clock_cases(record)
    figure = found(forest(cases))
    assert figure.layout["yaxis"]["ticktext"] == [
        "resnet18/optimal<br>step_time", "small/wfbp<br>step_time", "resnet18/ddp<br>step_time"
    ]  # fmt: skip
    for verdict, row in (("regressed", 0), ("improved", 2)):
        trace, judged = drawn(figure, verdict), cases[row].found
        assert judged.ratio is not None
        assert judged.ci95 is not None
        assert (trace["y"], trace["x"]) == ([row], [pytest.approx(judged.ratio, rel=1e-5)])
        reach = trace["error_x"]
        assert isinstance(reach, dict)
        assert judged.ratio + reach["array"][0] == pytest.approx(judged.ci95[1], rel=1e-5)
        assert judged.ratio - reach["arrayminus"][0] == pytest.approx(judged.ci95[0], rel=1e-5)


def test_the_band_is_the_threshold_and_the_line_is_half_of_it() -> None:
    suite = made.SUITE.model_copy(update={"thresholds": {"step_time": 0.08}})
    figure = found(forest(wall_clock_cases(made.regression(suite=suite))))
    band, line = drawn(figure, "within the threshold"), drawn(figure, "half the threshold")
    assert band["y"] == line["y"] == [0, 1, 2]
    assert band["base"] == pytest.approx(3 * [1 / 1.08], rel=1e-5)
    assert band["x"] == pytest.approx(3 * [1.08 - 1 / 1.08], rel=1e-5)
    assert line["x"] == pytest.approx(3 * [1.04])


def test_fresh_launches_stand_below_what_they_confirm() -> None:
    record = made.slower()
    fresh = drawn(found(forest(wall_clock_cases(record))), "fresh launches, to confirm")
    confirmation = next(case.confirmation for case in record.cases if case.confirmation is not None)
    assert (fresh["y"], fresh["x"]) == ([0.3], [pytest.approx(confirmation.ratio, rel=1e-5)])
    assert not [t for t in found(forest(wall_clock_cases(made.regression()))).traces if t["name"].startswith("fresh")]


def test_what_was_not_measured_has_its_row_with_the_reason() -> None:
    figure = found(forest(wall_clock_cases(made.slower())))
    assert "missing: head failed: rank 1 died: SIGKILL" in [note["text"] for note in figure.layout["annotations"]]
    assert [(note["y"], note["text"]) for note in figure.narrow["annotations"]] == [(1, "missing")]


def test_everything_drawn_is_on_the_axis() -> None:
    figure = found(forest(wall_clock_cases(made.slower())))
    low, high = figure.layout["xaxis"]["range"]
    for trace in figure.traces:
        reach = trace.get("error_x", {"array": [0] * len(trace["x"]), "arrayminus": [0] * len(trace["x"])})
        begins = trace.get("base", [0] * len(trace["x"]))
        for x, begin, more, less in zip(trace["x"], begins, reach["array"], reach["arrayminus"], strict=True):
            assert low < begin + x - less <= begin + x + more < high


def test_what_is_far_off_leaves_room_for_the_rest() -> None:
    figure = found(forest(wall_clock_cases(made.regression({made.DDP: 2.9, made.WFBP: 0.3}, confirm=False))))
    assert figure.layout["xaxis"]["range"] == [pytest.approx(1 / 1.25), pytest.approx(1.25)]
    ends = {note["text"]: (note["x"], note["y"]) for note in figure.narrow["annotations"]}
    assert ends == {"2.904 ▸": (1, 0), "◂ 0.300": (0, 1)}
    assert drawn(figure, "regressed")["x"] == [pytest.approx(2.9, rel=0.01)]
    assert "double click" in figure.told


def test_an_axis_shows_what_is_far_off_where_that_is_all_there_is() -> None:
    far = dict.fromkeys(made.TIMED, 2.9)
    low, high = found(forest(wall_clock_cases(made.regression(far)))).layout["xaxis"]["range"]
    assert low < 1
    assert high > 2.9


def test_verdicts_differ_by_shape_as_well_as_by_colour() -> None:
    judged = [LOOKS[verdict] for verdict in ("regressed", "inconclusive", "improved", "equivalent")]
    assert len({colour for colour, _, _ in judged}) == len({symbol for _, symbol, _ in judged}) == 4
    assert verdict_badge(made.slower().cases[0]).text == made.slower().cases[0].verdict


def test_without_a_ratio_there_is_a_table_instead_of_a_plot() -> None:
    record = made.regression(base=None)
    assert forest(wall_clock_cases(record)) is None
    (table,) = tables(view_of(record).page(), "clock")
    assert [row[1] for row in table.rows] == 3 * [Badge("missing", "inconclusive")]


def test_too_few_pairs_are_a_mark_without_an_interval() -> None:
    figure = found(forest(wall_clock_cases(made.regression(count=3))))
    trace = drawn(figure, "inconclusive")
    assert trace["error_x"] == {**figure.traces[-1]["error_x"], "array": [0, 0, 0], "arrayminus": [0, 0, 0]}
    assert figure.layout["annotations"][0]["text"].endswith(", no interval<br>inconclusive")


def test_every_pair_is_drawn_in_the_order_of_time() -> None:
    record = made.slower()
    figure = found(pairs_over_time("x", "y", record.pairs, record.confirmation))
    assert [trace["name"] for trace in figure.traces] == [
        "resnet18/ddp step_time", "resnet18/optimal step_time", "to confirm, of any"
    ]  # fmt: skip
    ddp, optimal, fresh = figure.traces
    spread = [1 + one for one in made.SPREAD]
    assert ddp["y"] == pytest.approx([0.9 * one for one in spread], rel=1e-5)
    assert optimal["y"] == pytest.approx([1.12 * one for one in spread], rel=1e-5)
    assert fresh["y"] == pytest.approx([1.11 * one for one in spread], rel=1e-5)
    assert ddp["x"] == pytest.approx([place - 0.15 for place in range(1, 11)])
    assert fresh["x"] == pytest.approx([place + 0.15 for place in range(11, 21)])
    assert set(fresh["marker"]["symbol"]) == {f"{optimal['marker']['symbol']}-open"}
    assert ddp["customdata"][1] == "<b>resnet18/ddp step_time</b><br>pair 2, head first: 0.911"


def test_half_a_pair_is_in_the_table() -> None:
    pair, *others = made.regression().pairs
    half = [pair.model_copy(update={"head": []}), *others]
    figure = found(pairs_over_time("x", "y", half))
    assert [len(trace["x"]) for trace in figure.traces] == [9, 9, 9]
    assert figure.table.rows[0][:6] == [
        "resnet18/ddp step_time", "1", "base", "200 ms", "–", Badge("no ratio", "inconclusive")
    ]  # fmt: skip


def test_machines_that_differ_are_shown_side_by_side() -> None:
    base = made.side("a baseline", environment=environment(torch="2.14.0", hostname="bench2"))
    page = view_of(made.regression(base=base)).page()
    different, same = tables(page, "environment")
    assert [row[:3] for row in different.rows if row[0] in ("torch", "host")] == [
        ["torch", "2.14.0", "2.15.0"], ["host", "bench2", "bench1"]
    ]  # fmt: skip
    effects = {row[0]: row[3] for row in different.rows}
    assert effects["torch"] == effects["fingerprint"] == Badge("must be the same", "failed")
    assert effects["host"] == "may differ"
    assert ["governor", "performance"] in [list(row) for row in same.rows]
    assert not {row[0] for row in different.rows} & {row[0] for row in same.rows}


def test_pairs_that_do_not_compare_are_said_to_decide_nothing() -> None:
    base = made.side("a baseline", environment=environment(torch="2.14.0"))
    figure = next(one for one in figures(view_of(made.regression(base=base)).page()) if one.key == "every-pair")
    assert "but for cases that are not comparable" in figure.told


def test_a_noise_floor_is_a_band_behind_its_pairs() -> None:
    record = made.baseline()
    figure = found(floors_figure(record))
    band, pairs = figure.traces
    assert band["base"] == pytest.approx([1 / (1 + floor.floor) for floor in record.floors], rel=1e-5)
    ends = [begin + wide for begin, wide in zip(band["base"], band["x"], strict=True)]
    assert ends == pytest.approx([1 + floor.floor for floor in record.floors], rel=1e-5)
    assert pairs["x"] == pytest.approx(2 * [1 + one for one in made.SPREAD], rel=1e-5)
    assert pairs["y"] == 10 * [0] + 10 * [1]
    assert [note["text"] for note in figure.layout["annotations"]] == [
        "4.2 %<br>in checks of 10 pairs", "4.2 %<br>in checks of 10 pairs", "not measured"
    ]  # fmt: skip
    assert [row[0] for row in figure.table.rows] == [told.name_of(case) for case in made.TIMED]


def test_a_floor_that_is_not_known_says_why() -> None:
    figure = found(floors_figure(made.baseline().model_copy(update={"floors": []})))
    assert [note["text"] for note in figure.layout["annotations"]] == [
        "too few pairs for a floor", "too few pairs for a floor", "not measured"
    ]  # fmt: skip
    assert [trace["name"] for trace in figure.traces] == ["one A/A pair"]


@pytest.mark.parametrize(
    ("case", "name"),
    [
        (Case("resnet18", "ddp", "step_time"), "resnet18/ddp<br>step_time"),
        (Case("a-check-of-resnet18", "mgwfbp", "exposed"), "a-check-of-resnet18/<br>mgwfbp<br>exposed"),
        (Case("<b>", "ddp", "exposed"), "&lt;b&gt;/ddp<br>exposed"),
    ],
)
def test_names_on_axes_fit(case: Case, name: str) -> None:
    assert axis_name(case) == name


def test_pages_without_measurements_are_still_pages() -> None:
    for record in (
        made.regression().model_copy(update={"cases": [], "pairs": []}),
        made.regression(base=None, pairs=[]),
        made.baseline().model_copy(update={"pairs": [], "floors": [], "side": made.side("x", measurements=[])}),
    ):
        page = contents([record])
        assert page.sections
        assert figures(page) == []
    assert wall_table(wall_clock_cases(made.regression(base=None))).rows


def test_text_from_a_suite_is_only_text() -> None:
    check = made.SMALL.model_copy(update={"name": HOSTILE})
    suite = Suite(checks=(check,))
    sides = {name: made.side(HOSTILE, checks=suite.checks, measurements=[]) for name in ("base", "head")}
    case = Case(HOSTILE, "wfbp", "step_time")
    text = render(made.regression(suite=suite, pairs=made.pairs({case: 1.2}), **sides))
    assert HOSTILE not in text
    assert text.count("<script") == 3
    assert "&lt;script&gt;" in text[text.index('id="figures"') :]
