from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning_cases import cut, gradients_of, line, planner_of

from xbench.errors import SpecError
from xbench.modes import MODES, waiting_modes
from xbench.planning.contention import Contention
from xbench.planning.cost import CostCurve, fit
from xbench.planning.merge import ddp_assignment
from xbench.planning.plans import Planner, bucket_caps_mib
from xbench.planning.simulate import Buckets, simulate
from xbench.planning.step import Gradient, StepModel
from xbench.records import CostPoint, Plan

PARTS = {"forward_s": 1.0, "backward_s": 2.0, "optimizer_s": 0.1}
GRADIENTS = [Gradient("c", 10**9, 0.0), Gradient("b", 1, 0.9), Gradient("a", 1, 1.8)]


COST = line(1.0, 1e-8)
COSTLY = Contention(np.zeros(1), np.full((2, 1), 9.0), np.ones((2, 1)))
"""A collective takes nine times as long beside computation: what is sent early gains nothing."""


def plan_of(buckets: list[list[str]], nbytes: list[int]) -> Plan:
    return Plan(mode="optimal", buckets=buckets, bucket_bytes=nbytes, predicted_step_s=1.0, predicted_exposed_s=0.0)


def test_every_mode_gets_its_buckets_and_its_prediction() -> None:
    plans = planner_of(GRADIENTS, COST, **PARTS).plans()
    assert list(plans) == list(waiting_modes())
    assert {mode: plan.buckets for mode, plan in plans.items()} == {
        "compute": [],
        "ddp": [["c"], ["b", "a"]],
        "ddp-tuned": [["c"], ["b", "a"]],
        "single": [["c", "b", "a"]],
        "wfbp": [["c"], ["b"], ["a"]],
        "mgwfbp": [["c", "b", "a"]],
        "optimal": [["c"], ["b", "a"]],
        "auto": [["c"], ["b", "a"]],
    }
    # c has all but two of the bytes: with early updates nothing of the optimizer's 0.1 is left for the end
    assert {mode: round(plan.predicted_step_s, 6) for mode, plan in plans.items()} == {
        "compute": 3.1,
        "ddp": 13.1,
        "ddp-tuned": 13.1,
        "single": 14.1,
        "wfbp": 14.0,
        "mgwfbp": 13.9,
        "optimal": 13.0,
        "auto": 13.0,
    }
    for mode, plan in plans.items():
        assert plan.mode == mode
        assert plan.bucket_bytes == [sum(10**9 if name == "c" else 1 for name in bucket) for bucket in plan.buckets]
        assert plan.predicted_exposed_s == pytest.approx(plan.predicted_step_s - 3.1)
        assert len(plan.timeline.communication) == len(plan.buckets)


def test_a_loader_that_works_ahead_hides_what_communication_exposes() -> None:
    planner = planner_of(GRADIENTS, COST, **PARTS)
    slow = replace(planner, step=replace(planner.step, least_s=13.5))
    short, long = slow.plan("optimal"), slow.plan("wfbp")
    assert (short.predicted_step_s, short.predicted_exposed_s) == (13.5, 0.0)
    late = short.timeline.compute[-1]
    assert (late.name, late.start_s, late.end_s) == ("input", pytest.approx(13.0), 13.5)
    assert (long.predicted_step_s, long.predicted_exposed_s) == (pytest.approx(14.0), pytest.approx(0.5))
    assert long.timeline.compute == planner.plan("wfbp").timeline.compute


@pytest.mark.parametrize(
    ("contention", "mode", "note"),
    [
        (None, "mgwfbp", "6.9 % above that of optimal"),
        (None, "optimal", "nothing"),
        (COSTLY, "optimal", "; the predicted step counts what it costs"),
        (COSTLY, "mgwfbp", " below that of optimal"),
    ],
)
def test_the_note_says_which_arithmetic_the_optimum_is_of(contention: Contention | None, mode: str, note: str) -> None:
    """The greedy may beat what is exact without contention, if communication costs computation."""
    found = Planner(StepModel(tuple(GRADIENTS), **PARTS), COST, contention).plan(mode).note or ""
    assert note in found
    assert "exact for a link that costs computation nothing" in found
    assert ("counts what it costs" in found) == (note.endswith("costs"))


def test_without_a_cost_model() -> None:
    plans = planner_of(GRADIENTS, None, **PARTS).plans()
    assert list(plans) == ["compute", "ddp", "single", "wfbp"]
    assert all(plan.predicted_step_s == pytest.approx(3.1) for plan in plans.values())
    assert plans["compute"].note is None
    assert plans["wfbp"].note == "no cost model: communication is taken as free"
    for mode in (info.name for info in MODES if info.needs_link and info.planner is not None):
        with pytest.raises(ValueError, match=f"a cost model is needed to plan '{mode}'"):
            planner_of(GRADIENTS, None, **PARTS).plan(mode)
    with pytest.raises(ValueError, match="a cost model is needed"):
        planner_of(GRADIENTS, None, **PARTS).plans(["wfbp", "optimal"])


def test_wrong_modes_and_gradients_are_refused() -> None:
    with pytest.raises(SpecError, match="unknown mode 'optimum'") as caught:
        planner_of(GRADIENTS, COST, **PARTS).plan("optimum")
    assert "'optimal'" in caught.value.hint
    assert planner_of([], None, **PARTS).plan("compute").buckets == []
    for mode in waiting_modes()[1:]:
        with pytest.raises(ValueError, match="no gradients"):
            planner_of([], COST, **PARTS).plan(mode)
        with pytest.raises(ValueError, match="not in ready order"):
            planner_of(GRADIENTS[::-1], COST, **PARTS).plan(mode)


def end_of(plan: Plan) -> float:
    return plan.timeline.communication[-1].end_s


def test_a_smaller_last_bucket_leaves_less_to_update_after_the_same_end() -> None:
    gradients = [Gradient("b", 10, 0.0), Gradient("a", 10, 0.0)]
    plans = planner_of(gradients, line(0.0, 0.2), **PARTS).plans()
    assert end_of(plans["optimal"]) == end_of(plans["wfbp"]) == 1 + 4
    assert plans["optimal"].buckets == [["b", "a"]]
    assert plans["optimal"].predicted_step_s == pytest.approx(1 + 4 + 0.1)
    assert plans["wfbp"].predicted_step_s == pytest.approx(1 + 4 + 0.05)


def test_only_modes_on_our_engine_update_early() -> None:
    gradients = [Gradient("b", 2**20, 0.0), Gradient("a", 2**20, 0.0)]
    plans = planner_of(gradients, line(0.0, 4 / 2**20), **PARTS).plans()
    # b arrives at 4 and a at 8; half of the optimizer's 0.1 each
    assert plans["ddp"].buckets == plans["wfbp"].buckets == [["b"], ["a"]]
    assert plans["ddp"].predicted_step_s == pytest.approx(1 + 8 + 0.1)
    assert plans["wfbp"].predicted_step_s == pytest.approx(1 + 8 + 0.05)
    assert plans["single"].predicted_step_s == pytest.approx(1 + 2 + 8 + 0.1)
    # two dtypes are two buckets of `single`, both after backward
    mixed = [gradients[0], Gradient("a", 2**20, 0.0, "bfloat16")]
    single = planner_of(mixed, line(0.0, 4 / 2**20), **PARTS).plan("single")
    assert single.predicted_step_s == pytest.approx(1 + 2 + 8 + 0.05)


@st.composite
def bucketed(draw: st.DrawFn) -> tuple[list[Gradient], Buckets]:
    nbytes = draw(st.lists(st.integers(1, 10**9), min_size=1, max_size=12))
    gradients = gradients_of([float(place) for place in range(len(nbytes))], nbytes)
    return gradients, cut(len(nbytes), draw(st.integers(0, 2**11 - 1)))


@given(bucketed(), st.randoms(use_true_random=False))
def test_caps_reproduce_exactly_the_plans_buckets_whatever_the_order_within_one(
    net: tuple[list[Gradient], Buckets], random: object
) -> None:
    gradients, buckets = net
    members = [[gradients[index] for index in bucket] for bucket in buckets]
    nbytes = [[gradient.nbytes for gradient in bucket] for bucket in members]
    caps = bucket_caps_mib(plan_of([[one.name for one in bucket] for bucket in members], [*map(sum, nbytes)]))
    in_bytes = [int(cap * 1024 * 1024) for cap in caps]  # as DistributedDataParallel converts them
    for sizes, cap in zip(nbytes, in_bytes, strict=True):
        assert sum(sizes[:-1]) < cap <= sum(sizes)
    assert ddp_assignment(gradients, in_bytes) == buckets
    for bucket in members:
        random.shuffle(bucket)  # type: ignore[attr-defined]
    assert ddp_assignment([*itertools.chain(*members)], in_bytes) == buckets


def test_caps_of_empty_buckets_and_plans() -> None:
    assert bucket_caps_mib(plan_of([], [])) == []
    assert bucket_caps_mib(plan_of([["a"], ["b"], ["c"]], [1024 * 1024, 0, 512 * 1024])) == [1.0, 0.5]


def test_caps_of_two_dtypes_are_those_of_the_heavier() -> None:
    plan = plan_of([["a"], ["b"], ["c"]], [2**20, 3 * 2**20, 2**20])
    kinds = {"a": "bfloat16", "b": "float32", "c": "bfloat16"}
    assert bucket_caps_mib(plan, kinds) == [3.0]
    assert bucket_caps_mib(plan, {**kinds, "b": "bfloat16"}) == [1.0, 3.0, 1.0]
    with pytest.raises(KeyError):
        bucket_caps_mib(plan, {"a": "float32"})


def test_tuned_ddp_is_predicted_with_the_buckets_that_ddp_will_make() -> None:
    gradients = [
        Gradient(f"w{place}", 1000 * (1 + place % 3), 0.05 * place, "bfloat16" if place % 4 == 1 else "float32")
        for place in range(20)
    ]
    cost = line(0.02, 1e-5)
    plan = planner_of(gradients, cost, **PARTS).plan("ddp-tuned")
    kinds = {gradient.name: gradient.dtype for gradient in gradients}
    in_bytes = [int(cap * 1024 * 1024) for cap in bucket_caps_mib(plan, kinds)]
    remade = ddp_assignment(gradients, in_bytes)
    assert [[gradients[index].name for index in bucket] for bucket in remade] == plan.buckets
    assert sorted(itertools.chain(*plan.buckets)) == sorted(kinds)
    assert planner_of(gradients, cost, **PARTS).plan("optimal").predicted_step_s <= plan.predicted_step_s


def test_predictions_use_the_curve_where_the_line_does_not_hold() -> None:
    points = [
        CostPoint(nbytes=2**k, transfer_s=1e-3 if k < 18 else 1e-1, ci95=(0.0, 0.0), wait_s=0.0, repetitions=3)
        for k in range(10, 26)
    ]
    cost = fit(points, backend="gloo", world_size=2)
    assert cost.segments
    plan = planner_of(GRADIENTS[1:], cost, **PARTS).plan("single")
    assert plan.predicted_exposed_s == pytest.approx(CostCurve.of(cost)(2.0))
    assert plan.predicted_exposed_s == pytest.approx(1e-3)


def test_where_every_update_waits_for_all_gradients_none_is_early_or_put_off() -> None:
    planner = Planner(StepModel(tuple(GRADIENTS), **PARTS), COST, layers=())
    assert {"dear", "priority"} <= set(planner.modes)
    together = replace(planner, step=replace(planner.step, updates_together=True))
    assert {"dear", "priority"}.isdisjoint(together.modes)
    for mode in ("ddp", "single", "wfbp", "optimal"):
        buckets = planner.indices(planner.plan(mode))
        late = simulate(planner.step, buckets, CostCurve.of(COST), single_after_backward=mode == "single").step_s
        assert together.plan(mode).predicted_step_s == pytest.approx(late)
    early, clipped = planner.plan("wfbp"), together.plan("wfbp")
    assert early.predicted_step_s < clipped.predicted_step_s
    assert together.best().carrier is None
    with pytest.raises(ValueError, match="the first update waits for all gradients"):
        together.plan("dear")
