"""`xbench cluster run` from outside, on an engine that is played: what it says, keeps, refuses, and goes on with."""

from __future__ import annotations

import json
import os
import signal
import time
from functools import partial
from pathlib import Path

import pytest
from outcome import Run

from xbench import cli
from xbench.cluster.live.attempt import AttemptProgress
from xbench.cluster.live.jobs_file import JobEntry
from xbench.cluster.live.ledger import LEDGER
from xbench.records import LiveRun, load
from xbench.runs.run_folder import keep

ROOT = Path(__file__).parents[3]
JOBS = """
[[job]]
name = "a"
workload = "synthetic:layers=4,bytes=64k"
steps = 20
batch_size = 8
speeds = { 1 = 1000.0, 2 = 2000.0 }

[[job]]
name = "b"
workload = "synthetic:layers=4,bytes=64k"
steps = 10
batch_size = 8
arrival_s = 0.01
"""


class Quick:
    """A step at every look; slots are counted and nothing else."""

    def __init__(self, slots: int | None, device: str = "cpu") -> None:
        self.slots = slots or 2
        self.closed = False
        Quick.last = self

    last: Quick
    kept: dict[str, int]
    ends_at: int | None = None

    def start(self, job: JobEntry, folder: Path, slots: tuple[int, ...]) -> QuickRunning:
        return QuickRunning(job)

    def close(self) -> None:
        self.closed = True


class QuickRunning:
    def __init__(self, job: JobEntry) -> None:
        self.job, self.steps, self.stopping = job, Quick.kept.get(job.name, 0) - 1, False

    def look(self) -> AttemptProgress:
        if Quick.ends_at == self.steps:
            Quick.ends_at = None
            raise KeyError("the controller is gone")
        self.steps += 1
        state = "finished" if self.steps >= self.job.steps else "stopped" if self.stopping else "training"
        Quick.kept[self.job.name] = self.steps // 5 * 5
        return AttemptProgress(state, self.steps, Quick.kept[self.job.name])

    def stop(self) -> None:
        self.stopping = True

    def kill(self) -> None:
        pass


@pytest.fixture
def run(xbench: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run `xbench cluster run` on words in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("xbench.cluster.live.local_engine.LocalEngine", Quick)
    monkeypatch.setattr("xbench.cluster.live.controller.POLL_S", 0.001)
    monkeypatch.setattr(Quick, "kept", {}, raising=False)
    (tmp_path / "jobs.toml").write_text(JOBS, encoding="utf-8")
    return partial(xbench, "cluster", "run")


def kept(path: str = "here") -> LiveRun:
    record = load(Path(path))
    assert isinstance(record, LiveRun)
    return record


def test_a_run_says_what_happens_and_is_kept(run: Run) -> None:
    code, out, err = run("jobs.toml", "--folder", "here", "--json", "-")
    assert code == 0
    assert Quick.last.closed
    told = " ".join(err.split())
    assert "fifo runs 2 jobs on 2 slots (local); all is in here" in told
    assert "a starts on slot 0, from step 0 of 20" in told
    assert "Every job finished under fifo" in told
    record = kept()
    assert json.loads(out)["kind"] == "live"
    assert [job.status for job in record.jobs] == ["finished", "finished"]
    assert cli.main(["report", "here"]) == 0


def test_a_run_without_a_folder_has_one_in_results(run: Run) -> None:
    assert run("jobs.toml")[0] == 0
    (folder,) = Path("results/runs").glob("*/")
    assert folder.name.endswith("-cluster")
    assert folder.name.startswith(time.strftime("%Y"))


def test_a_run_that_broke_off_goes_on(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Quick, "ends_at", 12)
    code, _, err = run("jobs.toml", "--folder", "here")
    assert code == 1
    assert "the controller is gone" in err
    record = kept()
    assert not record.complete
    assert record.error == "KeyError: 'the controller is gone'"
    code, _, err = run("--resume", "here")
    assert code == 0
    told = " ".join(err.split())
    assert "fifo goes on at" in told
    assert "a ran on slot 0 when its controller ended" in told
    assert "from step 10 of 20" in told
    record = kept()
    assert record.complete
    assert record.resumed == 1
    code, _, err = run("--resume", "here")
    assert code == 2
    assert "every job of the run in 'here' is over" in err


def test_a_run_is_not_resumed_where_a_workload_is_not_found(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "models.py").write_text("def make(): ...\n")
    jobs = JOBS.replace("synthetic:layers=4,bytes=64k", "models.py:make", 1)
    (tmp_path / "jobs.toml").write_text(jobs, encoding="utf-8")
    monkeypatch.setattr(Quick, "ends_at", 12)
    assert run("jobs.toml", "--folder", "here")[0] == 1
    before = {path: path.read_bytes() for path in (tmp_path / "here").rglob("*") if path.is_file()}
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    code, _, err = run("--resume", "../here", "--retries", "1")
    told = " ".join(err.split())
    assert (code, "error: job 'a': there is no file 'models.py'" in told) == (2, True)
    assert "hint: resume it in the folder in which it began" in told
    assert {path: path.read_bytes() for path in (tmp_path / "here").rglob("*") if path.is_file()} == before
    monkeypatch.chdir(tmp_path)
    assert run("--resume", "here")[0] == 0
    assert run("--resume", "here")[0] == 2


def test_a_job_that_fails_is_reported_and_the_exit_code_is_one(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def look(self: QuickRunning) -> AttemptProgress:
        return (
            AttemptProgress("failed", 3, 0, "rank 1: boom")
            if self.job.name == "a"
            else AttemptProgress("finished", 10, 10)
        )

    monkeypatch.setattr(QuickRunning, "look", look)
    code, _, err = run("jobs.toml", "--folder", "here", "--retries", "1")
    assert code == 1
    told = " ".join(err.split())
    assert "a failed after step 3: rank 1: boom (retry 1 of 1, from step 0)" in told
    assert "error: 1 of 2 jobs failed: a" in told
    assert "b is done" in told


def test_given_up_jobs_are_tried_again_with_resume_and_retries(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    look = QuickRunning.look
    with monkeypatch.context() as broken:
        broken.setattr(QuickRunning, "look", lambda self: AttemptProgress("failed", 3, 0, "rank 0: boom"))
        assert run("jobs.toml", "--folder", "here", "--retries", "0")[0] == 1
    assert QuickRunning.look is look
    code, _, err = run("--resume", "here")
    assert code == 2
    told = " ".join(err.split())
    assert "every job of the run in 'here' finished, or was given up (a, b)" in told
    assert "xbench cluster run --resume here --retries 3" in told
    code, _, err = run("--resume", "here", "--retries", "1")
    assert code == 0
    assert "goes on at" in err
    record = kept()
    assert [job.status for job in record.jobs] == ["finished", "finished"]
    assert run("--resume", "here", "--retries", "1")[0] == 2


def test_ray_that_is_not_installed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, _, err = run("jobs.toml", "--engine", "ray")
    assert code == 2
    assert "engine 'ray' needs the Python package 'ray', which is not installed" in " ".join(err.split())
    assert "pip install 'ray>=2.9'" in err


def test_a_ray_that_is_not_there(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    code, _, err = run("jobs.toml", "--engine", "ray", "--address", "127.0.0.1:1")
    assert code == 2
    assert "there is no Ray cluster at '127.0.0.1:1': connection refused" in " ".join(err.split())
    for wrong in ("head", "ray://head:10001", "head:port", "head:99999"):
        code, _, err = run("jobs.toml", "--engine", "ray", "--address", wrong)
        assert code == 2
        assert "is no address of a Ray cluster" in err


def test_a_run_whose_controller_was_killed_is_reported_from_its_ledger(run: Run) -> None:
    assert run("jobs.toml", "--folder", "here")[0] == 0
    record = kept()
    Path("here/record.json").unlink()
    rebuilt = kept()
    assert rebuilt.model_copy(update={"created": record.created}) == record  # it was over, so nothing is missing
    lines = Path("here", LEDGER).read_bytes().splitlines(keepends=True)
    Path("here", LEDGER).write_bytes(b"".join(lines[: len(lines) // 2]) + lines[-1][:10])
    cut = kept()
    assert not cut.complete
    assert cut.error == "rebuilt from the ledger: the run was killed, or has not ended yet"
    assert cli.main(["report", "here"]) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stop_while_the_record_is_saved_comes_after_it(
    run: Run, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    def slowly(record: LiveRun, path: Path) -> Path:
        os.kill(os.getpid(), number)
        return keep(record, path)

    monkeypatch.setattr("xbench.cluster.live.run.keep", slowly)
    code, _, err = run("jobs.toml", "--folder", "here")
    assert code == 130
    assert "error: interrupted" in err
    record = kept("here/record.json")
    assert record.complete
