"""Topologies: the table's formulas for a line, exactly invertible for any curve, monotone where they must be."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning_cases import line

from xbench.errors import SpecError
from xbench.planning import cost
from xbench.planning.contention import Contention
from xbench.planning.conversion import carried_contention, carried_over
from xbench.planning.cost import CostCurve
from xbench.planning.topology import Topology, message, message_of, parse_topology, terms
from xbench.records import CostModel, CostPoint, CostSegment

ALL = [
    Topology("ring"),
    Topology("tree"),
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
    return line(alpha_s, beta, world_size).model_copy(update={"points": points, **changes})


FORMULAS = {"ring": cost.ring, "tree": cost.double_binary_trees}


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("name", FORMULAS)
def test_a_line_becomes_the_table_s_line(name: str, count: int) -> None:
    a, b = FORMULAS[name](3e-5, 1e-9, count)
    assert Topology(name).line(3e-5, 1e-9, count) == (a, b)
    curve = Topology(name).curve(CostCurve.line(3e-5, 1e-9), count)
    for nbytes in (1.0, 1e3, 1e6, 1e9):
        assert curve(nbytes) == pytest.approx(a + b * nbytes, rel=1e-12)


def test_exact_figures() -> None:
    line = CostCurve.line(1.0, 1.0)
    assert Topology("ring").curve(line, 4)(8.0) == 2 * 3 * (1 + 2)
    assert Topology("tree").curve(line, 4)(8.0) == 3 * 1 + (1 + 8)
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
        (Topology("hierarchical", 8), 16, 1000.0),  # a ring of two hosts
        (Topology("hierarchical", 8), 32, 2000.0),  # a ring of four hosts
        (Topology("hierarchical", 8, between_bps=4e11), 32, 4000.0),  # a ring of eight, in each host
    ):
        moved = carried_contention(measured, link, topology, count)
        assert moved.compute_slowdown(np.array([nbytes, 8 * nbytes])) == pytest.approx(np.array([[2.0, 1.0]] * 2))


@pytest.mark.parametrize("count", SIZES)
def test_hosts_of_one_worker_are_a_ring(count: int) -> None:
    hosts, ring = Topology("hierarchical"), Topology("ring")
    assert hosts.line(3e-5, 1e-9, count) == ring.line(3e-5, 1e-9, count)
    assert hosts.share(count) == ring.share(count) == 1 / count


def test_alpha_and_beta_of_one_message_and_of_another_ring() -> None:
    # The paper's K80 on 10GbE: a = 9.72e-4 over 16 workers is 30 messages. Here α and β are known to 10 %.
    measured = model(16, 9.72e-4, 1.97e-9)
    alpha_s, beta = terms(measured)
    assert alpha_s == pytest.approx(9.72e-4 / 30)
    assert beta == pytest.approx(1.97e-9 * 16 / 30)
    assert carried_over(measured, Topology("ring"), 16) is measured
    made = carried_over(measured, Topology("ring"), 64)
    assert made.alpha_s == pytest.approx(9.72e-4 * 126 / 30)
    assert made.beta_s_per_byte == pytest.approx(1.97e-9 * (63 / 64) / (15 / 16))
    assert made.alpha_ci95 == pytest.approx((0.9 * made.alpha_s, 1.1 * made.alpha_s))
    assert made.beta_ci95 == pytest.approx((0.9 * made.beta_s_per_byte, 1.1 * made.beta_s_per_byte))


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


@pytest.mark.parametrize(
    ("text", "sentence", "hint"),
    [
        ("rign", "unknown topology 'rign'", "did you mean 'ring'? (xbench plan --help has them all)"),
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
