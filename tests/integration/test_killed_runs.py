"""Whatever ends the parent, and whoever starts beside it: what was measured is on disk, and in one record alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from shares import drawn
from typed_commands import events, in_phase, pid_of, started, wait_for, wait_until_gone, xbench

from xbench.records import load

pytestmark = pytest.mark.integration

WORDS = ["compare", "synthetic:layers=6,bytes=16k", "--quick"]
PAIR = ["--modes", "ddp,wfbp", "--fabric", "local:ranks=2"]
ALONE = ["--modes", "compute,wfbp", "--fabric", "local:ranks=1"]
"""Ranks of a test in which only the parent matters."""
SAME_SECOND = "import sys, time; time.strftime = lambda form: '20260131-142501'; import xbench.cli as cli; "
SLOW_SAVE = (
    "import pathlib, sys, time; import xbench.cli as cli; import xbench.runs.fabric_run as run; keep = run.keep\n"
    "def slowly(*given):\n"
    "    pathlib.Path(sys.argv[1], 'saving').touch(); time.sleep(2); return keep(*given)\n"
    "run.keep = slowly\n"
)
START = "sys.exit(cli.main(sys.argv[2:]))"


def begun(body: str, folder: Path, *more: str) -> subprocess.Popen[str]:
    return started([sys.executable, "-c", body + START, str(folder), *WORDS, *more], folder / "runs")


def saving(folder: Path) -> Callable[[], bool]:
    return (folder / "saving").exists


def whole_blocks(folder: Path) -> set[tuple[str, int]]:
    per_rank = [{(e["mode"], e["round"]) for e in events(folder / "runs", rank, "block")} for rank in range(2)]
    return per_rank[0] & per_rank[1]


def test_two_equal_commands_at_once_make_two_unmixed_records(tmp_path: Path) -> None:
    both = [begun(SAME_SECOND, tmp_path, *PAIR, "--rounds", "2") for _ in range(2)]
    said = [one.communicate(timeout=240) for one in both]
    assert [one.returncode for one in both] == [0, 0], said
    folders = sorted((tmp_path / "runs").glob("[0-9]*"))
    assert len(folders) == 2
    assert folders[1].name == f"{folders[0].name}-2"
    samples = []
    for folder in folders:
        record = load(folder)
        assert record.complete
        assert len(record.samples) == 4
        samples.append([sample.steps_s for sample in record.samples])
        for rank in range(2):
            told = [json.loads(line) for line in (folder / "launch0" / f"job0-rank{rank}.jsonl").open()]
            assert sum(event["event"] == "hello" for event in told) == 1
            assert sum(event["event"] == "block" for event in told) == 4
    assert samples[0] != samples[1]


@pytest.mark.parametrize("phase", drawn("killed parent", ["profile", "round 3", "save"]))
def test_a_killed_parent_loses_no_block(tmp_path: Path, phase: str) -> None:
    rounds = "2" if phase == "save" else "400"
    running = begun(SLOW_SAVE, tmp_path, *PAIR, "--rounds", rounds)
    wait_for(running, saving(tmp_path) if phase == "save" else in_phase(tmp_path / "runs", phase))
    running.kill()
    running.communicate(timeout=60)
    assert wait_until_gone([pid_of(tmp_path / "runs", rank) for rank in range(2)])
    (folder,) = (tmp_path / "runs").glob("[0-9]*")
    assert not (folder / "record.json").exists()
    expected = whole_blocks(tmp_path)
    assert len(expected) >= {"profile": 0, "round 3": 4, "save": 4}[phase]
    done = xbench("report", str(folder), "--json", str(tmp_path / "record.json"))
    assert done.returncode == 0, done.stderr
    assert "INCOMPLETE: rebuilt from the journals" in " ".join(done.stdout.split())
    record = load(tmp_path / "record.json")
    assert {(sample.mode, sample.round) for sample in record.samples} == expected
    if phase != "profile":
        assert xbench("plan", str(folder)).returncode == 0
        assert xbench("plan", str(folder), "--workers", "2,4").returncode == 0


@pytest.mark.parametrize("number", drawn("stop at the save", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT]))
@pytest.mark.usefixtures("hangs_up", "on_one_core")
def test_a_stop_while_saving_comes_after_the_save(tmp_path: Path, number: signal.Signals) -> None:
    running = begun(SLOW_SAVE, tmp_path, *ALONE, "--rounds", "1")
    wait_for(running, saving(tmp_path))
    os.killpg(running.pid, number)
    _, stderr = running.communicate(timeout=60)
    assert running.returncode == 130, stderr
    assert "error: interrupted" in stderr
    (folder,) = (tmp_path / "runs").glob("[0-9]*")
    record = load(folder / "record.json")
    assert record.complete
    assert len(record.samples) == 2
    assert sorted(path.name for path in folder.iterdir()) == ["frame.json", "launch0", "record.json"]


@pytest.mark.parametrize("presses", [1, 8])
def test_ctrl_c_keeps_what_was_measured_however_impatient(tmp_path: Path, presses: int) -> None:
    running = begun(SLOW_SAVE, tmp_path, *PAIR, "--rounds", "400")
    wait_for(running, in_phase(tmp_path / "runs", "round 3"))
    for _ in range(presses):
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGINT)
        time.sleep(0.1)
    _, stderr = running.communicate(timeout=60)
    assert running.returncode == 130, stderr
    assert "error: interrupted" in stderr
    assert "Traceback" not in stderr
    assert wait_until_gone([pid_of(tmp_path / "runs", rank) for rank in range(2)])
    (folder,) = (tmp_path / "runs").glob("[0-9]*")
    record = load(folder / "record.json")
    assert record.error == "interrupted"
    assert {(sample.mode, sample.round) for sample in record.samples} == whole_blocks(tmp_path)
