from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning_cases import AHEAD, BYTE_A_SECOND, NET, constant, cut, dear, layer, line, priority, sent, step_times

from xbench.planning import merge
from xbench.planning.contention import Contention
from xbench.planning.cost import CostCurve
from xbench.planning.next_forward import ForwardLayer, NetworkModel, as_step, forward_layers
from xbench.planning.next_forward_search import NextForwardSearch
from xbench.planning.simulate import Buckets, Step, simulate
from xbench.planning.step import Gradient, StepModel

WFBP: Buckets = [[0], [1], [2]]


def lane(step: Step) -> list[tuple[str, float, float]]:
    return [(s.name, s.start_s, s.end_s) for s in step.timeline.compute]


def test_dear_scatters_during_backward_and_gathers_as_forward_needs() -> None:
    step = dear(AHEAD, NET, WFBP, BYTE_A_SECOND)
    assert sent(step) == [
        ("bucket 1 reduce-scatter", 1.0, 2.0),
        ("bucket 2 reduce-scatter", 2.0, 3.0),
        ("bucket 3 reduce-scatter", 3.0, 4.0),
        ("bucket 3 all-gather", 4.0, 5.0),
        ("bucket 2 all-gather", 5.0, 6.0),
        ("bucket 1 all-gather", 6.0, 7.0),
    ]
    assert lane(step) == [
        ("backward", 0.0, 3.0),
        ("forward a", 5.0, 6.0),
        ("forward b", 6.0, 7.0),
        ("forward c", 7.0, 8.0),
    ]
    assert (step.step_s, step.exposed_s) == (8.0, 2.0)
    assert simulate(NET, WFBP, BYTE_A_SECOND).step_s == 10.0


def test_measured_halves_take_the_place_of_half_an_all_reduce_each() -> None:
    halves = CostCurve.line(0.0, 0.5), CostCurve.line(0.0, 1.0)
    step = as_step(*NetworkModel(AHEAD, NET, BYTE_A_SECOND, halves=halves).dear(WFBP, detailed=True))
    assert sent(step)[2:] == [
        ("bucket 3 reduce-scatter", 3.0, 4.0),
        ("bucket 3 all-gather", 4.0, 6.0),
        ("bucket 2 all-gather", 6.0, 8.0),
        ("bucket 1 all-gather", 8.0, 10.0),
    ]
    assert step.step_s == 11.0


def test_the_search_takes_the_measured_halves() -> None:
    step, twice = StepModel.of(LAYERS, step_times()), line(0.1, 1e-3)
    found = NextForwardSearch(LAYERS, step, COST, halves=(twice, twice)).step_of("dear", [[0, 1]])
    # the scatter 2–3.3 and the gather –4.6 take a whole all-reduce each; then the updates and the layers
    assert found.step_s == pytest.approx(2.0 + 2 * 1.3 + 2.0)


def test_layers_wait_in_the_first_micro_step_and_the_others_follow() -> None:
    step = dear(AHEAD, replace(NET, accumulate_s=5.0), WFBP, BYTE_A_SECOND)
    assert lane(step)[-2:] == [("forward c", 7.0, 8.0), ("accumulate", 8.0, 13.0)]
    assert (step.step_s, step.exposed_s) == (13.0, 2.0)


def test_gradients_travel_while_the_next_batch_is_waited_for() -> None:
    step = dear(AHEAD, replace(NET, input_s=1.5), WFBP, BYTE_A_SECOND)
    assert lane(step)[:3] == [("backward", 0.0, 3.0), ("input", 3.0, 4.5), ("forward a", 5.0, 6.0)]
    assert (step.step_s, step.exposed_s) == (8.0, 0.5)
    several = dear(AHEAD, replace(NET, input_s=3.0, accumulate_s=5.0, micro_steps=2), WFBP, BYTE_A_SECOND)
    assert lane(several)[1] == ("input", 3.0, 4.5)
    assert lane(several)[-1] == ("accumulate", 8.0, 14.5)


def test_priority_sends_what_forward_needs_first() -> None:
    step = priority(AHEAD, NET, BYTE_A_SECOND, partition_bytes=math.inf)
    assert sent(step) == [("c", 1.0, 3.0), ("a", 3.0, 5.0), ("b", 5.0, 7.0)]
    assert lane(step)[1:] == [("forward a", 5.0, 6.0), ("forward b", 7.0, 8.0), ("forward c", 8.0, 9.0)]
    assert (step.step_s, step.exposed_s) == (9.0, 3.0)


def test_small_parts_let_what_is_urgent_pass() -> None:
    step = priority(AHEAD, NET, BYTE_A_SECOND, partition_bytes=1)
    assert ", ".join(name for name, _, _ in sent(step)) == (
        "c 1 of 2, b 1 of 2, a 1 of 2, a 2 of 2, b 2 of 2, c 2 of 2"
    )
    assert [(start, end) for _, start, end in sent(step)] == [(k, k + 1) for k in range(1, 7)]
    assert (step.step_s, step.exposed_s) == (8.0, 2.0)


def test_what_credit_has_launched_is_not_called_back() -> None:
    step = priority(AHEAD, NET, BYTE_A_SECOND, partition_bytes=1, credit_bytes=2)
    assert ", ".join(name for name, _, _ in sent(step)) == (
        "c 1 of 2, c 2 of 2, b 1 of 2, a 1 of 2, a 2 of 2, b 2 of 2"
    )
    assert step.step_s == 9.0


def test_a_tensor_is_cut_into_full_parts_and_the_rest() -> None:
    net = StepModel((Gradient("a", 7, 0.0), Gradient("none", 0, 0.0)), 1.0, 0.0, 0.0)
    step = priority([ForwardLayer("a", 1.0, (0, 1))], net, BYTE_A_SECOND, partition_bytes=3)
    assert [s.nbytes for s in step.timeline.communication] == [3, 3, 1, 0]  # one part even of nothing: its flags travel
    assert step.step_s == 8.0


def test_a_link_that_has_rested_is_quicker_once() -> None:
    saving = replace(Contention.none(), rest_s=0.5)
    step = priority(AHEAD, NET, BYTE_A_SECOND, partition_bytes=math.inf, contention=saving)
    assert sent(step) == [("c", 1.0, 2.5), ("b", 2.5, 4.5), ("a", 4.5, 6.5)]


def test_computation_and_communication_slow_each_other() -> None:
    # from 1 on both run at half speed until 3: a second of backward, a second of reduce-scatter; then each is alone
    net = StepModel((Gradient("a", 2, 1.0),), 1.0, 2.0, 0.0)
    ahead = [ForwardLayer("a", 1.0, (0,))]
    assert dear(ahead, net, [[0]], BYTE_A_SECOND).step_s == 4.0
    step = dear(ahead, net, [[0]], BYTE_A_SECOND, contention=constant(2.0, 2.0))
    assert sent(step) == [("bucket 1 reduce-scatter", 1.0, 3.0), ("bucket 1 all-gather", 3.0, 4.0)]
    assert lane(step) == [("backward", 0.0, 3.0), ("forward a", 4.0, 5.0)]


def test_the_next_forward_shares_too() -> None:
    # scatters by 2, the gather of a by 3; then the gather of b and the forward of a take two seconds for one each
    net = StepModel((Gradient("b", 2, 0.0), Gradient("a", 2, 0.0)), 2.0, 0.0, 0.0)
    ahead = [ForwardLayer("a", 1.0, (1,)), ForwardLayer("b", 1.0, (0,))]
    step = dear(ahead, net, [[0], [1]], BYTE_A_SECOND, contention=constant(2.0, 2.0))
    assert lane(step)[1:] == [("forward a", 3.0, 5.0), ("forward b", 5.0, 6.0)]
    assert sent(step)[-1] == ("bucket 1 all-gather", 3.0, 5.0)


def test_hooks_and_copies_delay_backward() -> None:
    loaded = replace(Contention.none(), hook_s=0.5, copy_s_per_byte=0.25)
    step = dear(AHEAD, NET, [[0, 1, 2]], CostCurve.line(0.0, 0.0), contention=loaded)
    assert lane(step)[0] == ("backward", 0.0, 6.0)
    assert sent(step)[0][1] == 6.0


LAYERS = [layer("last", [(400, 1.0)], 1.0), layer("first", [(800, 2.0)], 3.0)]
COST = line(0.1, 1e-3)


def test_layers_run_forward_in_reverse_and_make_up_the_forward_pass() -> None:
    ahead = forward_layers(LAYERS, StepModel.of(LAYERS, step_times()))
    assert ahead == [ForwardLayer("first", 0.75, (1,)), ForwardLayer("last", 0.25, (0,))]
    still = [layer("last", [(400, 1.0)], 0.0), layer("first", [(800, 2.0)], 0.0)]
    assert [one.forward_s for one in forward_layers(still, StepModel.of(still, step_times()))] == [0.5, 0.5]


def test_the_meeting_and_what_two_in_flight_take_are_in_it() -> None:
    step = StepModel.of(LAYERS, step_times())
    free = Contention.none()
    quiet = np.array([[1.0], [0.5]])  # while nothing computes, two in flight take half of T each
    [plain, hidden, met] = [
        NextForwardSearch(LAYERS, step, COST, contention=both).dear().step_s
        for both in (free, replace(free, quiet=quiet), replace(free, meeting_s=0.25))
    ]
    assert met == pytest.approx(plain + 0.25)
    assert hidden < plain


def test_ready_times_under_load_count_where_contention_was_not_measured() -> None:
    loaded = [layer("last", [(400, 1.0, 1.5)], 1.0), layer("first", [(800, 2.0, 3.0)], 3.0)]
    step = StepModel.of(loaded, step_times())
    for contention, backward_s in ((None, 3.0), (Contention.none(), 2.0)):
        search = NextForwardSearch(loaded, step, COST, contention=contention)
        assert search.step_of("dear", search.dear().buckets).timeline.compute[0].end_s == backward_s


@st.composite
def nets(draw: st.DrawFn) -> tuple[StepModel, list[ForwardLayer]]:
    """Layers of one to three tensors; ready times rise by layer, as backward goes; some layers take no time."""
    widths = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    count = sum(widths)
    gaps = draw(st.lists(st.integers(0, 30), min_size=count, max_size=count))
    sizes = draw(st.lists(st.integers(0, 40), min_size=count, max_size=count))
    ready = [gap / 8 for gap in itertools.accumulate(gaps)]
    gradients = [Gradient(f"g{k}", size, at) for k, (size, at) in enumerate(zip(sizes, ready, strict=True))]
    edges = [0, *itertools.accumulate(widths)]
    forward = draw(st.lists(st.integers(0, 40), min_size=len(widths), max_size=len(widths)))
    ahead = [
        ForwardLayer(f"l{k}", forward[k] / 8, tuple(range(edges[k], edges[k + 1])))
        for k in reversed(range(len(widths)))
    ]
    whole_s = ready[-1] + draw(st.sampled_from([0.0, 1.25]))
    optimizer_s = draw(st.sampled_from([0.0, 2.5]))
    return StepModel(tuple(gradients), sum(forward) / 8, whole_s, optimizer_s), ahead


def dear_by_hand(
    ahead: list[ForwardLayer], step: StepModel, buckets: Buckets, curve: CostCurve, steps: int
) -> list[float]:
    """When each of so many backward passes starts: the maxima and sums of the schedule, one step after the other."""
    gradients = step.gradients
    sizes = [sum(gradients[index].nbytes for index in bucket) for bucket in buckets]
    use = {index: turn for turn, one in enumerate(ahead) for index in one.gradients}
    starts, device_s, link_s = [], 0.0, 0.0
    for _ in range(steps):
        starts.append(device_s)
        began_s = device_s
        device_s += step.backward_s
        for bucket, size in zip(buckets, sizes, strict=True):
            link_s = max(link_s, began_s + max(gradients[i].ready_s for i in bucket)) + curve(float(size)) / 2
        arrival: dict[int, float] = {}
        for number in sorted(range(len(buckets)), key=lambda k: min(use[i] for i in buckets[k])):
            link_s += curve(float(sizes[number])) / 2
            arrival |= dict.fromkeys(buckets[number], link_s)
        for one in ahead:
            own = sum(gradients[i].nbytes for i in one.gradients) / (step.grad_bytes or 1)
            device_s = max([device_s, *(arrival[i] for i in one.gradients)]) + own * step.optimizer_s + one.forward_s
        if step.grad_bytes == 0:
            device_s += step.optimizer_s
    return starts


LINE = st.builds(CostCurve.line, st.floats(0, 3), st.floats(0, 1))
CUTS = st.integers(0, 2**11)


@given(nets(), LINE, CUTS)
def test_every_period_of_dear_is_the_one_simulated(net: Any, curve: CostCurve, cuts: int) -> None:
    step, ahead = net
    buckets = cut(len(step.gradients), cuts)
    took_s = dear(ahead, step, buckets, curve).step_s
    starts = dear_by_hand(ahead, step, buckets, curve, 4)
    assert [b - a for a, b in itertools.pairwise(starts)] == [pytest.approx(took_s, abs=1e-9)] * 3


@given(nets(), LINE, CUTS, st.integers(1, 60), st.integers(0, 100), st.floats(1, 3), st.floats(1, 3))
def test_no_step_is_shorter_than_its_compute_or_its_link_time(
    net: Any, curve: CostCurve, cuts: int, part: int, credit: int, rho: float, sigma: float
) -> None:
    step, ahead = net
    for contention in (None, constant(rho, sigma)):
        steps = [
            dear(ahead, step, cut(len(step.gradients), cuts), curve, contention=contention),
            priority(ahead, step, curve, partition_bytes=part, credit_bytes=credit, contention=contention),
        ]
        for found in steps:
            link_s = sum(s.end_s - s.start_s for s in found.timeline.communication)
            assert found.step_s >= max(step.compute_s, link_s) - 1e-9
            if contention is None:
                assert found.step_s == pytest.approx(step.compute_s + found.exposed_s, abs=1e-9)
        whole = sum(curve(float(sum(step.gradients[i].nbytes for i in b))) for b in cut(len(step.gradients), cuts))
        assert steps[0].step_s >= whole - 1e-9
        assert sum(s.nbytes or 0 for s in steps[1].timeline.communication) == step.grad_bytes


@given(nets(), LINE)
def test_priority_takes_no_longer_than_whole_tensors_as_they_come(net: Any, curve: CostCurve) -> None:
    step, ahead = net
    in_turn = simulate(step, merge.wfbp(step.gradients), curve)
    assert priority(ahead, step, curve, partition_bytes=math.inf).step_s <= in_turn.step_s + 1e-9


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="exactly once"):
        dear(AHEAD, NET, [[0], [1]], BYTE_A_SECOND)
    with pytest.raises(ValueError, match="layers do not hold each of the 3 gradients exactly once"):
        dear(AHEAD[:2], NET, WFBP, BYTE_A_SECOND)
    with pytest.raises(ValueError, match="layers do not hold each of the 3 gradients exactly once"):
        dear([*AHEAD, ForwardLayer("again", 1.0, (0,))], NET, WFBP, BYTE_A_SECOND)
    with pytest.raises(ValueError, match="optimizer_s is nan"):
        dear(AHEAD, replace(NET, optimizer_s=math.nan), WFBP, BYTE_A_SECOND)
    with pytest.raises(ValueError, match="forward_s of 'a' is -1"):
        dear([replace(AHEAD[0], forward_s=-1.0), *AHEAD[1:]], NET, WFBP, BYTE_A_SECOND)
    with pytest.raises(ValueError, match="different profiles"):
        forward_layers(LAYERS[:1], StepModel.of(LAYERS, step_times()))
