from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from xbench import environment
from xbench.environment import (
    capture,
    commit,
    cpu_model,
    differences,
    fingerprint,
    governor,
    noise,
    noise_warnings,
    nvidia_driver,
)


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


def test_variables_that_change_what_gpus_do_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {
        "CUDA_DEVICE_MAX_CONNECTIONS": "1", "NCCL_ALGO": "Ring", "NCCL_P2P_DISABLE": "1",
        "NVIDIA_TF32_OVERRIDE": "0", "PYTORCH_ALLOC_CONF": "expandable_segments:True",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
        "TORCH_NCCL_BLOCKING_WAIT": "1",
    }  # fmt: skip
    of_places = ("CUDA_HOME", "CUDA_VERSION", "CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "NCCL_DEBUG", "NCCL_VERSION",
                 "CUDA_ARCH_LIST", "TORCH_CUDA_ARCH_LIST", "TORCH_HOME")  # fmt: skip
    for name in list(os.environ):
        if environment.gpu_variables({name: "1"}):
            monkeypatch.delenv(name)
    assert "variables" not in capture().facts
    for name in of_places:
        monkeypatch.setenv(name, "1")
    assert "variables" not in capture().facts
    for name, value in kept.items():
        monkeypatch.setenv(name, value)
    assert capture().facts["variables"] == " ".join(f"{name}={value}" for name, value in kept.items())


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


HERE = capture({"device": "NVIDIA H100", "device_count": 8, "torch": "2.15.0+cu132", "nccl": "2.30.7", "cuda": "13.2"})


@pytest.mark.parametrize(
    "changes",
    [
        {"hostname": "another"},
        {"commit": "0123"},
        {"torch": "2.15.0"},
        {"memory_bytes": HERE.memory_bytes - 2**20},
        {"python": HERE.python + "1"},
        {"facts": HERE.facts | {"numpy": "9.9", "kernel": HERE.facts["kernel"] + "-patched"}},
    ],
)
def test_what_changes_no_times_leaves_the_fingerprint(changes: dict[str, object]) -> None:
    other = HERE.model_copy(update=changes)
    assert fingerprint(other) == fingerprint(HERE)
    assert differences(HERE, other) == []


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"cpu": "x"}, f"cpu: {HERE.cpu} and x"),
        ({"cores": 999}, f"cores: {HERE.cores} and 999"),
        ({"memory_bytes": 2**40}, f"memory: {round(HERE.memory_bytes / 2**30)} GiB and 1024 GiB"),
        ({"device": "NVIDIA H200"}, "device: NVIDIA H100 and NVIDIA H200"),
        ({"device_count": 4}, "devices: 8 and 4"),
        ({"torch": "2.14.1"}, "torch: 2.15.0 and 2.14.1"),
        ({"python": "3.99.0"}, f"Python: {HERE.python.rpartition('.')[0]} and 3.99"),
        ({"facts": HERE.facts | {"governor": "x"}}, f"governor: {HERE.facts['governor']} and x"),
        ({"facts": HERE.facts | {"nccl": "2.31.0"}}, "NCCL: 2.30.7 and 2.31.0"),
        ({"facts": HERE.facts | {"cuda": "12.4"}}, "CUDA: 13.2 and 12.4"),
        ({"facts": HERE.facts | {"nvidia_driver": "1.2"}},
         f"NVIDIA driver: {HERE.facts.get('nvidia_driver', 'unknown')} and 1.2"),
        ({"facts": HERE.facts | {"variables": "NCCL_ALGO=Ring"}}, "variables: none and NCCL_ALGO=Ring"),
    ],
)  # fmt: skip
def test_what_changes_times_changes_the_fingerprint(changes: dict[str, object], difference: str) -> None:
    other = HERE.model_copy(update=changes)
    assert fingerprint(other) != fingerprint(HERE)
    assert differences(HERE, other) == [difference]


def test_machine_and_software_have_letters_of_their_own() -> None:
    machine, software = fingerprint(HERE).split("-")
    newer = fingerprint(HERE.model_copy(update={"torch": "2.16.0"})).split("-")
    larger = fingerprint(HERE.model_copy(update={"cores": 999})).split("-")
    assert (newer[0], larger[1]) == (machine, software)
    assert newer[1] != software
    assert larger[0] != machine


def test_priorities_that_a_user_cannot_raise_are_another_machine_on_a_cpu() -> None:
    root = HERE.model_copy(
        update={"device": "cpu", "device_count": 0, "facts": HERE.facts | {"thread_priorities": "raised"}}
    )
    user = root.model_copy(update={"facts": root.facts | {"thread_priorities": "as they come"}})
    earlier = root.model_copy(update={"facts": {n: v for n, v in root.facts.items() if n != "thread_priorities"}})
    assert differences(root, user) == ["priorities of Gloo's threads: raised and as they come"]
    assert fingerprint(user).split("-")[0] != fingerprint(root).split("-")[0]
    assert fingerprint(user).split("-")[1] == fingerprint(root).split("-")[1]
    assert (differences(root, earlier), fingerprint(earlier)) == ([], fingerprint(root))
    on_gpus = HERE.model_copy(update={"facts": HERE.facts | {"thread_priorities": "as they come"}})
    assert differences(HERE, on_gpus) == []


@pytest.mark.parametrize("allowed", [True, False])
def test_the_priority_is_tried_on_a_thread_of_its_own(monkeypatch: pytest.MonkeyPatch, allowed: bool) -> None:
    asked: list[tuple[int, int, int]] = []

    def setpriority(which: int, who: int, nice: int) -> None:
        asked.append((which, who, nice))
        if not allowed:
            raise PermissionError

    monkeypatch.setattr(os, "setpriority", setpriority)
    monkeypatch.setattr(sys, "platform", "linux")
    assert environment.may_raise_priority() is allowed
    assert [(which, nice) for which, _, nice in asked] == [(os.PRIO_PROCESS, -15)]
    assert asked[0][1] not in (0, os.getpid())
    assert capture().facts["thread_priorities"] == ("raised" if allowed else "as they come")


def test_on_a_cpu_what_gpus_need_does_not_matter() -> None:
    one = HERE.model_copy(update={"device": "cpu", "device_count": 0})
    more = {"nccl": "1", "cuda": "1", "nvidia_driver": "1", "variables": "NCCL_ALGO=Ring"}
    other = one.model_copy(update={"facts": one.facts | more})
    assert fingerprint(one) == fingerprint(other)
    assert differences(one, HERE)[:2] == ["device: cpu and NVIDIA H100", "devices: 0 and 8"]


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n", "535.104.05"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (builder)\nGCC 12.2.0 \n",
         "580.65.06"),
        ("something else 1.2.3 \n", None),
    ],
)  # fmt: skip
def test_the_driver_of_nvidia(tmp_path: Path, text: str, version: str | None) -> None:
    assert nvidia_driver(tmp_path) is None
    (tmp_path / "version").write_text(text)
    assert nvidia_driver(tmp_path) == version
