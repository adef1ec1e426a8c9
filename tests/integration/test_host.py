"""A real run on an unkind host: nobody reads what it says, its temporary folder's path is too long, it is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from shares import drawn
from typed_commands import comparison, ran, results_in

XBENCH = [sys.executable, "-m", "xbench"]
COMPARE = [*XBENCH, "compare", "synthetic:layers=4,bytes=64k", "--quick", "--rounds", "1"]
ALONE = ["--fabric", "local:ranks=1", "--modes", "compute,wfbp"]
PATIENCE_S = 120


@pytest.mark.usefixtures("on_one_core")
def test_a_run_that_nobody_can_hear_is_complete_and_ends_with_0(tmp_path: Path) -> None:
    words = [*COMPARE, *ALONE]
    done = ran(["bash", "-c", 'exec "$@" <&- >&- 2>&-', "bash", *words], PATIENCE_S, results=tmp_path)
    assert done.returncode == 0
    record = comparison(tmp_path)
    assert record.complete
    assert {sample.mode for sample in record.samples} == {"compute", "wfbp"}


@pytest.mark.usefixtures("on_one_core")
@pytest.mark.parametrize("stream", drawn("reader", ["stdout", "stderr"]))
def test_a_reader_that_leaves_in_the_middle_changes_nothing(tmp_path: Path, stream: str) -> None:
    words = [*COMPARE, *ALONE, "--json", "-"]
    other = {"stdout": "stderr", "stderr": "stdout"}[stream]
    process = subprocess.Popen(words, env=results_in(tmp_path), **{stream: subprocess.PIPE, other: subprocess.DEVNULL})
    pipe = getattr(process, stream)
    if stream == "stderr":
        pipe.readline()
    pipe.close()
    assert process.wait(PATIENCE_S) == 0
    assert comparison(tmp_path).complete


@pytest.mark.usefixtures("on_one_core")
def test_clean_keeps_what_a_crossover_run_needs_and_takes_what_it_left_when_killed(tmp_path: Path) -> None:
    deep = tmp_path / ("t" * 110)
    deep.mkdir()
    jobs = ["--fabric", "emulated:workers=4,rate=1gbit", "--modes", "crossover,concurrent", "--rounds", "1000"]
    words = [*COMPARE, *jobs]
    process = subprocess.Popen(
        words, env=results_in(tmp_path / "runs", TMPDIR=str(deep)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    ours = f"xb-{process.pid}-*/turns0"
    clean = [*XBENCH, "clean"]
    try:
        deadline_s = time.monotonic() + PATIENCE_S
        while not (made := list(Path("/tmp").glob(ours))) and time.monotonic() < deadline_s:
            assert process.poll() is None
            time.sleep(0.05)
        (socket,) = made
        done = ran(clean, PATIENCE_S, results=tmp_path / "runs")
        assert str(socket.parent) not in done.stderr
        assert socket.exists()
        assert process.poll() is None
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    part = (
        next(path for path in (tmp_path / "runs").iterdir() if path.is_dir())
        / f".record.json.{process.pid}-k3x9_2ab.part"
    )
    part.touch()
    done = ran(clean, PATIENCE_S, results=tmp_path / "runs")
    assert done.returncode == 0
    assert f"removed {socket.parent}\n" in done.stderr
    assert f"removed {part}\n" in done.stderr
    assert not socket.parent.exists()
    assert not part.exists()
