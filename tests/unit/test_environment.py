from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from xbench import environment
from xbench.environment import capture, commit, cpu_model, governor, noise, noise_warnings


def test_capture_describes_this_machine() -> None:
    found = capture()
    assert found.cores == len(os.sched_getaffinity(0))
    assert found.memory_bytes > 2**20
    assert found.python == ".".join(map(str, sys.version_info[:3]))
    assert (found.device, found.device_count) == ("cpu", 0)
    assert found.xbench not in ("", "unknown")
    assert found.facts["kernel"] == os.uname().release


def test_what_a_rank_found_takes_its_place() -> None:
    found = capture({"device": "NVIDIA H100", "device_count": 8, "torch": "2.99", "nccl": (2, 30), "cuda": None})
    assert (found.device, found.device_count, found.torch) == ("NVIDIA H100", 8, "2.99")
    assert found.facts["nccl"] == "(2, 30)"
    assert "cuda" not in found.facts
    assert "device" not in found.facts


def test_capture_imports_no_torch() -> None:
    code = "import sys; from xbench.environment import capture; capture(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_cpu_model(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel\t\t: 1\nmodel name\t: AMD EPYC 7543 32-Core Processor\n")
    assert cpu_model(cpuinfo) == "AMD EPYC 7543 32-Core Processor"
    assert cpu_model(tmp_path / "none")


def test_governor(tmp_path: Path) -> None:
    assert governor(tmp_path) is None
    (tmp_path / "scaling_governor").write_text("schedutil\n")
    assert governor(tmp_path) == "schedutil"


def test_commit_is_none_outside_a_checkout(tmp_path: Path) -> None:
    package = tmp_path / "xbench"
    package.mkdir()
    assert commit(package) is None


def test_commit_names_the_head_and_marks_changes(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    package = tmp_path / "xbench"
    package.mkdir()
    git("init", "-q")
    assert commit(package) is None  # no commit yet
    (package / "file.py").write_text("one\n")
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "one.json").write_text("{}")
    git("add", ".")
    git("commit", "-q", "-m", "one")
    head = git("rev-parse", "HEAD")
    assert commit(package) == head
    (tmp_path / "results" / "one.json").write_text("{ }")
    assert commit(package) == head
    (package / "file.py").write_text("two\n")
    assert commit(package) == head + "+"


def test_a_quiet_machine_has_no_warnings() -> None:
    assert noise(0.9, 2, "performance", [("cron (pid 7)", 0.02)]) == []
    assert noise(0.0, 1, None, []) == []


def test_each_disturbance_is_named() -> None:
    busy = [("idle (pid 1)", 0.1), ("make (pid 3)", 0.97), ("cc1 (pid 2)", 3.21)]
    assert noise(1.01, 2, "powersave", busy) == [
        "other processes are busy: cc1 (pid 2) uses 3.2 cores, make (pid 3) uses 1.0 cores; times will be noisier",
        "the load average was 1.0 on 2 cores before the run started",
        "the CPU governor is powersave: clock speed may change while it is measured",
    ]


def test_own_children_are_not_noise() -> None:
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        pids = {pid for pid, _ in environment._cpu_seconds()}
        warnings = noise_warnings(0.05)
    finally:
        child.kill()
        child.wait()
    assert child.pid not in pids
    assert not any(f"pid {child.pid}" in warning for warning in warnings)


def test_ranks_of_the_same_torchrun_are_no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = os.getppid()
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert ours in {pid for pid, _ in environment._cpu_seconds()}
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    assert ours not in {pid for pid, _ in environment._cpu_seconds()}
