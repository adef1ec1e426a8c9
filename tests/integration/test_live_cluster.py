"""`xbench cluster run` with real workers: the simulator's neighbour, crashes, and a controller that is killed."""

from __future__ import annotations

import math
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from typed_commands import command, processes_of, xbench

from xbench.cluster.live.attempt import losses
from xbench.cluster.live.ledger import JOBS, LEDGER, Started, read
from xbench.records import load

pytestmark = pytest.mark.integration

PATIENCE_S = 240.0
"""How long a job may take to get going."""

STEPS = 250
"""Steps of a job that still trains when the second one comes: 8 s at the speed that the jobs name."""

JOB = """
[[job]]
name = "{name}"
workload = "synthetic:layers=20,bytes=64k,width=256,compute=16"
steps = {steps}
batch_size = 16
arrival_s = {arrival_s}
checkpoint_steps = {every}
speeds = {{ 1 = 30.0, 2 = 38.0 }}
"""


def written(folder: Path, *jobs: tuple[str, int, float], every: int = 50) -> Path:
    path = folder / "jobs.toml"
    texts = [JOB.format(name=name, steps=steps, arrival_s=at_s, every=every) for name, steps, at_s in jobs]
    path.write_text("".join(texts), encoding="utf-8")
    return path


def assert_whole(folder: Path, name: str, steps: int) -> None:
    """Every step has a loss, and the curve goes on from attempt to attempt as if there was one."""
    found = losses(folder / JOBS / name)
    assert list(found) == list(range(1, steps + 1))
    assert all(math.isfinite(loss) for loss in found.values())


def training(jobs: Path, folder: Path, *, slots: int, steps: int) -> subprocess.Popen[str]:
    """A controller whose job `only` has come so far."""
    words = [str(jobs), "--slots", str(slots), "--folder", str(folder)]
    controller = subprocess.Popen(command("cluster", "run", *words), stderr=subprocess.PIPE, text=True)
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s and len(losses(folder / JOBS / "only")) < steps:
        time.sleep(0.05)
    return controller


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two jobs under doubling: the first has both slots until the second comes, and again when that is done."""
    folder = tmp_path_factory.mktemp("undisturbed")
    jobs = written(folder, ("first", STEPS, 0.0), ("second", 60, 4.0))
    words = [str(jobs), "--policy", "doubling", "--slots", "2", "--folder", str(folder / "run")]
    done = xbench("cluster", "run", *words, "--restart-cost", "0s")
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "run"


def test_jobs_are_resized_as_the_policy_says(undisturbed: Path) -> None:
    record = load(undisturbed)
    assert record.complete
    workers = [len(span.slots) for span in record.spans if span.job == "first"]
    assert workers[:2] == [2, 1]
    assert [job.status for job in record.jobs] == ["finished", "finished"]
    assert all(job.simulated_jct_s is not None for job in record.jobs)
    assert_whole(undisturbed, "first", STEPS)
    assert_whole(undisturbed, "second", 60)
    assert sum(job.lost_steps for job in record.jobs) == 0
    assert processes_of(undisturbed) == []


def test_a_controller_that_is_killed_at_any_point(tmp_path: Path, undisturbed: Path) -> None:
    jobs = written(tmp_path, ("first", STEPS, 0.0), ("second", 60, 4.0))
    folder = tmp_path / "run"
    draw = random.Random(7)
    words = [str(jobs), "--policy", "doubling", "--restart-cost", "0s", "--slots", "2", "--folder", str(folder)]
    for begun in (False, True):
        given = words if not begun else ["--resume", str(folder)]
        controller = subprocess.Popen(command("cluster", "run", *given), stderr=subprocess.DEVNULL)
        deadline_s = time.monotonic() + PATIENCE_S
        while not (folder / LEDGER).is_file() and time.monotonic() < deadline_s:
            time.sleep(0.05)
        time.sleep(draw.uniform(1.0, 6.5))
        controller.send_signal(signal.SIGKILL)
        controller.wait()
    done = xbench("cluster", "run", "--resume", str(folder))
    assert done.returncode == 0, done.stderr[-3000:]
    record = load(folder)
    assert record.resumed >= 1
    assert [job.status for job in record.jobs] == ["finished", "finished"]
    assert all(job.crashes == 0 for job in record.jobs)
    for name, steps in (("first", STEPS), ("second", 60)):
        assert_whole(folder, name, steps)
        found, expected = losses(folder / JOBS / name), losses(undisturbed / JOBS / name)
        assert found == pytest.approx(expected, rel=1e-3, abs=1e-6)
        begun = [event.steps for event in read(folder)[0] if isinstance(event, Started) and event.job == name]
        assert begun == sorted(begun)
    assert processes_of(folder) == []


def test_a_rank_that_is_killed_is_retried_from_its_checkpoint(tmp_path: Path) -> None:
    jobs = written(tmp_path, ("only", 300, 0.0), every=20)
    folder = tmp_path / "run"
    controller = training(jobs, folder, slots=2, steps=100)
    ranks = [one for one in processes_of(folder) if any(word.endswith("job_rank") for word in one.cmdline())]
    assert ranks
    ranks[0].kill()
    _, told = controller.communicate(timeout=90)
    assert controller.returncode == 0, told
    assert "retry 1 of 3, from step" in told
    record = load(folder)
    assert record.jobs[0].crashes == 1
    assert 0 <= record.jobs[0].lost_steps < 20 + 200
    assert record.jobs[0].restarts == 1
    assert_whole(folder, "only", 300)


@pytest.mark.smoke
@pytest.mark.usefixtures("on_one_core")
def test_ctrl_c_keeps_a_checkpoint_and_says_how_to_go_on(tmp_path: Path) -> None:
    jobs = written(tmp_path, ("only", 100_000, 0.0), every=100_000)
    folder = tmp_path / "run"
    controller = training(jobs, folder, slots=1, steps=50)
    controller.send_signal(signal.SIGINT)
    _, told = controller.communicate(timeout=60)
    assert controller.returncode == 130, told
    assert f"xbench cluster run --resume {folder}" in " ".join(told.split())
    record = load(folder)
    assert not record.complete
    assert record.jobs[0].lost_steps == 0
    assert record.spans[0].how == "stopped"
    assert record.spans[0].to_steps == len(losses(folder / JOBS / "only")) >= 50
    assert processes_of(folder) == []
