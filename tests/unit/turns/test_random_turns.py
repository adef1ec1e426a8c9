"""One device's turns at random: calls in any order against the rule without a state machine; and why a job waits."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from xbench.errors import RunError
from xbench.turns.rules import Granted, Meeting, Turns


def order_of(pattern: Sequence[int], steps: Sequence[int]) -> list[int]:
    """The turns of jobs that take `steps[job]` turns each: the rule, written down without a state machine."""
    left = list(steps)
    order = []
    for job in itertools.cycle(pattern):
        if not any(left):
            return order
        if left[job]:
            left[job] -= 1
            order.append(job)
    return order


def play(pattern: Sequence[int], steps: Sequence[int], chance: random.Random, *, dies: int | None = None) -> list[int]:
    """The grants on one host when jobs act in a random order; job `dies` leaves at a random moment."""
    turns = Turns(len(steps))
    for job in range(len(steps)):
        turns.begin(job, 1, pattern)
    state = dict.fromkeys(range(len(steps)), "computing")
    left = list(steps)
    log: list[int] = []
    while True:
        moves = [job for job in state if state[job] in ("computing", "holding")]
        if dies in state and (moves or "waiting" in state.values()):
            moves.append(dies)
        if not moves:
            return log
        job = chance.choice(moves)
        if job == dies and (state[job] not in ("computing", "holding") or chance.random() < 0.2):
            del state[job]
            replies = turns.leave(job)
        elif state[job] == "holding":
            state[job] = "computing"
            replies = turns.release(job)
        elif left[job]:
            left[job] -= 1
            state[job] = "waiting"
            replies = turns.acquire(job)
        else:
            state[job] = "ended"
            replies = turns.end_block(job, 1)
        for reply in replies:
            assert state[reply.job] == "waiting"
            state[reply.job] = "holding"
            log.append(reply.job)


patterns = st.sampled_from([(0, 1, 2), (0, 0, 1, 2), (2, 1, 0), (0, 1, 0, 2), (1, 1, 2, 0, 2)])


@given(patterns, st.tuples(*[st.integers(0, 6)] * 3), st.integers(0, 2**32))
def test_every_host_grants_in_the_order_of_the_rule(pattern, steps, seed):
    expected = order_of(pattern, steps)
    for host in range(2):
        assert play(pattern, steps, random.Random(seed + host)) == expected


@given(patterns, st.tuples(*[st.integers(0, 6)] * 3), st.integers(0, 2), st.integers(0, 2**32))
def test_a_death_at_different_moments_leaves_the_survivors_in_the_same_order(pattern, steps, dies, seed):
    survivors = [job for job in order_of(pattern, steps) if job != dies]
    for host in range(2):
        log = play(pattern, steps, random.Random(seed + host), dies=dies)
        assert [job for job in log if job != dies] == survivors


class Device(RuleBasedStateMachine):
    """Any calls at all, sensible or not, against a model that is written as sets and one list of grants."""

    @initialize(jobs=st.integers(1, 4))
    def start(self, jobs):
        self.turns = Turns(jobs)
        self.living = set(range(jobs))
        self.playing: set[int] = set()
        self.wanting: set[int] = set()
        self.waiting: dict[int, tuple[object, tuple[int, ...] | None]] = {}
        self.pattern: tuple[int, ...] = (0,)
        self.place = 0
        self.holder: int | None = None

    def expect(self, allowed, call):
        """Make a call that must succeed or be refused; follow its grants in the model."""
        before = copy.deepcopy(vars(self.turns))
        if not allowed:
            with pytest.raises(RunError):
                call()
            assert vars(self.turns) == before
            return None
        replies = call()
        for reply in replies:
            if isinstance(reply, Granted):
                assert self.holder is None, "two holders"
                assert reply.job in self.wanting, "a turn for somebody who did not ask"
                while self.pattern[self.place % len(self.pattern)] not in self.playing:
                    self.place += 1
                assert reply.job == self.pattern[self.place % len(self.pattern)], "out of order"
                self.wanting.discard(reply.job)
                self.holder = reply.job
        return [reply for reply in replies if isinstance(reply, Meeting)]

    def arrive(self, job, meeting, call):
        allowed = job in self.living and job not in self.playing and job not in self.waiting
        allowed = allowed and all(other == meeting for other in self.waiting.values())
        if allowed:
            self.waiting[job] = meeting
        self.opened(self.expect(allowed, call))

    def opened(self, met):
        complete = bool(self.waiting) and set(self.waiting) == self.living
        if met is None:
            return
        assert met == ([Meeting(job, frozenset(self.living)) for job in sorted(self.living)] if complete else [])
        if complete:
            pattern = self.waiting[min(self.waiting)][1]
            self.waiting = {}
            if pattern is not None:
                self.pattern, self.place, self.playing = pattern, 0, set(self.living)

    @rule(job=st.integers(0, 4), block=st.integers(1, 2), pattern=st.lists(st.integers(0, 4), max_size=4))
    def begin(self, job, block, pattern):
        jobs = self.turns._jobs
        if not pattern or max(pattern) >= jobs:
            self.expect(False, lambda: self.turns.begin(job, block, pattern))
        else:
            self.arrive(job, (block, tuple(pattern)), lambda: self.turns.begin(job, block, pattern))

    @precondition(lambda self: self.living and not self.playing and not self.waiting)
    @rule(pattern=st.lists(st.integers(0, 3), min_size=1, max_size=4))
    def all_begin(self, pattern):
        pattern = [job % self.turns._jobs for job in pattern]
        for job in sorted(self.living):
            self.begin(job, 1, pattern)

    @rule(job=st.integers(0, 4), name=st.sampled_from(["a", "b"]))
    def barrier(self, job, name):
        self.arrive(job, (name, None), lambda: self.turns.barrier(job, name))

    @rule(job=st.integers(0, 4))
    def acquire(self, job):
        allowed = job in self.playing and job in self.pattern and job not in self.wanting and job != self.holder
        if allowed:
            self.wanting.add(job)
        self.expect(allowed, lambda: self.turns.acquire(job))

    @precondition(lambda self: self.holder is not None)
    @rule()
    def release_held(self):
        self.release(self.holder)

    @rule(job=st.integers(0, 4))
    def release(self, job):
        allowed = job == self.holder and job in self.living
        if allowed:
            self.holder = None
            self.place += 1
        self.expect(allowed, lambda: self.turns.release(job))

    @rule(job=st.integers(0, 4))
    def end_block(self, job):
        allowed = job in self.playing and job != self.holder and job not in self.wanting
        if allowed:
            self.playing.discard(job)
        self.expect(allowed, lambda: self.turns.end_block(job, self.turns._block))

    @precondition(lambda self: len(self.living) > 1)
    @rule(job=st.integers(0, 4))
    def leave(self, job):
        self.living.discard(job)
        self.playing.discard(job)
        self.wanting.discard(job)
        self.waiting.pop(job, None)
        if job == self.holder:
            self.holder = None
            self.place += 1
        self.opened(self.expect(True, lambda: self.turns.leave(job)))

    @invariant()
    def the_holder_is_the_models(self):
        assert self.turns.holder == self.holder
        assert self.turns.living == self.living

    @invariant()
    def nobody_waits_for_a_turn_that_is_free_to_take(self):
        if self.holder is None and any(job in self.playing for job in self.pattern):
            places = (self.pattern[(self.place + ahead) % len(self.pattern)] for ahead in range(len(self.pattern)))
            assert next(job for job in places if job in self.playing) not in self.wanting

    def teardown(self):
        """No lost turn: when the others end as they should, every job that asked gets its turn."""
        if not hasattr(self, "turns"):
            return
        owed = set(self.wanting)
        for _ in range(20):
            if self.holder is not None:
                owed.discard(self.holder)
                self.release(self.holder)
            for job in sorted(self.playing - self.wanting - {self.holder}):
                self.end_block(job)
            owed.discard(self.holder)
        assert not owed
        assert not self.playing


TestDevice = Device.TestCase
TestDevice.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def after(turns: Turns, method: str, *arguments: object) -> Turns:
    """The turns after a call."""
    getattr(turns, method)(*arguments)
    return turns


def begun() -> Turns:
    """Turns whose two jobs have begun block 1."""
    return after(after(Turns(2), "begin", 0, 1, (0, 1)), "begin", 1, 1, (0, 1))


def test_a_meeting_that_a_job_died_in_does_not_open_without_the_others():
    turns = after(Turns(3), "barrier", 0, "go")
    assert turns.leave(0) == []
    assert turns.barrier(1, "another") == []
    assert turns.barrier(2, "another") == [Meeting(1, frozenset({1, 2})), Meeting(2, frozenset({1, 2}))]


def test_a_block_begins_at_the_first_place_of_its_pattern():
    turns = begun()
    for method, *arguments in (("acquire", 0), ("release", 0), ("end_block", 0, 1), ("end_block", 1, 1)):
        after(turns, method, *arguments)
    after(after(turns, "begin", 0, 2, (0, 1)), "begin", 1, 2, (0, 1))
    assert turns.acquire(0) == [Granted(0)]


def test_a_job_ends_the_block_that_it_is_in():
    with pytest.raises(RunError, match="is in block 1"):
        begun().end_block(1, 2)


@pytest.mark.parametrize(
    ("turns", "job", "why"),
    [
        (after(begun(), "acquire", 0), 1, "held by job 0"),
        (after(begun(), "acquire", 1), 1, "where job 0 is next and has not asked for its turn"),
        (after(Turns(2), "barrier", 0, "go"), 0, "where job 1 has not come"),
        (after(Turns(2), "begin", 0, 1, (0, 1)), 0, "where job 1 has not come"),
        (after(Turns(3), "barrier", 1, "go"), 1, "where jobs 0, 2 have not come"),
    ],
)
def test_why_a_job_waits(turns, job, why):
    assert turns.reason(job) == why
