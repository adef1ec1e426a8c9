"""Runs that end badly, and wrong input: one sentence that names what is wrong, and nothing lost or left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from typed_commands import (
    NETNS,
    TINY,
    command,
    comparison,
    events,
    left_behind,
    pid_of,
    started,
    wait_for,
    xbench,
)

from xbench.fabrics import links, shaped
from xbench.records import Comparison

pytestmark = pytest.mark.integration


# --- runs that end badly ---------------------------------------------------------------------------------------------


def measuring(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """A run whose ranks have timed four blocks each."""
    words = command("compare", TINY, "--quick", "--rounds", "400", "--modes", "ddp,wfbp", *arguments)
    run = started(words, folder)
    wait_for(run, lambda: all(len(events(folder, rank, "block")) >= 4 for rank in range(2)))
    return run


@pytest.fixture
def fabric() -> Iterator[str]:
    yield "local:ranks=2" if shaped.obstacle() is not None else "shaped:hosts=2,rate=1gbit"
    assert left_behind() == ""


def ends(running: subprocess.Popen[str], folder: Path) -> tuple[int, str, Comparison]:
    _, stderr = running.communicate(timeout=60)
    record = comparison(folder)
    assert not record.complete
    assert len(record.samples) >= 4
    return running.returncode, stderr, record


@pytest.mark.parametrize(
    ("number", "limit", "told"),
    [
        pytest.param(signal.SIGKILL, "120s", "killed", marks=pytest.mark.smoke),
        pytest.param(signal.SIGSTOP, "5s", "stopped.*5 s"),
    ],
)
def test_a_lost_rank_is_named_and_the_samples_are_kept(
    tmp_path: Path, fabric: str, number: signal.Signals, limit: str, told: str
) -> None:
    running = measuring(tmp_path, "--fabric", fabric, "--timeout", limit)
    os.kill(pid_of(tmp_path, 1), number)
    code, stderr, record = ends(running, tmp_path)
    assert code == 1
    assert re.search(rf"error: rank 1 on host \d .*{told}", stderr, re.DOTALL), stderr[-2000:]
    assert "rank 1" in (record.error or "")


@NETNS
@pytest.mark.netns
def test_a_link_that_goes_down_is_named(tmp_path: Path, fabric: str) -> None:
    running = measuring(tmp_path, "--fabric", fabric, "--timeout", "20s")
    identify = ["ip", "netns", "identify", str(pid_of(tmp_path, 1))]
    namespace = subprocess.run(identify, capture_output=True, text=True, check=True).stdout.strip()
    subprocess.run(["ip", "-n", namespace, "link", "set", links.INTERFACE, "down"], check=True)
    code, stderr, record = ends(running, tmp_path)
    assert code == 1
    assert re.search(r"error: the link of host 1 is down, so the ranks", stderr), stderr[-2000:]
    assert "link of host 1" in record.error


def test_a_mode_that_runs_out_of_memory_fails_alone(tmp_path: Path) -> None:
    script = tmp_path / "vast.py"
    script.write_text(
        "import os\nimport torch\nfrom torch import nn\nfrom xbench.schedules.served_parameters import engine_of\n\n\n"
        "class Net(nn.Linear):\n"
        "    late = 0\n\n"
        "    def forward(self, x):\n"
        "        engine = engine_of(self.weight)\n"
        "        self.late += engine is not None and not engine.overlap  # steps of mode single: 3 at its gate\n"
        "        if self.late > 4 and os.environ['RANK'] == '1':\n"
        "            torch.empty(2**45, dtype=torch.uint8)\n"
        "        return super().forward(x)\n\n\n"
        "def make():\n"
        "    return Net(64, 64), (torch.randn(4, 64), torch.randn(4, 64)), nn.functional.mse_loss\n"
    )
    modes = ["ddp", "single", "wfbp"]
    done = xbench(
        "compare", f"{script}:make", "--fabric", "local:ranks=2", "--quick", "--launches", "2", "--rounds", "2",
        "--modes", ",".join(modes), results=tmp_path / "o",
    )  # fmt: skip
    assert done.returncode == 1, done.stderr[-3000:]
    record = comparison(tmp_path / "o")
    assert record.complete
    single = record.modes["single"]
    assert single.status == "failed"
    assert re.fullmatch(
        r"rank 1 on host 0 \(round \d single step \d: computing\) ran out of memory with vast.py:make: 32768 GiB were "
        r"wanted \(let its factory make a smaller batch\)",
        single.error,
    )
    assert "single has failed, and the others go on in new ranks" in done.stderr
    assert "Traceback" not in done.stderr
    blocks = {(s.launch, s.round, s.mode) for s in record.samples if s.mode != "single"}
    assert blocks == {(launch, turn, mode) for launch in (0, 1) for turn in range(2) for mode in ("ddp", "wfbp")}
    for mode in ("ddp", "wfbp"):
        assert record.modes[mode].status == "ok"
        assert record.modes[mode].blocks == 4
        assert record.modes[mode].timeline is not None
    assert left_behind() == ""


def test_too_little_memory_is_said_beforehand(tmp_path: Path) -> None:
    done = xbench("compare", "vit_h_14", "--batch-size", "4096", results=tmp_path / "o")
    assert done.returncode == 2
    assert "GiB" in done.stderr
    assert not (tmp_path / "o").exists()
