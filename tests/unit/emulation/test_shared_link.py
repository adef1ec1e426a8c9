"""One link under several lanes: what each gets of it."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xbench.emulation.lane import Lane, SharedLink
from xbench.emulation.pacer import SharingPacer, sleep_for
from xbench.planning.contention import Contention
from xbench.planning.cost import CostCurve

LINE = CostCurve.line(0.001, 1e-6)


def contention(busy: float = 1.0, slowdown: float = 1.0) -> Contention:
    ones = np.ones((2, 1))
    return replace(
        Contention.none(), log_sizes=np.zeros(1), collective=busy * ones, compute=slowdown * ones, quiet=ones
    )


def lanes(both: Contention | None, count: int = 2) -> list[Lane]:
    made = [Lane(LINE, both) for _ in range(count)]
    link = SharedLink()
    for lane in made:
        lane.share(link)
    return made


def test_service_is_what_a_lane_gets_that_never_stops_sending() -> None:
    one = other = SharedLink()
    assert one.begin(10.0) == 10.0
    assert one.service(12.0) == (12.0, 1)
    assert other.begin(12.0) == 12.0
    assert one.service(16.0) == other.service(16.0) == (14.0, 2)
    one.leave(16.0)
    assert other.service(17.0) == (15.0, 1)
    other.leave(17.0)
    assert one.service(17.0) == (15.0, 0)


def test_what_a_lane_left_before_it_said_so_is_the_others() -> None:
    link = SharedLink()
    for _ in range(3):
        link.begin(0.0)
    link.leave(3.0)
    assert link.service(5.0) == (2.0, 2)
    link.begin(6.0)  # 2.5 by then
    link.leave(4.0)  # from there to 6.0 one had the whole link, and got half of it
    assert link.service(6.0) == (2.5 + 2.0 * (1 / 2 - 1 / 3), 2)


def test_a_time_before_the_last_change_counts_as_that() -> None:
    link = SharedLink()
    link.begin(5.0)
    assert link.service(4.0) == (5.0, 1)


def test_lanes_that_send_at_once_get_half_of_the_link_each() -> None:
    one, other = lanes(None)
    first, second = one.launch(0.0, 1000), other.launch(0.0, 3000)  # 2 and 4 ms alone
    assert one.end_s(first) == pytest.approx(0.004)
    assert one.advance(0.0045) == [first]
    assert other.advance(0.005) == []
    assert other.end_s(second) == pytest.approx(0.006)
    assert other.advance(0.007) == [second]
    assert first.end_s == pytest.approx(0.004)
    assert second.end_s == pytest.approx(0.006, abs=5e-4)  # on average over the 2 ms since the look before


def test_a_small_collective_does_not_wait_for_a_large_one_of_another_job() -> None:
    one, other = lanes(None)
    large, behind = one.launch(0.0, 999_000), one.launch(0.0, 1000)
    small = other.launch(0.1, 1000)
    assert other.end_s(small) == pytest.approx(0.104)
    assert other.advance(0.104) == [small]
    one.advance(0.104)
    assert one.end_s(large) == pytest.approx(1.002)
    assert one.end_s(behind) == pytest.approx(1.004)


def test_what_was_left_unnoticed_is_caught_up_with() -> None:
    one, other = lanes(None)
    one.launch(0.0, 1000)
    second = other.launch(0.0, 9000)
    other.advance(0.0042)  # still half and half, as far as it knows
    one.advance(0.0044)  # it had ended at 0.004
    other.advance(0.006)
    assert other.end_s(second) == pytest.approx(0.012)


def test_lanes_that_send_at_once_share_what_they_take_from_the_computation() -> None:
    one, other = lanes(contention(slowdown=2.0))
    one.launch(0.0, 1000)
    assert one.load() == 0.5
    other.launch(0.0, 1000)
    assert (one.load(), other.load()) == (0.25, 0.25)
    one.advance(0.1)
    assert (one.load(), other.load()) == (0.0, 0.5)


def test_another_job_s_collective_makes_it_two_in_flight() -> None:
    ones, both = np.ones((2, 1)), np.array([[2.0], [3.0]])
    one, other = lanes(replace(contention(), collective=both, quiet=ones))
    first = one.launch(0.0, 1000)
    assert one.end_s(first, computing=1.0) == pytest.approx(0.004)
    other.launch(0.0, 1000)
    assert one.end_s(first, computing=1.0) == pytest.approx(0.012)  # half of the link, at the pace of two


def test_a_lane_that_is_under_way_cannot_change_its_link() -> None:
    lane = Lane(LINE, contention())
    lane.launch(0.0, 1000)
    with pytest.raises(ValueError, match="under way"):
        lane.share(SharedLink(), 0.0019)
    lane.share(SharedLink(), 0.002)


@pytest.mark.parametrize("both", [None, contention()])
def test_a_calibrated_pacer_can_share(both: Contention | None) -> None:
    pacer = SharingPacer(Lane(LINE, both))
    pacer.wait(pacer.launch_for(20e-6))
    pacer.share(SharedLink())
    pacer.close()


@given(
    sends=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 2), st.integers(1, 5000)), min_size=1, max_size=12),
    contended=st.booleans(),
)
def test_no_lane_is_faster_than_alone_and_no_link_than_its_pace(
    sends: list[tuple[int, int, int]], contended: bool
) -> None:
    apart = lanes(contention() if contended else None, 3)
    alone, together = [Lane(LINE) for _ in range(3)], Lane(LINE)
    tick_s, found, bounds = 0.5e-3, [], []
    for tick in range(260):
        at_s = tick * tick_s
        for lane in apart:
            lane.advance(at_s, computing=0.0)
        for when, who, size in sends:
            if when == tick:
                found.append(apart[who].launch(at_s, size, computing=0.0))
                bounds.append(alone[who].launch(at_s, size))
                together.launch(at_s, size)
    for lane in alone:
        lane.advance(1.0)
    assert all(travel.end_s is not None for travel in found)
    for travel, bound in zip(found, bounds, strict=True):
        assert travel.end_s >= bound.end_s - tick_s  # type: ignore[operator]
    # A link that is shared out is never idle while something is under way, so the last arrives when it would anyway.
    whole_s = max(travel.end_s or 0.0 for travel in together.advance(1.0))
    assert max(travel.end_s or 0.0 for travel in found) == pytest.approx(whole_s, abs=2e-3)


@pytest.mark.parametrize("both", [None, contention()])
def test_two_that_send_at_once_take_as_long_as_one_after_the_other(both: Contention | None) -> None:
    one, other = (SharingPacer(Lane(CostCurve.line(0.004, 0.0), both)) for _ in range(2))
    link = SharedLink()
    for pacer in (one, other):
        pacer.share(link)
    begin_s = time.perf_counter()
    flights = one.launch(8), other.launch(8)
    one.wait(flights[0])
    other.wait(flights[1])
    assert time.perf_counter() - begin_s >= 0.008 - 1e-4
    one.close()
    other.close()


def test_a_stream_s_wait_on_a_link_that_another_uses_takes_twice_as_long() -> None:
    ticks = [0.0]

    def clock() -> float:
        ticks.append(ticks[-1] + 20e-6)
        return ticks[-1]

    link = SharedLink()
    link.begin(0.0)
    sleep_for(0.003, link, clock, lead_s=0.001)
    assert ticks[-1] == pytest.approx(0.004, abs=2e-4)
    assert link.service(ticks[-1])[1] == 1  # which has left again
