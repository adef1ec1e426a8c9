"""The record of `xbench cluster compare` in every format."""

from __future__ import annotations

import json
from typing import Any

import pytest
from golden_file import GOLDEN, golden

from xbench.records import (
    ClusterComparison,
    ClusterCurve,
    ClusterResult,
    ClusterRun,
    ClusterSpan,
    TraceRecord,
    dump,
    load,
    loads,
)
from xbench.report.formats import junit, markdown, terminal
from xbench.report.kinds import view_of
from xbench.report.page.model import figures

POLICIES = {"fifo": 4000.0, "srtf": 2000.0, "las:queues=3": 2500.0}
COSTS_S = (0.0, 30.0)
BOUND_S = 1750.0


def run(policy: str, restart_s: float, seed: int) -> ClusterRun:
    mean_s = (POLICIES[policy] + (10 * restart_s if policy != "fifo" else 0)) * (1 + 0.1 * seed)
    return ClusterRun(
        policy=policy, restart_s=restart_s, seed=seed, jobs=40, jct_mean_s=mean_s, jct_p50_s=0.6 * mean_s,
        jct_p95_s=3 * mean_s, jct_p99_s=5 * mean_s, queued_mean_s=0.4 * mean_s, queued_p95_s=mean_s,
        slowdown_mean=2.5, unfairness_p95=1.75, makespan_s=36_000, held_gpu_s=900_000, useful_share=0.98,
        occupancy=0.78, restarts=0 if policy == "fifo" else 25, restart_gpu_s=750 * restart_s / 30, decision_s=4e-6,
        bound_s=None if policy == "las:queues=3" else BOUND_S,
    )  # fmt: skip


def result(policy: str, restart_s: float) -> ClusterResult:
    means = [run(policy, restart_s, seed).jct_mean_s for seed in (0, 1)]
    mean_s = (means[0] * means[1]) ** 0.5
    reference = run("fifo", restart_s, 0).jct_mean_s
    ratio = means[0] / reference if policy != "fifo" else None
    known = policy == "srtf" and restart_s == 0
    return ClusterResult(
        policy=policy, restart_s=restart_s, jct_mean_s=mean_s, ratio=ratio,
        jct_mean_ci95=(0.9 * mean_s, 1.1 * mean_s) if known else None, ratio_ci95=(0.45, 0.55) if known else None,
        gap=mean_s / BOUND_S - 1 if policy != "las:queues=3" else None, gap_ci95=(0.15, 0.25) if known else None,
    )  # fmt: skip


def comparison() -> ClusterComparison:
    curves = [
        ClusterCurve(
            policy=policy, restart_s=cost_s, jct_s=[POLICIES[policy] * (1 + share) / 50 for share in range(101)],
            at_s=[60.0 * minute for minute in range(1, 6)], held=[8.0, 16.0, 16.0, 12.0, 4.0],
            waiting=[0.0, 2.0, 3.5, 1.0, 0.0],
        )
        for policy in POLICIES
        for cost_s in COSTS_S
    ]  # fmt: skip
    spans = [
        ClusterSpan(policy=policy, job=f"job-{number}", gpus=gpus, from_s=60.0 * number, to_s=60.0 * number + 90 * gpus)
        for policy in POLICIES
        for number, gpus in enumerate((1, 2, 8, 2))
    ]
    return ClusterComparison(
        created="2026-03-01T12:00:00+00:00", command="xbench cluster compare --seeds 2", xbench="0.1.0",
        trace=TraceRecord(
            asked="generated:jobs=40", name="generated jobs", jobs=40, gpu_hours=250.0, span_s=30_000, seeds=[0, 1],
            skipped=["jobs.csv: row 7: gpus = 0"], notes=["Poisson arrivals, load 0.9."],
        ),
        gpus=16, policies=list(POLICIES), restart_costs_s=list(COSTS_S),
        findings=["srtf has the shortest mean job completion time with restarts of 0 s: 35.0 min."],
        warnings=["1 row of the trace made no job and was left out; the first: jobs.csv: row 7: gpus = 0"],
        runs=[run(policy, cost_s, seed) for policy in POLICIES for cost_s in COSTS_S for seed in (0, 1)],
        results=[result(policy, cost_s) for policy in POLICIES for cost_s in COSTS_S],
        curves=curves, spans=spans,
    )  # fmt: skip


def hosted() -> ClusterComparison:
    """The same under one restart cost, packed and spread over hosts of 4: spread takes half as long again."""
    made = comparison()
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


RECORDS = {"cluster": comparison(), "cluster-hosts": hosted()}


def test_the_file_format() -> None:
    golden("cluster-v1.json", dump(comparison()))
    assert load(GOLDEN / "cluster-v1.json") == loads(dump(comparison())) == comparison()


NEW = {
    "placement", "placements", "gpus_per_host", "across_hosts", "across_share", "lost_share", "bound_s",
    "gap", "gap_ci95", "placed_ratio", "placed_ratio_ci95", "window", "growing", "unfinished_middle",
    "unfinished_end",
}  # fmt: skip


def without(value: Any, names: set[str]) -> Any:
    if isinstance(value, dict):
        return {key: without(one, names) for key, one in value.items() if key not in names}
    return [without(one, names) for one in value] if isinstance(value, list) else value


def test_a_file_of_before_placements_and_gaps_is_read_and_shown() -> None:
    old = loads(json.dumps(without(json.loads(dump(comparison())), NEW)))
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


def test_the_gap_of_every_simulation_is_in_its_table() -> None:
    rows = view_of(comparison()).tables()["runs"]
    assert next(row["gap"] for row in rows if row["policy"] == "srtf") == pytest.approx(2000 / 1750 - 1)
    assert [row["gap"] for row in rows if row["policy"] == "las:queues=3"] == [None] * 4


def test_a_window_is_told() -> None:
    assert "jobs 11 to 20 by arrival count" not in terminal.render(comparison(), width=140)
    record = comparison().model_copy(update={"window": (11, 20)})
    assert "window     jobs 11 to 20 by arrival count" in terminal.render(record, width=140)


@pytest.mark.parametrize(
    ("slowdown", "shown"), [(1.0, "1.00×"), (9.996, "10.0×"), (99.96, "100×"), (1169.91, "1,170×")]
)
def test_a_large_slowdown_has_no_decimals(slowdown: float, shown: str) -> None:
    record = comparison()
    runs = [run.model_copy(update={"slowdown_mean": slowdown}) for run in record.runs]
    assert f" {shown} " in terminal.render(record.model_copy(update={"runs": runs}), width=200)


def test_tables_are_rectangular_and_labelled() -> None:
    found = view_of(comparison()).tables()
    assert {name: len(rows) for name, rows in found.items()} == {"runs": 12, "results": 6, "curves": 606}
    for rows in found.values():
        assert len({tuple(row) for row in rows}) == 1
        assert {row["label"] for row in rows} == {"simulated"}


def test_the_page_draws_the_record_s_numbers() -> None:
    record = comparison()
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
    bare = comparison().model_copy(update={"curves": [], "spans": [], "findings": []})
    assert [figure.key for figure in figures(view_of(bare).page())] == ["mean-jct"]
