"""The controller of live jobs on a played cluster: the simulator's decisions, crashes, and its own end at any point."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from live_cases import (
    POLICIES,
    Played,
    began,
    decisions,
    digest,
    entry,
    gone_on,
    played,
    replayed,
    simulated,
    some_jobs,
)

from xbench.cluster.live.controller import SILENCE_S, Controller
from xbench.cluster.live.ledger import Event, JobEnded, Ledger, ProgressReported, RunPaused, RunStarted, read
from xbench.cluster.live.state import State
from xbench.errors import Interrupted, SpecError


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("slots", [2, 4])
def test_the_decisions_are_the_simulator_s(policy: str, slots: int, tmp_path: Path) -> None:
    asked = began(some_jobs(), policy, slots)
    expected, finished = simulated(asked)
    state, events = played(asked, tmp_path)
    assert decisions(events) == expected
    assert len(expected) > 3
    ends = {one.job.name: one.finished_s for one in finished.finished}
    assert {name: track.finished_s for name, track in state.tracks.items()} == ends
    restarts = {one.job.name: one.restarts for one in finished.finished}
    assert {name: len(track.attempts) - 1 for name, track in state.tracks.items()} == restarts


def test_speeds_that_nobody_declared_are_learned_by_trying(tmp_path: Path) -> None:
    jobs = [entry("a", steps=200), entry("b", steps=300, arrival_s=40.0)]
    asked = began(jobs, "exploratory:trial=16", 3)
    unknown = began([job.model_copy(update={"speeds": None}) for job in jobs], "exploratory:trial=16", 3)
    expected, _ = simulated(asked)
    state, events = played(unknown, tmp_path, Played(3))
    assert decisions(events) == expected
    assert state.tracks["a"].speed.seen == {1: 1.0, 2: 2.0}


def test_a_trial_lasts_from_when_its_job_trains(tmp_path: Path) -> None:
    slow = Played(2, cost_s=10.0)  # and the policy was told 4 s
    _, events = played(began([entry("a", steps=100)], "exploratory:trial=8"), tmp_path, slow)
    assert [at_s for at_s, _ in decisions(events)] == [0.0, 18.0]


def test_nobody_starts_before_what_it_waits_for_is_free(tmp_path: Path) -> None:
    world = Played(2, stop_s=3.0)
    state, _ = played(began(some_jobs(), "doubling", 2), tmp_path, world)
    assert all(track.finished_s is not None for track in state.tracks.values())
    stops = [one for track in state.tracks.values() for one in track.attempts if one.how == "stopped"]
    assert stops
    assert all(one.ended_s == one.stopping_s + 3.0 for one in stops)


def test_one_that_has_yet_to_train_is_stopped_at_once(tmp_path: Path) -> None:
    jobs = [entry("a", steps=64, gpus=2), entry("b", steps=4, arrival_s=3.0)]
    state, events = played(began(jobs, "srtf", 2), tmp_path, Played(2, stop_s=50.0))
    a = state.tracks["a"]
    assert [(one.how, one.ended_s) for one in a.attempts] == [("stopped", 3.0), ("finished", 11.0 + 4.0 + 32.0)]
    assert (a.crashes, a.lost_steps) == (0, 0.0)
    assert state.tracks["b"].finished_s == 11.0
    assert digest(State.of(events)) == digest(state)


def test_a_crash_is_retried_from_the_checkpoint(tmp_path: Path) -> None:
    world = Played(1, crash_at={"a": [37.0]})
    state, events = played(began([entry("a"), entry("b")], slots=1), tmp_path, world)
    a, b = state.tracks["a"], state.tracks["b"]
    assert (a.crashes, a.lost_steps, a.finished_s) == (1, 7.0, 4 + 37 + 4 + 10)
    assert b.finished_s == a.finished_s + 44
    assert [(name, base) for _, name, _, base in world.launched] == [("a", 0.0), ("a", 30.0), ("b", 0.0)]
    failed = next(one for one in events if isinstance(one, JobEnded) and one.how == "failed")
    assert (failed.steps, failed.kept_steps, failed.reason) == (37.0, 30.0, "rank 0: boom")


def test_after_its_retries_a_job_is_given_up_and_the_others_go_on(tmp_path: Path) -> None:
    world = Played(1, crash_at={"a": [5.0, 6.0]})
    state, _ = played(began([entry("a"), entry("b")], slots=1, retries=1), tmp_path, world)
    assert state.tracks["a"].gave_up == "it failed 2 times, at last: rank 0: boom"
    assert state.tracks["a"].finished_s is None
    assert state.tracks["b"].finished_s == 9 + 10 + 44


@pytest.mark.parametrize("policy", ["srtf", "doubling"])
def test_a_job_that_ends_while_it_is_being_stopped(policy: str, tmp_path: Path) -> None:
    """It does its last step before it looks at what it was asked."""
    jobs = [entry("a", steps=40, gpus=2, least=1), entry("b", steps=4, arrival_s=22.0, gpus=2, least=2)]
    state, events = played(began(jobs, policy, 2), tmp_path, Played(2, stop_s=50.0))
    assert [one.how for one in state.tracks["a"].attempts] == ["finished"]
    assert state.tracks["a"].finished_s == 24.0
    assert state.tracks["b"].finished_s == 24.0 + 4.0 + 2.0
    assert digest(State.of(events)) == digest(state)


@pytest.mark.parametrize(("error", "poll_s", "reason", "later_s"), [
    (SpecError("no such model"), 2.0, "no such model", 0.0),
    (OSError("no more processes"), 2.0, "it failed 3 times, at last: no more processes", 2.0),
    (OSError("no more processes"), 0.05, "it failed 3 times, at last: no more processes", 2.0),
])  # fmt: skip
def test_what_cannot_be_built_is_given_up_at_once_and_what_cannot_be_launched_is_retried(
    error: Exception, poll_s: float, reason: str, later_s: float, tmp_path: Path
) -> None:
    world = Played(1, refuse={"a": error}, poll_s=poll_s)
    state, _ = played(began([entry("a"), entry("b")], slots=1, retries=2), tmp_path, world)
    assert state.tracks["a"].gave_up == reason
    assert state.tracks["b"].finished_s == later_s + 44.0


def test_one_that_does_not_stop_is_killed(tmp_path: Path) -> None:
    jobs = [entry("a", steps=1000, gpus=2), entry("b", steps=4, arrival_s=50.0)]
    state, events = played(began(jobs, "srtf", 2), tmp_path, Played(2, stop_s=1e9))
    assert state.tracks["a"].attempts[0].how == "failed"
    assert all(track.finished_s is not None for track in state.tracks.values())
    assert digest(State.of(events)) == digest(state)


def test_one_that_makes_no_progress_is_killed(tmp_path: Path) -> None:
    said: list[str] = []
    world = Played(1, cost_s=1e5)
    state, _ = played(began([entry("a")], slots=1, retries=0), tmp_path, world, said.append)
    assert state.tracks["a"].attempts[0].how == "failed"
    assert world.now == pytest.approx(SILENCE_S, abs=2 * world.poll_s)
    assert sum("has made no progress for 30.0 min, and is killed" in line for line in said) == 1


def test_ctrl_c_stops_all_with_a_checkpoint(tmp_path: Path) -> None:
    asked = began(some_jobs(), "doubling", 4)
    world = Played(4, stop_s=2.0)
    with pytest.raises(Interrupted) as caught:
        played(asked, tmp_path, world, stopping=lambda: int(world.now > 15))
    assert caught.value.hint == f"xbench cluster run --resume {tmp_path}"
    assert world.running == []
    assert any(isinstance(one, RunPaused) for one in read(tmp_path)[0])
    assert all(track.attempt is None for track in replayed(tmp_path).tracks.values())
    resumed = gone_on(tmp_path, world)
    assert all(track.finished_s is not None for track in resumed.tracks.values())
    assert all(track.lost_steps == 0 for track in resumed.tracks.values())


def test_asked_twice_all_is_killed(tmp_path: Path) -> None:
    world = Played(2, stop_s=1e9)
    asks = iter([0, 0, 1, 1, 2])
    with pytest.raises(Interrupted):
        played(began([entry("a", steps=1000)]), tmp_path, world, stopping=lambda: next(asks, 2))
    assert world.running == []


class Killed(BaseException):
    """The controller is gone, between two instructions."""


class Mortal(Ledger):
    """Dies at the nth line: before it is written, half way through it, or after it is on the disk."""

    left = 0
    where = "before"

    def append(self, event: Event) -> None:
        self.left -= 1
        if self.left >= 0 or self.where == "after":
            super().append(event)
        if self.left < 0:
            if self.where == "within":
                with open(self.folder / "ledger.jsonl", "ab") as stream:
                    stream.write(event.model_dump_json().encode()[:-7])
            raise Killed


def killed_at(asked: RunStarted, folder: Path, world: Played, deaths: list[tuple[int, str]]) -> State:
    """Run to the end, with a controller that dies at these lines, each counted from its own beginning."""
    Ledger.begin(folder, asked).close()
    for lines, where in [*deaths, (10**9, "")]:
        ledger, events = Mortal.resume(folder)
        assert isinstance(ledger, Mortal)
        ledger.left, ledger.where = lines, where
        state = State.of(events)
        world.now = state.now_s
        controller = Controller(state, ledger, world, world)
        try:
            if len(events) > 1:
                controller.resume()
            controller.run()
        except Killed:
            world.close()  # the kernel does that
            continue
        finally:
            ledger.close()
        return state
    raise AssertionError("unreachable")


@given(
    policy=st.sampled_from(POLICIES),
    deaths=st.lists(
        st.tuples(st.integers(0, 40), st.sampled_from(["before", "within", "after"])), min_size=1, max_size=3
    ),
    crashes=st.lists(st.floats(1, 60), max_size=2),
)
def test_a_controller_that_dies_anywhere_loses_no_job_and_no_kept_step(
    policy: str, deaths: list[tuple[int, str]], crashes: list[float]
) -> None:
    asked = began(some_jobs(), policy, 2, retries=2)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        world = Played(2, crash_at={"a": list(crashes)})
        state = killed_at(asked, folder, world, deaths)
        assert world.running == []
        for track in state.tracks.values():
            assert track.finished_s is not None
            assert world.kept[track.name] == track.entry.steps
            assert track.lost_steps <= track.entry.checkpoint_steps * (len(deaths) + track.crashes)
        bases: dict[str, float] = {}
        for _, job, _, base in world.launched:
            assert base >= bases.get(job, 0.0), "a step that was kept is done again"
            bases[job] = base
        assert digest(replayed(folder)) == digest(state)


def test_progress_is_told_now_and_then(tmp_path: Path) -> None:
    _, events = played(began([entry("a"), entry("b", arrival_s=1), entry("c", arrival_s=30)], slots=1), tmp_path)
    told = [one for one in events if isinstance(one, ProgressReported)]
    assert told
    assert all(told[n + 1].at_s - told[n].at_s >= 2 for n in range(len(told) - 1))


def test_a_policy_that_leaves_jobs_waiting_is_a_bug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xbench.cluster.policies.fifo.Fifo.decide", lambda self, now_s: ())
    with pytest.raises(RuntimeError, match="fifo leaves 1 jobs waiting forever"):
        played(began([entry("a")]), tmp_path)


@pytest.mark.parametrize("policy", ["crossover-pairs", "jigsaw:k=2"])
def test_a_policy_that_shares_is_refused_before_anything_is_started(policy: str) -> None:
    with pytest.raises(SpecError, match=f"'{policy}' lets jobs share their slots, and real jobs do not yet"):
        State(began([entry("a")], policy))
