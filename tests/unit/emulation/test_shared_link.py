"""One link under the lanes of several processes: who is served when, exactly, and how much the others compute."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from xbench.emulation.lane import Lane
from xbench.emulation.pacer import Pacer, SharingPacer
from xbench.emulation.shared_link import MOST, Member, Running, SharedLink
from xbench.planning.contention import Contention
from xbench.planning.cost import Curve

LINE = Curve.line(0.001, 1e-6)


def contention(busy: float = 1.0, slowdown: float = 1.0) -> Contention:
    ones = np.ones((2, 1))
    return replace(
        Contention.none(), log_sizes=np.zeros(1), collective=busy * ones, compute=slowdown * ones, quiet=ones
    )


def lanes(folder: Path, both: Contention | None, count: int = 2) -> list[Lane]:
    made = [Lane(LINE, both) for _ in range(count)]
    for lane in made:
        lane.share(SharedLink(folder / "link"))
    return made


def test_what_is_reserved_ends_behind_what_came_before_from_whichever_process(tmp_path: Path) -> None:
    one, other = SharedLink(tmp_path / "link"), SharedLink(tmp_path / "link")
    assert one.reserve(10.0, 2.0) == 12.0
    assert other.reserve(11.0, 3.0) == 15.0
    assert one.reserve(20.0, 1.0) == 21.0
    one.close()
    other.close()


def test_a_ticket_is_served_when_the_one_before_it_is_done(tmp_path: Path) -> None:
    one, other = SharedLink(tmp_path / "link"), SharedLink(tmp_path / "link")
    first, second = one.take(), other.take()
    assert one.turn(first) == 0.0
    assert other.turn(second) is None
    assert one.waiting() == other.waiting() == 2
    one.pass_on(7.5)
    assert other.turn(second) == 7.5
    other.pass_on(8.0)
    assert one.waiting() == 0


def test_processes_know_each_other_and_not_themselves(tmp_path: Path) -> None:
    link = SharedLink(tmp_path / "link")
    link.join()
    assert link.others() == []
    child = os.fork()
    if child == 0:
        SharedLink(tmp_path / "link").join()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert [member.process for member in link.others()] == [child]


def test_a_link_has_room_for_so_many(tmp_path: Path) -> None:
    link = SharedLink(tmp_path / "link")
    for _ in range(MOST):
        link.join()
    with pytest.raises(ValueError, match="share this link already"):
        link.join()


def test_a_link_whose_folder_is_missing_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        SharedLink(tmp_path / "nowhere" / "link")


def test_lanes_without_contention_know_their_ends_at_once(tmp_path: Path) -> None:
    one, other = lanes(tmp_path, None)
    first, second = one.launch(0.0, 1000), other.launch(0.0005, 2000)
    third = one.launch(0.001, 3000)
    ends = [one.end_s(first), other.end_s(second), one.end_s(third)]
    assert ends == pytest.approx([0.002, 0.005, 0.009])


def test_a_lane_waits_for_the_others_turn_and_begins_where_that_one_ended(tmp_path: Path) -> None:
    one, other = lanes(tmp_path, contention())
    first, second = one.launch(0.0, 1000), other.launch(0.0005, 2000)
    assert other.advance(0.003) == []  # whose turn it has been since 0.002, but nobody has looked
    assert not other.serving
    assert one.advance(0.0031) == [first]
    assert other.advance(0.0032) == []
    assert other.serving
    assert other.end_s(second) == pytest.approx(0.005)
    assert other.advance(0.006) == [second]
    assert (first.end_s, second.end_s) == pytest.approx((0.002, 0.005))


def test_a_lane_takes_from_the_computation_only_while_it_is_served(tmp_path: Path) -> None:
    one, other = lanes(tmp_path, contention(slowdown=2.0))
    one.launch(0.0, 1000)
    other.launch(0.0, 1000)
    one.advance(0.001)
    other.advance(0.001)
    assert (one.load(), other.load()) == (0.5, 0.0)
    one.advance(0.002)
    other.advance(0.0025)
    assert (one.load(), other.load()) == (0.0, 0.5)


def test_a_collective_beside_a_computation_is_slower_for_those_behind_it_too(tmp_path: Path) -> None:
    one, other = lanes(tmp_path, contention(busy=3.0))
    one.launch(0.0, 1000)
    second = other.launch(0.0, 1000)
    one.advance(0.006, computing=1.0)
    other.advance(0.007, computing=0.0)
    assert other.end_s(second, computing=0.0) == pytest.approx(0.008)


def test_a_lane_that_is_under_way_cannot_change_its_link(tmp_path: Path) -> None:
    lane = Lane(LINE, contention())
    lane.launch(0.0, 1000)
    with pytest.raises(ValueError, match="under way"):
        lane.share(SharedLink(tmp_path / "link"), 0.0019)
    lane.share(SharedLink(tmp_path / "link"), 0.002)


@pytest.mark.parametrize("kind", [Pacer, SharingPacer])
def test_a_calibrated_pacer_can_share(kind: type[Pacer], tmp_path: Path) -> None:
    pacer = kind(Lane(LINE, contention() if kind is SharingPacer else None))
    pacer.wait(pacer.launch_for(20e-6))
    pacer.share(SharedLink(tmp_path / "link"))
    pacer.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sends=st.lists(st.tuples(st.floats(0.0, 0.02), st.integers(0, 2), st.integers(0, 5000)), min_size=1, max_size=12),
    looks=st.lists(st.tuples(st.floats(0.0, 0.04), st.integers(0, 2)), max_size=30),
    contended=st.booleans(),
)
def test_several_lanes_are_one_link_whenever_they_look(
    tmp_path: Path, sends: list[tuple[float, int, int]], looks: list[tuple[float, int]], contended: bool
) -> None:
    (tmp_path / "link").unlink(missing_ok=True)
    apart = lanes(tmp_path, contention() if contended else None, 3)
    alone = Lane(LINE)
    events = sorted([(at_s, 0, who, size) for at_s, who, size in sends] + [(at_s, 1, who, 0) for at_s, who in looks])
    expected, found = [], []
    for at_s, is_look, who, size in events:
        if is_look:
            apart[who].advance(at_s, computing=0.0)
        else:
            expected.append(alone.launch(at_s, size))
            found.append(apart[who].launch(at_s, size, computing=0.0))
    alone.advance(1.0)
    for number, _ in enumerate(sends):  # each look serves at least the one whose turn it is
        for lane in apart:
            lane.advance(1.0 + number, computing=0.0)
    assert [travel.end_s for travel in found] == pytest.approx([travel.end_s for travel in expected])


@pytest.mark.parametrize("kind", [Pacer, SharingPacer])
def test_a_wait_lasts_until_the_others_collective_has_arrived_as_well(kind: type[Pacer], tmp_path: Path) -> None:
    both = contention() if kind is SharingPacer else None
    one, other = kind(Lane(Curve.line(0.004, 0.0), both)), kind(Lane(Curve.line(0.004, 0.0), both))
    for pacer in (one, other):
        pacer.share(SharedLink(tmp_path / "link"))
    begin_s = time.perf_counter()
    one.launch(8)
    other.wait(other.launch(8))
    assert time.perf_counter() - begin_s >= 0.008 - 1e-4
    one.close()
    other.close()


def test_a_running_thread_is_seen_to_run() -> None:
    running = Running(Member(os.getpid(), threading.get_native_id()))
    until_s = time.thread_time() + 0.05
    while time.thread_time() < until_s:
        pass
    assert 0.03 <= running.share(1.0) <= 0.5  # up to a tick of the scheduler is not counted yet


def test_what_the_kernel_counts_in_leaps_is_handed_out_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([0.0, 0.004, 0.004, 0.004, 0.004, 0.004])
    monkeypatch.setattr(Running, "_ran_s", lambda _: next(counts))
    running = Running(Member(1, 1))
    assert [running.share(0.0016) for _ in range(4)] == pytest.approx([1.0, 1.0, 0.5, 0.0])
    running.forget()
    assert running._owed_s == 0.0


def test_a_thread_that_has_ended_runs_no_more() -> None:
    thread = threading.Thread(target=threading.get_native_id)
    thread.start()
    thread.join()
    assert Running(Member(os.getpid(), thread.native_id or 0)).share(1.0) == 0.0
