from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xbench.planning.bounds import bounds
from xbench.planning.cost import CostCurve
from xbench.planning.merge import optimal
from xbench.planning.simulate import Buckets, Step, simulate
from xbench.planning.step import Gradient, StepModel

GRADIENTS = [Gradient("c", 10, 1.0), Gradient("b", 20, 2.0), Gradient("a", 30, 4.0)]
CURVE = CostCurve.line(1.0, 0.1)
PARTS = {"forward_s": 2.0, "backward_s": 4.0, "optimizer_s": 0.5}
STEP = StepModel(tuple(GRADIENTS), **PARTS)


def test_buckets_travel_in_plan_order_on_one_link() -> None:
    step = simulate(STEP, [[0], [1, 2]], CURVE)
    # bucket 1 from 1 to 3, bucket 2 ready at 4, 6 seconds long, so the optimizer starts at 2 + 10
    assert step.step_s == pytest.approx(12.5)
    assert step.exposed_s == pytest.approx(6.0)
    assert step.timeline.label == "simulated"
    assert [(s.name, s.start_s, s.end_s) for s in step.timeline.compute] == [
        ("forward", 0.0, 2.0),
        ("backward", 2.0, 6.0),
        ("optimizer", 12.0, 12.5),
    ]
    assert [(s.name, s.start_s, s.end_s, s.nbytes) for s in step.timeline.communication] == [
        ("bucket 1", 3.0, 5.0, 10),
        ("bucket 2", 6.0, 12.0, 50),
    ]


def test_single_starts_after_the_whole_backward() -> None:
    longer = replace(STEP, backward_s=5.0)
    early = simulate(longer, [[0, 1, 2]], CURVE)
    late = simulate(longer, [[0, 1, 2]], CURVE, single_after_backward=True)
    assert early.timeline.communication[0].start_s == 6.0
    assert late.timeline.communication[0].start_s == 7.0
    assert late.step_s == pytest.approx(2 + 5 + 7 + 0.5)


def test_hidden_communication_exposes_nothing_and_compute_needs_no_curve() -> None:
    step = simulate(replace(STEP, gradients=STEP.gradients[:1]), [[0]], CURVE)
    assert (step.step_s, step.exposed_s) == (6.5, 0.0)
    alone = simulate(STEP, [], None)
    assert (alone.step_s, alone.exposed_s, alone.timeline.communication) == (6.5, 0.0, [])


def test_the_wait_for_input_and_earlier_micro_steps_come_before_the_forward_pass() -> None:
    plain = simulate(STEP, [[0], [1], [2]], CURVE)
    step = simulate(replace(STEP, input_s=3.0, accumulate_s=8.0), [[0], [1], [2]], CURVE)
    assert (step.step_s, step.exposed_s) == (plain.step_s + 11.0, plain.exposed_s)
    assert [(s.name, s.start_s, s.end_s) for s in step.timeline.compute][:3] == [
        ("input", 0.0, 3.0), ("accumulate", 3.0, 11.0), ("forward", 11.0, 11.0 + STEP.forward_s)
    ]  # fmt: skip
    assert [s.start_s - 11.0 for s in step.timeline.communication] == [s.start_s for s in plain.timeline.communication]


def optimizer_slices(step: Step) -> list[tuple[float, float]]:
    return [(s.start_s, s.end_s) for s in step.timeline.compute if s.name == "optimizer"]


# An optimizer of 6 seconds and 60 bytes: 1 second for c, 2 for b, 3 for a.
BUSY = replace(STEP, optimizer_s=6.0)


@pytest.mark.parametrize(
    ("parts", "buckets", "early", "slices"),
    [
        # c arrives at 3, b at 6, a at 10 since the start of backward, which ends at 4
        ({}, [[0], [1], [2]], True, [(6.0, 7.0), (8.0, 10.0), (12.0, 15.0)]),
        ({}, [[0], [1], [2]], False, [(12.0, 18.0)]),
        ({"backward_s": 20.0}, [[0], [1], [2]], True, [(22.0, 28.0)]),  # not before backward ends
        # updates without a wait between them are one slice: c from 5 to 6, when b arrives: on to 8; a arrives at 10
        ({"backward_s": 5.0}, [[0], [1], [2]], True, [(7.0, 10.0), (12.0, 15.0)]),
        # c from 4 to 6, when b arrives: on to 10, when a does
        ({"optimizer_s": 12.0}, [[0], [1], [2]], True, [(6.0, 18.0)]),
        # in the order of launches: a arrives at 8, c at 10, b at 13
        ({}, [[2], [0], [1]], True, [(10.0, 14.0), (15.0, 17.0)]),
    ],
)
def test_early_updates_of_several_buckets(
    parts: dict[str, float], buckets: Buckets, early: bool, slices: list[tuple[float, float]]
) -> None:
    net = replace(BUSY, **parts)
    step = simulate(net, buckets, CURVE, early_update=early)
    assert optimizer_slices(step) == slices
    assert (step.step_s, step.exposed_s) == (slices[-1][1], slices[-1][1] - net.compute_s)


@pytest.mark.parametrize("after_backward", [False, True])
@pytest.mark.parametrize("optimizer_s", [0.0, 0.1, 0.3, 7.0])
def test_early_update_of_one_bucket_or_of_nothing_is_the_plain_step(optimizer_s: float, after_backward: bool) -> None:
    empty = [Gradient("z", 0, 1.0), Gradient("y", 0, 4.5)]
    nets: list[tuple[list[Gradient], Buckets]] = [(GRADIENTS, [[0, 1, 2]]), (empty, [[0], [1]]), (GRADIENTS, [])]
    for gradients, buckets in nets:
        net = StepModel(tuple(gradients), 2.0, 5.0, optimizer_s)
        early, late = (
            simulate(net, buckets, CURVE, single_after_backward=after_backward, early_update=early)
            for early in (True, False)
        )
        assert early == late


@st.composite
def any_plan(draw: st.DrawFn) -> tuple[list[Gradient], Buckets]:
    """Gradients in ready order in any buckets at all: not contiguous, and launched in any order."""
    layers = sorted(draw(st.lists(st.tuples(st.floats(0, 4), st.integers(0, 10**6)), min_size=1, max_size=8)))
    gradients = [Gradient(f"w{place}", nbytes, at) for place, (at, nbytes) in enumerate(layers)]
    into = draw(st.lists(st.integers(0, 4), min_size=len(layers), max_size=len(layers)))
    buckets = [[index for index, bucket in enumerate(into) if bucket == wanted] for wanted in range(5)]
    return gradients, [bucket for bucket in buckets if bucket]


@given(any_plan(), st.floats(0, 1), st.floats(0, 1e-5), st.floats(0, 10), st.booleans())
def test_no_plan_beats_the_backward_overlap_bound(
    plan: tuple[list[Gradient], Buckets], alpha_s: float, beta_s: float, optimizer_s: float, after_backward: bool
) -> None:
    gradients, buckets = plan
    curve = CostCurve.line(alpha_s, beta_s)
    parts = {**PARTS, "optimizer_s": optimizer_s}
    compute_s = 6.0 + optimizer_s
    net = StepModel(tuple(gradients), **parts)
    late = simulate(net, buckets, curve, single_after_backward=after_backward)
    early = simulate(net, buckets, curve, single_after_backward=after_backward, early_update=True)
    bound_s = bounds(gradients, curve, **parts, compute_s=compute_s).backward_overlap_bound_s
    assert bound_s <= early.step_s * (1 + 1e-9)
    assert early.step_s <= late.step_s * (1 + 1e-9)
    for step in (early, late):
        assert step.exposed_s >= 0
        assert step.exposed_s == pytest.approx(step.step_s - compute_s, abs=1e-9)
        slices = optimizer_slices(step)
        assert sum(end_s - start_s for start_s, end_s in slices) == pytest.approx(optimizer_s, abs=1e-9)
        assert slices[0][0] >= 6.0
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(slices))
        assert slices[-1][1] == step.step_s


@given(any_plan(), st.floats(0, 1), st.floats(0, 1e-5))
def test_the_optimum_reaches_the_backward_overlap_bound_when_updating_takes_no_time(
    plan: tuple[list[Gradient], Buckets], alpha_s: float, beta_s: float
) -> None:
    gradients, curve = plan[0], CostCurve.line(alpha_s, beta_s)
    parts = {**PARTS, "optimizer_s": 0.0}
    best = simulate(StepModel(tuple(gradients), **parts), optimal(gradients, curve), curve, early_update=True)
    found = bounds(gradients, curve, **parts, compute_s=6.0)
    assert best.step_s == pytest.approx(found.backward_overlap_bound_s, rel=1e-9)


@pytest.mark.parametrize("buckets", [[[0], [1]], [[0], [0, 1, 2]], [[0, 1, 2, 3]], [[0, 1, 2], []], [[-1, 0, 1, 2]]])
def test_buckets_that_are_no_partition_are_refused(buckets: Buckets) -> None:
    with pytest.raises(ValueError, match="exactly once"):
        simulate(STEP, buckets, CURVE)


@pytest.mark.parametrize("wrong", [-1.0, math.nan, math.inf])
@pytest.mark.parametrize("part", list(PARTS))
def test_parts_of_a_step_are_times(part: str, wrong: float) -> None:
    with pytest.raises(ValueError, match=part):
        simulate(replace(STEP, **{part: wrong}), [], None)


def test_buckets_need_a_curve() -> None:
    with pytest.raises(ValueError, match="cost model"):
        simulate(STEP, [[0, 1, 2]], None)


def test_bounds() -> None:
    found = bounds(GRADIENTS, CURVE, **PARTS, compute_s=6.5)
    assert found.compute_s == 6.5
    assert found.communication_s == pytest.approx(7.0)
    assert found.overlap_bound_s == pytest.approx(7.0)
    # {c, b} from 2 to 6, {a} from 6 to 10; {c} then {b, a}: 10 too; all at once 11; one each: 1-3, 3-6, 6-10
    assert found.backward_overlap_bound_s == pytest.approx(2 + 10)
    # the bound leaves out what must follow the last bucket: b and a are 50 of 60 bytes, and without early update all
    assert optimal(GRADIENTS, CURVE) == [[0], [1, 2]]
    best = simulate(STEP, [[0], [1, 2]], CURVE, early_update=True)
    assert best.step_s == pytest.approx(2 + 10 + 0.5 * 50 / 60)
    assert simulate(STEP, [[0], [1, 2]], CURVE).step_s == pytest.approx(2 + 10 + 0.5)


def test_bounds_of_a_step_that_hides_everything() -> None:
    found = bounds(GRADIENTS, CostCurve.line(0.0, 1e-6), **PARTS, compute_s=6.5)
    assert found.overlap_bound_s == 6.5
    # the last transfer ends at 4 + 30e-6, long before backward and optimizer would at 4.5
    assert found.backward_overlap_bound_s == 6.5
    longer = bounds(GRADIENTS, CostCurve.line(0.0, 1e-6), **{**PARTS, "optimizer_s": 0.0}, compute_s=6.0)
    assert longer.backward_overlap_bound_s == pytest.approx(6.0 + 30e-6, abs=1e-9)


def test_communication_counts_one_collective_a_dtype_and_bounds_stay_below() -> None:
    mixed = [Gradient("b", 10, 1.0, "float32"), Gradient("a", 20, 1.0, "bfloat16")]
    found = bounds(mixed, CURVE, forward_s=0.0, backward_s=1.0, optimizer_s=0.0, compute_s=1.0)
    assert found.communication_s == pytest.approx(2.0 + 3.0)
    assert found.overlap_bound_s == pytest.approx(4.0)
    assert found.backward_overlap_bound_s == pytest.approx(5.0)
