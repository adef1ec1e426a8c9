"""Launch order and credit, with collectives that arrive when the test says."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch

from xbench.schedules.bucket import Work
from xbench.schedules.launch_queue import LaunchQueue, QueuedCollective


class Collective:
    """Arrives by `arrive`; `at_once`: when somebody asks for its future."""

    def __init__(self, *, at_once: bool = False) -> None:
        self.future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        self.waits = 0
        self.heard = 0
        if at_once:
            self.arrive()

    def arrive(self) -> None:
        self.future.set_result([])

    def is_completed(self) -> bool:
        return self.future.done()

    def wait(self) -> bool:
        self.waits += 1
        return True

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        self.heard += 1
        return self.future


class Step:
    """Parcels of the given bytes, and what was launched so far."""

    def __init__(self, sizes: Sequence[int], *, at_once: bool = False) -> None:
        self.launched: list[int] = []
        self.collectives = [Collective(at_once=at_once) for _ in sizes]
        self.parcels = [QueuedCollective(size, self._start(number)) for number, size in enumerate(sizes)]

    def _start(self, number: int) -> Callable[[], Work]:
        def start() -> Work:
            self.launched.append(number)
            return self.collectives[number]

        return start


def test_what_is_ready_early_is_launched_in_its_place() -> None:
    step = Step([1, 1, 1])
    departures = LaunchQueue(step.parcels, streams=False)
    departures.ready([step.parcels[2]])
    assert step.launched == []
    departures.ready([step.parcels[0]])
    assert step.launched == [0]
    departures.ready([step.parcels[1]])
    assert step.launched == [0, 1, 2]


def test_only_without_credit_and_streams_is_a_parcel_gone_when_all_are_ready() -> None:
    step = Step([1, 1])
    assert LaunchQueue(step.parcels, streams=False).goes_when_ready
    assert LaunchQueue(step.parcels, streams=True, credit_bytes=1).goes_when_ready
    assert not LaunchQueue(step.parcels, streams=False, credit_bytes=1).goes_when_ready
    step.parcels[0].arrived = lambda: []
    assert not LaunchQueue(step.parcels, streams=False).goes_when_ready


def test_credit_is_bytes_under_way_and_one_may_always_go() -> None:
    step = Step([4, 4, 9, 1])
    departures = LaunchQueue(step.parcels, streams=False, credit_bytes=8)
    departures.ready(step.parcels)
    assert step.launched == [0, 1]
    step.collectives[0].arrive()
    assert step.launched == [0, 1]  # 4 + 9 would be under way
    step.collectives[1].arrive()
    assert step.launched == [0, 1, 2]
    step.collectives[2].arrive()
    assert step.launched == [0, 1, 2, 3]


def test_no_credit_is_one_at_a_time() -> None:
    step = Step([1, 1])
    departures = LaunchQueue(step.parcels, streams=False, credit_bytes=0)
    departures.ready(step.parcels)
    assert step.launched == [0]
    step.collectives[0].arrive()
    assert step.launched == [0, 1]


def test_an_arrival_makes_others_ready() -> None:
    step = Step([1, 1, 1])
    step.parcels[1].arrived = lambda: [step.parcels[2]]
    departures = LaunchQueue(step.parcels, streams=False)
    departures.ready(step.parcels[:2])
    assert step.launched == [0, 1]
    step.collectives[1].arrive()
    assert step.launched == [0, 1, 2]


def test_many_that_arrive_at_once_are_launched_one_after_the_other() -> None:
    step = Step([1] * 3000, at_once=True)
    departures = LaunchQueue(step.parcels, streams=False, credit_bytes=0)
    departures.ready(step.parcels)
    assert step.launched == list(range(3000))


def test_a_wait_is_for_the_parcel_and_is_seen_only_when_it_is_one() -> None:
    step = Step([1, 1])
    departures = LaunchQueue(step.parcels, streams=False)
    waited: list[str] = []

    @contextmanager
    def waiting() -> Iterator[None]:
        waited.append("since")
        step.collectives[0].arrive()
        yield
        waited.append("until")

    departures.waiting = waiting
    departures.ready(step.parcels)
    departures.wait(step.parcels[0])
    departures.wait(step.parcels[0])
    assert waited == ["since", "until"]
    assert step.collectives[1].waits == 0


def test_settled_when_what_arrivals_launch_has_arrived_too() -> None:
    step = Step([1, 1, 1])
    step.parcels[0].arrived = lambda: [step.parcels[1]]
    departures = LaunchQueue(step.parcels, streams=False)
    departures.ready(step.parcels[:1])

    def arrive() -> None:
        step.collectives[0].arrive()
        step.collectives[1].arrive()

    threading.Timer(0.05, arrive).start()
    departures.settle()
    assert step.launched == [0, 1]
    assert step.collectives[1].is_completed()


def test_what_never_arrives_is_waited_for_no_longer_than_its_patience() -> None:
    step = Step([1, 1])
    step.parcels[0].arrived = lambda: []
    departures = LaunchQueue(step.parcels, streams=False)
    departures.ready(step.parcels)
    departures.settle(patience_s=0.01)
    assert step.launched == [0, 1]


@pytest.mark.parametrize(("credit", "followed", "told"), [(None, False, 0), (8, False, 2), (None, True, 2)])
def test_arrivals_are_heard_of_only_where_something_follows(credit: int | None, followed: bool, told: int) -> None:
    """A thread would be woken for each: where nobody needs it, whoever waits finds out."""
    step = Step([1, 1])
    if followed:
        step.parcels[0].arrived = lambda: []
    departures = LaunchQueue(step.parcels, streams=False, credit_bytes=credit)
    departures.ready(step.parcels)
    assert sum(collective.heard for collective in step.collectives) == told
    assert not departures.are_here(step.parcels)
    for collective in step.collectives:
        collective.arrive()
    assert departures.are_here(step.parcels)


def test_what_has_arrived_is_counted_in_launch_order() -> None:
    step = Step([1, 1, 1, 1])
    departures = LaunchQueue(step.parcels, streams=False)
    assert departures.can_be_counted
    departures.ready(step.parcels[:3])
    assert departures.landed(wait=False) == 0
    step.collectives[1].arrive()
    assert departures.landed(wait=False) == 0
    # a wait is for the first that was not here, and what came after it meanwhile counts too
    assert departures.landed(wait=True) == 2
    assert [collective.waits for collective in step.collectives] == [1, 0, 0, 0]
    assert departures.landed(wait=True) == 3
    # nothing else was launched, so there is nothing to wait for
    assert departures.landed(wait=True) == 3
    departures.ready(step.parcels[3:])
    departures.begin_again()
    assert departures.landed(wait=False) == 0


@pytest.mark.parametrize(("streams", "credit"), [(True, None), (False, 8)])
def test_where_others_hear_of_arrivals_nobody_counts(streams: bool, credit: int | None) -> None:
    assert not LaunchQueue(Step([1]).parcels, streams=streams, credit_bytes=credit).can_be_counted


def test_a_collective_that_fails_fails_whoever_waits_and_stops_the_rest() -> None:
    step = Step([1, 1])
    departures = LaunchQueue(step.parcels, streams=False, credit_bytes=0)
    departures.ready(step.parcels)
    step.collectives[0].future.set_exception(RuntimeError("the peer is gone"))
    with pytest.raises(RuntimeError, match="the peer is gone"):
        departures.wait(step.parcels[1])
    assert step.launched == [0]


def test_what_is_done_on_arrival_may_fail_too() -> None:
    step = Step([1])

    def arrived() -> Sequence[QueuedCollective]:
        raise ValueError("no sum")

    step.parcels[0].arrived = arrived
    departures = LaunchQueue(step.parcels, streams=False)
    departures.ready(step.parcels)
    step.collectives[0].arrive()
    with pytest.raises(ValueError, match="no sum"):
        departures.wait(step.parcels[0])


def test_the_next_step_starts_anew() -> None:
    step = Step([1, 1])
    departures = LaunchQueue(step.parcels, streams=False, credit_bytes=1)
    for _ in range(2):
        departures.ready(step.parcels)
        step.collectives[0].arrive()
        step.collectives[1].arrive()
        departures.begin_again()
        step.collectives[:] = [Collective(), Collective()]
    assert step.launched == [0, 1, 0, 1]


def test_streams_keep_the_order_themselves() -> None:
    """Nothing waits for an arrival: no credit, and what is due on arrival is queued behind the launch."""
    step = Step([8, 8, 8])
    step.parcels[1].arrived = lambda: [step.parcels[2]]
    departures = LaunchQueue(step.parcels, streams=True, credit_bytes=1)
    departures.ready(step.parcels[:2])
    assert step.launched == [0, 1, 2]
    departures.wait(step.parcels[2])
    assert [collective.waits for collective in step.collectives] == [0, 0, 1]


def test_every_launch_is_watched() -> None:
    step = Step([3, 5])
    departures = LaunchQueue(step.parcels, streams=False)
    seen: list[int] = []

    def watch(nbytes: int, start: Callable[[], Work]) -> Work:
        seen.append(nbytes)
        return start()

    departures.watch = watch
    departures.ready(step.parcels)
    assert seen == [3, 5]
    assert step.launched == [0, 1]
