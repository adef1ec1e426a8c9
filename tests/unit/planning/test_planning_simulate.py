from __future__ import annotations

import math

import numpy as np
import pytest

from xbench.planning.bounds import bounds, removed_share
from xbench.planning.cost import Curve
from xbench.planning.gradients import Gradient
from xbench.planning.merge import optimal
from xbench.planning.simulate import Buckets, simulate

GRADIENTS = [Gradient("c", 10, 1.0), Gradient("b", 20, 2.0), Gradient("a", 30, 4.0)]
CURVE = Curve.line(1.0, 0.1)
GRID = np.arange(0.0, 61.0)
PARTS = {"forward_s": 2.0, "backward_s": 4.0, "optimizer_s": 0.5}


def test_buckets_travel_in_plan_order_on_one_link() -> None:
    step = simulate(GRADIENTS, [[0], [1, 2]], CURVE, **PARTS)
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


def test_a_busy_link_makes_the_next_bucket_wait_even_when_it_was_ready_first() -> None:
    step = simulate(GRADIENTS, [[2], [0], [1]], CURVE, **PARTS)
    assert [(s.start_s, s.end_s) for s in step.timeline.communication] == [(6.0, 10.0), (10.0, 12.0), (12.0, 15.0)]


def test_single_starts_after_the_whole_backward() -> None:
    parts = {**PARTS, "backward_s": 5.0}
    early = simulate(GRADIENTS, [[0, 1, 2]], CURVE, **parts)
    late = simulate(GRADIENTS, [[0, 1, 2]], CURVE, **parts, single_after_backward=True)
    assert early.timeline.communication[0].start_s == 6.0
    assert late.timeline.communication[0].start_s == 7.0
    assert late.step_s == pytest.approx(2 + 5 + 7 + 0.5)


def test_hidden_communication_exposes_nothing_and_compute_needs_no_curve() -> None:
    step = simulate(GRADIENTS[:1], [[0]], CURVE, **PARTS)
    assert (step.step_s, step.exposed_s) == (6.5, 0.0)
    alone = simulate(GRADIENTS, [], None, **PARTS)
    assert (alone.step_s, alone.exposed_s, alone.timeline.communication) == (6.5, 0.0, [])


@pytest.mark.parametrize("buckets", [[[0], [1]], [[0], [0, 1, 2]], [[0, 1, 2, 3]], [[0, 1, 2], []], [[-1, 0, 1, 2]]])
def test_buckets_that_are_no_partition_are_refused(buckets: Buckets) -> None:
    with pytest.raises(ValueError, match="exactly once"):
        simulate(GRADIENTS, buckets, CURVE, **PARTS)


@pytest.mark.parametrize("wrong", [-1.0, math.nan, math.inf])
@pytest.mark.parametrize("part", list(PARTS))
def test_parts_of_a_step_are_times(part: str, wrong: float) -> None:
    with pytest.raises(ValueError, match=part):
        simulate(GRADIENTS, [], None, **{**PARTS, part: wrong})


def test_buckets_need_a_curve() -> None:
    with pytest.raises(ValueError, match="cost model"):
        simulate(GRADIENTS, [[0, 1, 2]], None, **PARTS)


def test_bounds() -> None:
    found = bounds(GRADIENTS, CURVE, **PARTS, compute_s=6.5)
    assert found.compute_s == 6.5
    assert found.communication_s == pytest.approx(7.0)
    assert found.overlap_bound_s == pytest.approx(7.0)
    # {c, b} from 2 to 6, {a} from 6 to 10; {c} then {b, a}: 10 too; all at once 11; one each: 1-3, 3-6, 6-10
    assert found.backward_overlap_bound_s == pytest.approx(2 + 10 + 0.5)
    best = simulate(GRADIENTS, optimal(GRADIENTS, CURVE), CURVE, **PARTS)
    assert best.step_s == pytest.approx(found.backward_overlap_bound_s)


def test_bounds_of_a_step_that_hides_everything() -> None:
    found = bounds(GRADIENTS, Curve.line(0.0, 1e-6), **PARTS, compute_s=6.5)
    assert found.overlap_bound_s == 6.5
    assert found.backward_overlap_bound_s == pytest.approx(6.5 + 30e-6)


def test_communication_counts_one_collective_a_dtype_and_bounds_stay_below() -> None:
    mixed = [Gradient("b", 10, 1.0, "float32"), Gradient("a", 20, 1.0, "bfloat16")]
    found = bounds(mixed, CURVE, forward_s=0.0, backward_s=1.0, optimizer_s=0.0, compute_s=1.0)
    assert found.communication_s == pytest.approx(2.0 + 3.0)
    assert found.overlap_bound_s == pytest.approx(4.0)
    assert found.backward_overlap_bound_s == pytest.approx(5.0)


def test_bound_does_not_overstate_a_link_that_slows_down_with_size() -> None:
    curve = Curve(sizes=GRID, times=GRID**2 / 100, slope=10.0)
    found = bounds(GRADIENTS, curve, **PARTS, compute_s=6.5)
    assert found.communication_s == pytest.approx(36.0)
    assert found.overlap_bound_s == pytest.approx(1 + 4 + 9)


def test_removed_share() -> None:
    assert removed_share(12.0, 12.0, 10.0) == 0.0
    assert removed_share(10.0, 12.0, 10.0) == 1.0
    assert removed_share(11.5, 12.0, 10.0) == 0.25
    assert removed_share(13.0, 12.0, 10.0) == -0.5
    assert removed_share(9.0, 10.0, 10.0) is None
    assert removed_share(9.0, 9.5, 10.0) is None
    assert removed_share(9.0, 10.001, 10.0) is None
