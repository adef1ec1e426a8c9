"""A check for regressions in every format: golden texts, and what holds whatever the record is.

`XBENCH_UPDATE_GOLDEN=1 pytest tests/unit/regress` rewrites the golden files: read the difference before you commit it.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest
import sample_regressions as made
from golden_file import GOLDEN, golden

from xbench.records import (
    SCHEMA_VERSION,
    AnyRecord,
    Baseline,
    Check,
    Failure,
    Regression,
    Suite,
    dump,
    load,
)
from xbench.report import FORMATS
from xbench.report import regression_sentences as told
from xbench.report.formats.junit import render as junit
from xbench.report.formats.terminal import render
from xbench.report.kinds import view_of
from xbench.report.kinds.regression import command, regression_markdown, workflow_commands

KINDS: dict[str, Callable[[], AnyRecord]] = {"regression": made.slower, "baseline": made.baseline}


@pytest.mark.parametrize("kind", KINDS)
def test_the_newest_version_loads_to_exactly_what_was_written(kind: str) -> None:
    golden(f"{kind}-v{SCHEMA_VERSION}.json", dump(KINDS[kind]()))
    assert load(GOLDEN / f"{kind}-v{SCHEMA_VERSION}.json") == KINDS[kind]()


@pytest.mark.parametrize("path", sorted((GOLDEN.parents[1] / "results" / "baselines").glob("*/*.json")), ids=str)
def test_what_an_earlier_xbench_stored_is_a_baseline(path: Path) -> None:
    found = load(path)
    assert isinstance(found, Baseline)
    assert bool(found.pairs) == (path.name == "noise.json")
    assert view_of(found).cases(strict=True)


@pytest.mark.parametrize("kind", KINDS)
def test_a_launch_that_failed_is_in_every_format(kind: str) -> None:
    failure = Failure(check="small", mode="wfbp", side="head", pair=3, reason="rank 1 was killed")
    record = KINDS[kind]().model_copy(update={"failures": [failure], "complete": False, "error": "Ctrl-C"})
    for name in ("terminal", "html", "json", "markdown"):
        text = FORMATS.load(name)(record)
        assert "rank 1 was killed" in text, name
        assert "Ctrl-C" in text, name
    assert view_of(record).tables()["failures"][0]["reason"] == "rank 1 was killed"
    assert "INCOMPLETE: Ctrl-C" in junit(record)
    assert kind == "regression" or "rank 1 was killed" in junit(record)  # there it is the reason of a missing case


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
@pytest.mark.parametrize("kind", KINDS)
def test_no_line_is_wider_than_the_terminal(kind: str, width: int) -> None:
    assert max(len(line) for line in render(KINDS[kind](), width=width).splitlines()) <= width


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        (made.regression(), "No regression in 8 cases: 8 equivalent."),
        (made.regression({made.DDP: 0.9}), "No regression in 8 cases: 7 equivalent and 1 improved."),
        (made.regression({made.OPTIMAL: 1.1}), "No regression found, but not all of 8 cases could be judged: "
         "7 equivalent and 1 inconclusive."),
        (made.regression(base=None), "No answer on 8 cases: 8 missing."),
        (made.regression({made.OPTIMAL: 1.1}, confirm=False), "Regression in 1 of 8 cases: resnet18/optimal step_time "
         "takes 1.102 [1.090, 1.113] of base's time (real)."),
        (made.regression().model_copy(update={"cases": []}), "Nothing was judged: no case was measured."),
    ],
)  # fmt: skip
def test_the_answer_is_one_sentence(record: Regression, sentence: str) -> None:
    assert told.answer(record)[0] == sentence
    assert render(record, width=300).splitlines()[0] == sentence


def test_the_worst_comes_first() -> None:
    record = made.regression({made.DDP: 1.1, made.OPTIMAL: 1.3}, confirm=False)
    assert [case.mode for case in told.worst_first(record.cases)[:2]] == ["optimal", "ddp"]


def test_a_threshold_says_where_it_comes_from() -> None:
    floors = [floor.model_copy(update={"floor": 0.042}) for floor in made.baseline().floors]
    suite = made.SUITE.model_copy(update={"thresholds": {"step_time": 0.075}})
    by_floor, by_suite = made.regression(floors=floors), made.regression(floors=floors, suite=suite)
    assert told.threshold(by_floor.cases[2].threshold) == "8.4 % (twice the noise floor of 4.2 %)"
    assert told.threshold(by_suite.cases[2].threshold) == "7.5 % (xbench.toml, floor 4.2 %)"
    assert told.threshold(made.regression().cases[2].threshold) == "5 % (default)"


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.05, "5 %"), (0.084, "8.4 %"), (0.1, "10 %"), (1.0, "100 %"), (0.0025, "0.25 %"), (0.0, "0 %")],
)
def test_percentages_have_no_needless_digits(share: float, text: str) -> None:
    assert told.percent(share) == text


def test_two_figures_that_differ_never_look_alike() -> None:
    assert told.value(46_758_048, "B", 46_758_052) == "46758048 B"
    assert told.value(0.4, "s", 0.4000001) == "0.4 s"
    assert told.value(0.4, "s", 0.5) == "400 ms"
    assert told.value(3, "count", 4) == "3"


def test_what_a_reader_must_not_miss_stands_at_the_top() -> None:
    failure = Failure(check="small", mode=None, side="head", pair=2, reason="the fabric broke")
    record = made.regression(complete=False, error="interrupted", failures=[failure])
    told_first = render(record, width=200).split("Wall clock")[0]
    assert "INCOMPLETE: interrupted. The verdicts rest on what had been measured by then." in told_first
    assert "FAILED: small on head in pair 3: the fabric broke" in told_first


def many(count: int, name: str = "check") -> Regression:
    """A check of so many cases, all without a baseline."""
    checks = tuple(
        Check(name=f"check-{number}-{name}", workload="resnet18", modes=("ddp",), metrics=("step_time",))
        for number in range(count)
    )
    return made.regression(suite=Suite(checks=checks), base=None)


@pytest.mark.parametrize("limit", [8 * 1024, 64 * 1024, 1024**2])
def test_markdown_keeps_to_the_limit_at_the_end_of_a_row(limit: int) -> None:
    text = regression_markdown(many(3000, 400 * "x"), limit)
    assert len(text.encode()) <= limit
    rows = [line for line in text.splitlines() if line.startswith("| check-")]
    assert rows
    assert all(row.count(" | ") == 6 and row.endswith(" |") for row in rows)
    left_out = re.search(r"^(\d+) rows left out\.$", text, flags=re.MULTILINE)
    assert int(left_out[1]) + len(rows) == 3000
    assert text.count("<details>") == text.count("</details>")


@pytest.mark.parametrize("limit", [-1, 0, 10, 500, 8191])
def test_markdown_without_room_is_the_answer_or_nothing(limit: int) -> None:
    text = regression_markdown(many(50), limit)
    assert text in ("", "No answer on 50 cases: 50 missing.\n")
    assert bool(text) == (limit > 40)


def test_markdown_that_fits_leaves_nothing_out() -> None:
    assert "left out" not in regression_markdown(many(50))


def test_markdown_shows_text_as_it_is_written() -> None:
    check = made.SMALL.model_copy(update={"name": "a|b<c>&`d`"})
    record = made.regression(suite=Suite(checks=(check,)), base=None)
    row = next(line for line in regression_markdown(record).splitlines() if "missing" in line and line[0] == "|")
    assert "a\\|b&lt;c&gt;&amp;\\`d\\`/wfbp" in row
    assert len(re.findall(r"(?<!\\)\|", row)) == 8


def test_annotations_are_escaped() -> None:
    assert command("error", "a: b, c\n", "50 %\r\nd: e") == "::error title=a%3A b%2C c%0A::50 %25%0D%0Ad: e"


def test_annotations_of_a_check() -> None:
    found = workflow_commands(made.slower())
    assert [line.split(" ")[0] for line in found] == ["::error", "::error", "::warning"]
    assert found[2] == "::warning title=missing%3A small/wfbp step_time::head failed: rank 1 died: SIGKILL"
    assert workflow_commands(made.regression()) == []


def test_github_shows_ten_annotations_so_the_tenth_sums_up() -> None:
    assert len(workflow_commands(many(10))) == 10
    found = workflow_commands(many(25))
    assert len(found) == 10
    assert "title=xbench regress%3A 16 more cases::" in found[-1]


@pytest.mark.parametrize(
    ("record", "strict", "counts"),
    [
        (made.regression(), True, (8, 0, 0, 0)),
        (made.regression({made.DDP: 0.9}), True, (8, 0, 0, 0)),
        (made.regression({made.OPTIMAL: 1.1}), False, (8, 0, 0, 1)),
        (made.regression({made.OPTIMAL: 1.1}), True, (8, 1, 0, 0)),
        (made.regression(base=None), False, (8, 0, 0, 8)),
    ],
)
def test_junit_fails_where_the_exit_code_does(
    record: Regression, strict: bool, counts: tuple[int, int, int, int]
) -> None:
    root = ET.fromstring(junit(record, strict))
    assert tuple(int(root.get(name, "")) for name in ("tests", "failures", "errors", "skipped")) == counts


@pytest.mark.parametrize("width", [84, 88, 92, 96, 100])
def test_no_verdict_is_broken(width: int) -> None:
    text = render(made.regression({made.OPTIMAL: 1.3}, count=3), width=width)
    assert text.count("inconclusive") == 5  # of three cases, the answer and the reason


def test_the_line_to_paste_stays_whole() -> None:
    base = made.side("revision 1a2b3c4", workloads={"resnet18": made.WORKLOAD.model_copy(update={"tensors": 60})})
    record = made.judge(made.regression().model_copy(update={"base": base, "pairs": []}))
    for width in range(60, 110, 10):
        assert any('expect_change = "tensors 60 -> 62"' in row for row in render(record, width=width).splitlines())
