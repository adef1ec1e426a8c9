"""Topologies: the table's formulas for a line, exactly invertible for any curve, monotone where they must be."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xbench.errors import SpecError
from xbench.planning import cost
from xbench.planning.contention import Contention
from xbench.planning.conversion import carried_contention, carried_over, carried_to, paced
from xbench.planning.cost import CostCurve
from xbench.planning.topology import (
    BETWEEN_LATENCY_S,
    SustainedRate,
    Topology,
    message,
    message_of,
    no_sooner,
    pace_of,
    parse_topology,
    terms,
)
from xbench.records import Contention as MeasuredContention
from xbench.records import ContentionPoint, CostModel, CostPoint, CostSegment

ALL = [
    Topology("ring"),
    Topology("tree"),
    Topology("halving-doubling"),
    Topology("doubling"),
    Topology("hierarchical", 8),
    Topology("hierarchical", 8, between_bps=4e11),
]
SIZES = [2, 3, 4, 7, 8, 16, 64, 100, 2048]

times = st.floats(1e-7, 1e-2)
workers = st.integers(2, 4096)
topologies = st.sampled_from(ALL)


@st.composite
def curves(draw: st.DrawFn, *, first: float = 1.0) -> CostCurve:
    """Any monotone piecewise linear curve with a first knot at `first` bytes or later."""
    count = draw(st.integers(1, 6))
    gaps = draw(st.lists(st.floats(1.0, 1e6), min_size=count, max_size=count))
    rises = draw(st.lists(st.floats(0.0, 1e-2), min_size=count, max_size=count))
    return CostCurve(
        np.cumsum(np.array(gaps)) - gaps[0] + first,
        np.cumsum(np.array(rises)) + draw(times),
        draw(st.floats(0.0, 1e-7)),
    )


@st.composite
def straight(draw: st.DrawFn) -> CostModel:
    return model(draw(st.integers(2, 64)), draw(times), draw(st.floats(1e-12, 1e-7)))


def model(world_size: int, alpha_s: float, beta: float, **changes: object) -> CostModel:
    points = [
        CostPoint(nbytes=n, transfer_s=alpha_s + beta * n, ci95=(0.0, 1.0), wait_s=0.0, repetitions=3)
        for n in (1024, 1024**2)
    ]
    made = CostModel(
        backend="gloo", world_size=world_size, alpha_s=alpha_s, beta_s_per_byte=beta,
        alpha_ci95=(alpha_s / 2, alpha_s * 2), beta_ci95=(beta / 2, beta * 2), max_relative_residual=0.01,
        points=points,
    )  # fmt: skip
    return made.model_copy(update=changes)


FORMULAS = {
    "ring": cost.ring,
    "tree": cost.double_binary_trees,
    "halving-doubling": cost.halving_doubling,
    "doubling": cost.recursive_doubling,
}


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("name", FORMULAS)
def test_a_line_becomes_the_table_s_line(name: str, count: int) -> None:
    a, b = FORMULAS[name](3e-5, 1e-9, 0.0, count)
    assert Topology(name).line(3e-5, 1e-9, count) == (a, b)
    curve = Topology(name).curve(CostCurve.line(3e-5, 1e-9), count)
    for nbytes in (1.0, 1e3, 1e6, 1e9):
        assert curve(nbytes) == pytest.approx(a + b * nbytes, rel=1e-12)


def test_exact_figures() -> None:
    line = CostCurve.line(1.0, 1.0)
    assert Topology("ring").curve(line, 4)(8.0) == 2 * 3 * (1 + 2)
    assert Topology("tree").curve(line, 4)(8.0) == 3 * 1 + (1 + 8)
    assert Topology("halving-doubling").curve(line, 4)(8.0) == 2 * (1 + 4) + 2 * (1 + 2)
    assert Topology("doubling").curve(line, 4)(8.0) == 2 * (1 + 8)
    # 8 workers in hosts of 4: inside, a ring of 4 with messages of 2 bytes at 0.5 + 8/8·m; across, a ring of 2.
    nested = Topology("hierarchical", 4, inside_bps=8.0, inside_latency_s=0.5)
    assert nested.curve(line, 8)(8.0) == 2 * 3 * (0.5 + 2) + 2 * 1 * (1 + 4)
    assert nested.curve(line, 2)(8.0) == 2 * 1 * (0.5 + 4)
    assert nested.curve(line, 5)(8.0) == nested.curve(line, 8)(8.0)


def test_a_step_between_protocols_stays_at_its_size_of_message() -> None:
    # Two workers: messages of half the bytes. Below 100 bytes a message takes 1 s, from 200 on 3 s.
    measured = CostCurve(np.array([200.0, 400.0]), np.array([2.0, 6.0]), 0.0)
    t = message_of(measured, 2)
    assert (t(100.0), t(200.0)) == (1.0, 3.0)
    four = Topology("ring").curve(t, 4)
    assert (four(400.0), four(800.0)) == (6 * 1.0, 6 * 3.0)
    halving = Topology("halving-doubling").curve(t, 4)
    assert halving(400.0) == 2 * 3.0 + 2 * 1.0  # messages of 200 and of 100 bytes
    assert Topology("tree").curve(t, 4)(200.0) == 3 * 1.0 + 3.0


@given(curves(), workers)
def test_there_and_back_is_the_identity(curve: CostCurve, count: int) -> None:
    again = Topology("ring").curve(message_of(curve, count), count)
    np.testing.assert_allclose(again.sizes, curve.sizes, rtol=1e-12)
    np.testing.assert_allclose(again.times, curve.times, rtol=1e-12)
    assert again.slope == pytest.approx(curve.slope, rel=1e-12)


@given(curves(), topologies, workers, st.lists(st.floats(0.0, 1e9), min_size=2, max_size=8))
def test_more_bytes_never_take_less_time(t: CostCurve, topology: Topology, count: int, sizes: list[float]) -> None:
    took = topology.curve(t, count)(np.array(sorted(sizes)))
    assert np.all(np.diff(took) >= -1e-12 * took[:-1])


@given(times, st.floats(1e-12, 1e-7), topologies, workers, workers, st.floats(1.0, 1e9))
def test_more_workers_never_take_less_time_on_a_straight_line(
    alpha_s: float, beta: float, topology: Topology, few: int, many: int, nbytes: float
) -> None:
    few, many = sorted((few, many))
    line = CostCurve.line(alpha_s, beta)
    assert topology.curve(line, few)(nbytes) <= topology.curve(line, many)(nbytes) * (1 + 1e-12)


@given(curves(), topologies, workers)
def test_a_curve_is_the_sum_of_its_messages(t: CostCurve, topology: Topology, count: int) -> None:
    """The knots are enough: between them nothing bends."""
    sizes = np.geomspace(1.0, 1e9, 40)
    took = topology.curve(t, count)(sizes)
    if topology.name == "ring":
        wanted = 2 * (count - 1) * t(sizes / count)
    elif topology.name == "tree":
        wanted = (2 * math.log2(count) - 1) * float(t.times[0]) + t(sizes)
    elif topology.name == "doubling":
        wanted = math.log2(count) * t(sizes)
    elif topology.name == "halving-doubling" and count & (count - 1) == 0:
        wanted = 2 * sum(t(sizes / 2**k) for k in range(1, int(math.log2(count)) + 1))
    elif topology.name == "hierarchical" and count > 8:
        hosts = math.ceil(count / 8)
        alpha_s, s_per_byte = topology.given_link
        if topology.measured_inside:
            wanted = 14 * t(sizes / 8) + 2 * (hosts - 1) * (alpha_s + s_per_byte * sizes / hosts)
        else:
            wanted = 14 * (alpha_s + s_per_byte * sizes / 8) + 2 * (hosts - 1) * t(sizes / hosts)
    else:
        return
    np.testing.assert_allclose(took, wanted, rtol=1e-9)


@given(straight(), topologies, workers)
def test_the_line_and_the_curve_of_a_cost_model_agree(measured: CostModel, topology: Topology, count: int) -> None:
    made = carried_over(measured, topology, count)
    assert made.world_size == count
    for nbytes in (1e3, 1e6, 1e9):
        line = made.alpha_s + made.beta_s_per_byte * nbytes
        assert CostCurve.of(made)(nbytes) == pytest.approx(line, rel=1e-9)
    assert made.alpha_ci95[0] <= made.alpha_s <= made.alpha_ci95[1]
    assert made.beta_ci95[0] <= made.beta_s_per_byte <= made.beta_ci95[1]


def test_the_ring_that_was_measured_is_that_very_model() -> None:
    measured = model(4, 1e-3, 1e-8)
    assert carried_over(measured, Topology("ring"), 4) is measured


def test_segments_are_carried_over_as_the_curve() -> None:
    pieces = [
        CostSegment(from_bytes=1000, alpha_s=1e-3, beta_s_per_byte=1e-8),
        CostSegment(from_bytes=100_000, alpha_s=0.0, beta_s_per_byte=2e-8),
    ]
    measured = model(2, 1e-3, 1.5e-8, segments=pieces, segmented_max_relative_residual=0.01)
    for topology in ALL:
        for count in (4, 6, 64):
            wanted = topology.curve(message(measured), count)
            got = CostCurve.of(carried_over(measured, topology, count))
            sizes = np.geomspace(1e3, 1e9, 30)
            np.testing.assert_allclose(got(sizes), wanted(sizes), rtol=1e-4)  # knots are whole bytes


def test_contention_moves_with_the_size_of_message() -> None:
    measured = Contention(np.log(np.array([1000.0, 8000.0])), np.full((2, 2), 1.5), np.array([[2.0, 1.0], [2.0, 1.0]]))
    link = model(2, 1e-3, 1e-8)
    assert carried_contention(measured, link, Topology("ring"), 2) is measured
    for topology, count, nbytes in (
        (Topology("ring"), 16, 8000.0),  # messages of 500 bytes, as of 1000 on two workers
        (Topology("tree"), 16, 500.0),
        (Topology("halving-doubling"), 16, 1000.0),
        (Topology("hierarchical", 8), 32, 2000.0),  # a ring of four hosts
        (Topology("hierarchical", 8, between_bps=4e11), 32, 4000.0),  # a ring of eight, in each host
    ):
        moved = carried_contention(measured, link, topology, count)
        assert moved.compute_slowdown(np.array([nbytes, 8 * nbytes])) == pytest.approx(np.array([[2.0, 1.0]] * 2))


def test_alpha_and_beta_of_one_message() -> None:
    # The paper's K80 on 10GbE: a = 9.72e-4 over 16 workers is 30 messages.
    alpha_s, beta = terms(model(16, 9.72e-4, 1.97e-9))
    assert alpha_s == pytest.approx(9.72e-4 / 30)
    assert beta == pytest.approx(1.97e-9 * 16 / 30)
    made = carried_over(model(16, 9.72e-4, 1.97e-9), Topology("ring"), 64)
    assert made.alpha_s == pytest.approx(9.72e-4 * 126 / 30)
    assert made.beta_s_per_byte == pytest.approx(1.97e-9 * (63 / 64) / (15 / 16))


@pytest.mark.parametrize("topology", ALL, ids=str)
def test_one_worker_has_no_all_reduce(topology: Topology) -> None:
    for call in (
        lambda: topology.curve(CostCurve.line(1.0, 1.0), 1),
        lambda: topology.line(1.0, 1.0, 1),
        lambda: message_of(CostCurve.line(1.0, 1.0), 1),
    ):
        with pytest.raises(ValueError, match="at least 2"):
            call()


@pytest.mark.parametrize("topology", ALL, ids=str)
def test_a_topology_s_text_parses_to_itself(topology: Topology) -> None:
    again = parse_topology(str(topology))
    assert (again.name, again.gpus, again.inside_bps) == (topology.name, topology.gpus, topology.inside_bps)
    assert again.between_bps == topology.between_bps
    assert again.given_link == pytest.approx(topology.given_link)


def test_options_inside_a_host() -> None:
    assert parse_topology("hierarchical:gpus=4,rate=100gbit,latency=2us") == Topology("hierarchical", 4, 1e11, 2e-6)
    assert parse_topology("double-binary-trees") == Topology("tree")


def test_options_between_hosts() -> None:
    found = parse_topology("hierarchical:gpus=8,between=400gbit")
    assert (found.measured_inside, found.given_link) == (True, (10e-6, 8 / 400e9))
    assert str(found) == "hierarchical:gpus=8,between=400gbit,latency=10us"
    assert parse_topology("hierarchical:gpus=8,between=400gbit,latency=3us").given_link[0] == pytest.approx(3e-6)


@given(curves())
def test_a_host_that_was_measured_keeps_its_curve_and_other_hosts_add_a_ring(curve: CostCurve) -> None:
    nested = Topology("hierarchical", 8, between_bps=8e9, between_latency_s=1e-3)
    t, sizes = message_of(curve, 8), np.geomspace(1.0, 1e9, 40)
    np.testing.assert_allclose(nested.curve(t, 8)(sizes), curve(sizes), rtol=1e-9)
    between_s = 2 * 3 * (1e-3 + 1e-9 * sizes / 4)
    np.testing.assert_allclose(nested.curve(t, 32)(sizes), curve(sizes) + between_s, rtol=1e-9)


def test_the_pace_of_a_link_inside_a_host_holds_no_link_between_hosts() -> None:
    nested, pace = Topology("hierarchical", 2, between_bps=8.0), SustainedRate(5.0, 0.0)
    line = CostCurve.line(0.0, 1.0)
    free, held = nested.curve(line, 4)(8.0), nested.curve(line, 4, pace)(8.0)
    assert free == pytest.approx(2 * (8 / 2) + 2 * (BETWEEN_LATENCY_S + 8 / 2))
    assert held == pytest.approx(5.0 * 8 + 2 * (BETWEEN_LATENCY_S + 8 / 2))


@pytest.mark.parametrize(
    ("text", "sentence", "hint"),
    [
        ("rign", "unknown topology 'rign'", "did you mean 'ring'? (xbench scale --help lists them all)"),
        ("hierarchical", "'hierarchical' does not say how many workers a host has", "write hierarchical:gpus=8"),
        ("hierarchical:gpus=1", "'hierarchical:gpus=1': gpus=1 is out of range 2 to 1024", "try gpus=2"),
        ("hierarchical:gpu=8", "'hierarchical:gpu=8': unknown option 'gpu'", "did you mean 'gpus'?"),
        ("ring:gpus=8", "'ring:gpus=8': unknown option 'gpus'", "it takes no options"),
        ("", "'' has no name", "write name or name:key=value,key=value"),
        (
            "hierarchical:gpus=8,rate=1tbit,between=400gbit",
            "'hierarchical:gpus=8,rate=1tbit,between=400gbit': with between= the measured link is the one inside a "
            "host, so rate= has no place",
            "leave out rate=",
        ),
        ("hierarchical:gpus=8,rate=fast", "'fast' is not a rate", "write it like 100mbit, 1gbit or 10gbit"),
    ],
)
def test_bad_topologies(text: str, sentence: str, hint: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_topology(text)
    assert (str(caught.value), caught.value.hint) == (sentence, hint)


# --- the pace of a link: many messages that fit into a burst are not each as fast as one ------------------------------

RING = Topology("ring")
SPLIT = [RING, Topology("halving-doubling"), Topology("doubling"), Topology("hierarchical", 2)]


def cost_model(workers: int, pieces: list[tuple[int, float, float]], sizes: list[int]) -> CostModel:
    """Pieces (from bytes, α, β) measured without error at these sizes."""
    segments = [CostSegment(from_bytes=n, alpha_s=a, beta_s_per_byte=b) for n, a, b in pieces]
    made = CostModel(
        backend="gloo", world_size=workers, alpha_s=pieces[0][1], beta_s_per_byte=pieces[-1][2],
        alpha_ci95=(0.0, 1e3), beta_ci95=(0.0, 1e3), max_relative_residual=0.5, points=[], segments=segments,
        segmented_max_relative_residual=0.0,
    )  # fmt: skip
    took = CostCurve.of(made)
    points = [CostPoint(nbytes=n, transfer_s=took(float(n)), ci95=(0.0, 1e6), wait_s=0.0, repetitions=3) for n in sizes]
    return made.model_copy(update={"points": points})


BUCKET = cost_model(2, [(1, 2.0, 0.0), (100, -98.0, 1.0)], [100, 10_000])
"""A token bucket: 2 s up to 100 bytes, which pass at once, and then a second a byte, of which 98 s are ever saved."""


def test_the_pace_is_the_slope_at_the_end_and_what_was_saved_counts_once() -> None:
    assert pace_of(BUCKET) == SustainedRate(1.0, 98.0)
    four = pace_of(cost_model(4, [(1, 2.0, 0.0), (100, -98.0, 1.0)], [100, 10_000]))
    assert four == SustainedRate(pytest.approx(2 / 3), 98.0)  # of four, a worker sends 1.5 bytes for each


def test_a_stray_last_point_is_not_the_pace() -> None:
    # From 100 to 10 000 bytes a second a byte, and 10 a byte beyond 9 000: a last point that took 9 000 s too long.
    stray = cost_model(2, [(100, 0.0, 1.0), (9_000, -81_000.0, 10.0)], [100, 9_000, 10_000])
    assert pace_of(stray).s_per_byte == pytest.approx(18_900 / 9_900)


@pytest.mark.parametrize("alpha_s", [0.0, 3.0])
def test_a_straight_line_has_saved_nothing(alpha_s: float) -> None:
    straight = cost_model(2, [(1, alpha_s, 2.0)], [1, 100]).model_copy(update={"segments": []})
    assert pace_of(straight).saved_s == 0.0
    for topology in SPLIT:
        assert np.all(paced(straight, topology, 8, np.array([1.0, 1e3, 1e6])) == 1.0)


def test_many_messages_within_a_burst_take_what_the_link_takes_for_long() -> None:
    pace = pace_of(BUCKET)
    four = RING.curve(message(BUCKET), 4, pace)
    # Messages of 25 bytes take 1 s each and fit into what was saved: 150 bytes in 6 s need 52.
    assert four(100.0) == 1.5 * 100 - 98
    assert four(40.0) == 6 * 1.0  # 60 bytes: the burst holds them
    assert four(400.0) == 1.5 * 400 - 98
    assert RING.curve(message(BUCKET), 4)(400.0) == 6 * 51.0  # of messages, each after a rest
    assert Topology("halving-doubling").curve(message(BUCKET), 4, pace)(1000.0) == 1.5 * 1000 - 98
    assert Topology("tree").curve(message(BUCKET), 4, pace)(1000.0) == 3 * 1.0 + 951.0  # one message has all bytes


def test_two_workers_of_two_keep_what_was_measured() -> None:
    again = RING.curve(message(BUCKET), 2, pace_of(BUCKET))
    sizes = np.array([1.0, 50.0, 100.0, 101.0, 1e3, 1e5])
    assert again(sizes) == pytest.approx(CostCurve.of(BUCKET)(sizes), rel=1e-12)


@given(
    st.integers(2, 16),
    st.lists(st.tuples(st.integers(1, 10**6), st.floats(0.0, 10.0)), min_size=2, max_size=6, unique_by=lambda p: p[0]),
    st.sampled_from(SPLIT),
    st.integers(2, 512),
    st.floats(1.0, 1e8),
)
def test_neither_the_messages_nor_the_pace_is_beaten(
    among: int, knots: list[tuple[int, float]], topology: Topology, workers: int, nbytes: float
) -> None:
    sizes = np.array(sorted(n for n, _ in knots), dtype=np.float64)
    times = np.cumsum([rise for _, rise in knots]) + 1e-3
    slopes = np.diff(times) / np.diff(sizes)
    pieces = [(int(n), float(t - b * n), float(b)) for n, t, b in zip(sizes[:-1], times, slopes, strict=False)]
    link = cost_model(among, pieces, [int(n) for n in sizes])
    pace = pace_of(link)
    free, held = topology.curve(message(link), workers), topology.curve(message(link), workers, pace)
    hosts = -(-workers // 2)
    sent = {"doubling": np.log2(workers), "hierarchical": 2 * (hosts - 1) / hosts}.get(
        topology.name, 2 * (workers - 1) / workers
    )
    assert held(nbytes) == pytest.approx(
        max(free(nbytes), sent * pace.s_per_byte * nbytes - pace.saved_s + _inside(topology, workers, nbytes)), rel=1e-6
    )


def _inside(topology: Topology, workers: int, nbytes: float) -> float:
    """Two workers of one host need more time once there is a second host."""
    if topology.name != "hierarchical" or workers <= topology.gpus:
        return 0.0
    return 2 * topology.inside_latency_s + nbytes * 8 / topology.inside_bps


def test_the_pace_goes_on_where_the_last_slope_is_steeper() -> None:
    # Flat at 1 s, then 4 s a byte from 10 bytes on; at a pace of 2 s a byte from 3 on: both meet again at 17.
    held = no_sooner(CostCurve(np.array([1.0, 10.0]), np.array([1.0, 1.0]), 4.0), 1.0, SustainedRate(2.0, 5.0))
    assert held(np.array([2.0, 3.0, 10.0, 17.0, 20.0])).tolist() == [1.0, 1.0, 15.0, 29.0, 41.0]


def test_contention_fits_into_what_the_pace_adds() -> None:
    # Of two, 100 bytes take 2 s. Of four, 200 bytes are 6 messages of as many bytes: 6 s, but 202 at the link's pace.
    measured = Contention(
        np.log(np.array([100.0])), np.array([[3.0], [50.0]]), np.array([[1.5], [1.5]]), quiet=np.array([[1.0], [40.0]])
    )
    moved = carried_contention(measured, BUCKET, RING, 4)
    size = np.array([200.0])
    assert np.exp(moved.log_sizes) == pytest.approx(size)
    assert moved.collective_slowdown(size) == pytest.approx(np.array([[1.0], [300 / 202]]))
    assert moved.paired_quiet(size) == pytest.approx(np.array([[1.0], [240 / 202]]))
    # A third of 18 s and of 300 s of computation is lost, as before, to what now takes 202 and 300.
    assert 1 - 1 / moved.compute_slowdown(size) == pytest.approx(np.array([[6 / 202], [100 / 300]]))


def test_a_what_if_says_the_same_as_what_plans_take() -> None:
    was = MeasuredContention(
        launch_s=0.0,
        points=[
            ContentionPoint(nbytes=100, in_flight=n, alone_s=alone, loaded_s=loaded, compute_slowdown=1.5)
            for n, alone, loaded in ((1, 2.0, 6.0), (2, 80.0, 100.0))
        ],
    )
    carried = carried_to(was, BUCKET, 4)
    first, second = carried.points[:2]
    assert (first.nbytes, first.alone_s, first.loaded_s) == (200, pytest.approx(202), pytest.approx(202))
    assert (second.nbytes, second.alone_s, second.loaded_s) == (200, pytest.approx(240), pytest.approx(300))
    assert (first.compute_slowdown, second.compute_slowdown) == (pytest.approx(1 / (1 - 6 / 202)), pytest.approx(1.5))
    # What plans make of the points is what they take elsewhere, but between two of many sizes.
    now = Contention.of(carried, CostCurve.of(carried_over(BUCKET, RING, 4)))
    there = carried_contention(Contention.of(was, CostCurve.of(BUCKET)), BUCKET, RING, 4)
    sizes = np.array([100.0, 200.0, 1000.0])
    for name in ("collective_slowdown", "compute_slowdown", "paired_quiet"):
        assert getattr(now, name)(sizes) == pytest.approx(getattr(there, name)(sizes), rel=0.02), name
