"""Every combination is simulated once, and policies are compared seed by seed."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from cluster_cases import Scripted, rigid

from xbench.cluster.compare import DRAWN_JOBS, ComparisonRequest, compare, findings, parse_costs, thinned
from xbench.cluster.jobs import Job
from xbench.cluster.metrics import ClusterMoment, grows
from xbench.cluster.policy import Grant
from xbench.cluster.traces import Trace, load_trace
from xbench.cluster.traces.generated import ring_of
from xbench.errors import SpecError
from xbench.records import ClusterComparison, ClusterResult


def trace(*jobs: tuple[float, int, float]) -> Trace:
    """(arrival, GPUs, duration) of each job [s]; named a, b, c, ..."""
    return Trace("by hand", tuple(rigid(*jobs)))


TWO = trace((0, 1, 100), (0, 1, 10))


def compared(of: Trace = TWO, **fields: Any) -> ClusterComparison:
    asked: dict[str, Any] = {"policies": ("fifo", "srtf"), "gpus": 1, "seeds": (None,), **fields}
    return compare(ComparisonRequest("by hand", lambda _: of, **asked), "xbench cluster compare", lambda _: None)


def test_two_jobs_by_hand() -> None:
    record = compared()
    means = {run.policy: run.jct_mean_s for run in record.runs}
    assert means == {"fifo": (100 + 110) / 2, "srtf": (10 + 110) / 2}
    fifo, srtf = record.results
    assert (fifo.ratio, fifo.jct_mean_ci95) == (None, None)
    assert srtf.ratio == pytest.approx(60 / 105)
    assert record.findings == [
        "srtf has the shortest mean job completion time: 60.0 s, 42.9 % less than fifo's.",
        "srtf is at the optimum.",
    ]
    assert [run.bound_s for run in record.runs] == [pytest.approx(60)] * 2
    assert [one.gap for one in record.results] == [pytest.approx(105 / 60 - 1), 0.0]
    assert record.trace.gpu_hours == pytest.approx(110 / 3600)


def test_every_policy_meets_every_cost_placement_and_seed() -> None:
    def drawn(seed: int | None) -> Trace:
        return load_trace(f"generated:jobs=20,gpus=8,seed={seed}")

    asked = ComparisonRequest("generated:jobs=20,gpus=8", drawn, tuple(range(6)), ("fifo", "las"), 8, (0.0, 60.0), 4,
                              ("spread", "packed"))  # fmt: skip
    record = compare(asked, "xbench cluster compare", lambda _: None)
    assert len(record.runs) == len({(run.policy, run.restart_s, run.placement, run.seed) for run in record.runs}) == 48
    assert [(one.policy, one.restart_s, one.placement) for one in record.results] == list(
        itertools.product(("fifo", "las"), (0, 60), ("spread", "packed"))
    )
    assert all((one.placed_ratio is None) == (one.placement == "spread") for one in record.results)
    assert "with restarts of 60 s when packed: " in " ".join(record.findings)
    for one in record.results:
        assert one.jct_mean_ci95[0] <= one.jct_mean_s <= one.jct_mean_ci95[1]
        assert one.gap is not None
        assert 0 <= one.gap_ci95[0] <= one.gap <= one.gap_ci95[1]
    assert record.trace.seeds == list(range(6))
    again = compare(asked, "xbench cluster compare", lambda _: None)
    timeless = {"decision_s"}
    assert [run.model_dump(exclude=timeless) for run in again.runs] == [
        run.model_dump(exclude=timeless) for run in record.runs
    ]


def test_what_cannot_be_served_is_refused_before_anything_is_simulated() -> None:
    said: list[str] = []
    asked = ComparisonRequest("by hand", lambda _: TWO, (None,), ("fifo", "doubling"), 2)
    with pytest.raises(SpecError, match="doubling"):
        compare(asked, "", said.append)
    with pytest.raises(SpecError, match="asks for 4 GPUs, and the cluster has 1"):
        compared(trace((0, 4, 1)))
    assert said == []


def test_a_small_trace_is_drawn_job_by_job_and_a_large_one_is_not() -> None:
    assert {span.job for span in compared().spans if span.policy == "srtf"} == {"a", "b"}
    assert compared(trace(*((float(at), 1, 0.5) for at in range(DRAWN_JOBS + 1)))).spans == []


def test_means_over_windows_are_exact() -> None:
    moments = [ClusterMoment(0, 4, 1, 0), ClusterMoment(3, 2, 1, 6), ClusterMoment(4, 0, 0, 0)]
    at_s, held, waiting = thinned(moments, 2)
    assert at_s == [1, 3]
    assert held == pytest.approx([4, 3])
    assert waiting == pytest.approx([0, 3])
    assert sum(held) * 2 == pytest.approx(4 * 3 + 2 * 1)
    assert thinned(moments[:1], 2) == ([], [], [])


def test_every_placement_is_simulated_and_compared_with_the_first() -> None:
    """Two hosts of 4: two jobs of 3 and one of 2, which is on both hosts, at half its speed; spread, all are."""
    three = trace((0, 3, 10), (0, 3, 10), (0, 2, 10))
    record = compared(
        three, policies=("fifo", "srtf"), gpus=8, gpus_per_host=4, placements=("packed", "spread"), across_hosts=0.5
    )
    assert [(run.policy, run.placement, run.jct_mean_s) for run in record.runs] == [
        ("fifo", "packed", pytest.approx(40 / 3)), ("fifo", "spread", 20.0),
        ("srtf", "packed", pytest.approx(40 / 3)), ("srtf", "spread", 20.0),
    ]  # fmt: skip
    assert [(run.across_share, run.lost_share) for run in record.runs[:2]] == [(0.4, 0.2), (1.0, 0.5)]
    assert [one.placed_ratio for one in record.results] == [None, pytest.approx(1.5)] * 2
    assert [one.ratio for one in record.results] == [None, None, 1.0, 1.0]
    assert [one.gap for one in record.results] == [pytest.approx(1 / 3), pytest.approx(1.0)] * 2
    assert (record.gpus_per_host, record.placements, record.across_hosts) == (4, ["packed", "spread"], 0.5)
    assert record.findings == [
        "fifo has the shortest mean job completion time when packed: 13.3 s, and srtf within 1.0 % of it.",
        "fifo is at most 33.3 % above the optimum.",
        "fifo has the shortest mean job completion time when spread: 20.0 s, and srtf within 1.0 % of it.",
        "Spread over hosts, jobs take 50.0 % longer than packed on average.",
    ]
    assert {curve.placement for curve in record.curves} == {"packed", "spread"}
    assert {(span.policy, span.to_s) for span in record.spans if span.job == "c"} == {("fifo", 20), ("srtf", 20)}


def test_the_cost_of_placement_names_the_policies_that_lose_least_and_most() -> None:
    results = [
        ClusterResult(policy=policy, restart_s=0.0, jct_mean_s=60.0 * ratio, placement=placement, placed_ratio=placed)
        for policy, ratio in (("fifo", 1.2), ("srtf", 1.5), ("las", 1.05))
        for placement, placed in (("packed", None), ("spread", ratio))
    ]
    assert findings(results)[-1] == (
        "Spread over hosts, jobs take from 5.0 % longer (las) to 50.0 % longer (srtf) than packed on average."
    )


def test_one_host_has_nothing_to_place() -> None:
    with pytest.raises(SpecError, match="are one host"):
        compared(gpus=4, gpus_per_host=4, across_hosts=0.5)
    record = compared()
    assert (record.gpus_per_host, record.placements) == (None, [])
    assert {run.placement for run in record.runs} == {None}


def test_a_job_larger_than_the_cluster_is_served_by_who_may_give_it_less() -> None:
    ring = ring_of("resnet50", 8)
    large = Trace("by hand", (Job("a", 0.0, 8, 600.0, ring),))
    record = compared(large, policies=("doubling", "fixed-2"), gpus=4)
    assert record.runs[0].jct_mean_s == pytest.approx(600 / ring(4))
    with pytest.raises(SpecError, match="asks for 8 GPUs, and the cluster has 4"):
        compared(large, policies=("doubling", "fifo"), gpus=4)
    four = Trace("by hand", (Job("a", 0.0, 8, 600.0, ring, least=5),))
    with pytest.raises(SpecError, match="needs at least 5 GPUs, and the cluster has 4"):
        compared(four, policies=("doubling",), gpus=4)


def test_a_policy_that_shares_gpus_has_no_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two jobs on one GPU, each at 0.9 of its speed: faster than any schedule without sharing."""
    script = {0.0: {"a": Grant(1, 0.9, 1), "b": Grant(1, 0.9, 1)}}
    monkeypatch.setattr("xbench.cluster.compare.parse_policy", lambda _: Scripted(script))
    record = compared(trace((0, 1, 90), (0, 1, 90)), policies=("shared",))
    assert record.runs[0].jct_mean_s == pytest.approx(100)
    assert (record.runs[0].bound_s, record.results[0].gap) == (None, None)
    assert record.findings == ["The mean job completion time under shared: 100 s."]


def test_a_bound_that_would_take_too_long_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xbench.cluster.bounds.QUICK_SPEEDS", 5)
    record = compared(trace(*((0.0, gpus, 1.0) for gpus in range(1, 7))), gpus=8)
    assert {run.bound_s for run in record.runs} == {None}
    assert record.warnings == ["no gap is given: a bound of so many different speeds and sizes would take too long"]
    monkeypatch.setattr("xbench.cluster.bounds.QUICK_SPEEDS", 6)
    assert compared(trace(*((0.0, gpus, 1.0) for gpus in range(1, 7))), gpus=8).warnings == []


def test_only_the_jobs_of_a_window_count() -> None:
    """Three jobs of 10 s on one GPU, 4 s after one another: they take 10, 16 and 22 s."""
    three = trace((0, 1, 10), (4, 1, 10), (8, 1, 10))
    assert compared(three, policies=("fifo",)).runs[0].jct_mean_s == pytest.approx(16)
    record = compared(three, policies=("fifo",), window=(2, 3))
    run = record.runs[0]
    assert (run.jobs, run.jct_mean_s, run.queued_mean_s) == (2, 19, 9)
    assert (run.makespan_s, run.held_gpu_s, run.occupancy) == (30, 30, 1)
    assert (run.bound_s, record.window, record.warnings) == (None, (2, 3), [])
    assert (record.curves[0].jct_s[0], record.curves[0].jct_s[100]) == (16, 22)
    with pytest.raises(SpecError, match="the window 2-3 ends after the last of 2 jobs") as raised:
        compared(window=(2, 3))
    assert raised.value.hint == "write 2-2"


def test_a_queue_grows_by_half_and_by_five_jobs_a_seed() -> None:
    assert [grows(middles, [15.0]) for middles in ([10.0], [10.5])] == [True, False]
    assert [grows([2.0, 3.0], ends) for ends in ([7.0, 8.0], [7.0, 7.5])] == [True, False]


def test_a_reference_whose_queue_grows_makes_no_headline() -> None:
    """Jobs of 10 s come every 5 s: of 40 on one GPU, half wait when the last one comes. On two GPUs none does."""
    steady = compared(trace(*((5.0 * at, 1, 10.0) for at in range(40))), gpus=2)
    assert [one.growing for one in steady.results] == [False, False]
    assert steady.warnings == []
    full = compared(trace(*((max(0.0, 10.0 * at), 1, 10.0) for at in range(-12, 40))))  # 13 are there all the time
    assert [one.growing for one in full.results] == [False, False]
    late = trace(*((5.0 * at, 1, 10.0) for at in range(40)), (195.0, 1, 1.0))
    record = compared(late)
    assert [one.growing for one in record.results] == [True, True]
    assert record.findings[0] == (
        "srtf has the shortest mean job completion time: 105 s; no ratio is headlined, because the queue under fifo, "
        "the reference, still grows."
    )
    assert record.warnings == [
        "the queue still grows when the last job comes (unfinished jobs in the middle of the arrivals and at the end: "
        "fifo 11 and 19, srtf 11 and 19); means there depend on how long jobs come, and so do ratios to them; a lower "
        "load, more GPUs, or a longer trace with --window tells more"
    ]


def test_costs() -> None:
    assert parse_costs("0, 10,30.5,1e3") == (0.0, 10.0, 30.5, 1000.0)
    for text in ("", "a", "-1", "nan", "inf", "10,,20", "10,10"):
        with pytest.raises(SpecError, match=r"is not a number of seconds|stands twice"):
            parse_costs(text)
