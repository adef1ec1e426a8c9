"""The link as arithmetic: exact times, with and without contention, against the planner's own fluid."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xbench.emulation.pacer import Lane
from xbench.planning.contention import Contention
from xbench.planning.cost import CostCurve
from xbench.planning.simulate import share

LINE = CostCurve.line(0.001, 1e-6)


def contention(busy: tuple[float, float], quiet: tuple[float, float], slowdown: tuple[float, float]) -> Contention:
    def table(pair: tuple[float, float]) -> np.ndarray:
        return np.array([[pair[0]], [pair[1]]])

    return replace(
        Contention.none(), log_sizes=np.zeros(1), collective=table(busy), compute=table(slowdown), quiet=table(quiet)
    )


def test_a_collective_on_an_idle_link_takes_t() -> None:
    lane = Lane(LINE)
    travel = lane.launch(5.0, 2000)
    assert lane.end_s(travel) == pytest.approx(5.003)
    assert lane.next_end_s() == pytest.approx(5.003)


def test_half_of_an_all_reduce_takes_half_of_its_time() -> None:
    lane = Lane(LINE)
    scatter, gather = lane.launch(0.0, 2000, share=0.5), lane.launch(0.0, 2000, share=0.5)
    assert (lane.end_s(scatter), lane.end_s(gather)) == pytest.approx((0.0015, 0.003))


def test_collectives_go_one_after_the_other_whenever_they_are_launched() -> None:
    lane = Lane(LINE)
    first = lane.launch(1.0, 1000)
    second = lane.launch(1.0005, 0)
    third = lane.launch(1.0005, 3000)
    assert [lane.end_s(travel) for travel in (first, second, third)] == pytest.approx([1.002, 1.002, 1.006])


def test_what_arrived_is_told_once_and_in_order() -> None:
    lane = Lane(LINE)
    first, second = lane.launch(0.0, 1000), lane.launch(0.0, 1000)
    assert lane.advance(0.001) == []
    assert lane.advance(0.0031) == [first]
    assert lane.busy
    assert lane.advance(0.1) == [second]
    assert (first.end_s, second.end_s) == pytest.approx((0.002, 0.004))
    assert lane.advance(0.2) == []
    assert not lane.busy
    assert lane.next_end_s() is None


def test_a_link_that_was_idle_starts_at_the_launch() -> None:
    lane = Lane(LINE)
    lane.launch(0.0, 1000)
    late = lane.launch(10.0, 1000)
    assert lane.end_s(late) == pytest.approx(10.002)


def test_a_time_before_the_last_counts_as_the_last() -> None:
    lane = Lane(LINE)
    lane.advance(2.0)
    assert lane.end_s(lane.launch(1.0, 1000)) == pytest.approx(2.002)


def test_a_foreign_collective_has_no_end() -> None:
    other = Lane(LINE).launch(0.0, 1)
    with pytest.raises(ValueError, match="not launched on this lane"):
        Lane(LINE).end_s(other)


def test_what_was_asked_to_take_so_long_takes_so_long() -> None:
    lane = Lane(LINE, contention((3.0, 3.0), (1.0, 1.0), (2.0, 2.0)))
    assert lane.end_s(lane.launch_for(1.0, 0.25)) == pytest.approx(1.25)


def test_beside_a_computation_a_collective_takes_longer_by_its_share() -> None:
    lane = Lane(LINE, contention((2.0, 2.0), (1.0, 1.0), (1.25, 1.25)))
    travel = lane.launch(0.0, 1000)
    assert lane.end_s(travel, computing=1.0) == pytest.approx(0.004)
    assert lane.end_s(travel, computing=0.5) == pytest.approx(0.003)
    lane.advance(0.002, computing=1.0)  # half of it
    assert lane.end_s(travel, computing=0.0) == pytest.approx(0.003)
    assert lane.load() == pytest.approx(0.2)


def test_with_another_behind_it_the_rates_of_two_in_flight_hold() -> None:
    lane = Lane(LINE, contention((2.0, 4.0), (1.0, 1.0), (1.25, 2.0)))
    first = lane.launch(0.0, 1000)
    lane.launch(0.002, 1000)  # half of the first has gone at the rate of one
    assert lane.load() == pytest.approx(0.5)
    assert lane.end_s(first) == pytest.approx(0.002 + 0.5 * 0.008)
    lane.advance(0.006)
    assert lane.load() == pytest.approx(0.2)


def test_an_idle_link_takes_nothing_from_the_computation() -> None:
    assert Lane(LINE, contention((2.0, 2.0), (1.0, 1.0), (2.0, 2.0))).load() == 0.0


@given(
    ready_s=st.lists(st.floats(0.0, 0.05), min_size=1, max_size=8).map(sorted),
    nbytes=st.integers(1, 50_000),
    busy=st.tuples(st.floats(1.0, 3.0), st.floats(0.5, 3.0)),
    quiet=st.tuples(st.just(1.0), st.floats(0.5, 2.0)),
)
def test_it_is_the_fluid_that_predictions_are_made_with(
    ready_s: list[float], nbytes: int, busy: tuple[float, float], quiet: tuple[float, float]
) -> None:
    both = contention(busy, quiet, (1.0, 1.0))  # a computation that is not slowed, so that its times are known here
    expected = share(ready_s, [nbytes] * len(ready_s), LINE, both, backward_s=0.06, optimizer_s=0.0, early_update=False)
    lane = Lane(LINE, both)
    travels = [lane.launch(at_s, nbytes, computing=1.0) for at_s in ready_s]
    lane.advance(0.06, computing=1.0)
    lane.advance(10.0, computing=0.0)
    assert [travel.end_s for travel in travels] == pytest.approx([end_s for _, _, end_s in expected.sent], rel=1e-6)
