"""The pace of a link: many messages that fit into a burst are not each as fast as one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from what_if_cases import beside

from xbench.planning.contention import Contention
from xbench.planning.conversion import carried_contention, carried_over, carried_to, paced
from xbench.planning.cost import CostCurve
from xbench.planning.topology import BETWEEN_LATENCY_S, SustainedRate, Topology, at_pace, message, pace_of
from xbench.records import CostModel, CostPoint, CostSegment

RING = Topology("ring")
SPLIT = [RING, Topology("hierarchical", 2)]


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
    ring = workers if topology.name == "ring" else -(-workers // 2)
    sent = 2 * (ring - 1) / ring
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
    held = at_pace(CostCurve(np.array([1.0, 10.0]), np.array([1.0, 1.0]), 4.0), 1.0, SustainedRate(2.0, 5.0))
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
    was = beside((100, 1, 2.0, 6.0, 1.5), (100, 2, 80.0, 100.0, 1.5))
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


def test_the_pace_of_a_link_inside_a_host_holds_no_link_between_hosts() -> None:
    nested, pace = Topology("hierarchical", 2, between_bps=8.0), SustainedRate(5.0, 0.0)
    burst = CostCurve(np.array([0.0, 100.0]), np.array([0.0, 100.0]), 5.0)  # 1 s a byte up to 100, then 5
    free, held = nested.curve(burst, 4)(8.0), nested.curve(burst, 4, pace)(8.0)
    assert free == pytest.approx(2 * (8 / 2) + 2 * (BETWEEN_LATENCY_S + 8 / 2))
    assert held == pytest.approx(5.0 * 8 + 2 * (BETWEEN_LATENCY_S + 8 / 2))
