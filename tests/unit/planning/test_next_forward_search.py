"""Orders, parts and credit by hand on small nets; what every plan of the search promises, by property."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_cases import AHEAD, BYTE_A_SECOND, NET, constant, layer, line, priority, sent

from xbench.modes import next_forward_modes
from xbench.planning.contention import Contention
from xbench.planning.cost import CostCurve
from xbench.planning.next_forward import forward_layers, from_forward, part_sizes
from xbench.planning.next_forward_search import NextForwardSearch, packed, worth_s
from xbench.planning.plans import Planner
from xbench.planning.simulate import bucket_bytes
from xbench.planning.step import Gradient, StepModel
from xbench.records import CostModel, Layer, Parts, Plan

MIB = 2**20


def test_a_fixed_order_waits_for_its_next_part_though_others_are_ready() -> None:
    # a first: it is ready at 3, and c, ready since 1, has to wait for it
    for credit in (0.0, math.inf):
        step = priority(AHEAD, NET, BYTE_A_SECOND, partition_bytes=2, order=[2, 0, 1], credit_bytes=credit)
        assert sent(step) == [("a", 3.0, 5.0), ("c", 5.0, 7.0), ("b", 7.0, 9.0)]


def test_a_layer_waits_for_the_parts_that_hold_its_own_tensors() -> None:
    # one bucket c b a, full at 3, in parts of two bytes, one a tensor: the last part is needed first
    step = priority(AHEAD, NET, BYTE_A_SECOND, buckets=[[0, 1, 2]], partition_bytes=2)
    assert [(s.name, s.start_s) for s in step.timeline.communication] == [
        ("bucket 1 3 of 3", 3.0), ("bucket 1 2 of 3", 5.0), ("bucket 1 1 of 3", 7.0),
    ]  # fmt: skip
    assert [(s.name, s.start_s) for s in step.timeline.compute[1:]] == [
        ("forward a", 5.0), ("forward b", 7.0), ("forward c", 9.0),
    ]  # fmt: skip
    # with parts of three bytes b lies in both
    step = priority(AHEAD, NET, BYTE_A_SECOND, buckets=[[0, 1, 2]], partition_bytes=3)
    assert [(s.name, s.end_s) for s in step.timeline.communication] == [
        ("bucket 1 2 of 2", 6.0), ("bucket 1 1 of 2", 9.0),
    ]  # fmt: skip
    assert [s.start_s for s in step.timeline.compute[1:]] == [6.0, 9.0, 10.0]


def test_a_timeline_begins_with_the_forward_pass_and_shows_what_the_step_before_left() -> None:
    step = priority(AHEAD, NET, BYTE_A_SECOND, partition_bytes=math.inf)  # c 1–3, a 3–5, b 5–7; 9 s, backward until 3
    turned = from_forward(step)
    assert [(s.name, s.start_s, s.end_s) for s in turned.compute] == [
        ("forward a", 2.0, 3.0), ("forward b", 4.0, 5.0), ("forward c", 5.0, 6.0), ("backward", 6.0, 9.0),
    ]  # fmt: skip
    assert [(s.name, s.start_s, s.end_s) for s in turned.communication] == [
        ("a", 0.0, 2.0), ("b", 2.0, 4.0), ("c", 7.0, 9.0),
    ]  # fmt: skip
    # slower: c is on its way from 1 to 5, across the border at 3
    slow = from_forward(priority(AHEAD, NET, CostCurve.line(0.0, 2.0), partition_bytes=math.inf))
    assert [(s.name, s.start_s, s.end_s, s.nbytes) for s in slow.communication] == [
        ("c", 0.0, 2.0, None), ("a", 2.0, 6.0, 2), ("b", 6.0, 10.0, 2), ("c", 13.0, 15.0, 2),
    ]  # fmt: skip


def test_buckets_are_packed_up_to_a_limit_and_never_of_two_dtypes() -> None:
    sizes = [(3, "float32"), (3, "float32"), (3, "float32"), (20, "float32"), (1, "bfloat16"), (1, "bfloat16")]
    gradients = [Gradient(f"g{k}", nbytes, float(k), dtype) for k, (nbytes, dtype) in enumerate(sizes)]
    assert packed(gradients, 6) == [[0, 1], [2], [3], [4, 5]]
    assert packed(gradients, 1) == [[0], [1], [2], [3], [4], [5]]
    assert packed(gradients, 100) == [[0, 1, 2, 3], [4, 5]]


def test_parts_of_what_is_not_used_follow_all_others() -> None:
    parts = Parts(nbytes=16, order=[2, 0, 1], credit_bytes=32)
    assert parts.followed_by([16, 17, 0]) == Parts(nbytes=16, order=[2, 0, 1, 3, 4, 5, 6], credit_bytes=32)


@st.composite
def profiles(draw: st.DrawFn) -> tuple[list[Layer], StepModel]:
    """Layers in ready order, of up to three tensors of nothing to 8 MiB."""
    layers: list[Layer] = []
    now_s = 0.0
    for number in range(draw(st.integers(1, 5))):
        tensors = []
        for _ in range(draw(st.integers(1, 3))):
            now_s += draw(st.integers(0, 40)) / 1000
            tensors.append((draw(st.sampled_from([0, 4, 4096, 2**19, 2**20, 5 * 2**20, 2**23])), now_s))
        layers.append(layer(f"l{number}", tensors, draw(st.integers(0, 40)) / 1000))
    gradients = tuple(
        Gradient(t.name, t.bytes, t.ready_s, t.dtype, t.elements)
        for t in sorted((t for one in layers for t in one.tensors), key=lambda t: t.ready_s)
    )
    forward_s = sum(one.forward_s for one in layers)
    return layers, StepModel(gradients, forward_s, now_s + draw(st.sampled_from([0.0, 0.05])), 0.01)


LINES = st.builds(line, st.sampled_from([0.0, 1e-4, 5e-3]), st.sampled_from([1e-9, 1e-8, 4e-8]))
SEARCHES = st.builds(lambda made, cost: NextForwardSearch(*made, cost), profiles(), LINES)


@settings.get_profile("few")
@given(SEARCHES)
def test_every_plan_covers_its_bytes_and_takes_no_less_than_it_can(search: NextForwardSearch) -> None:
    step, curve = search.step, search._curve
    for found in (search.dear(), search.priority()):
        assert sorted(itertools.chain(*found.buckets)) == list(range(len(step.gradients)))
        sizes = bucket_bytes(step.gradients, found.buckets)
        if found.parts is not None:
            cut = [part_sizes(nbytes, found.parts.nbytes) for nbytes in sizes]
            assert [sum(parts) for parts in cut] == sizes
            sizes = list(itertools.chain(*cut))
            assert sorted(found.parts.order) == list(range(len(sizes)))
            assert found.parts.nbytes % 16 == 0
        link_s = sum(curve(float(nbytes)) for nbytes in sizes)
        assert found.step_s >= max(step.compute_s, link_s) - 1e-9
        assert found.carrier is not None
        assert search.step_of(found.carrier, found.buckets, found.parts).step_s == found.step_s


@settings.get_profile("few")
@given(profiles(), LINES, st.floats(1, 2), st.floats(1, 2))
def test_priority_is_never_predicted_worse_than_its_parts_in_ready_order(
    made: tuple[list[Layer], StepModel], cost: CostModel, rho: float, sigma: float
) -> None:
    layers, step = made
    search = NextForwardSearch(layers, step, cost, contention=constant(rho, sigma))
    found = search.priority()
    in_turn = found.parts.model_copy(update={"order": sorted(found.parts.order)})
    assert found.step_s <= search.step_of("priority", found.buckets, in_turn).step_s * (1 + 1e-9)


@settings.get_profile("few")
@given(SEARCHES)
def test_the_best_dear_is_worth_no_less_than_any_candidate(search: NextForwardSearch) -> None:
    best = search.dear()
    for _, buckets in search._families():
        other = worth_s(search.step_of("dear", buckets).step_s, 2 * len(buckets))
        assert worth_s(best.step_s, 2 * len(best.buckets)) <= other * (1 + 1e-9)


@settings.get_profile("few")
@given(SEARCHES)
def test_a_free_choice_and_its_own_order_end_at_the_same_time(search: NextForwardSearch) -> None:
    for cut in search._cuts():
        assert sorted(cut.order) == list(range(sum(len(parts) for parts in cut.parts)))
        credit = 2 * cut.part_bytes
        _, _, fixed = search._net.priority(cut.buckets, cut.parts, credit_bytes=credit, order=cut.order)
        assert worth_s(fixed.end_s, len(cut.order)) == cut.worth_s


def net_of(sizes: list[int], ready_s: list[float], forward_s: float) -> tuple[list[Layer], StepModel]:
    """Layers of so many bytes, ready then, each of which takes `forward_s` forward, with no other work."""
    tensors = list(zip(sizes, ready_s, strict=True))
    layers = [layer(f"l{k}", [tensor], forward_s) for k, tensor in enumerate(tensors)]
    gradients = tuple(Gradient(f"l{k}.0", nbytes, at_s) for k, (nbytes, at_s) in enumerate(tensors))
    return layers, StepModel(gradients, forward_s * len(sizes), ready_s[-1], 0.0)


def test_dear_divides_equal_layers_into_thirds_where_these_are_best() -> None:
    """Twelve layers of 100 bytes, T = 5 s + M/200: half of it is 5.5, 4, 3.5 and 3.25 s of one to four buckets.

    With thirds, the last scatter is from 12 to 15.5 and its gather until 19; then forward takes 24 without a wait. With
    one bucket both take until 23, with two until 20. With quarters the scatters before it end at 12.75, and it is
    gathered at 19.25.
    """
    layers, step = net_of([100] * 12, [k + 1.0 for k in range(12)], 2.0)
    cost = line(5.0, 0.005)
    search = NextForwardSearch(layers, step, cost)
    shares = [[list(range(k, k + 12 // n)) for k in range(0, 12, 12 // n)] for n in (1, 2, 3, 4)]
    assert [search.step_of("dear", buckets).step_s for buckets in shares] == pytest.approx([47, 44, 43, 43.25])
    found = search.dear()
    assert (found.buckets, found.step_s) == (shares[2], pytest.approx(43))


def test_priority_takes_the_best_size_of_parts() -> None:
    """Two tensors of 64 MiB, T = 0.1 s + a second for each 4 MiB; forward of either takes a second.

    Whole, the first is sent from 2 to 18.1 and the urgent one to 34.2. In parts of 16 MiB the urgent one passes after
    the first part. The eight parts end at 34.8, and 32 parts of 4 MiB at 37.2.
    """
    layers, step = net_of([64 * MIB] * 2, [2.0, 4.0], 1.0)
    cost = line(0.1, 0.25 / MIB)
    ahead, curve = forward_layers(layers, step), CostCurve.of(cost)
    tried = [priority(ahead, step, curve, partition_bytes=size * MIB).step_s for size in (4, 16, 64)]
    assert tried == pytest.approx([38.2, 35.8, 36.2])
    found = NextForwardSearch(layers, step, cost).priority()
    assert found.step_s == pytest.approx(35.8)
    assert found.parts.nbytes == 16 * MIB


def test_small_neighbours_share_a_bucket_and_large_ones_do_not() -> None:
    """Layers of 2, 2, 1/4 and 1/2 MiB, ready from 1 to 4; T = 0.5 s + 8 s a MiB; forward of each takes a second.

    The link is busy from 1 on. Four parts of 1 MiB take 8.5 s each and the small two together 6.5: they end at 41.5,
    with the last part of the first layer. By themselves the small two take half a second more. The large two in one
    bucket are sent a second later.
    """
    net = net_of([2 * MIB, 2 * MIB, MIB // 4, MIB // 2], [1.0, 2.0, 3.0, 4.0], 1.0)
    found = NextForwardSearch(*net, line(0.5, 8 / MIB)).priority()
    assert found.buckets == [[0], [1], [2, 3]]
    assert found.step_s == pytest.approx(42.5)


def test_the_order_may_be_that_of_one_part_at_a_time() -> None:
    """T = 3 s a byte. The second of seven tensors is sent from 5 to 8 with nothing beside it, not even the empty first.

    Of those ready at 8 the fourth is the most urgent. It takes until 59. By then all are ready, and go as forward needs
    them. Of two parts at a time, the third would join the second and go before the fourth.
    """
    net = net_of([0, 1, 1, 17, 1, 17, 33], [5.0, 5.0, 7.0, 8.0, 9.0, 9.5, 9.5], 5.0)
    found = NextForwardSearch(*net, line(0.0, 3.0)).priority()
    assert found.buckets == [[0], [1], [2], [3], [4], [5], [6]]
    assert found.parts.order == [1, 3, 6, 5, 4, 2, 0]


def test_one_part_at_a_time_where_two_under_way_are_slower() -> None:
    """Two under way were measured to take three times as long each."""
    beside = Contention(np.zeros(1), np.array([[1.0], [3.0]]), np.ones((2, 1)))
    found = NextForwardSearch(LAYERS, STEP, COST, contention=beside).priority()
    assert found.parts.credit_bytes == 0


LAYERS, STEP = net_of([2**20] * 6, [0.01 * (k + 1) for k in range(6)], 0.01)
COST = line(1e-4, 2e-8)
PLANNER = Planner(STEP, COST, layers=tuple(LAYERS))


def test_a_planner_with_layers_plans_both() -> None:
    assert PLANNER.modes[-2:] == list(next_forward_modes())
    for mode in next_forward_modes():
        plan = PLANNER.plan(mode)
        assert (plan.mode, plan.carrier) == (mode, None)
        assert (plan.parts is not None) == (mode == "priority")
        assert sum(plan.bucket_bytes) == STEP.grad_bytes
        assert plan.predicted_exposed_s == pytest.approx(plan.predicted_step_s - STEP.compute_s)
        assert plan.timeline.compute[-1].name == "backward"
        assert plan.timeline.compute[-1].end_s == pytest.approx(plan.predicted_step_s)
    assert set(Planner(STEP, COST).modes).isdisjoint(next_forward_modes())
    with pytest.raises(ValueError, match="the layers of a profile and a cost model are needed"):
        Planner(STEP, COST).plan("dear")


def test_auto_is_one_of_them_only_where_that_is_allowed() -> None:
    ahead = {mode: PLANNER.plan(mode) for mode in next_forward_modes()}
    assert PLANNER.plan("auto").carrier is None
    plan = PLANNER.plan("auto:forward")
    assert plan.mode == "auto:forward"
    assert plan.carrier in next_forward_modes()
    twin: Plan = ahead[plan.carrier]
    assert (plan.buckets, plan.parts, plan.predicted_step_s) == (twin.buckets, twin.parts, twin.predicted_step_s)
    assert plan.predicted_step_s == min(one.predicted_step_s for one in ahead.values())
    assert plan.note == f"carried by {plan.carrier}: {twin.note}"
