"""What the blocks are told of plans: buckets, parts and carriers, and what is not in any plan."""

from __future__ import annotations

from xbench.planning.plans import Planner
from xbench.planning.step import Gradient, StepModel
from xbench.rank.program import complete, job_plan
from xbench.records import CostModel, Parts, Plan
from xbench.schedules import parse_mode

COST = CostModel(
    backend="gloo", world_size=2, alpha_s=0.5, beta_s_per_byte=0.25, alpha_ci95=(0.5, 0.5), beta_ci95=(0.25, 0.25),
    max_relative_residual=0.0, points=[],
)  # fmt: skip
PLANNER = Planner(StepModel((Gradient("a", 40, 1.0), Gradient("b", 8, 2.0)), 1.0, 2.0, 0.0), COST)
PARTS = Parts(nbytes=16, order=[0, 3, 1, 2])


def plan_of(mode: str, **more: object) -> Plan:
    plan = Plan(mode=mode, buckets=[["a"], ["b"]], bucket_bytes=[40, 8], predicted_step_s=9.0, predicted_exposed_s=6.0)
    return plan.model_copy(update=more)


PLANS = {
    "optimal": plan_of("optimal"),
    "priority": plan_of("priority", parts=PARTS),
    "auto": plan_of("auto", parts=PARTS, carrier="priority"),
}


def test_parts_and_carriers_go_to_the_blocks() -> None:
    plan, event = job_plan(PLANNER, PLANS, 3.0, None)
    assert plan.parts == {"priority": PARTS, "auto": PARTS}
    assert plan.carriers == {"auto": "priority"}
    carriers = [plan.carrier_of(parse_mode(mode)) for mode in ("auto", "priority", "ddp")]
    assert carriers == ["priority", "priority", "ddp"]
    assert plan.link_s == dict.fromkeys(PLANS, 0.5 + 10 + 0.5 + 2)
    assert event.plans["auto"].carrier == "priority"


def test_what_got_no_gradient_has_buckets_and_parts_after_all_others() -> None:
    plan, _ = job_plan(PLANNER, PLANS, 3.0, None)
    assert complete(plan, {}) is plan
    whole = complete(plan, {"never": 20, "empty": 0})
    assert whole.unused_parameters
    assert whole.buckets["optimal"] == [["a"], ["b"], ["never"], ["empty"]]
    # a has parts 0 to 2, b is 3; then 4 and 5 of twenty bytes, and one without any
    assert whole.parts["priority"] == Parts(nbytes=16, order=[0, 3, 1, 2, 4, 5, 6])
    assert whole.carriers == {"auto": "priority"}


def test_ddp_looks_for_parameters_that_some_step_of_some_rank_left_out() -> None:
    plan, _ = job_plan(PLANNER, PLANS, 3.0, None)
    assert not complete(plan, {}).unused_parameters
    found = complete(plan, {}, sometimes_missing=True)
    assert found.unused_parameters
    assert found.buckets == plan.buckets
