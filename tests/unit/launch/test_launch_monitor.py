"""The monitor on a clock that the test turns: every way for a launch to end, exactly."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launch_world import SILENCE_S, START_S, World, block, error

from xbench.errors import FabricError, RankError, RunError
from xbench.launch.monitor import COLLECT_S, COMPILING_S, END_S
from xbench.rank.events import PhaseBegan, RankEnded

KILLED_9 = "E0101 torch] failed (exitcode: -9) local_rank: 0 (pid: {pid}) of binary: python\n"


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def test_all_ranks_end_and_all_agents_leave(world):
    world.hello_all()
    for journal in world.journals.values():
        journal.write(block())
        journal.write(RankEnded())
    assert world.monitor.poll() is None
    world.agent(0, 0)
    assert world.monitor.poll() is None
    world.agent(1, 0)
    verdict = world.monitor.poll()
    assert (verdict.error, verdict.warnings) == (None, [])
    assert world.events == [(0, r, e) for r in (0, 1) for e in ("hello",)] + [
        (0, r, e) for r in (0, 1) for e in ("block", "end")
    ]


def test_an_agent_that_will_not_leave_is_a_warning(world):
    world.hello_all()
    for journal in world.journals.values():
        journal.write(RankEnded())
    world.agent(0, 0)
    assert world.monitor.poll() is None
    assert world.wait(END_S - 1) is None
    verdict = world.wait(1)
    assert verdict.error is None
    assert verdict.warnings == ["the agent on host 1 did not end after its ranks were done, and was ended"]


OUT_OF_MEMORY = {"said": "ran out of GPU memory: 2.00 GiB were wanted", "hint": "a smaller --batch-size needs less"}


@pytest.mark.parametrize(
    ("message", "fields", "sentence"),
    [
        ("ValueError: shapes differ\nmore of it", {}, " raised ValueError: shapes differ more of it"),
        # the user's line, and all that the error says
        ("RuntimeError: no way:\n  at all.", {"place": "a.py:12"}, ": a.py:12 raised RuntimeError: no way: at all"),
        # what a rank says for people takes the place of its exception
        ("OutOfMemoryError: CUDA out of memory. Tried", OUT_OF_MEMORY, f" {OUT_OF_MEMORY['said']}"),
        # an explained error is a cause even where its text speaks of lost peers
        ("DistBackendError: NCCL, timeout: Duplicate GPU", {"said": "found another rank"}, " found another rank"),
        # an error of ours is a sentence already
        ("WorkloadError: no", {"told": "parameter 'a' is new", "hint": "run it once"}, ": parameter 'a' is new"),
    ],
)
def test_an_error_of_ones_own_comes_before_the_loss_of_a_peer(world, message, fields, sentence):
    world.hello_all()
    world.journals[0, 0].write(error("RuntimeError: [gloo/pair.cc:538] Connection closed by peer", t=1.0))
    world.journals[0, 1].note("optimal step 12: computing")
    world.journals[0, 1].write(error(message, t=2.0, **fields))
    told = world.cause()
    assert isinstance(told, RankError)
    assert str(told) == f"rank 1 on host 1 (optimal step 12: computing){sentence}"
    assert told.detail == f"Traceback\n{message}"
    assert "hint" not in fields or told.hint == fields["hint"]


def test_a_kill_comes_before_every_error(world):
    world.hello_all()
    world.journals[0, 0].write(error("ValueError: anything"))
    world.journals[0, 1].write(PhaseBegan(name="round 2 optimal"))
    world.die(1)
    assert world.monitor.poll() is None
    world.logs[0, 1] = KILLED_9.format(pid=world.pid(1))
    told = world.wait(COLLECT_S).error
    assert str(told) == "rank 1 on host 1 (round 2 optimal) was killed (SIGKILL)"
    assert "--batch-size" in told.hint


def test_the_earliest_of_equals_is_the_cause(world):
    world.hello_all()
    for rank, at_s in ((0, 20.0), (1, 10.0)):
        with open(world.folder / f"job0-rank{rank}.jsonl", "a") as stream:
            stream.write(error(f"ValueError: {rank}", t=at_s).line())
    assert str(world.cause()) == "rank 1 on host 1 raised ValueError: 1"


def test_a_rank_that_its_agent_ended_is_no_cause(tmp_path):
    world = World(tmp_path, hosts=1, ranks=2)
    world.hello_all()
    world.journals[0, 1].write(error("RuntimeError: Connection reset by peer"))
    world.die(0)
    world.die(1)
    world.agent(0, 1)
    world.logs[0, 0] = f"W0101 Sending process {world.pid(0)} closing signal SIGTERM\n"
    assert str(world.cause()) == "rank 1 on host 0 raised RuntimeError: Connection reset by peer"


def test_an_agent_that_ends_its_ranks_and_then_says_why(world):
    world.hello_all()
    world.die(1)
    world.logs[0, 1] = f"W0101 Sending process {world.pid(1)} closing signal SIGTERM\n"
    assert world.monitor.poll() is None
    assert world.wait(COLLECT_S) is None
    world.logs[0, 1] += "Traceback (most recent call last):\n  File x\nSignalException: got signal 15\n"
    world.agent(1, 1)
    assert world.wait(1).error.args == ("rank 1 on host 1 did not finish: SignalException: got signal 15",)


def test_an_agent_that_ends_its_ranks_and_never_says_why(world):
    world.hello_all()
    world.journals[0, 1].note("ddp step 2")
    world.die(1)
    world.journals[0, 0].write(RankEnded())
    world.logs[0, 1] = f"W0101 Sending process {world.pid(1)} closing signal SIGTERM\n"
    assert world.monitor.poll() is None
    assert world.wait(END_S - 1) is None
    told = world.wait(1).error
    assert str(told) == "rank 1 on host 1 (ddp step 2) was ended by its agent, which gave no reason"


def test_an_end_that_is_read_late_is_no_trouble(world):
    world.hello_all()
    world.agent(0, 0)
    assert world.monitor.poll() is None
    world.journals[0, 0].write(RankEnded())
    assert world.wait(COLLECT_S) is None
    world.journals[0, 1].write(RankEnded())
    world.agent(1, 0)
    assert world.monitor.poll().error is None


def test_a_rank_that_leaves_without_a_word(world):
    world.hello_all()
    world.die(1)
    world.logs[0, 1] = (
        "Traceback (most recent call last):\n  File x\nKeyError: 'lost'\n"
        f"E0101 torch] failed (exitcode: 3) local_rank: 0 (pid: {world.pid(1)}) of binary: python\n"
    )
    assert str(world.cause()) == "rank 1 on host 1 ended with exit code 3: KeyError: 'lost'"


@pytest.mark.parametrize(
    ("happens", "sentence"),
    [
        (lambda world: world.die(0), "rank 0 on host 0 disappeared before its work was done"),
        (lambda world: (world.die(0), world.agent(0, -9)), "the agent of host 0 was killed (SIGKILL)"),
        (lambda world: (world.journals[0, 0].write(RankEnded()), world.agent(1, 0)), "rank 1 on host 1 did not finish"),
    ],
)
def test_an_end_that_no_log_explains(world, happens, sentence):
    world.hello_all()
    happens(world)
    assert str(world.cause()) == sentence


def test_the_link_is_named_when_ranks_only_lost_each_other(world):
    world.hello_all()
    world.fault = "the link of host 1 is down"
    for journal in world.journals.values():
        journal.write(error("RuntimeError: Timed out waiting 3000ms for recv operation"))
    told = world.cause()
    assert isinstance(told, FabricError)
    assert str(told) == "the link of host 1 is down, so the ranks lost each other"


def test_a_stopped_rank_is_named_when_the_other_gave_up(world):
    world.hello_all()
    world.journals[0, 1].note("ddp step 3")
    world.states[world.pid(1)] = "T"
    world.journals[0, 0].write(error("RuntimeError: Timed out waiting 3000ms for recv operation"))
    assert str(world.cause()) == "rank 1 on host 1 (ddp step 3) was stopped, and the others gave up waiting"


def test_a_full_disk_explains_everything(world):
    world.hello_all()
    world.die(0)
    world.full = True
    told = world.cause()
    assert type(told) is RunError
    assert str(told) == "the disk that holds the run's folder is full"


def test_ranks_that_never_start_are_explained_by_the_log(world):
    world.hello(0)
    world.agent(1, 1)
    world.logs[0, 1] = "Traceback (most recent call last):\n  File x\nModuleNotFoundError: No module named 'nothing'\n"
    told = world.cause()
    assert str(told) == "rank 1 on host 1 did not start: ModuleNotFoundError: No module named 'nothing'"
    assert told.detail == world.logs[0, 1]


def test_a_rank_that_dies_after_its_end_is_told(world):
    world.hello_all()
    for journal in world.journals.values():
        journal.write(RankEnded())
    world.die(1)
    world.agent(0, 0)
    world.agent(1, 1)
    world.logs[0, 1] = f"E0101 torch] failed (exitcode: -11) local_rank: 0 (pid: {world.pid(1)}) of binary: python\n"
    assert str(world.cause()) == "rank 1 on host 1 finished its work and then was killed (SIGSEGV)"


def test_start_up_has_its_own_patience(world):
    world.hello(0)
    assert world.monitor.poll() is None
    world.logs[0, 1] = "still importing\n"
    assert world.wait(START_S - 1) is None
    told = world.wait(1).error
    assert str(told) == "rank 1 on host 1 did not start within 180 s"
    assert told.detail == "still importing\n"


WAITS = "ddp step 4: waiting for gradients"


@pytest.mark.parametrize(
    ("notes", "state", "told"),
    [
        ([WAITS, "ddp step 4: backward"], "R", "gave no sign of life for 60 s, the limit of --timeout"),
        ([WAITS, WAITS], "R", "gave no sign of life for 60 s, the limit of --timeout"),  # the longest silent
        (["ddp step 4: backward", WAITS], "T", "is stopped (as by SIGSTOP)"),
    ],
)
def test_silence_names_the_rank_that_does_not_wait_or_is_stopped(world, notes, state, told):
    world.hello_all()
    for rank in (1, 0):
        world.journals[0, rank].note(notes[rank])
    world.states[world.pid(1)] = state
    assert world.monitor.poll() is None
    assert world.wait(SILENCE_S - 1) is None
    found = world.wait(1).error
    assert str(found).startswith(f"rank 1 on host 1 ({notes[1]}) {told}")
    assert state == "T" or "--timeout 120s" in found.hint


def test_a_rank_that_compiles_may_be_silent_for_longer(world):
    world.hello_all()
    world.journals[0, 0].note("gate ddp+compile: compiling step 1: computing")
    assert world.monitor.poll() is None
    assert world.wait(SILENCE_S + 1) is None
    assert world.wait(COMPILING_S - SILENCE_S - 2) is None
    told = world.wait(1).error
    assert str(told).endswith("gave no sign of life for 900 s")  # which --timeout did not ask for
    assert "--timeout 1800s" in told.hint


@pytest.mark.parametrize("rank", [0, 1])
def test_any_sign_of_life_of_any_rank_ends_the_silence(world, rank):
    world.hello_all()
    for step in range(5):
        assert world.wait(SILENCE_S - 1) is None
        if step % 2:
            world.journals[0, rank].note(f"step {step}")
        else:
            world.journals[0, rank].write(PhaseBegan(name=f"phase {step}"))
        assert world.monitor.poll() is None
    assert world.wait(SILENCE_S) is not None


def test_a_link_that_is_down_is_found_long_before_the_silence_counts(world):
    world.hello_all()
    assert world.wait(6) is None
    world.fault = "the link of host 0 is gone"
    told = world.wait(6).error
    assert isinstance(told, FabricError)
    assert str(told) == "the link of host 0 is gone, so the ranks cannot reach each other"


def test_messages_name_the_job_where_there_are_two(tmp_path):
    world = World(tmp_path, jobs=2)
    world.hello_all(jobs=2)
    world.journals[1, 0].write(error("ValueError: no"))
    assert str(world.cause()) == "rank 0 of job 1 on host 0 raised ValueError: no"


OCCURRENCES = st.lists(
    st.tuples(st.sampled_from(["event", "note", "error", "end", "die", "agent", "agent 0", "wait"]), st.integers(0, 1)),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(OCCURRENCES)
def test_whatever_happens_a_launch_ends(tmp_path_factory, occurrences):
    """Any order of events, deaths and exits is followed by a verdict once everything is quiet."""
    world = World(tmp_path_factory.mktemp("launch"))
    for rank in (0, 1):
        world.hello(rank)
    for what, rank in occurrences:
        journal = world.journals[0, rank]
        match what:
            case "event":
                journal.write(block())
            case "note":
                journal.note("step")
            case "error":
                journal.write(error("x"))
            case "end":
                journal.write(RankEnded())
            case "die":
                world.die(rank)
            case "agent":
                world.agent(rank, 1)
            case "agent 0":
                world.agent(rank, 0)
        if (verdict := world.wait(0.05)) is not None:
            break
    else:
        assert any(world.wait(START_S) for _ in range(4))  # trouble, that dissolves, then agents that will not leave
        return
    assert verdict.error is None or str(verdict.error)


def test_a_note_is_handed_on_once(world):
    world.hello_all()
    world.journals[0, 1].note("profile step 2 of 10")
    assert world.wait(0.1) is None
    assert world.wait(0.1) is None
    world.journals[0, 1].note("profile step 3 of 10")
    assert world.wait(0.1) is None
    assert world.notes == [(0, 1, "profile step 2 of 10"), (0, 1, "profile step 3 of 10")]
