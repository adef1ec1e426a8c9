"""Launch order and credit, with collectives that arrive when the test says."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

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
    """Parcels of the given bytes in a queue, and what was launched so far. `follows`: what an arrival makes ready."""

    def __init__(
        self,
        sizes: Sequence[int],
        *,
        credit: int | None = None,
        streams: bool = False,
        follows: Mapping[int, Sequence[int]] | None = None,
        at_once: bool = False,
    ) -> None:
        self.launched: list[int] = []
        self.collectives = [Collective(at_once=at_once) for _ in sizes]
        self.parcels = [QueuedCollective(size, partial(self._start, number)) for number, size in enumerate(sizes)]
        for number, others in (follows or {}).items():
            self.parcels[number].arrived = partial(self._of, others)
        self.queue = LaunchQueue(self.parcels, streams=streams, credit_bytes=credit)

    def _of(self, numbers: Sequence[int]) -> list[QueuedCollective]:
        return [self.parcels[number] for number in numbers]

    def _start(self, number: int) -> Work:
        self.launched.append(number)
        return self.collectives[number]

    def ready(self, *numbers: int) -> list[int]:
        self.queue.ready(self._of(numbers))
        return self.launched

    def arrive(self, number: int) -> list[int]:
        self.collectives[number].arrive()
        return self.launched


def test_what_is_ready_early_is_launched_in_its_place() -> None:
    step = Step([1, 1, 1])
    assert step.ready(2) == []
    assert step.ready(0) == [0]
    assert step.ready(1) == [0, 1, 2]


def test_only_where_nobody_hears_of_arrivals_a_ready_parcel_goes_and_is_counted() -> None:
    assert Step([1, 1]).queue.goes_when_ready
    assert Step([1, 1]).queue.can_be_counted
    for streams, credit, follows in ((True, 1, None), (True, None, None), (False, 8, None), (False, None, {0: []})):
        queue = Step([1, 1], streams=streams, credit=credit, follows=follows).queue
        assert (queue.goes_when_ready, queue.can_be_counted) == (streams, False)


def test_credit_is_bytes_under_way_and_one_may_always_go() -> None:
    step = Step([4, 4, 9, 1], credit=8)
    assert step.ready(0, 1, 2, 3) == [0, 1]
    assert step.arrive(0) == [0, 1]  # 4 + 9 would be under way
    assert step.arrive(1) == [0, 1, 2]
    assert step.arrive(2) == [0, 1, 2, 3]
    one = Step([1, 1], credit=0)
    assert one.ready(0, 1) == [0]
    assert one.arrive(0) == [0, 1]


def test_an_arrival_makes_others_ready() -> None:
    step = Step([1, 1, 1], follows={1: [2]})
    assert step.ready(0, 1) == [0, 1]
    assert step.arrive(1) == [0, 1, 2]


def test_many_that_arrive_at_once_are_launched_one_after_the_other() -> None:
    assert Step([1] * 3000, at_once=True, credit=0).ready(*range(3000)) == list(range(3000))


def test_a_wait_is_for_the_parcel_and_is_seen_only_when_it_is_one() -> None:
    step = Step([1, 1])
    waited: list[str] = []

    @contextmanager
    def waiting() -> Iterator[None]:
        waited.append("since")
        step.arrive(0)
        yield
        waited.append("until")

    step.queue.waiting = waiting
    step.ready(0, 1)
    step.queue.wait(step.parcels[0])
    step.queue.wait(step.parcels[0])
    assert waited == ["since", "until"]
    assert step.collectives[1].waits == 0


def test_settled_when_what_arrivals_launch_has_arrived_too() -> None:
    step = Step([1, 1, 1], follows={0: [1]})
    step.ready(0)
    threading.Timer(0.05, lambda: [step.arrive(0), step.arrive(1)]).start()
    step.queue.settle()
    assert step.launched == [0, 1]
    assert step.collectives[1].is_completed()


def test_what_never_arrives_is_waited_for_no_longer_than_its_patience() -> None:
    step = Step([1, 1], follows={0: []})
    step.ready(0, 1)
    step.queue.settle(patience_s=0.01)
    assert step.launched == [0, 1]


@pytest.mark.parametrize(("options", "told"), [({}, 0), ({"credit": 8}, 2), ({"follows": {0: []}}, 2)])
def test_arrivals_are_heard_of_only_where_something_follows(options: dict[str, Any], told: int) -> None:
    """A thread would be woken for each: where nobody needs it, whoever waits finds out."""
    step = Step([1, 1], **options)
    step.ready(0, 1)
    assert sum(collective.heard for collective in step.collectives) == told
    assert not step.queue.are_here(step.parcels)
    step.arrive(0)
    step.arrive(1)
    assert step.queue.are_here(step.parcels)


def test_what_has_arrived_is_counted_in_launch_order() -> None:
    step = Step([1, 1, 1, 1])
    step.ready(0, 1, 2)
    assert step.queue.landed(wait=False) == 0
    step.arrive(1)
    assert step.queue.landed(wait=False) == 0
    # a wait is for the first that was not here, and what came after it meanwhile counts too
    assert step.queue.landed(wait=True) == 2
    assert [collective.waits for collective in step.collectives] == [1, 0, 0, 0]
    assert step.queue.landed(wait=True) == 3
    # nothing else was launched, so there is nothing to wait for
    assert step.queue.landed(wait=True) == 3
    step.ready(3)
    step.queue.begin_again()
    assert step.queue.landed(wait=False) == 0


def test_a_collective_that_fails_fails_whoever_waits_and_stops_the_rest() -> None:
    step = Step([1, 1], credit=0)
    step.ready(0, 1)
    step.collectives[0].future.set_exception(RuntimeError("the peer is gone"))
    with pytest.raises(RuntimeError, match="the peer is gone"):
        step.queue.wait(step.parcels[1])
    assert step.launched == [0]


def test_what_is_done_on_arrival_may_fail_too() -> None:
    step = Step([1], follows={0: [7]})  # there is none
    step.ready(0)
    step.arrive(0)
    with pytest.raises(IndexError):
        step.queue.wait(step.parcels[0])


def test_the_next_step_starts_anew() -> None:
    step = Step([1, 1], credit=1)
    for _ in range(2):
        step.ready(0, 1)
        step.arrive(0)
        step.arrive(1)
        step.queue.begin_again()
        step.collectives[:] = [Collective(), Collective()]
    assert step.launched == [0, 1, 0, 1]


def test_streams_keep_the_order_themselves() -> None:
    """Nothing waits for an arrival: no credit, and what is due on arrival is queued behind the launch."""
    step = Step([8, 8, 8], follows={1: [2]}, streams=True, credit=1)
    assert step.ready(0, 1) == [0, 1, 2]
    step.queue.wait(step.parcels[2])
    assert [collective.waits for collective in step.collectives] == [0, 0, 1]


def test_every_launch_is_watched() -> None:
    step = Step([3, 5])
    seen: list[int] = []

    def watch(nbytes: int, start: Callable[[], Work]) -> Work:
        seen.append(nbytes)
        return start()

    step.queue.watch = watch
    step.ready(0, 1)
    assert seen == [3, 5]
    assert step.launched == [0, 1]
