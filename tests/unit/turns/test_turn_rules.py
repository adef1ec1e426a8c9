"""The state machine of one device's turns, call by call: what each is answered, and what is refused."""

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


def test_a_block_begins_when_the_last_living_job_has_asked():
    turns = Turns(3)
    assert turns.begin(2, 1, (0, 1, 2)) == []
    assert turns.begin(0, 1, (0, 1, 2)) == []
    everybody = frozenset({0, 1, 2})
    assert turns.begin(1, 1, (0, 1, 2)) == [
        Meeting(0, everybody),
        Meeting(1, everybody),
        Meeting(2, everybody),
    ]


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


def test_a_parked_job_gets_no_turn_and_blocks_nobody():
    turns = begun(2, (1,))
    assert turns.acquire(1) == [Granted(1)]
    assert turns.end_block(0, 1) == []
    assert turns.barrier(0, "after") == []
    assert turns.release(1) == []
    assert turns.end_block(1, 1) == []
    assert turns.barrier(1, "after") == [Meeting(0, frozenset({0, 1})), Meeting(1, frozenset({0, 1}))]


def test_the_next_block_starts_at_the_first_place_of_its_own_pattern():
    turns = begun(2, (0, 1))
    turns.acquire(0)
    turns.release(0)
    turns.end_block(0, 1)
    turns.end_block(1, 1)
    turns.begin(0, 2, (1, 0))
    turns.begin(1, 2, (1, 0))
    assert turns.acquire(0) == []
    assert turns.acquire(1) == [Granted(1)]


def test_one_job_ending_early_waits_for_the_next_block_until_the_other_has_ended():
    turns = begun(2, (0, 1))
    turns.end_block(0, 1)
    assert turns.begin(0, 2, (0, 1)) == []
    assert turns.acquire(1) == [Granted(1)]
    turns.release(1)
    turns.end_block(1, 1)
    assert turns.begin(1, 2, (0, 1)) == [Meeting(0, frozenset({0, 1})), Meeting(1, frozenset({0, 1}))]


def after(turns: Turns, method: str, *arguments: Any) -> Callable[[], Turns]:
    """Makes a copy of these turns after a call."""
    getattr(turns, method)(*arguments)
    return lambda: copy.deepcopy(turns)


holding, asking = after(begun(2, (0, 1)), "acquire", 0), after(begun(2, (0, 1)), "acquire", 1)
at_barrier, at_barrier_of_three = after(Turns(2), "barrier", 0, "go"), after(Turns(3), "barrier", 1, "go")
beginning, left = after(Turns(2), "begin", 0, 1, (0, 1)), after(Turns(2), "leave", 0)


@pytest.mark.parametrize(
    ("state", "call", "message"),
    [
        (holding, lambda t: t.release(1), "job 1 releases device 0 without holding it"),
        (holding, lambda t: t.acquire(0), "job 0 asks for device 0 twice"),
        (asking, lambda t: t.acquire(1), "job 1 asks for device 0 twice"),
        (holding, lambda t: t.end_block(0, 1), "job 0 ends block 1 while holding device 0"),
        (asking, lambda t: t.end_block(1, 1), "job 1 ends block 1 while waiting for device 0"),
        (holding, lambda t: t.end_block(1, 2), "job 1 ends block 2 on device 0 and is in block 1"),
        (beginning, lambda t: t.end_block(0, 1), "job 0 ends block 1 on device 0 and is in no block"),
        (beginning, lambda t: t.acquire(0), "job 0 asks for device 0 outside a block"),
        (lambda: begun(2, (1,)), lambda t: t.acquire(0), "job 0 asks for device 0, and the pattern (1,) leaves it out"),
        (beginning, lambda t: t.begin(1, 2, (0, 1)), "job 1 comes to the beginning of block 2 with pattern (0, 1) "
         "while job 0 waits for the beginning of block 1 with pattern (0, 1)"),
        (beginning, lambda t: t.begin(1, 1, (0, 0, 1)), "job 1 comes to the beginning of block 1 with pattern "
         "(0, 0, 1) while job 0 waits for the beginning of block 1 with pattern (0, 1)"),
        (beginning, lambda t: t.barrier(1, "go"), "job 1 comes to barrier 'go' while job 0 waits for the beginning of "
         "block 1 with pattern (0, 1)"),
        (at_barrier, lambda t: t.barrier(0, "go"), "job 0 comes to barrier 'go' while it waits for barrier 'go'"),
        (holding, lambda t: t.barrier(1, "go"), "job 1 comes to barrier 'go' inside block 1: it must end that block "
         "first"),
        (at_barrier, lambda t: t.begin(1, 1, ()), "job 1 begins block 1 with an empty pattern"),
        (at_barrier, lambda t: t.begin(1, 1, (0, 2)), "the pattern (0, 2) names job 2: there are jobs 0 to 1"),
        (at_barrier, lambda t: t.barrier(7, "go"), "there is no job 7: device 0 has jobs 0 to 1"),
        (left, lambda t: t.barrier(0, "go"), "job 0 has left device 0"),
        (left, lambda t: t.release(0), "job 0 has left device 0"),
        (at_barrier, lambda t: Turns(0), "turns for 0 jobs make no sense: at least 1 is needed"),
    ],
)  # fmt: skip
def test_misuse_is_refused_in_one_sentence_and_changes_nothing(state, call, message):
    turns = state()
    before = copy.deepcopy(vars(turns))
    with pytest.raises(RunError) as refused:
        call(turns)
    assert str(refused.value) == message
    assert vars(turns) == before


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
