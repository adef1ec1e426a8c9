"""Traces: the format's rules over every record there is, and what the steps, turns and arrows of small ones are."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sample_records as made
from hypothesis import given
from hypothesis import strategies as st
from trace_rules import broken_rules

from xbench.records import Comparison, Parts, Profile, RankTimeline, Slice, Timeline, TurnTaken, load
from xbench.report.charts import trace
from xbench.report.charts.trace import Process, document
from xbench.report.formats import perfetto

ROOT = Path(__file__).parents[3]


def _with_steps(path: Path) -> bool:
    text = path.read_text(encoding="utf-8")
    return '"schema_version"' in text[:4096] and '"timeline": {' in text


COMMITTED = [path for path in sorted((ROOT / "results").glob("*.json")) if _with_steps(path)]
assert len(COMMITTED) >= 10


def events(text: str) -> list[dict[str, Any]]:
    return json.loads(text)["traceEvents"]  # type: ignore[no-any-return]


def notes(record: Comparison) -> list[str]:
    return json.loads(perfetto.render(record))["otherData"]["notes"]  # type: ignore[no-any-return]


def of_process(text: str, part: str) -> list[dict[str, Any]]:
    """The events of the one process whose name holds `part`."""
    found = events(text)
    named = [event for event in found if event["name"] == "process_name" and part in event["args"]["name"]]
    (pid,) = (event["pid"] for event in named)
    return [event for event in found if event["pid"] == pid]


def changed(record: Comparison, **changes: Any) -> Comparison:
    """The record with these changes of its first mode's result alone."""
    mode = next(iter(record.modes.values()))
    return record.model_copy(update={"modes": {mode.mode: mode.model_copy(update=changes)}})


def small() -> Comparison:
    """Two modes: one whose buckets overlap on the link and that waits for them, one that crashed."""
    plan = made.plan("wfbp", 3, 0.55).model_copy(
        update={"buckets": [["fc.weight"], ["conv.weight"], ["conv.bias"]], "bucket_bytes": [4000, 2000, 1000]}
    )
    step = Timeline(
        label="real",
        compute=[
            Slice(name="forward", start_s=0.0, end_s=0.1),
            Slice(name="backward fc", start_s=0.1, end_s=0.15),
            Slice(name="backward conv", start_s=0.15, end_s=0.3),
            Slice(name="optimizer", start_s=0.45, end_s=0.5),
        ],
        communication=[
            Slice(name="bucket 1", start_s=0.151, end_s=0.2, nbytes=4000),
            Slice(name="bucket 2", start_s=0.18, end_s=0.4, nbytes=2000),
            Slice(name="bucket 3", start_s=0.3, end_s=0.45, nbytes=1000),
        ],
    )
    wfbp = made.mode_result("wfbp", 0.5, (1.0, 1.0, 1.0), "reference").model_copy(
        update={"plan": plan, "timeline": step}
    )
    crashed = made.troubled().modes["single"]
    return made.comparison([wfbp, crashed], reference="wfbp")


@pytest.mark.parametrize("make", [small, made.comparison, made.troubled, made.paired, made.profile])
def test_sample_records_keep_the_rules(make: Callable[[], Comparison | Profile]) -> None:
    assert broken_rules(perfetto.render(make())) == []


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_every_committed_record_with_steps_keeps_the_rules(path: Path) -> None:
    record = load(path)
    text = perfetto.render(record)
    assert broken_rules(text) == []
    if isinstance(record, Comparison):
        found = events(text)
        pids = {event["args"]["name"]: event["pid"] for event in found if event["name"] == "process_name"}
        drawn = Counter(event["pid"] for event in found if event["ph"] == "X" and event["cat"] != "exposed")
        for name, mode in record.modes.items():
            recorded = [pid for said, pid in pids.items() if f"· {name} · recorded step" in said]
            kept = [mode.timeline, *mode.other_ranks] if mode.timeline is not None else []
            assert [drawn[pid] for pid in recorded] == [len(step.compute) + len(step.communication) for step in kept]


def test_dozens_of_buckets_under_way_at_once_have_eight_tracks() -> None:
    process = Process("a step (real)")
    for number in range(20):  # all launched at once, and carried one after the other
        process.slice("link", f"bucket {number}", 0.0, 0.001 * (number + 1), "communication", label="real")
    text = document([process], {})
    assert broken_rules(text) == []
    drawn = [event for event in events(text) if event["ph"] == "X"]
    assert len({event["tid"] for event in drawn}) == 8
    times = {event["name"]: (event["ts"], event["dur"], event["args"].get("since_us")) for event in drawn}
    assert times["bucket 7"] == (0.0, 8000.0, None)
    assert times["bucket 8"] == (1000.0, 8000.0, 0.0)
    assert times["bucket 19"] == (12000.0, 8000.0, 0.0)


def test_arrows_lead_from_the_layer_that_completed_a_bucket() -> None:
    found = of_process(perfetto.render(small()), "recorded")
    leaves = {event["id"]: event["ts"] for event in found if event["ph"] == "s"}
    arrives = {event["id"]: event["ts"] for event in found if event["ph"] == "f"}
    fc, conv = 150000.0 - 0.001, 300000.0 - 0.001  # the end of each layer's slice
    assert [(leaves[number], arrives[number]) for number in sorted(leaves)] == [
        (fc, 151000.0),
        (180000.0, 180000.0),  # launched while the layer's slice was going on
        (conv, 300000.0),
    ]


def test_a_collective_of_another_size_than_the_plan_s_has_no_arrow() -> None:
    plan = small().modes["wfbp"].plan
    assert plan is not None
    assert arrows(changed(small(), plan=plan.model_copy(update={"bucket_bytes": [1, 2, 3]}))) == []


def arrows(record: Comparison) -> list[float]:
    """When the arrows of the recorded step arrive [us]."""
    return [event["ts"] for event in of_process(perfetto.render(record), "recorded") if event["ph"] == "f"]


def test_what_dear_launches_first_are_all_gathers_and_carry_nobody_s_gradients() -> None:
    mode = small().modes["wfbp"]
    assert mode.plan is not None
    assert mode.timeline is not None
    names = [part.model_copy(update={"name": f"bucket {number}"}) for number, part in
             enumerate(mode.timeline.communication, start=4)]  # fmt: skip
    gathers = [Slice(name=f"bucket {number}", start_s=0.1 + number / 1000, end_s=0.11, nbytes=nbytes)
               for number, nbytes in enumerate((4000, 2000, 1000), start=1)]  # fmt: skip
    step = mode.timeline.model_copy(update={"communication": [*gathers, *names]})
    plan = mode.plan.model_copy(update={"mode": "dear"})
    assert arrows(changed(small(), plan=plan, timeline=step)) == [151000.0, 180000.0, 300000.0]


def test_parts_of_priority_are_not_told_apart() -> None:
    plan = small().modes["wfbp"].plan
    assert plan is not None
    assert arrows(small()) == [151000.0, 180000.0, 300000.0]
    assert arrows(changed(small(), plan=plan.model_copy(update={"parts": Parts(nbytes=4096, order=[0, 1, 2])}))) == []


def test_turns_are_drawn_as_the_model_plays_them() -> None:
    record = made.paired()
    twin = record.jobs[0].model_copy(update={"plans": {"mgwfbp": made.plan("mgwfbp", 21, 0.55)}})
    mode = record.modes["crossover:mgwfbp"].model_copy(update={"pattern": "AB"})
    record = record.model_copy(update={"jobs": [twin, twin], "modes": {mode.mode: mode}})
    text = perfetto.render(record)
    assert broken_rules(text) == []
    turns = [event for event in of_process(text, "predicted turns (simulated)") if event.get("cat") == "turn"]
    assert [event["name"] for event in turns] == ["turn of A (resnet18)", "turn of B (resnet18)"] * 2
    assert {event["dur"] for event in turns} == {402000.0}  # each job's compute
    assert trace.MODEL_TURNS in notes(record)


def test_recorded_turns_are_drawn_above_those_of_the_model() -> None:
    record = made.paired()
    turns = [
        TurnTaken(job=0, start_s=0.0, computed_s=0.25, arrived_s=0.5),
        TurnTaken(job=1, start_s=0.375, computed_s=0.75, arrived_s=None),
        TurnTaken(job=0, start_s=0.75, computed_s=1.0, arrived_s=None),
    ]
    mode = record.modes["crossover:mgwfbp"].model_copy(update={"pattern": "AB", "turns": turns})
    record = record.model_copy(update={"jobs": [record.jobs[0]] * 2, "modes": {mode.mode: mode}})
    text = perfetto.render(record)
    assert broken_rules(text) == []
    drawn = of_process(text, "recorded turns (real)")
    held = [(event["name"], event["ts"], event["dur"]) for event in drawn if event.get("cat") == "turn"]
    assert held == [
        ("turn of A (resnet18)", 0.0, 250e3),
        ("turn of B (resnet18)", 375e3, 375e3),
        ("turn of A (resnet18)", 750e3, 250e3),
    ]
    nobody = [(event["ts"], event["dur"]) for event in drawn if event["name"].startswith("no turn")]
    assert nobody == [(250e3, 125e3)]
    assert [event["ts"] for event in drawn if event["name"] == "exposed gradients"] == [250e3]
    assert trace.TURNS_AS_SEEN in notes(record)
    assert trace.MODEL_TURNS not in notes(record)


def test_every_rank_is_a_process_and_begins_when_it_began() -> None:
    record = made.comparison()
    ddp = record.modes["ddp"]
    assert ddp.timeline is not None
    other = RankTimeline(**ddp.timeline.model_dump(), rank=1, starts_s=-0.125)
    modes = {"ddp": ddp.model_copy(update={"other_ranks": [other]})}
    both = record.model_copy(update={"modes": modes})
    text = perfetto.render(both)
    assert broken_rules(text) == []
    steps = [of_process(text, f"recorded step of rank {rank} of 2 (real)") for rank in (0, 1)]
    assert [min(event["ts"] for event in step if "dur" in event) for step in steps] == [125e3, 0.0]
    assert not {trace.RANK_0, trace.FIRST_RANKS} & set(notes(both))
    assert trace.RANK_0 in notes(record)  # which holds no other rank's steps


TIMES = st.floats(0, 10, allow_nan=False).map(lambda time_s: round(time_s, 7))


@given(st.lists(st.tuples(TIMES, TIMES, st.integers(0, 10**9))))
def test_any_slices_keep_the_rules(drawn: list[tuple[float, float, int]]) -> None:
    process = Process("any (real)")
    for start_s, length_s, _ in sorted(drawn):
        process.slice("communication", "bucket", start_s, start_s + length_s, "communication", label="real")
    process.counter("bytes", "in flight", [change for start_s, length_s, nbytes in drawn for change in
                                           ((start_s, nbytes), (start_s + length_s, -nbytes))])  # fmt: skip
    assert broken_rules(document([process], {})) == []
