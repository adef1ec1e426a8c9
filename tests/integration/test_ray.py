"""The engine `ray` on a cluster of this machine: gangs, resizing, a stop, a rank killed, a node lost."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typed_commands import at_step, processes_of, ran, xbench

from xbench.cluster.live.attempt import OVER, AttemptProgress, losses
from xbench.cluster.live.jobs_file import JobEntry
from xbench.cluster.live.ledger import JOBS
from xbench.cluster.live.ray_engine import RayEngine, RayRunning
from xbench.records import load

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed: pip install 'ray>=2.9'"),
]
JOB = JobEntry(name="a", workload="synthetic:layers=20,bytes=256k", steps=200, batch_size=8)


def until_over(running: RayRunning, seconds: float = 90) -> AttemptProgress:
    deadline_s = time.monotonic() + seconds
    while running.look().state not in OVER:
        assert time.monotonic() < deadline_s, running.look()
        time.sleep(0.02)
    return running.look()


@pytest.fixture(scope="module")
def engine() -> Iterator[RayEngine]:
    found = RayEngine(2, "cpu", None)
    yield found
    found.close()


def test_a_job_is_stopped_and_goes_on_with_another_number_of_workers(engine: RayEngine, tmp_path: Path) -> None:
    assert engine.slots == 2
    folder = tmp_path / "a"
    first = engine.start(JOB, folder, (0,))
    at_step(first, 60)
    first.stop()
    stopped = until_over(first)
    assert stopped.state == "stopped"
    assert stopped.kept_steps == stopped.steps >= 60
    second = engine.start(JOB, folder, (0, 1))
    assert second.look() == AttemptProgress("starting", stopped.steps, stopped.steps)
    assert until_over(second) == AttemptProgress("finished", 200, 200)
    assert list(losses(folder)) == list(range(1, 201))
    assert processes_of(folder) == []


def test_a_rank_that_is_killed_takes_the_gang_along(engine: RayEngine, tmp_path: Path) -> None:
    folder = tmp_path / "a"
    job = JOB.model_copy(update={"steps": 100_000, "checkpoint_steps": 20})
    running = engine.start(job, folder, (0, 1))
    at_step(running, 60)
    processes_of(folder)[0].kill()
    look = until_over(running)
    assert look.state == "failed"
    assert "was killed" in look.reason
    assert look.kept_steps >= 40
    assert processes_of(folder) == []


def test_a_kill_leaves_nothing(engine: RayEngine, tmp_path: Path) -> None:
    folder = tmp_path / "a"
    running = engine.start(JOB.model_copy(update={"steps": 100_000}), folder, (0,))
    at_step(running, 5)
    running.kill()
    assert until_over(running).reason == "it was killed"
    assert processes_of(folder) == []


def test_a_whole_run(tmp_path: Path) -> None:
    text = "".join(
        f'[[job]]\nname = "{name}"\nworkload = "{JOB.workload}"\nsteps = {steps}\nbatch_size = 8\n'
        f"arrival_s = {arrival_s}\nspeeds = {{ 1 = 70.0, 2 = 80.0 }}\n"
        for name, steps, arrival_s in (("first", 900, 0.0), ("second", 60, 4.0))
    )
    (tmp_path / "jobs.toml").write_text(text, encoding="utf-8")
    words = f"--engine ray --slots 2 --policy doubling --restart-cost 0s --folder {tmp_path / 'run'}".split()
    done = xbench("cluster", "run", str(tmp_path / "jobs.toml"), *words)
    assert done.returncode == 0, done.stderr[-3000:]
    record = load(tmp_path / "run")
    assert record.engine == "ray"
    assert [job.status for job in record.jobs] == ["finished", "finished"]
    assert [len(span.slots) for span in record.spans if span.job == "first"][:2] == [2, 1]
    assert list(losses(tmp_path / "run" / JOBS / "first")) == list(range(1, 901))


def test_a_node_that_is_lost_costs_one_checkpoint_interval_at_most(tmp_path: Path) -> None:
    """One of the runs of results/ray-node-loss.json."""
    output = tmp_path / "losses.json"
    root = Path(__file__).parents[2]
    words = ["-m", "tests.faults.ray_node_loss", "--runs", "1", "--seed", "7", "--output", str(output)]
    done = ran([sys.executable, *words], cwd=root)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (found,) = json.loads(output.read_text(encoding="utf-8"))["runs"]
    assert found["held"]
    assert found["node_losses"] >= 1
    assert found["crashes"] == 0
    assert max(found["steps_lost_at_once"].values()) <= found["checkpoint_steps"]
