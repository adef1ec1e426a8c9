"""The page of several comparisons: their order, what differs, and what each one warns of."""

from __future__ import annotations

from typing import Any

import pytest
import sample_records as made
from test_straggler_lines import rank

from xbench.records import Stragglers
from xbench.report.kinds.compare_records import comparable, several_page
from xbench.report.page.model import Figure, Page, figures
from xbench.report.sentences import not_shown_lines
from xbench.report.stragglers import rank_line


def _later(**environment: object) -> Any:
    record = made.comparison()
    return record.model_copy(
        update={
            "created": "2026-03-02T12:00:00Z",
            "environment": record.environment.model_copy(update=environment),
        }
    )


def _times(page: Page) -> Figure:
    return next(figure for figure in figures(page) if figure.key == "times-over")


def test_records_stand_in_the_order_given() -> None:
    page = several_page([made.comparison(), _later(hostname="bench2", commit="fedcba9876543210")])
    times = _times(page)
    assert times.layout["xaxis"]["ticktext"] == [
        "1<br>2026-03-01<br>bench1<br>0123456",
        "2<br>2026-03-02<br>bench2<br>fedcba9",
    ]
    ddp = next(trace for trace in times.traces if trace["name"] == "ddp")
    assert ddp["y"] == pytest.approx([41.0625, 41.0625])
    assert [round(x) for x in ddp["x"]] == [1, 2]
    assert page.answer[0] == "optimal is faster than its reference in 2 of 2."


@pytest.mark.parametrize(
    ("verdict", "told"),
    [
        ("slower", "ddp is fastest in 1 of 1."),
        ("equivalent", "1 of 1 named no mode that is faster."),
        ("inconclusive", "1 of 1 named no mode that is faster."),
    ],
)
def test_a_mode_is_called_fastest_only_if_every_other_is_slower(verdict: str, told: str) -> None:
    ddp = made.mode_result("ddp", 0.657, (1.0, 1.0, 1.0), "reference")
    rival = made.mode_result("wfbp", 0.66, (1.004, 0.995, 1.013), verdict)
    assert several_page([made.comparison([ddp, rival])]).answer[0] == told


def test_no_line_joins_what_does_not_compare() -> None:
    other = made.comparison(fabric=made.FABRIC.model_copy(update={"spec": "shaped:hosts=2,rate=10gbit"}))
    times = _times(several_page([made.comparison(), _later(), other]))
    ddp = next(trace for trace in times.traces if trace["name"] == "ddp")
    assert [x if x is None else round(x) for x in ddp["x"]] == [1, 2, None, 3]
    assert [y is None for y in ddp["y"]] == [False, False, True, False]


def test_many_records_have_numbers_alone() -> None:
    assert _times(several_page([made.comparison()] * 9)).layout["xaxis"]["ticktext"] == [
        str(number) for number in range(1, 10)
    ]


def test_what_differs_is_named_and_the_rest_is_not() -> None:
    page = several_page([made.comparison(), _later(hostname="bench2", cores=16)])
    table = next(section.blocks[0] for section in page.sections if section.key == "differences")
    assert [list(row) for row in table.rows] == [["host", "bench1", "bench2"], ["cores", "8", "16"]]
    which = next(section for section in page.sections if section.key == "which")
    assert "Machines or software differ" in which.blocks[1].lines[0]


def test_comparisons_compare() -> None:
    assert len(comparable([made.comparison(), made.troubled()])) == 2


def _section(page: Page, key: str) -> Any:
    return next((section.blocks[0] for section in page.sections if section.key == key), None)


def test_each_result_s_doubts_stand_on_the_page() -> None:
    slow = made.comparison(warnings=["the clock was set during the run"])
    slow.jobs[0] = slow.jobs[0].model_copy(update={"stragglers": Stragglers(ranks=[rank()])})
    ddp, optimal = (made.comparison().modes[mode] for mode in ("ddp", "optimal"))
    assert optimal.parity is not None
    unshown = optimal.parity.model_copy(update={"shown": False, "message": "no gradients"})
    doubtful = made.comparison([ddp, optimal.model_copy(update={"parity": unshown})], warnings=[])
    told = _section(several_page([slow, doubtful]), "warnings").pairs
    assert told == [
        ("result 1", rank_line(rank())),
        ("result 1", "the clock was set during the run"),
        *(("result 2", line) for line in not_shown_lines(doubtful)),
    ]
    assert _section(several_page([made.comparison(warnings=[])]), "warnings") is None


def test_one_pair_of_blocks_has_no_whiskers() -> None:
    once = made.mode_result("wfbp", 0.6, (0.9, 0.5, 1.6), "inconclusive")
    assert once.ratio is not None
    once = once.model_copy(update={"ratio": once.ratio.model_copy(update={"pairs": 1})})
    page = several_page([made.comparison([made.comparison().modes["ddp"], once])])
    ratios = next(figure for figure in figures(page) if figure.key == "ratios-over")
    wfbp = next(trace for trace in ratios.traces if trace["name"] == "wfbp")
    assert (wfbp["y"], wfbp["error_y"]["array"], wfbp["error_y"]["arrayminus"]) == ([0.9], [0.0], [0.0])
