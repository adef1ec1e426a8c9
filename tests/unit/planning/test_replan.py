from __future__ import annotations

from pathlib import Path

import pytest

from xbench.errors import SpecError, UsageError
from xbench.planning.plans import PLANNED_MODES
from xbench.planning.replan import Planned, replan, to_profile
from xbench.planning.step import StepModel
from xbench.planning.what_if import Change, measured, read, what_if
from xbench.records import Profile, dump, loads
from xbench.schedules.attach import buckets_of

GOLDEN = Path(__file__).parents[2] / "golden" / "profile-v1.json"
EVERYTHING = Change(rate_bps=10e9, latency_s=50e-6, workers=16, compute_scale=0.25)


def planned(change: Change, *modes: str) -> Planned:
    return replan(what_if(read(GOLDEN), change), list(modes) or None)


def test_without_modes_every_mode_is_planned() -> None:
    assert set(planned(Change()).plans) == set(PLANNED_MODES)


def test_a_whole_scenario_record_is_read_again_and_says_what_it_is() -> None:
    found = planned(EVERYTHING, "ddp", "optimal")
    record = to_profile(found, "xbench plan p.json --rate 10gbit")
    again = loads(dump(record))
    assert again == record
    assert isinstance(again, Profile)
    assert again.command == "xbench plan p.json --rate 10gbit"
    assert (again.fabric.label, again.fabric.world_size, again.fabric.measured_bps) == ("simulated", 16, None)
    assert again.samples == {}
    assert again.warnings == [
        f"nothing in this record was measured: it was planned from {GOLDEN}",
        *(f"what if: {change}" for change in found.scenario.changes),
        *found.cautions,
    ]
    assert len(found.scenario.changes) == 4
    assert all(plan.timeline is not None and plan.timeline.label == "simulated" for plan in again.plans.values())


def test_attach_reads_the_record() -> None:
    found = planned(EVERYTHING, "ddp", "optimal")
    assert buckets_of(to_profile(found, ""), "optimal") == found.plans["optimal"].buckets
    with pytest.raises(SpecError, match="no plan for 'mgwfbp'"):
        buckets_of(to_profile(found, ""), "mgwfbp")


def test_layers_and_step_in_the_record_are_those_planned_with() -> None:
    found = planned(EVERYTHING, "optimal")
    record = to_profile(found, "")
    assert record.step is not None
    assert record.step.step_s == 0.25 * 0.404
    assert record.step.step_ci95 == (0.25 * 0.401, 0.25 * 0.409)
    assert record.layers[0].backward_s == 0.25 * 0.018
    again = StepModel.of(record.layers, record.step)
    assert again.compute_s == pytest.approx(found.scenario.step.compute_s)
    assert [g.ready_s for g in again.gradients] == pytest.approx([g.ready_s for g in found.scenario.step.gradients])


def test_a_plan_of_what_was_measured_keeps_the_measurement() -> None:
    was = read(GOLDEN)
    record = to_profile(planned(Change(), "optimal"), "")
    assert isinstance(was.record, Profile)
    for name in ("fabric", "layers", "step", "cost_model", "samples", "warnings", "workload", "environment"):
        assert getattr(record, name) == getattr(was.record, name), name


def test_sizes_beyond_those_measured_are_said() -> None:
    was = read(GOLDEN)
    assert planned(Change()).cautions == []
    few = was.cost.model_copy(update={"points": was.cost.points[:4]})
    short = measured(was.record.model_copy(update={"cost_model": few}), "short")
    (caution,) = replan(what_if(short, Change()), ["single"]).cautions
    assert caution == (
        "All-reduces were measured up to 512 KiB, and the largest bucket here has 44.7 MiB: its time is extrapolated."
    )


def test_a_cost_model_that_is_none_is_refused() -> None:
    was = read(GOLDEN)
    falling = [segment.model_copy(update={"alpha_s": -1.0}) for segment in was.cost.segments]
    cost = was.cost.model_copy(update={"segments": falling})
    with pytest.raises(UsageError, match=r"'falling' cannot be planned: its cost model: .* not below zero"):
        replan(what_if(measured(was.record.model_copy(update={"cost_model": cost}), "falling"), Change()))


def test_an_unknown_mode_is_refused_by_name() -> None:
    with pytest.raises(SpecError, match="unknown mode 'optmal'"):
        planned(Change(), "optmal")
