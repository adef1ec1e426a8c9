"""What is updated while a layer waits for its own gradients, with arrivals that the test decides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from xbench.schedules.deferred_update import UpdateGroup
from xbench.schedules.priority import PriorityEngine


class Arrivals:
    """In the place of departures: parcels are numbers in launch order, and so many arrive by each time of asking."""

    def __init__(self, counts: Sequence[int], here: Sequence[int] = ()) -> None:
        self.counts = list(counts)
        self.here = set(here)
        self.waited: list[bool] = []

    def landed(self, *, wait: bool) -> int:
        self.waited.append(wait)
        return self.counts.pop(0)

    def are_here(self, parcels: Sequence[int]) -> bool:
        return self.here >= set(parcels)


def piece(last: int, *, due: bool = True) -> UpdateGroup:
    return UpdateGroup(None, [], [last], due=due, last=last)


class Waiting:
    """An engine of which nothing is there but what waits, and what it updated, by the pieces' last parcels."""

    def __init__(self, arrivals: Arrivals, pieces: Sequence[UpdateGroup]) -> None:
        self.updated: list[list[int]] = []
        self.engine = object.__new__(PriorityEngine)
        parts: dict[str, Any] = {
            "departures": arrivals,
            "note": None,
            "_arriving": sorted(pieces, key=lambda one: one.last, reverse=True),
            "_apply": lambda found: self.updated.append([one.last for one in found]),
        }
        self.engine.__dict__.update(parts)

    def wait(self, needed: Sequence[UpdateGroup]) -> None:
        self.engine._meanwhile(needed)


def test_what_arrives_before_is_updated_as_it_comes() -> None:
    pieces = [piece(last) for last in range(5)]
    waiting = Waiting(arrivals := Arrivals([2, 2, 3, 4]), pieces)
    waiting.wait([pieces[3]])
    # two were here, which takes no wait; then the third is waited for, and the one that is needed ends it
    assert waiting.updated == [[0, 1], [2]]
    assert arrivals.waited == [False, False, True, False]


def test_what_is_needed_already_or_was_updated_is_left_alone() -> None:
    pieces = [piece(0), piece(1), piece(1, due=False), piece(2), piece(4)]
    waiting = Waiting(Arrivals([3, 3, 5]), pieces)
    waiting.wait([pieces[1], pieces[4]])
    assert waiting.updated == [[0, 2]]


@pytest.mark.parametrize(("count", "here"), [(3, []), (0, [1])])  # the second overtook those before it
def test_where_all_that_is_needed_is_here_nothing_is_put_before_it(count: int, here: list[int]) -> None:
    pieces = [piece(0), piece(1), piece(2)]
    waiting = Waiting(arrivals := Arrivals([count], here), pieces)
    waiting.wait([pieces[1]])
    assert (waiting.updated, arrivals.waited) == ([], [False])


def test_a_later_wait_goes_on_where_the_last_ended() -> None:
    pieces = [piece(last) for last in range(4)]
    waiting = Waiting(Arrivals([1, 2, 2, 4]), pieces)
    waiting.wait([pieces[1]])
    pieces[0].due = pieces[1].due = False
    waiting.wait([pieces[3]])
    assert waiting.updated == [[0]]
