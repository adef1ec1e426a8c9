"""The record of `xbench cluster compare` in every format."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import sample_clusters as made

from xbench.records import dump, load, loads
from xbench.report import cases, markdown, terminal
from xbench.report.html.cluster import cluster_page
from xbench.report.html.parts import figures
from xbench.report.tables import tables

GOLDEN = Path(__file__).parents[2] / "golden"


def golden(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("XBENCH_UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_the_file_format() -> None:
    golden("cluster-v1.json", dump(made.comparison()))
    assert load(GOLDEN / "cluster-v1.json") == loads(dump(made.comparison())) == made.comparison()


@pytest.mark.parametrize("width", [140, 100, 60, 40])
def test_golden_text(width: int) -> None:
    text = terminal.render(made.comparison(), width=width)
    golden(f"cluster-{width}.txt", text)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "…" not in text


def test_golden_markdown() -> None:
    golden("cluster.md", markdown.render(made.comparison()))


def test_one_case_a_policy_and_cost() -> None:
    found = cases.cases(made.comparison())
    assert len(found) == 6
    assert {case.status for case in found} == {"passed"}
    assert all("(simulated)" in case.message for case in found)


def test_tables_are_rectangular_and_labelled() -> None:
    found = tables(made.comparison())
    assert {name: len(rows) for name, rows in found.items()} == {"runs": 12, "results": 6, "curves": 606}
    for rows in found.values():
        assert len({tuple(row) for row in rows}) == 1
        assert {row["label"] for row in rows} == {"simulated"}


def test_the_page_draws_the_record_s_numbers() -> None:
    record = made.comparison()
    page = cluster_page(record)
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
    assert [figure.key for figure in figures(cluster_page(bare))] == ["mean-jct"]
