from __future__ import annotations

from dataclasses import replace

import pytest
from what_if_cases import GOLDEN, beside, record

from xbench.errors import SpecError
from xbench.planning.contention import Contention as Shared
from xbench.planning.cost import CostCurve
from xbench.planning.measured import measured, read
from xbench.planning.plans import Planner
from xbench.planning.scenario import KEPT, SEARCHED, Change, Planned, replan, to_profile, what_if
from xbench.planning.step import StepModel
from xbench.records import Contention, Profile, dump, loads
from xbench.schedules.attach import carried

EVERYTHING = Change(rate_bps=10e9, latency_s=50e-6, workers=16, compute_scale=0.25)


BESIDE = beside(
    (4096, 1, 0.0022, 0.0028, 1.34),
    (4096, 2, 0.0021, 0.0017, 1.37),
    (524288, 1, 0.0047, 0.0087, 1.29),
    (524288, 2, 0.0044, 0.0058, 1.28),
    (8388608, 1, 0.0727, 0.0762, 1.39),
    (8388608, 2, 0.0714, 0.0719, 1.23),
)
TRIED = "the buckets of 'ddp', after 10 steps each of: auto 541 ms, ddp 520 ms"


def profile(*, contention: Contention | None = BESIDE, buffer_bytes: tuple[int, ...] = (38400, 160)) -> Profile:
    """The golden profile as a run with contention would have written it, but `auto` left with DDP's buckets."""
    found = record()
    assert found.step is not None
    workload = found.workload.model_copy(update={"buffer_bytes": list(buffer_bytes)})
    shared = Shared.of(contention, CostCurve.of(found.cost_model)) if contention is not None else None
    step = StepModel.of(found.layers, found.step)
    planner = Planner(step, found.cost_model, shared, buffer_bytes, tuple(found.layers))
    plans = planner.plans()
    place = {gradient.name: index for index, gradient in enumerate(planner.step.gradients)}
    tried = planner.plan("auto", [[place[name] for name in bucket] for bucket in plans["ddp"].buckets])
    plans["auto"] = tried.model_copy(update={"note": TRIED})
    return found.model_copy(update={"workload": workload, "contention": contention, "plans": plans})


def planned(change: Change, *modes: str) -> Planned:
    return replan(what_if(read(GOLDEN), change), list(modes) or None)


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
    assert carried(to_profile(found, ""), "optimal").buckets == found.plans["optimal"].buckets
    with pytest.raises(SpecError, match="no plan for 'mgwfbp'"):
        carried(to_profile(found, ""), "mgwfbp")


def test_layers_and_step_in_the_record_are_those_planned_with() -> None:
    found = planned(EVERYTHING, "optimal")
    record = to_profile(found, "")
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


def test_a_size_is_said_from_more_than_a_tenth_beyond_those_measured() -> None:
    found = planned(Change(), "single")
    was = found.scenario.measured
    points = [was.cost.points[0].model_copy(update={"nbytes": 1100}), *was.cost.points[1:]]
    limit = int(1.1 * max(point.nbytes for point in points))
    scenario = replace(found.scenario, measured=replace(was, cost=was.cost.model_copy(update={"points": points})))

    def cautions(nbytes: int) -> list[str]:
        plan = found.plans["single"].model_copy(update={"bucket_bytes": [nbytes]})
        return replace(found, scenario=scenario, plans={"single": plan}).cautions

    assert [len(cautions(nbytes)) for nbytes in (limit, limit + 1, 1000, 0)] == [0, 1, 0, 0]
    assert [told.startswith("All-reduces were measured from 1.07 KiB") for told in cautions(999)] == [True]


# --- contention and auto ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("contention", [BESIDE, None, BESIDE.model_copy(update={"points": []})])
def test_without_a_change_the_plans_are_those_of_the_record(contention: Contention | None) -> None:
    made = profile(contention=contention if contention is not None and contention.points else None)
    was = measured(made.model_copy(update={"contention": contention}), "p.json")
    found = replan(what_if(was, Change())).plans
    assert list(found) == list(made.plans)
    for mode, plan in made.plans.items():
        if mode != "auto":
            assert found[mode] == plan, mode
    assert found["auto"] == made.plans["auto"].model_copy(update={"note": f"{KEPT}: {TRIED}"})


def test_contention_and_buffers_are_planned_with() -> None:
    with_it, buffers, without = (
        replan(what_if(measured(made, "p.json"), Change()), ["ddp", "wfbp"]).plans
        for made in (profile(), profile(buffer_bytes=()), profile(contention=None))
    )
    assert with_it["wfbp"].predicted_step_s != without["wfbp"].predicted_step_s
    assert with_it["wfbp"].predicted_step_s == profile().plans["wfbp"].predicted_step_s
    assert with_it["ddp"].predicted_step_s > buffers["ddp"].predicted_step_s


def test_after_a_change_auto_is_searched_again_and_is_no_worse_than_the_record_s_buckets() -> None:
    was = measured(profile(), "p.json")
    scenario = what_if(was, Change(rate_bps=0.3e9))
    found = replan(scenario, ["auto"]).plans["auto"]
    place = {gradient.name: index for index, gradient in enumerate(scenario.step.gradients)}
    kept = scenario.planner.plan("auto", [[place[name] for name in names] for names in was.plans["auto"].buckets])
    assert found.note == SEARCHED
    assert found.buckets != was.plans["auto"].buckets
    assert found.predicted_step_s < kept.predicted_step_s


@pytest.mark.parametrize("buckets", [[["unknown"]], [[]], None])
def test_auto_is_searched_where_the_record_has_no_plan_of_these_gradients(buckets: list[list[str]] | None) -> None:
    made = profile()
    own = {} if buckets is None else {"auto": made.plans["auto"].model_copy(update={"buckets": buckets})}
    found = replan(what_if(measured(made.model_copy(update={"plans": own}), "p.json"), Change()), ["auto"])
    assert found.plans["auto"].note == SEARCHED
    assert found.plans["auto"] == found.scenario.planner.plan("auto").model_copy(update={"note": SEARCHED})


def test_what_ddp_makes_of_a_plan_is_predicted_on_its_own_reducer() -> None:
    found = replan(what_if(measured(profile(), "p.json"), Change()), ["ddp", "ddp-tuned", "auto"])
    assert found.in_ddp("ddp-tuned").predicted_step_s == found.plans["ddp-tuned"].predicted_step_s
    assert found.in_ddp("auto").predicted_step_s == found.plans["ddp"].predicted_step_s  # auto has DDP's buckets here
    assert (found.in_ddp("auto").mode, found.in_ddp("auto").buckets) == ("auto", found.plans["auto"].buckets)
    assert found.formed_by_ddp("auto")


def test_buckets_that_caps_cannot_describe_are_not_formed_by_ddp() -> None:
    made = profile()
    first, *rest = made.plans["wfbp"].buckets
    buckets = [[*first, *rest[-1]], *rest[:-1]]
    crossed = made.plans["auto"].model_copy(update={"buckets": buckets, "bucket_bytes": [0] * len(rest)})
    was = measured(made.model_copy(update={"plans": {"auto": crossed}}), "p.json")
    found = replan(what_if(was, Change()), ["auto"])
    assert found.plans["auto"].buckets == crossed.buckets
    assert not found.formed_by_ddp("auto")


def test_a_ring_of_more_workers_cuts_a_bucket_into_messages_that_were_measured() -> None:
    was = read(GOLDEN)
    few = was.cost.model_copy(update={"points": was.cost.points[:5]})  # up to 4 MiB: messages of 2 MiB
    short = measured(was.record.model_copy(update={"cost_model": few}), "short")
    said = [
        [caution for caution in replan(what_if(short, Change(workers=n)), ["single"]).cautions if "extrapol" in caution]
        for n in (2, 16, 32)
    ]
    assert [len(cautions) for cautions in said] == [1, 1, 0]
    assert said[1] == [
        "All-reduces were measured up to 4.00 MiB on 2 workers, and the largest bucket here has 44.7 MiB: its time is "
        "extrapolated."
    ]
