"""Launches and hooks of a GPU's host: what they add to a launch-bound step, and nothing where the host is ahead."""

from __future__ import annotations

import numpy as np
import pytest
from planning_cases import AHEAD, NET, dear, line, priority
from what_if_cases import LINE, beside, given_cost

from xbench.planning.contention import Contention, is_launch_bound
from xbench.planning.cost import CostCurve
from xbench.planning.measured import planned_contention
from xbench.planning.plans import Planner
from xbench.planning.scenario import Change, what_if
from xbench.planning.simulate import Step, simulate
from xbench.planning.step import Gradient, StepModel
from xbench.records import Contention as Measured

GRADIENTS = (Gradient("c", 10, 1.0), Gradient("b", 20, 2.0), Gradient("a", 30, 4.0))
STEP = StepModel(GRADIENTS, forward_s=2.0, backward_s=4.0, optimizer_s=0.5)
CURVE = CostCurve.line(1.0, 0.1)
AT_ONCE = CostCurve.line(0.0, 0.0)
EACH = [[0], [1], [2]]


def measured(host_step_s: float, device_step_s: float = 10.0, hook_s: float = 0.0) -> Measured:
    bound = is_launch_bound(host_step_s, device_step_s)
    return Measured(
        launch_s=0.25, hook_s=hook_s, host_step_s=host_step_s, device_step_s=device_step_s, launch_bound=bound,
        points=[],
    )  # fmt: skip


def bound(hook_s: float = 0.0) -> Contention:
    found = Contention.planned(measured(10.0, hook_s=hook_s), CURVE)
    assert found is not None
    return found


def sent(step: Step) -> list[tuple[float, float]]:
    return [(part.start_s, part.end_s) for part in step.timeline.communication]


def test_each_launch_delays_what_is_ready_after_it() -> None:
    step = simulate(STEP, EACH, CURVE, contention=bound())
    # complete at 1, 2 and 4, each later by its own launch and those before it; transfers of 2, 3 and 4 s
    assert sent(step) == [(3.25, 5.25), (5.25, 8.25), (8.25, 12.25)]
    assert [part.end_s for part in step.timeline.compute[:2]] == [2.0, 2.0 + 4.75]
    assert step.step_s == pytest.approx(12.75)


def test_launches_and_hooks_add_to_a_step_whose_communication_is_hidden() -> None:
    def step_s(buckets: list[list[int]], hook_s: float = 0.0) -> float:
        return simulate(STEP, buckets, AT_ONCE, contention=bound(hook_s)).step_s

    assert step_s(EACH) == pytest.approx(6.5 + 3 * 0.25)
    assert step_s([[0, 1, 2]]) == pytest.approx(6.5 + 0.25)
    assert step_s([[0, 1, 2]], hook_s=0.5) == pytest.approx(6.5 + 0.25 + 3 * 0.5)
    after = simulate(STEP, [[0, 1, 2]], CURVE, single_after_backward=True, contention=bound())
    assert sent(after) == [(6.25, 13.25)]
    assert simulate(STEP, [], None, contention=bound(0.5)).step_s == 6.5


def test_schedules_of_the_next_forward_pass_launch_more() -> None:
    halves, parts = (len(EACH) * 2, sum(gradient.nbytes for gradient in NET.gradients))
    assert dear(AHEAD, NET, EACH, AT_ONCE, contention=bound()).step_s == pytest.approx(6.0 + halves * 0.25)
    cut = priority(AHEAD, NET, AT_ONCE, partition_bytes=1, contention=bound())
    assert cut.step_s == pytest.approx(6.0 + parts * 0.25)


def test_a_step_is_launch_bound_where_the_host_takes_as_long_as_the_device() -> None:
    assert [is_launch_bound(host_s, 10.0) for host_s in (1.0, 8.9, 9.0, 10.0, 12.0)] == [False, False, True, True, True]


def test_plans_count_launches_of_a_launch_bound_step_alone() -> None:
    cost = line(1.0, 0.1)
    assert planned_contention(measured(5.0), cost) is None
    assert planned_contention(measured(5.0).model_copy(update={"launch_bound": None}), cost) is None
    found = planned_contention(measured(9.5, hook_s=0.5), cost)
    assert (found.launch_s, found.hook_s) == (0.25, 0.5)
    assert found.slowdowns(np.array([10.0, 20.0])) == ([[1.0] * 2] * 2,) * 3
    # where slow-downs were measured, σ has the launches
    points = beside((8, 1, 2.0, 3.0, 2.0)).points
    assert planned_contention(measured(9.5).model_copy(update={"points": points}), cost).launch_s == 0.0


def test_auto_sends_fewer_buckets_where_launches_delay_the_step() -> None:
    cost = line(1e-6, 1e-9)
    free, dear_launches = Planner(STEP, cost), Planner(STEP, cost, bound())
    assert len(dear_launches.plan("auto").buckets) == 1 < len(free.plan("wfbp").buckets)
    assert dear_launches.plan("wfbp").predicted_step_s == pytest.approx(6.5 + 3 * 0.25, rel=1e-3)
    assert free.plan("wfbp").predicted_step_s == pytest.approx(6.5, rel=1e-3)


def test_a_faster_device_can_make_a_step_launch_bound() -> None:
    was = given_cost(LINE, contention=measured(5.0))
    assert was.contention is None
    faster = what_if(was, Change(compute_scale=0.5))
    assert faster.contention_record.device_step_s == 5.0
    assert faster.contention_record.launch_bound is True
    assert faster.contention_record.launch_s == 0.25  # the host is the same
    assert faster.contention is not None
    assert what_if(given_cost(LINE, contention=measured(10.0)), Change(compute_scale=2.0)).contention is None
