"""Runs that end badly, and wrong input: one sentence that names what is wrong, and nothing lost or left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typed_commands import NETNS, TINY, command, left_behind, only_record, ran, results_in, xbench

from xbench.fabrics import links, shaped
from xbench.records import Comparison, load

pytestmark = pytest.mark.integration


# --- runs that end badly ---------------------------------------------------------------------------------------------


def started(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    base = ["compare", TINY, "--quick", "--rounds", "400", "--modes", "ddp,wfbp"]
    return subprocess.Popen(
        command(*base, *arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, env=results_in(folder),
    )  # fmt: skip


def blocks_of(folder: Path, rank: int) -> tuple[int, int]:
    """(pid, blocks so far) of one rank, from its journal."""
    pid, blocks = 0, 0
    for path in folder.glob(f"*/launch0/job0-rank{rank}.jsonl"):
        for line in path.read_text().splitlines():
            event: dict[str, Any] = json.loads(line)
            pid = event.get("pid", pid)
            blocks += event["event"] == "block"
    return pid, blocks


def wait_for_blocks(folder: Path, running: subprocess.Popen[str], blocks: int = 4) -> None:
    deadline = time.monotonic() + 120
    while min(blocks_of(folder, 0)[1], blocks_of(folder, 1)[1]) < blocks:
        assert running.poll() is None, running.communicate()[1][-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture
def fabric() -> Iterator[str]:
    yield "local:ranks=2" if shaped.obstacle() is not None else "shaped:hosts=2,rate=1gbit"
    assert left_behind() == ""


def ends(running: subprocess.Popen[str], folder: Path) -> tuple[int, str, Comparison]:
    _, stderr = running.communicate(timeout=60)
    record = only_record(folder)
    assert isinstance(record, Comparison)
    assert not record.complete
    assert len(record.samples) >= 4
    return running.returncode, stderr, record


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path, fabric: str) -> None:
    running = started(tmp_path, "--fabric", fabric)
    wait_for_blocks(tmp_path, running)
    os.killpg(running.pid, signal.SIGINT)
    code, stderr, record = ends(running, tmp_path)
    assert code == 130
    assert "error: interrupted" in stderr
    assert record.error == "interrupted"
    assert "Traceback" not in stderr


@pytest.mark.smoke
def test_a_killed_rank_is_named_and_the_samples_are_kept(tmp_path: Path, fabric: str) -> None:
    running = started(tmp_path, "--fabric", fabric)
    wait_for_blocks(tmp_path, running)
    os.kill(blocks_of(tmp_path, 1)[0], signal.SIGKILL)
    code, stderr, record = ends(running, tmp_path)
    assert code == 1
    assert re.search(r"error: rank 1 on host \d .*killed", stderr), stderr[-2000:]
    assert record.error is not None
    assert "rank 1" in record.error


def test_a_stopped_rank_is_named_after_the_timeout(tmp_path: Path, fabric: str) -> None:
    running = started(tmp_path, "--fabric", fabric, "--timeout", "5s")
    wait_for_blocks(tmp_path, running)
    os.kill(blocks_of(tmp_path, 1)[0], signal.SIGSTOP)
    code, stderr, record = ends(running, tmp_path)
    assert code == 1
    assert re.search(r"error: rank 1 on host \d .*stopped", stderr), stderr[-2000:]
    assert "5 s" in stderr
    assert record.error is not None
    assert "rank 1" in record.error


@NETNS
@pytest.mark.netns
def test_a_link_that_goes_down_is_named(tmp_path: Path, fabric: str) -> None:
    running = started(tmp_path, "--fabric", fabric, "--timeout", "20s")
    wait_for_blocks(tmp_path, running)
    identify = ["ip", "netns", "identify", str(blocks_of(tmp_path, 1)[0])]
    namespace = subprocess.run(identify, capture_output=True, text=True, check=True).stdout.strip()
    subprocess.run(["ip", "-n", namespace, "link", "set", links.INTERFACE, "down"], check=True)
    code, stderr, record = ends(running, tmp_path)
    assert code == 1
    assert re.search(r"error: the link of host 1 is down, so the ranks", stderr), stderr[-2000:]
    assert record.error is not None
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
    record = only_record(tmp_path / "o")
    assert isinstance(record, Comparison)
    assert record.complete
    single = record.modes["single"]
    assert single.status == "failed"
    assert single.error is not None
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


@pytest.mark.skipif(os.geteuid() != 0, reason="a small tmpfs needs root")
def test_a_full_disk_ends_the_run_and_the_record_goes_where_there_is_room(tmp_path: Path, fabric: str) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(disk)], check=True)
    try:
        running = started(disk, "--fabric", fabric)
        wait_for_blocks(disk, running)
        with open(disk / "filler", "wb", buffering=0) as filler:
            try:
                while filler.write(b"x" * 4096):
                    pass
            except OSError:
                pass
        _, stderr = running.communicate(timeout=90)
        assert running.returncode == 1
        assert "space" in stderr or "full" in stderr, stderr[-2000:]
        said = re.search(r"record: (\S+)", stderr)
        assert said is not None
        record = load(Path(said[1]))
        assert isinstance(record, Comparison)
        assert not record.complete
        assert len(record.samples) >= 4
        if not said[1].startswith(str(disk)):
            Path(said[1]).unlink()
    finally:
        subprocess.run(["umount", str(disk)], check=True)


# --- wrong input: one sentence, exit 2, nothing launched --------------------------------------------------------------

WRONG = [
    (["compare", "resnet51"], "unknown workload 'resnet51'", "resnet50"),
    (["compare", "--modes", "wfpb"], "unknown mode 'wfpb'", "wfbp"),
    (["compare", "--modes", "ddp,ddp"], "mode 'ddp' stands twice", "ddp@b"),
    (["compare", "--modes", "crossover:ddpp"], "unknown carrier for crossover 'ddpp'", "ddp"),
    (["compare", "--fabric", "shapd"], "unknown fabric 'shapd'", "shaped"),
    (["compare", "--fabric", "shaped:hosts=1"], "2", "hosts"),
    (["compare", "--fabric", "shaped:hosts=2,rate=fast"], "'fast'", "1gbit"),
    (["compare", "--fabric", "shaped:hosts=2,rat=1gbit"], "unknown option 'rat'", "rate"),
    (["compare", "--batch-size", "0"], "0", "1"),
    (["compare", "resnet18", "resnet18", "resnet18"], "3 workloads were named", "at most 2"),
    (["compare", "nowhere.py:make"], "nowhere.py", ""),
    (["compare", "--reference", "single", "--modes", "ddp,wfbp"], "'single' is not among the modes", "ddp, wfbp"),
    (["profile", "transformer-tiny", "--image-size", "64"], "image", ""),
    (["compare", "synthetic:layers=0"], "layers", "1"),
    (["compare", "--fabric", "local:ranks=1", "--modes", "ddp,crossover"], "local:ranks=1 has 1 rank", "ranks=2"),
    (["compare", "--fabric", "local:ranks=1", "--modes", "optimal"], "no link", "ranks=2"),
    (["compare", "--fabric", "local:ranks=1", "--reference", "optimal", "--modes", "ddp,optimal"], "no link", ""),
    (["compare", "--json", "nowhere/a.json"], "--json", "mkdir"),
    (["compare", "--timeout", "soon"], "--timeout", ""),
    (["report", "no-such-file.json"], "there is no result file", ""),
]


@pytest.mark.parametrize(
    ("arguments", "sentence", "hint"), WRONG, ids=lambda value: " ".join(value) if isinstance(value, list) else None
)
def test_wrong_input_is_one_sentence_and_exit_code_2(
    arguments: list[str], sentence: str, hint: str, tmp_path: Path
) -> None:
    done = ran(command(*arguments), 60, tmp_path)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert hint in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 2
    assert list(tmp_path.iterdir()) == []


def test_an_image_size_that_a_model_cannot_take_is_refused_before_launch(tmp_path: Path) -> None:
    done = xbench("compare", "inception_v3", "--image-size", "8", results=tmp_path / "o")
    assert done.returncode == 2
    assert "image" in done.stderr
    assert not (tmp_path / "o").exists()


def test_a_factory_that_raises_shows_its_own_message(tmp_path: Path) -> None:
    script = tmp_path / "bad.py"
    script.write_text("def make():\n    raise ValueError('the moon is in the wrong phase')\n")
    done = xbench("compare", f"{script}:make", results=tmp_path / "o")
    assert done.returncode == 2
    assert "the moon is in the wrong phase" in done.stderr
    assert "Traceback" not in done.stderr


def test_too_little_memory_is_said_beforehand(tmp_path: Path) -> None:
    done = xbench("compare", "vit_h_14", "--batch-size", "4096", results=tmp_path / "o")
    assert done.returncode == 2
    assert "GiB" in done.stderr
    assert not (tmp_path / "o").exists()
