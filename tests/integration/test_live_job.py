"""Real training jobs that are stopped, killed and started anew with another number of workers."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from typed_commands import at_step, wait_until_gone

from xbench.cluster.live import checkpoints
from xbench.cluster.live.attempt import AttemptProgress, attempt_of, attempts, events_of, losses
from xbench.cluster.live.job_rank import EPOCH_STEPS
from xbench.cluster.live.jobs_file import JobEntry
from xbench.cluster.live.local_engine import LocalEngine, LocalRunning, free
from xbench.errors import RunError
from xbench.rank.events import CheckpointLoaded, RankStarted

pytestmark = pytest.mark.integration

WORKLOAD = "synthetic:layers=4,bytes=4k,width=16,compute=1"
PATIENCE_S = 60.0


def job(steps: int, *, batch_size: int = 6, every: int = 10, workload: str = WORKLOAD) -> JobEntry:
    return JobEntry(
        name="a", workload=workload, steps=steps, batch_size=batch_size, seed=3, checkpoint_steps=every
    )  # fmt: skip


@pytest.fixture
def engine() -> Iterator[LocalEngine]:
    made = LocalEngine(2)
    yield made
    made.close()


def pid_of(running: LocalRunning, rank: int) -> int:
    return next(event.pid for event in events_of(running.directory, rank) if isinstance(event, RankStarted))


def finished(engine: LocalEngine, asked: JobEntry, folder: Path, slots: tuple[int, ...]) -> AttemptProgress:
    """Launch, and wait until it is over."""
    return engine.start(asked, folder, slots).wait(PATIENCE_S)


def test_losses_go_on_over_one_two_and_one_worker(engine: LocalEngine, tmp_path: Path) -> None:
    """Five samples a step: two workers cannot have as many each."""
    asked = job(60, batch_size=5)
    steps = 0
    for part, slots in enumerate([(0,), (0, 1), (1,)]):
        running = engine.start(asked, tmp_path / "cut", slots)
        if part < 2:
            at_step(running, steps + 15)
            running.stop()
        look = running.wait(PATIENCE_S)
        assert look.state == ("stopped" if look.steps < 60 else "finished")
        assert steps < look.steps == look.kept_steps
        assert events_of(attempts(tmp_path / "cut")[part])[-1].steps == look.steps  # type: ignore[attr-defined]
        steps = look.steps
    assert steps == 60
    assert finished(engine, asked, tmp_path / "whole", (0, 1)) == AttemptProgress("finished", 60, 60)
    cut, uncut = losses(tmp_path / "cut"), losses(tmp_path / "whole")
    assert list(cut) == list(uncut) == list(range(1, 61))
    assert list(cut.values()) == pytest.approx(list(uncut.values()), rel=1e-5)
    epochs = [sum(uncut[EPOCH_STEPS * epoch + step] for step in range(1, EPOCH_STEPS + 1)) for epoch in range(3)]
    assert epochs[2] < epochs[0]  # the same samples in another order: it does learn


def test_a_killed_rank_fails_the_attempt_and_leaves_its_checkpoint(engine: LocalEngine, tmp_path: Path) -> None:
    asked = job(100_000)
    running = engine.start(asked, tmp_path, (0, 1))
    at_step(running, 25)
    with pytest.raises(RunError, match="another attempt of it lives"):
        engine.start(asked, tmp_path, (0,))
    victim = pid_of(running, 1)
    os.kill(victim, signal.SIGKILL)
    look = running.wait(PATIENCE_S)
    assert (look.state, look.reason) == ("failed", "rank 1 was killed (SIGKILL)")
    assert look.kept_steps >= 20
    assert look.kept_steps % 10 == 0
    assert free(tmp_path)
    key = attempt_of(asked, (0,)).key
    assert checkpoints.newest(tmp_path, key)[0] == look.kept_steps
    again = engine.start(asked, tmp_path, (1, 0))
    at_step(again, look.kept_steps + 3)
    loaded = next(event for event in events_of(again.directory) if isinstance(event, CheckpointLoaded))
    assert (loaded.steps, loaded.skipped) == (look.kept_steps, [])
    pids = [pid_of(again, rank) for rank in (0, 1)]
    again.kill()
    look = again.wait(PATIENCE_S)
    assert (look.state, look.reason) == ("failed", "it was killed as asked")
    assert wait_until_gone(pids)  # a killed rank lets go of its files, and so of the job, a moment before it is gone


def test_a_stop_while_it_starts_ends_it_where_it_was(engine: LocalEngine, tmp_path: Path) -> None:
    running = engine.start(job(100_000), tmp_path, (0, 1))
    running.stop()
    running.stop()
    assert running.look().state == "starting"
    assert running.wait(PATIENCE_S) == AttemptProgress("stopped", 0, 0)
    assert losses(tmp_path) == {}
