"""The state machine of one device's turns, call by call: who is granted the turn, and why a job waits."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from xbench.errors import RunError
from xbench.turns.rules import Granted, Meeting, Turns


def begun(jobs: int, pattern: Sequence[int], block: int = 1) -> Turns:
    """Turns whose jobs have all begun `block`."""
    turns = Turns(jobs)
    for job in range(jobs):
        turns.begin(job, block, pattern)
    return turns


@pytest.mark.parametrize(
    ("jobs", "pattern", "moves"),
    [
        pytest.param(
            2, (0, 1),
            [("acquire", 0, 0), ("acquire", 1, None), ("release", 0, 1), ("acquire", 0, None), ("release", 1, 0)],
            id="turns alternate",
        ),
        pytest.param(
            2, (0, 1), [("acquire", 1, None), ("acquire", 0, 0)],
            id="the others wait for a job that has not asked at its place",
        ),
        pytest.param(
            2, (0, 0, 1),
            [("acquire", 1, None), ("acquire", 0, 0), ("release", 0, None), ("acquire", 0, 0), ("release", 0, 1)],
            id="a job takes all its places in a row",
        ),
        pytest.param(
            2, (0, 1),
            [("acquire", 0, 0), ("acquire", 1, None), ("release", 0, 1), ("release", 1, None), ("acquire", 1, None),
             ("end_block", 0, 1), ("release", 1, None), ("acquire", 1, 1)],
            id="a job that ended its block is skipped",
        ),
        pytest.param(
            3, (0, 1, 2),
            [("acquire", 0, 0), ("acquire", 2, None), ("acquire", 1, None), ("leave", 0, 1), ("release", 1, 2),
             ("acquire", 1, None), ("release", 2, 1)],
            id="a holder that leaves passes its turn on",
        ),
        pytest.param(
            2, (0, 1),
            [("acquire", 0, 0), ("acquire", 1, None), ("leave", 1, None), ("release", 0, None), ("acquire", 0, 0)],
            id="a job that leaves while it waits for its turn never gets it",
        ),
        pytest.param(
            2, (0, 1), [("acquire", 1, None), ("leave", 0, 1), ("leave", 0, None)],
            id="leaving twice is leaving once",
        ),
    ],
)  # fmt: skip
def test_who_is_granted_the_turn(jobs, pattern, moves):
    turns = begun(jobs, pattern)
    for method, job, granted in moves:
        call = getattr(turns, method)
        replies = call(job, 1) if method == "end_block" else call(job)
        assert replies == ([] if granted is None else [Granted(granted)]), (method, job)


def test_a_dead_job_is_not_waited_for_at_meetings_and_the_living_learn_of_it():
    turns = Turns(3)
    turns.barrier(0, "go")
    turns.barrier(2, "go")
    assert turns.leave(1) == [Meeting(0, frozenset({0, 2})), Meeting(2, frozenset({0, 2}))]
    turns.begin(2, 1, (0, 1, 2))
    assert turns.begin(0, 1, (0, 1, 2)) == [Meeting(0, frozenset({0, 2})), Meeting(2, frozenset({0, 2}))]
    assert turns.acquire(2) == []
    assert turns.acquire(0) == [Granted(0)]
    assert turns.release(0) == [Granted(2)]


def test_a_meeting_that_a_job_died_in_does_not_open_without_the_others():
    turns = Turns(3)
    turns.barrier(0, "go")
    assert turns.leave(0) == []
    assert turns.barrier(1, "another") == []
    assert turns.barrier(2, "another") == [Meeting(1, frozenset({1, 2})), Meeting(2, frozenset({1, 2}))]


def after(turns: Turns, method: str, *arguments: Any) -> Callable[[], Turns]:
    """Makes a copy of these turns after a call."""
    getattr(turns, method)(*arguments)
    return lambda: copy.deepcopy(turns)


holding, asking = after(begun(2, (0, 1)), "acquire", 0), after(begun(2, (0, 1)), "acquire", 1)
at_barrier, at_barrier_of_three = after(Turns(2), "barrier", 0, "go"), after(Turns(3), "barrier", 1, "go")
beginning = after(Turns(2), "begin", 0, 1, (0, 1))


def test_a_job_ends_the_block_that_it_is_in():
    with pytest.raises(RunError, match="is in block 1"):
        holding().end_block(1, 2)


@pytest.mark.parametrize(
    ("state", "job", "why"),
    [
        (holding, 1, "held by job 0"),
        (asking, 1, "where job 0 is next and has not asked for its turn"),
        (at_barrier, 0, "where job 1 has not come"),
        (beginning, 0, "where job 1 has not come"),
        (at_barrier_of_three, 1, "where jobs 0, 2 have not come"),
    ],
)
def test_why_a_job_waits(state, job, why):
    assert state().reason(job) == why
