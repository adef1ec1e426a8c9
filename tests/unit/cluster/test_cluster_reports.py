"""The record of `xbench cluster compare` in every format."""

from __future__ import annotations

import json
from typing import Any

import pytest
import sample_clusters as made
from golden_file import GOLDEN, golden

from xbench.records import dump, load, loads
from xbench.report.formats import junit, markdown, terminal
from xbench.report.kinds import view_of
from xbench.report.page.model import figures

RECORDS = {"cluster": made.comparison(), "cluster-hosts": made.hosted()}


def test_the_file_format() -> None:
    golden("cluster-v1.json", dump(made.comparison()))
    assert load(GOLDEN / "cluster-v1.json") == loads(dump(made.comparison())) == made.comparison()


NEW = {
    "placement", "placements", "gpus_per_host", "across_hosts", "across_share", "lost_share", "bound_s", "bound_exact",
    "gap", "gap_ci95", "gap_exact", "placed_ratio", "placed_ratio_ci95", "window", "growing", "unfinished_middle",
    "unfinished_end",
}  # fmt: skip


def without(value: Any, names: set[str]) -> Any:
    if isinstance(value, dict):
        return {key: without(one, names) for key, one in value.items() if key not in names}
    return [without(one, names) for one in value] if isinstance(value, list) else value


def test_a_file_of_before_placements_and_gaps_is_read_and_shown() -> None:
    old = loads(json.dumps(without(json.loads(dump(made.comparison())), NEW)))
    text = terminal.render(old, width=140)
    assert "srtf" in text
    assert "gap" not in text.lower()
    assert "placement" not in text
    assert "gap" not in markdown.render(old).lower()


@pytest.mark.parametrize(
    ("name", "width"),
    [("cluster", 140), ("cluster", 100), ("cluster", 60), ("cluster", 40), ("cluster-hosts", 180),
     ("cluster-hosts", 60)],
)  # fmt: skip
def test_golden_text(name: str, width: int) -> None:
    text = terminal.render(RECORDS[name], width=width)
    golden(f"{name}-{width}.txt", text)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "…" not in text


@pytest.mark.parametrize("name", ["cluster", "cluster-hosts"])
def test_golden_markdown(name: str) -> None:
    golden(f"{name}.md", markdown.render(RECORDS[name]))


def test_placements_are_told_apart_everywhere() -> None:
    record = made.hosted()
    assert [case.name for case in junit.cases(record)][:2] == [
        "fifo, restarts for nothing, packed", "fifo, restarts for nothing, spread"
    ]  # fmt: skip
    found = view_of(record).tables()
    placed = [(row["placement"], row["placed_ratio"]) for row in found["results"]]
    assert placed == [("packed", None), ("spread", 1.5)] * 3
    assert {row["placement"] for row in found["runs"]} == {row["placement"] for row in found["curves"]} == {
        "packed", "spread"
    }  # fmt: skip
    drawn = {figure.key: figure for figure in figures(view_of(record).page())}
    bars = drawn["mean-jct"].traces
    assert [trace["name"] for trace in bars] == ["restarts for nothing, packed", "restarts for nothing, spread"]
    for packed, spread in zip(bars[0]["y"], bars[1]["y"], strict=True):
        assert float(spread) == pytest.approx(1.5 * float(packed), rel=1e-3)
    assert len(drawn["jct-distribution"].traces) == len(record.policies)  # of the first placement
    assert "packed" in drawn["jct-distribution"].told


def test_the_gap_of_every_simulation_is_in_its_table() -> None:
    rows = view_of(made.comparison()).tables()["runs"]
    assert next(row["gap"] for row in rows if row["policy"] == "srtf") == pytest.approx(2000 / 1750 - 1)
    assert [row["gap"] for row in rows if row["policy"] == "las:queues=3"] == [None] * 4


def test_a_window_is_told() -> None:
    assert "jobs 11 to 20 by arrival count" not in terminal.render(made.comparison(), width=140)
    record = made.comparison().model_copy(update={"window": (11, 20)})
    assert "window     jobs 11 to 20 by arrival count" in terminal.render(record, width=140)


@pytest.mark.parametrize(
    ("slowdown", "shown"), [(1.0, "1.00×"), (9.996, "10.0×"), (99.96, "100×"), (1169.91, "1,170×")]
)
def test_a_large_slowdown_has_no_decimals(slowdown: float, shown: str) -> None:
    record = made.comparison()
    runs = [run.model_copy(update={"slowdown_mean": slowdown}) for run in record.runs]
    assert f" {shown} " in terminal.render(record.model_copy(update={"runs": runs}), width=200)


def test_one_case_a_policy_and_cost() -> None:
    found = junit.cases(made.comparison())
    assert len(found) == 6
    assert {case.status for case in found} == {"passed"}
    assert all("(simulated)" in case.message for case in found)


def test_tables_are_rectangular_and_labelled() -> None:
    found = view_of(made.comparison()).tables()
    assert {name: len(rows) for name, rows in found.items()} == {"runs": 12, "results": 6, "curves": 606}
    for rows in found.values():
        assert len({tuple(row) for row in rows}) == 1
        assert {row["label"] for row in rows} == {"simulated"}


def test_the_page_draws_the_record_s_numbers() -> None:
    record = made.comparison()
    page = view_of(record).page()
    found = {figure.key: figure for figure in figures(page)}
    assert list(found) == ["mean-jct", "jct-distribution", "held-over-time", "waiting-over-time", "gantt-0", "gantt-1",
                           "gantt-2"]  # fmt: skip
    bars = found["mean-jct"].traces
    assert [trace["name"] for trace in bars] == ["restarts for nothing", "restarts of 30 s"]
    minutes = [result.jct_mean_s / 60 for result in record.results if result.restart_s == 0]
    assert [float(value) for value in bars[0]["y"]] == pytest.approx(minutes, rel=1e-4)
    assert bars[0]["error_y"]["visible"] is True
    assert bars[1]["error_y"]["visible"] is False
    assert [trace["name"] for trace in found["jct-distribution"].traces] == record.policies
    spans = [span for span in record.spans if span.policy == "fifo"]
    drawn = [
        (job, float(begin), float(length))
        for trace in found["gantt-0"].traces
        for job, begin, length in zip(trace["y"], trace["base"], trace["x"], strict=True)
    ]
    assert sorted(job for job, _, _ in drawn) == sorted(span.job for span in spans)
    assert sum(length for _, _, length in drawn) == pytest.approx(sum(s.to_s - s.from_s for s in spans) / 60, rel=1e-4)


def test_a_record_without_curves_has_a_page() -> None:
    bare = made.comparison().model_copy(update={"curves": [], "spans": [], "findings": []})
    assert [figure.key for figure in figures(view_of(bare).page())] == ["mean-jct"]
