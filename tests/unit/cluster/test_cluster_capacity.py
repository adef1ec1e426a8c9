"""Slots that come and go under a live cluster, jobs that wait for them, and given-up jobs that are tried again."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from live_cases import POLICIES, Played, began, digest, entry, gone_on, played, replayed, some_jobs

from xbench.cluster.live.controller import Controller
from xbench.cluster.live.ledger import JobEnded, Ledger, Resized
from xbench.cluster.live.outcome import outcome
from xbench.cluster.live.state import State
from xbench.errors import RunError


def test_a_lost_node_costs_no_retry_and_the_job_goes_on_with_what_is_left(tmp_path: Path) -> None:
    """2 slots to 27 s: 46 of 60 steps, of which 40 are kept; then the other 20 on one slot."""
    world = Played(2, sizes={27.0: 1})
    asked = began([entry("a", steps=60, gpus=2)], "doubling", restart_s=0.0, retries=0)
    state, events = played(asked, tmp_path, world)
    a = state.tracks["a"]
    assert [(len(one.slots), one.how, one.from_steps) for one in a.attempts] == [
        (2, "lost", 0.0), (1, "finished", 40.0),
    ]  # fmt: skip
    assert (a.crashes, a.lost_steps, a.finished_s) == (0, 6.0, 27.0 + 4.0 + 20.0)
    assert [event.slots for event in events if isinstance(event, Resized)] == [1]
    assert next(event.reason for event in events if isinstance(event, JobEnded)) == "a node is gone"
    assert digest(State.of(events)) == digest(state)
    record = outcome(state)
    assert (record.complete, record.slots, [span.how for span in record.spans]) == (True, 2, ["lost", "finished"])
    assert "slots were lost or gained, and the simulation has the 2 of the beginning" in record.warnings


def test_a_job_that_fits_no_longer_waits_and_the_others_go_on(tmp_path: Path) -> None:
    said: list[str] = []
    world = Played(2, sizes={10.0: 1, 90.0: 2})
    asked = began([entry("a", steps=60, gpus=2), entry("b", arrival_s=5.0)], "fifo", retries=0)
    state, _ = played(asked, tmp_path, world, said.append)
    a, b = state.tracks["a"], state.tracks["b"]
    assert b.finished_s == 10.0 + 4.0 + 40.0
    assert a.finished_s == 90.0 + 4.0 + 25.0
    assert (a.crashes, a.gave_up) == (0, None)
    assert sum("a waits: it needs more than 1 slot" in line for line in said) == 1
    assert any("the engine has 1 slot now, and had 2" in line for line in said)
    assert digest(replayed(tmp_path)) == digest(state)


def test_new_slots_are_used(tmp_path: Path) -> None:
    world = Played(1, sizes={14.0: 3})
    asked = began([entry("a", least=1), entry("b", least=1)], "equal-share", restart_s=0.0, slots=1)
    state, _ = played(asked, tmp_path, world)
    assert state.tracks["b"].attempts[0].started_s == 14.0
    then = {name: [len(one.slots) for one in track.attempts] for name, track in state.tracks.items()}
    assert then == {"a": [1, 2], "b": [1, 3]}  # b is alone in the end


@pytest.mark.parametrize("policy", POLICIES)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 120), st.integers(0, 4)), max_size=4),
    crash=st.lists(st.floats(1, 30), max_size=1),
)
@settings.get_profile("fewest")
def test_every_policy_lives_with_slots_that_come_and_go(
    policy: str, sizes: list[tuple[int, int]], crash: list[float]
) -> None:
    """All jobs end once there is room again, none is given up, and the ledger comes to the same."""
    world = Played(2, sizes={float(at_s): slots for at_s, slots in sizes} | {150.0: 2}, crash_at={"a": list(crash)})
    with tempfile.TemporaryDirectory() as name:
        state, events = played(began(some_jobs(), policy), Path(name), world)
        assert all(track.finished_s is not None for track in state.tracks.values())
        assert state.tracks["a"].crashes == len(crash) - len(world.crash_at["a"])
        for event in events:
            if isinstance(event, JobEnded) and event.how == "lost":
                assert event.steps - event.kept_steps <= 10
        assert digest(State.of(events)) == digest(state)


@pytest.mark.parametrize("policy", ["fifo", "las", "doubling", "exploratory:trial=8"])
def test_given_up_jobs_are_tried_again_on_request(policy: str, tmp_path: Path) -> None:
    world = Played(1, crash_at={"a": [15.0, 16.0]})
    asked = began([entry("a"), entry("b")], policy, slots=1, retries=0)
    state, _ = played(asked, tmp_path, world)
    assert state.over
    assert state.tracks["a"].gave_up == "it failed once, at last: rank 0: boom"
    assert gone_on(tmp_path, world).tracks["a"].gave_up is not None  # without retries it is left alone
    state = gone_on(tmp_path, world, retries=1)
    a = state.tracks["a"]
    assert (a.gave_up, a.crashes, a.retried) == (None, 2, 1)
    assert a.finished_s is not None
    assert [one.from_steps for one in a.attempts] == [0.0, 10.0, 10.0]
    assert digest(replayed(tmp_path)) == digest(state)
    assert outcome(state).jobs[0].status == "finished"


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_that_is_tried_again_comes_after_the_others(policy: str, tmp_path: Path) -> None:
    """Its number is the least, and it has the last place."""
    world = Played(2, crash_at={"a": [15.0]})
    asked = began([entry("a"), entry("b", steps=200, most=1), entry("c", steps=80)], policy, retries=0)
    ledger, state = Ledger.begin(tmp_path, asked), State(asked)
    controller = Controller(state, ledger, world, world)
    while state.tracks["a"].gave_up is None:
        controller._run_once()
    ledger.close()
    world.close()
    state = gone_on(tmp_path, world, retries=1)
    assert {name: track.steps for name, track in state.tracks.items()} == {"a": 40.0, "b": 200.0, "c": 80.0}
    assert all(one.workers == 1 for one in state.tracks["b"].attempts) or policy.startswith("fixed-2")
    assert state.tracks["a"].lost_steps == 5.0
    assert digest(replayed(tmp_path)) == digest(state)


def test_a_job_that_comes_back_gets_its_own_trials(tmp_path: Path) -> None:
    """While there is 1 slot, a is withheld. After that the policy knows b first, whose number is the larger one."""
    jobs = [entry("a", steps=400, gpus=2, least=2, most=4), entry("b", steps=400, most=1)]
    world = Played(5, sizes={6.0: 1, 30.0: 5})
    state, _ = played(began(jobs, "exploratory:trial=8", slots=5), tmp_path, world)
    assert [one.workers for one in state.tracks["a"].attempts] == [2, 2, 4, 2]
    assert [one.workers for one in state.tracks["b"].attempts] == [1, 1]
    assert digest(replayed(tmp_path)) == digest(state)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("last", ["finished", "failed"])
def test_a_job_that_ends_after_it_lost_its_slot(policy: str, last: str, tmp_path: Path) -> None:
    """At 30 s one slot is left. a, which started last, is lost, and gets the slot. b is asked to stop, but it ends."""
    crash_at = {"a": [10.0], "b": [5.0, 38.0] if last == "failed" else [5.0]}
    world = Played(2, sizes={30.0: 1}, stop_s=50.0, crash_at=crash_at)
    jobs = [entry("a", steps=60, most=1), entry("b", most=1), entry("c", arrival_s=55.0, most=1)]
    state, _ = played(began(jobs, policy, retries=1), tmp_path, world)
    a, b, c = state.tracks.values()
    assert (a.finished_s is not None, c.finished_s is not None) == (True, True)
    assert b.over
    if policy == "fifo":
        assert [(one.how, one.ended_s) for one in b.attempts] == [
            ("failed", 9.0), (last, 13.0 + b.attempts[1].end_steps),
        ]  # fmt: skip
        assert b.attempts[1].stopping_s == 30.0
    assert digest(replayed(tmp_path)) == digest(state)


def test_the_duration_of_a_job_that_ends_while_it_waits_may_have_changed(tmp_path: Path) -> None:
    """b is twice as fast as declared, which is known at its end. It trains from 10.5 s on, for 50 s."""
    world = Played(2, sizes={30.0: 1}, stop_s=50.0, crash_at={"a": [10.0], "b": [5.0]}, speeds={"b": {1: 2.0}})
    jobs = [entry("a", steps=60, most=1), entry("b", steps=100, most=1)]
    state, _ = played(began(jobs, "sjf", retries=1), tmp_path, world)
    a, b = state.tracks.values()
    assert [(one.how, one.ended_s) for one in b.attempts] == [("failed", 6.5), ("finished", 60.5)]
    assert b.attempts[1].stopping_s == 30.0
    assert a.finished_s == 60.5 + 4.0 + 40.0


def test_service_is_what_a_job_computed_before_its_crash_too(tmp_path: Path) -> None:
    """The job computes from 4 to 19 s, when it crashes, and again from 23 s to its end at 53 s."""
    state, _ = played(began([entry("a")], slots=1), tmp_path, Played(1, crash_at={"a": [15.0]}))
    assert state.tracks["a"].active.computed_s(100.0) == 15.0 + 30.0


def test_a_resume_finds_another_number_of_slots(tmp_path: Path) -> None:
    asked = began([entry("a", steps=60, gpus=2, least=1)], "doubling", restart_s=0.0)
    Ledger.begin(tmp_path, asked).close()
    assert [len(one.slots) for one in gone_on(tmp_path, Played(1)).tracks["a"].attempts] == [1]


def test_who_is_still_dying_is_waited_for(tmp_path: Path) -> None:
    """No crash is counted until the processes that the job ran as before are gone."""
    said: list[str] = []
    world = Played(1, refuse={"a": RunError("another attempt of it lives in jobs/a")})
    asked = began([entry("a")], slots=1, retries=0)
    ledger, state = Ledger.begin(tmp_path, asked), State(asked)
    controller = Controller(state, ledger, world, world, said.append)
    for _ in range(5):
        controller._run_once()
    assert sum("a waits: another attempt" in line for line in said) == 1
    world.refuse = {}
    controller.run()
    ledger.close()
    a = state.tracks["a"]
    assert (a.crashes, len(a.attempts)) == (0, 1)
    assert a.finished_s is not None
