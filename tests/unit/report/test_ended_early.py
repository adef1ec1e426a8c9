"""A run that ended before a mode's turn: the mode is not measured, which is no failure, and there is no empty table."""

from __future__ import annotations

import pytest
import sample_records as made

from xbench.records import Comparison, ModeResult
from xbench.report import FORMATS
from xbench.report.answer import verdict
from xbench.report.formats.junit import cases
from xbench.report.formats.terminal import render
from xbench.report.kinds import view_of
from xbench.report.sentences import failure_line

NAMES = ("ddp", "optimal", "single")


def not_measured(mode: str) -> ModeResult:
    return ModeResult(mode=mode, status="not measured", label="real")


def before_the_first_block() -> Comparison:
    return made.comparison([not_measured(name) for name in NAMES], complete=False, error="interrupted", samples=[])


def test_a_mode_whose_turn_never_came_has_not_failed() -> None:
    record = before_the_first_block()
    for name in NAMES:
        assert failure_line(record.modes[name]) is None
        assert verdict(record, record.modes[name]) == "not measured"
    assert [(case.name, case.status, case.message) for case in cases(record)[:3]] == [
        (name, "skipped", "not measured") for name in NAMES
    ]
    assert [row["status"] for row in view_of(record).tables()["modes"]] == ["not measured"] * 3
    assert [row["status"] for row in view_of(record).tables()["samples"]] == ["not measured"] * 3


def test_the_terminal_says_why_and_shows_no_table() -> None:
    said = render(before_the_first_block(), width=100)
    assert said.startswith(
        "INCOMPLETE: interrupted. What follows is what had been measured by then.\n\n"
        "No mode was measured, so there is no answer.\n"
    )
    assert "Time per sample, all jobs" not in said
    assert "Where the step goes" not in said


@pytest.mark.parametrize("name", ["terminal", "markdown", "html", "junit"])
def test_no_format_calls_it_failed(name: str) -> None:
    said = FORMATS.load(name)(before_the_first_block())
    assert "FAILED" not in said
    assert "Time per sample in figures" not in said
    assert "| mode |" not in said


def test_beside_a_measured_mode_it_has_a_row_without_times() -> None:
    record = made.comparison(
        [made.mode_result("ddp", 0.657, (1.0, 1.0, 1.0), "reference", buckets=4), not_measured("single")],
        complete=False,
        error="interrupted",
    )
    row = next(line for line in render(record, width=100).splitlines() if line.lstrip().startswith("single"))
    assert row.split()[-2:] == ["not", "measured"]
