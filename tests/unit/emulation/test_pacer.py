"""The thread beside a lane: who waits and who is called, in which order, and never early."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from xbench.emulation import ASKED_S, calibrate, contention_of, pacer_of
from xbench.emulation.pacer import Lane, Pacer, SharingPacer, sleep_until
from xbench.planning.contention import Contention
from xbench.planning.cost import CostCurve
from xbench.records import CostModel, EmulatedLink

LINE = CostCurve.line(0.004, 0.0)
MODEL = CostModel(
    backend="formula", world_size=8, alpha_s=0.001, beta_s_per_byte=1e-9, alpha_ci95=(0.001, 0.001),
    beta_ci95=(1e-9, 1e-9), max_relative_residual=0.0, points=[],
)  # fmt: skip


def sharing(slowdown: float) -> Lane:
    ones, slow = np.ones((2, 1)), np.full((2, 1), slowdown)
    return Lane(LINE, Contention(np.zeros(1), ones, slow, quiet=ones))


@pytest.mark.parametrize("kind", ["known", "sharing"])
def test_a_wait_returns_when_the_collective_has_arrived_and_not_before(kind: str) -> None:
    pacer = Pacer(Lane(LINE)) if kind == "known" else SharingPacer(sharing(1.0))
    begin_s = time.perf_counter()
    flights = [pacer.launch(8) for _ in range(3)]
    assert not pacer.has_arrived(flights[2])
    pacer.wait(flights[2])
    assert time.perf_counter() - begin_s >= 0.012 - 1e-4
    assert all(pacer.has_arrived(flight) for flight in flights)
    pacer.close()


@pytest.mark.parametrize("kind", ["known", "sharing"])
def test_those_who_want_to_be_called_are_called_in_order_and_once(kind: str) -> None:
    pacer = Pacer(Lane(LINE)) if kind == "known" else SharingPacer(sharing(1.0))
    called: list[tuple[int, str]] = []
    done = threading.Event()
    flights = [pacer.launch(8) for _ in range(3)]
    for number in (2, 0, 1):
        pacer.call(flights[number], lambda number=number: called.append((number, threading.current_thread().name)))
    pacer.call(flights[2], done.set)
    assert done.wait(10)
    assert called == [(0, "xbench-link"), (1, "xbench-link"), (2, "xbench-link")]
    pacer.call(flights[0], lambda: called.append((3, threading.current_thread().name)))
    assert called[3:] == [(3, threading.current_thread().name)]
    pacer.close()


def test_a_closed_pacer_leaves_no_thread() -> None:
    pacer = Pacer(Lane(CostCurve.line(60.0, 0.0)))
    pacer.call(pacer.launch(8), lambda: None)
    pacer.close()
    assert not any(thread.name == "xbench-link" for thread in threading.enumerate())


def test_a_sleep_until_a_time_ends_at_the_first_look_that_shows_it() -> None:
    ticks = iter([0.0, 0.0, 0.00001, 0.00002, 0.00003])
    seen: list[float] = []

    def clock() -> float:
        seen.append(next(ticks))
        return seen[-1]

    sleep_until(0.00002, clock)
    assert seen[-1] == 0.00002


def test_a_sharing_link_takes_its_share_of_the_processor() -> None:
    pacer = SharingPacer(sharing(2.0))
    begin_s = time.perf_counter()
    last = [pacer.launch(8) for _ in range(40)][-1]
    while not pacer.has_arrived(last):
        sum(range(1000))  # a computation, on this thread
    took_s = time.perf_counter() - begin_s
    pacer.close()
    assert 0.0 < pacer.taken_s <= 0.5 * took_s + 1e-3


def test_calibration_says_what_was_asked_and_never_less_than_that_was_got() -> None:
    pacer = pacer_of(EmulatedLink(model=MODEL))
    points = calibrate(pacer)
    pacer.close()
    assert [point.asked_s for point in points] == list(ASKED_S)
    assert all(point.got_s >= point.asked_s for point in points)
    assert pacer.lead_s >= 0


def test_a_slow_down_asked_for_is_the_same_for_every_size() -> None:
    both = contention_of(EmulatedLink(model=MODEL, slowdown=1.5))
    assert both is not None
    sizes = np.array([1.0, 1e3, 1e9])
    assert both.compute_slowdown(sizes).tolist() == [[1.5] * 3, [1.5] * 3]
    assert contention_of(EmulatedLink(model=MODEL)) is None


def test_a_launch_after_an_arrival_that_nobody_has_looked_at_loses_nothing() -> None:
    pacer = SharingPacer(sharing(1.0))
    for _ in range(200):
        flights = [pacer.launch_for(20e-6), pacer.launch_for(20e-6)]
        time.sleep(30e-6)
        flights.append(pacer.launch_for(20e-6))
        assert all(flight.arrived.wait(10) for flight in flights)
    pacer.close()
