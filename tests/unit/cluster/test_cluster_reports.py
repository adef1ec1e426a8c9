"""The records of `xbench cluster` beyond their frozen reports: hosts, windows, widths, and the numbers of figures."""

from __future__ import annotations

import pytest
from golden_file import GOLDEN, golden

from xbench.records import dump, load
from xbench.records.cluster import ClusterComparison, LiveRun
from xbench.report.formats import junit, markdown, terminal
from xbench.report.kinds import view_of
from xbench.report.page.model import figures

COMPARISON, LIVE = load(GOLDEN / "cluster-v1.json"), load(GOLDEN / "live-v1.json")
assert isinstance(COMPARISON, ClusterComparison)
assert isinstance(LIVE, LiveRun)


def hosted() -> ClusterComparison:
    """The same under one restart cost, packed and spread over hosts of 4: spread takes half as long again."""
    made = COMPARISON
    return made.model_copy(
        update={
            "gpus_per_host": 4, "placements": ["packed", "spread"], "across_hosts": 0.6, "restart_costs_s": [0.0],
            "runs": [
                one.model_copy(update={
                    "placement": placement, "jct_mean_s": times * one.jct_mean_s,
                    "across_share": 0.2 * times, "lost_share": 0.1 * times,
                })
                for one in made.runs if one.restart_s == 0
                for placement, times in (("packed", 1.0), ("spread", 1.5))
            ],
            "results": [
                one.model_copy(update={
                    "placement": placement, "jct_mean_s": times * one.jct_mean_s, "jct_mean_ci95": None,
                    "gap_ci95": None, "gap": None if one.gap is None else times * (1 + one.gap) - 1,
                    "ratio_ci95": None,
                    "placed_ratio": 1.5 if placement == "spread" else None,
                })
                for one in made.results if one.restart_s == 0
                for placement, times in (("packed", 1.0), ("spread", 1.5))
            ],
            "curves": [
                one.model_copy(update={"placement": placement})
                for one in made.curves if one.restart_s == 0
                for placement in ("packed", "spread")
            ],
        }
    )  # fmt: skip


RECORDS = {"cluster": COMPARISON, "cluster-hosts": hosted(), "live": LIVE}


@pytest.mark.parametrize("kind", ["cluster", "live"])
def test_a_file_is_written_as_it_was_read(kind: str) -> None:
    golden(f"{kind}-v1.json", dump(RECORDS[kind]))


def test_without_gaps_there_is_no_column_of_them() -> None:
    results = [one.model_copy(update={"gap": None, "gap_ci95": None}) for one in COMPARISON.results]
    bare = COMPARISON.model_copy(update={"results": results})
    text = terminal.render(bare, width=140)
    assert "srtf" in text
    assert "gap" not in text.lower()
    assert "gap" not in markdown.render(bare).lower()


@pytest.mark.parametrize(
    ("name", "width"),
    [("cluster", 140), ("cluster", 100), ("cluster", 60), ("cluster", 40), ("cluster-hosts", 180),
     ("cluster-hosts", 60), ("live", 140), ("live", 60)],
)  # fmt: skip
def test_no_line_is_wider_than_the_terminal(name: str, width: int) -> None:
    text = terminal.render(RECORDS[name], width=width)
    assert max(len(line) for line in text.splitlines() if "xbench cluster" not in line) <= width
    assert "…" not in text


def test_golden_markdown() -> None:
    golden("cluster-hosts.md", markdown.render(hosted()))


def test_placements_are_told_apart_everywhere() -> None:
    record = hosted()
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


def test_a_window_is_told() -> None:
    assert "jobs 11 to 20 by arrival count" not in terminal.render(COMPARISON, width=140)
    record = COMPARISON.model_copy(update={"window": (11, 20)})
    assert "window     jobs 11 to 20 by arrival count" in terminal.render(record, width=140)


@pytest.mark.parametrize(
    ("slowdown", "shown"), [(1.0, "1.00×"), (9.996, "10.0×"), (99.96, "100×"), (1169.91, "1,170×")]
)
def test_a_large_slowdown_has_no_decimals(slowdown: float, shown: str) -> None:
    record = COMPARISON
    runs = [run.model_copy(update={"slowdown_mean": slowdown}) for run in record.runs]
    assert f" {shown} " in terminal.render(record.model_copy(update={"runs": runs}), width=200)


def test_the_page_draws_the_record_s_numbers() -> None:
    record = COMPARISON
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
    bare = COMPARISON.model_copy(update={"curves": [], "spans": [], "findings": []})
    assert [figure.key for figure in figures(view_of(bare).page())] == ["mean-jct"]


def test_the_page_of_a_run_draws_its_numbers() -> None:
    record = LIVE
    found = {figure.key: figure for figure in figures(view_of(record).page())}
    assert list(found) == ["completion-times", "gantt"]
    live, foretold, simulated = found["completion-times"].traces
    assert list(live["y"]) == [63.5, 22.0]
    assert list(foretold["y"]) == [88.9, 19.8, 12.5]
    assert list(simulated["y"]) == [60.0, 23.0]
    drawn = sorted(
        (base, base + length)
        for trace in found["gantt"].traces
        for base, length in zip(trace["base"], trace["x"], strict=True)
    )
    ends = {span.to_s if span.to_s is not None else 61.0 for span in record.spans}
    assert {end for _, end in drawn} == ends
