"""Measured contention after a change of link, workers or device."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning_cases import line
from what_if_cases import LINE, ONE, beside, contentions, given_cost

from xbench.field_types import MIN_S
from xbench.planning import contention as planning
from xbench.planning.conversion import carried_contention, carried_to
from xbench.planning.cost import CostCurve
from xbench.planning.measured import Rewrite
from xbench.planning.scenario import Change, what_if
from xbench.planning.topology import Topology
from xbench.records import Contention, ContentionPoint


def changed(point: tuple[int, int, float, float, float], change: Change) -> ContentionPoint:
    found = what_if(given_cost(LINE, contention=beside(point)), change).contention_record
    return found.points[0]


def test_a_record_without_contention_has_none_and_neither_has_one_without_points() -> None:
    for made in (None, beside()):
        found = what_if(given_cost(LINE, contention=made), Change(rate_bps=10e9, workers=3, compute_scale=2.0))
        assert found.measured.contention is None
        assert found.contention is None
        assert found.planner.contention is None
        assert not any(" of the host " in caution or "another device" in caution for caution in found.cautions)


def test_a_faster_link_takes_as_much_of_the_host_and_computation_adds_as_much() -> None:
    now = changed(ONE, Change(rate_bps=2e9))
    assert now.alone_s == pytest.approx(0.001 + 0.004)
    assert now.loaded_s == pytest.approx(0.005 + 0.003)
    assert (1 - 1 / now.compute_slowdown) * now.loaded_s == pytest.approx(0.002)


def test_a_latency_is_rewritten_as_in_the_cost_model() -> None:
    now = changed(ONE, Change(latency_s=2e-3))
    assert now.alone_s == pytest.approx(0.004 + 0.008)
    assert now.loaded_s == pytest.approx(0.015)


def test_a_host_that_cannot_follow_the_link_sets_the_pace() -> None:
    was = (1_000_000, 1, 0.009, 0.012, 1.5)  # 4 ms of host time a collective; 1.08 + 3 ms on the link leave too little
    now = changed(was, Change(rate_bps=100e9))
    assert now.loaded_s == pytest.approx(2 * 0.004)
    assert now.compute_slowdown == pytest.approx(2.0)
    told = what_if(given_cost(LINE, contention=beside(was)), Change(rate_bps=100e9)).cautions
    assert any("the host then sets the pace" in caution for caution in told)
    told = what_if(given_cost(LINE, contention=beside(was)), Change(rate_bps=2e9)).cautions
    assert not any("the host then sets the pace" in caution for caution in told)


def test_a_share_above_half_that_was_measured_is_not_taken_back() -> None:
    now = changed((1_000_000, 1, 0.009, 0.012, 4.0), Change(rate_bps=100e9))
    assert now.loaded_s == pytest.approx(0.012)
    assert now.compute_slowdown == pytest.approx(4.0)


def test_two_in_flight_that_hid_latency_still_do_and_noise_takes_nothing_of_the_host() -> None:
    now = changed((1_000_000, 2, 0.010, 0.008, 0.98), Change(rate_bps=1e12))
    assert now.loaded_s == pytest.approx(0.8 * now.alone_s)
    assert now.compute_slowdown == 0.98


def test_hooks_copies_and_launches_are_the_hosts() -> None:
    was = given_cost(LINE, contention=beside(ONE))
    link = what_if(was, Change(rate_bps=10e9, latency_s=0.0, workers=8)).contention_record
    device = what_if(was, Change(compute_scale=0.3)).contention_record
    assert (link.launch_s, link.hook_s, link.copy_s_per_byte) == (1e-4, 2e-6, 2e-11)
    assert (device.launch_s, device.hook_s, device.copy_s_per_byte) == (0.3 * 1e-4, 0.3 * 2e-6, 0.3 * 2e-11)


def test_another_device_keeps_the_slowdowns_and_it_is_said() -> None:
    found = what_if(given_cost(LINE, contention=beside(ONE)), Change(compute_scale=0.25))
    assert found.contention_record.points == beside(ONE).points
    assert found.cautions == (
        "Communication may slow another device down by more or less: here by the ratio measured on this one.",
    )


def test_more_workers_carry_contention_over_by_size_of_message() -> None:
    was = beside((4096, 1, 0.002, 0.003, 1.3), (4096, 2, 0.002, 0.0018, 1.4), (65536, 1, 0.004, 0.005, 1.2))
    now = what_if(given_cost(LINE, contention=was), Change(workers=6)).contention
    exact = carried_contention(planning.Contention.of(was, CostCurve.of(LINE)), LINE, Topology("ring"), 6)
    assert now is not None
    for name in ("log_sizes", "collective", "compute"):
        assert getattr(now, name) == pytest.approx(getattr(exact, name), rel=1e-12), name
    first = carried_to(was, LINE, 6).points[0]
    assert (first.nbytes, first.alone_s, first.loaded_s) == (3 * 4096, 5 * 0.002, 5 * 0.003)


def test_sizes_carried_over_are_whole_bytes_and_stay_above_zero() -> None:
    was = beside(ONE, (1, 1, MIN_S, MIN_S, 1.0))
    fewer = carried_to(was, line(0.001, 8e-9, workers=3), 2).points
    assert (fewer[1].alone_s, fewer[1].loaded_s) == (MIN_S, MIN_S)
    assert [point.nbytes for point in fewer] == [666_667, 1]


@given(contentions(), st.floats(0, 1e-6), st.floats(0, 1e-2))
def test_the_same_link_gives_the_same_contention(was: Contention, wire: float, alpha_s: float) -> None:
    now = Rewrite(wire, 1.0, alpha_s, alpha_s).contention(was)
    for before, after in zip(was.points, now.points, strict=True):
        for name in ("alone_s", "loaded_s", "compute_slowdown"):
            assert getattr(after, name) == pytest.approx(getattr(before, name), rel=1e-9)


@given(contentions(), st.floats(1e-10, 1e-6), st.floats(0, 1e-2), st.floats(1e-9, 1e9), st.floats(0, 1e3))
def test_a_collective_takes_no_more_of_the_host_than_it_did_on_any_link(
    was: Contention, wire: float, alpha_s: float, slower: float, latency_s: float
) -> None:
    now = Rewrite(wire, slower, alpha_s, latency_s).contention(was)
    planning.Contention.of(now, CostCurve.of(LINE))
    for before, after in zip(was.points, now.points, strict=True):
        old, new = ((1 - 1 / max(1.0, p.compute_slowdown)) * p.loaded_s for p in (before, after))
        rounded_s = 1e-15 * (before.loaded_s + after.loaded_s)  # a share of nearly nothing, out of 1/σ
        assert new == pytest.approx(old, rel=1e-6, abs=1e-12 + rounded_s)
        assert after.compute_slowdown <= max(2.0, before.compute_slowdown) * (1 + 1e-9)
        assert after.loaded_s > 0
