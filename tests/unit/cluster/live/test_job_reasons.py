"""Reasons of an attempt's end, from its journals, its log, and its agent's exit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest

from xbench.cluster.live.attempt import LOG, STOP, AttemptProgress, attempt_of, next_attempt
from xbench.cluster.live.checkpoints import write
from xbench.cluster.live.jobs_file import JobEntry
from xbench.cluster.live.local_engine import LocalEngine, LocalRunning, free, taken
from xbench.rank.events import CheckpointKept, CheckpointLoaded, Event, RankEnded, RankFailed, StepTrained
from xbench.rank.journal import Journal

PROGRAM = attempt_of(JobEntry(name="a", workload="resnet18", steps=100, batch_size=8), (0, 1))
RAISED = "WorkloadError: train.py: make() raised ValueError: no such data\nand more"
PEER = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:4711"


def over(folder: Path, *, code: int = 1, log: str = "", **told: tuple[Event, ...]) -> AttemptProgress:
    """Make an attempt of two ranks whose agent ended so; `rank0` and `rank1` are their events."""
    directory = next_attempt(folder, PROGRAM)
    (directory / LOG).write_text(log, encoding="utf-8")
    for rank in (0, 1):
        journal = Journal(directory, 0, rank)
        for event in told.get(f"rank{rank}", ()):
            journal.write(event)
        journal.close()
    ending = f"import os; os.kill(os.getpid(), {-code})" if code < 0 else f"raise SystemExit({code})"
    return LocalRunning(ended(ending), directory, PROGRAM).wait()


def ended(program: str = "") -> subprocess.Popen[bytes]:
    """A process that is over."""
    process = subprocess.Popen([sys.executable, "-S", "-c", program])
    process.wait()
    return process


STEPS = (CheckpointLoaded(steps=50, skipped=[]), StepTrained(step=51, loss=1.0), StepTrained(step=52, loss=1.0))
KEPT = CheckpointKept(steps=52)


@pytest.fixture(autouse=True)
def kept(tmp_path: Path) -> None:
    """A checkpoint of step 50, from which the attempt starts."""
    write(tmp_path, PROGRAM.key, 50, b"")


@pytest.mark.parametrize("how", ["stopped", "finished"])
def test_rank_0_s_word_counts(tmp_path: Path, how: Literal["stopped", "finished"]) -> None:
    end = RankEnded(how=how, steps=52)
    write(tmp_path, PROGRAM.key, 52, b"")
    assert over(tmp_path, code=0, rank0=(*STEPS, KEPT, end)) == AttemptProgress(how, 52, 52)
    assert over(tmp_path, code=1, rank0=(*STEPS, KEPT, end)).state == how


def test_without_it_the_attempt_failed_whatever_the_code(tmp_path: Path) -> None:
    look = over(tmp_path, code=0, rank0=STEPS)
    assert look == AttemptProgress("failed", 52, 50, "its agent ended with exit code 0")


def test_a_checkpoint_of_which_the_journal_says_nothing_is_kept_all_the_same(tmp_path: Path) -> None:
    write(tmp_path, PROGRAM.key, 52, b"")
    assert over(tmp_path, rank0=STEPS).kept_steps == 52


def test_who_died_first_is_named_and_not_who_noticed(tmp_path: Path) -> None:
    raised = RankFailed(message=RAISED)
    noticed = RankFailed(message=PEER)
    look = over(tmp_path, rank0=(*STEPS, noticed), rank1=(raised,))
    assert look.reason == "rank 1: WorkloadError: train.py: make() raised ValueError: no such data"
    said = RankFailed(message="RuntimeError: a long story", said="ran out of memory")
    assert over(tmp_path, rank0=(said,)).reason == "rank 0 ran out of memory"
    log = "failed (exitcode: -9) local_rank: 1 (pid: 4712)\n"
    assert over(tmp_path, log=log, rank0=(noticed,)).reason == "rank 1 was killed (SIGKILL)"
    assert over(tmp_path, rank0=(noticed,)).reason == f"rank 0: {PEER}"


def test_an_agent_that_was_killed_or_never_ran(tmp_path: Path) -> None:
    assert over(tmp_path, code=-9).reason == "its agent was killed (SIGKILL)"
    assert over(tmp_path, log="FileNotFoundError: no python\n").reason == "FileNotFoundError: no python"


def test_it_is_not_over_while_anybody_holds_the_folder(tmp_path: Path) -> None:
    directory = next_attempt(tmp_path, PROGRAM)
    lock = taken(tmp_path)
    assert lock is not None
    assert taken(tmp_path) is None
    assert not free(tmp_path)
    running = LocalRunning(ended(), directory, PROGRAM)
    assert running.look() == AttemptProgress("starting", 50, 50)
    os.close(lock)
    assert running.look().state == "failed"
    assert running.over
    lock = taken(tmp_path)
    assert running.look().state == "failed"  # for ever
    assert lock is not None
    os.close(lock)


def test_a_stop_is_a_file_and_may_be_asked_for_again(tmp_path: Path) -> None:
    running = LocalRunning(ended(), next_attempt(tmp_path, PROGRAM), PROGRAM)
    running.stop()
    running.stop()
    assert (running.directory / STOP).exists()


def test_slots_are_cores_none_shared_while_there_are_enough() -> None:
    engine = LocalEngine()
    cores = sorted(os.sched_getaffinity(0))
    assert engine.slots == len(cores)
    assert sorted(core for slot in engine.cores for core in slot) == cores
    assert len(LocalEngine(len(cores) + 1).cores) == len(cores) + 1
