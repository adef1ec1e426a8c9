"""The state machine of one device's turns, exactly and at random."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from xbench.crossover.turns import Granted, Met, Turns
from xbench.errors import RunError


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
    assert turns.begin(1, 1, (0, 1, 2)) == [Met(0, everybody), Met(1, everybody), Met(2, everybody)]


def test_turns_alternate():
    turns = begun(2, (0, 1))
    assert turns.acquire(0) == [Granted(0)]
    assert turns.acquire(1) == []
    assert turns.release(0) == [Granted(1)]
    assert turns.acquire(0) == []
    assert turns.release(1) == [Granted(0)]


def test_the_others_wait_for_a_job_that_has_not_asked_at_its_place():
    turns = begun(2, (0, 1))
    assert turns.acquire(1) == []
    assert turns.holder is None
    assert turns.acquire(0) == [Granted(0)]


def test_a_job_takes_all_its_places_in_a_row():
    turns = begun(2, (0, 0, 1))
    assert turns.acquire(1) == []
    assert turns.acquire(0) == [Granted(0)]
    assert turns.release(0) == []
    assert turns.acquire(0) == [Granted(0)]
    assert turns.release(0) == [Granted(1)]


def test_a_job_that_ended_its_block_is_skipped():
    turns = begun(2, (0, 1))
    turns.acquire(0)
    turns.acquire(1)
    assert turns.release(0) == [Granted(1)]
    assert turns.release(1) == []
    assert turns.acquire(1) == []
    assert turns.end_block(0, 1) == [Granted(1)]
    assert turns.release(1) == []
    assert turns.acquire(1) == [Granted(1)]


def test_a_holder_that_leaves_passes_its_turn_on():
    turns = begun(3, (0, 1, 2))
    turns.acquire(0)
    turns.acquire(2)
    turns.acquire(1)
    assert turns.leave(0) == [Granted(1)]
    assert turns.release(1) == [Granted(2)]
    turns.acquire(1)
    assert turns.release(2) == [Granted(1)]


def test_a_job_that_leaves_while_it_waits_for_its_turn_never_gets_it():
    turns = begun(2, (0, 1))
    turns.acquire(0)
    turns.acquire(1)
    assert turns.leave(1) == []
    assert turns.release(0) == []
    assert turns.acquire(0) == [Granted(0)]


def test_a_dead_job_is_not_waited_for_at_meetings_and_the_living_learn_of_it():
    turns = Turns(3)
    turns.barrier(0, "go")
    turns.barrier(2, "go")
    assert turns.leave(1) == [Met(0, frozenset({0, 2})), Met(2, frozenset({0, 2}))]
    turns.begin(2, 1, (0, 1, 2))
    assert turns.begin(0, 1, (0, 1, 2)) == [Met(0, frozenset({0, 2})), Met(2, frozenset({0, 2}))]
    assert turns.acquire(2) == []
    assert turns.acquire(0) == [Granted(0)]
    assert turns.release(0) == [Granted(2)]


def test_a_meeting_that_a_job_died_in_does_not_open_without_the_others():
    turns = Turns(3)
    turns.barrier(0, "go")
    assert turns.leave(0) == []
    assert turns.barrier(1, "another") == []
    assert turns.barrier(2, "another") == [Met(1, frozenset({1, 2})), Met(2, frozenset({1, 2}))]


def test_a_parked_job_gets_no_turn_and_blocks_nobody():
    turns = begun(2, (1,))
    assert turns.acquire(1) == [Granted(1)]
    assert turns.end_block(0, 1) == []
    assert turns.barrier(0, "after") == []
    assert turns.release(1) == []
    assert turns.end_block(1, 1) == []
    assert turns.barrier(1, "after") == [Met(0, frozenset({0, 1})), Met(1, frozenset({0, 1}))]


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
    assert turns.begin(1, 2, (0, 1)) == [Met(0, frozenset({0, 1})), Met(1, frozenset({0, 1}))]


def test_leaving_twice_is_leaving_once():
    turns = begun(2, (0, 1))
    turns.acquire(1)
    assert turns.leave(0) == [Granted(1)]
    assert turns.leave(0) == []
    assert turns.living == {1}


def holding() -> Turns:
    turns = begun(2, (0, 1))
    turns.acquire(0)
    return turns


def asking() -> Turns:
    turns = begun(2, (0, 1))
    turns.acquire(1)
    return turns


def at_barrier() -> Turns:
    turns = Turns(2)
    turns.barrier(0, "go")
    return turns


def beginning() -> Turns:
    turns = Turns(2)
    turns.begin(0, 1, (0, 1))
    return turns


def left() -> Turns:
    turns = Turns(2)
    turns.leave(0)
    return turns


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
    ],
)
def test_why_a_job_waits(state, job, why):
    assert state().why(job) == why


def test_why_names_all_jobs_that_have_not_come():
    turns = Turns(3)
    turns.barrier(1, "go")
    assert turns.why(1) == "where jobs 0, 2 have not come"


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
    turns = begun(len(steps), pattern)
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
        return [reply for reply in replies if isinstance(reply, Met)]

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
        assert met == ([Met(job, frozenset(self.living)) for job in sorted(self.living)] if complete else [])
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
