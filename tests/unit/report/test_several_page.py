"""The page of several comparisons: their order, what differs, and what each one warns of."""

from __future__ import annotations

from typing import Any

import pytest
import sample_records as made
from test_straggler_lines import rank

from xbench.records import Stragglers
from xbench.report.kinds.compare_records import several_page
from xbench.report.page.model import Page
from xbench.report.sentences import not_shown_lines, rank_line


def _later(**environment: object) -> Any:
    record = made.comparison()
    return record.model_copy(
        update={
            "created": "2026-03-02T12:00:00Z",
            "environment": record.environment.model_copy(update=environment),
        }
    )


def test_records_stand_in_the_order_given_beside_each_other() -> None:
    later = _later(hostname="bench2", commit="fedcba9876543210")
    page = several_page([made.comparison(), later.model_copy(update={"modes": {"ddp": later.modes["ddp"]}})])
    times, ratios = (_section(page, key) for key in ("times", "ratios"))
    assert [column.name for column in times.columns] == ["mode", "1", "2"]
    rows = {row[0]: list(row[1:]) for row in times.rows}
    assert rows["ddp"][0] == rows["ddp"][1]
    assert rows["ddp"][0].startswith("41.1 ms [")
    assert rows["optimal"][1] == "–"
    assert {row[0]: row[1] for row in ratios.rows}["optimal"].startswith("0.892 [")
    assert page.answer[0] == "optimal is faster than its reference in 1 of 2; 1 of 2 named no mode that is faster."


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


def test_what_differs_is_named_and_the_rest_is_not() -> None:
    page = several_page([made.comparison(), _later(hostname="bench2", cores=16)])
    assert _section(page, "differences").pairs == [("host", "bench1 · bench2"), ("cores", "8 · 16")]
    which = next(section for section in page.sections if section.key == "which")
    assert "Machines or software differ" in which.blocks[1].lines[0]


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
