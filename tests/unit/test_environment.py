"""This machine: facts of a run, fingerprints, disturbances, and `xbench env`, on written machines and on this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from xbench import cli, environment
from xbench.environment import (
    Observations,
    answer,
    capture,
    commit,
    cpu_model,
    differences,
    findings,
    fingerprint,
    governor,
    held_against,
    listed_gpus,
    machine_of,
    noise,
    noise_warnings,
    nvidia_driver,
    on_cpu,
    take_inventory,
)
from xbench.profilers import gpu
from xbench.rank.journal import pid_alive
from xbench.records import load
from xbench.records.parts import Finding, Machine


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


def test_cpu_model(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel\t\t: 1\nmodel name\t: AMD EPYC 7543 32-Core Processor\n")
    assert cpu_model(cpuinfo) == "AMD EPYC 7543 32-Core Processor"
    assert cpu_model(tmp_path / "none")


def test_governor(tmp_path: Path) -> None:
    assert governor(tmp_path) is None
    (tmp_path / "scaling_governor").write_text("schedutil\n")
    assert governor(tmp_path) == "schedutil"


def test_commit_names_the_head_and_marks_changes(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    package = tmp_path / "xbench"
    package.mkdir()
    assert commit(package) is None  # no checkout
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


ROOT = Path(__file__).parents[2]
TORCH = {"torch": "2.15.0", "torchvision": "0.29", "nccl": "2.30.7", "cuda": "13.2", "device": "cuda", "gpus": 8,
         "gpu_names": ["NVIDIA H200"] * 8}  # fmt: skip
CPU = TORCH | {"device": "cpu", "gpus": 0, "gpu_names": []}
NVML = {"driver": "580.65", "driver_cuda": "13.2", "gpus": [{}] * 8, "links": []}
NO_NVML = {"problem": "the Python package nvidia-ml-py is not installed (pip install nvidia-ml-py)"}
PLAIN = capture().model_copy(update={"cores": 64})
DRIVEN = PLAIN.model_copy(update={"facts": PLAIN.facts | {"nvidia_driver": "580.65"}})
WHOLE = Observations(here=DRIVEN, torch=TORCH, nvml=NVML)
BARE = Observations(
    here=PLAIN.model_copy(update={"cores": 1, "torch": None, "facts": {}}),
    torch={"problem": "it ended with status 1 and no answer: ModuleNotFoundError: No module named 'torch'"},
    nvml=NO_NVML, shaped_problem="iproute2 is not installed (ip is missing)", root=False,
    noise=["other processes are busy: make (pid 3) uses 1.0 cores"],
)  # fmt: skip


def found(seen: Observations, name: str) -> Finding:
    (one,) = [finding for finding in findings(seen) if finding.name == name]
    return one


def test_a_machine_that_has_everything_misses_nothing() -> None:
    assert [one.works for one in findings(WHOLE)] == [True] * 7
    assert found(WHOLE, "torch").detail == "2.15.0, built for CUDA 13.2 with NCCL 2.30.7"
    assert found(WHOLE, "GPUs").detail == "torch can use 8: ranks talk over NCCL"
    assert found(WHOLE, "cores").detail == "64: each of two ranks gets 32 of its own"


def test_a_bare_machine_is_told_how_to_get_everything() -> None:
    told = {one.name: one for one in findings(BARE)}
    assert {name: one.get for name, one in told.items() if one.works is False} == {
        "torch": "pip install torch torchvision",
        "GPUs": None,
        "shaped links": "apt-get install iproute2",
        "cores": None,
        "nvidia-ml-py": "pip install nvidia-ml-py",
        "quiet": None,
    }
    assert [name for name, one in told.items() if one.works is None] == ["torchvision"]
    assert told["quiet"].detail == "other processes are busy: make (pid 3) uses 1.0 cores"


@pytest.mark.parametrize("seen", [WHOLE, BARE, replace(BARE, here=DRIVEN), replace(WHOLE, torch=BARE.torch)])
def test_everything_that_is_missing_says_what_it_costs(seen: Observations) -> None:
    for one in findings(seen):
        assert one.detail
        assert bool(one.costs) is (one.works is False), one.name
        assert one.get is None or one.works is False


@pytest.mark.parametrize(
    ("changes", "name", "detail"),
    [
        ({"torch": {"problem": "OSError: libtorch.so"}}, "torch",
         "it is installed and does not work: OSError: libtorch.so"),
        ({"torch": TORCH | {"torchvision": None}}, "torchvision", "not installed"),
        ({"torch": TORCH | {"gpus": 1}}, "several GPUs", "torch can use one"),
        ({"torch": TORCH | {"gpus": 0}}, "GPUs",
         "the driver lists 8, and torch is built for CUDA 13.2, the driver runs up to 13.2"),
        ({"torch": TORCH | {"gpus": 0, "cuda": None}}, "GPUs", "the driver lists 8, and torch is built for CPUs"),
        ({"torch": TORCH | {"gpus": 0}, "nvml": {"problem": "x"}}, "GPUs",
         "the driver lists some, and torch sees none"),
        ({"nvml": {"problem": "no answer in time"}}, "GPU counters", "no answer in time"),
        ({"shaped_problem": "network namespaces need root"}, "shaped links", "network namespaces need root"),
    ],
)  # fmt: skip
def test_each_thing_can_be_missing(changes: dict[str, Any], name: str, detail: str) -> None:
    one = found(replace(WHOLE, **changes), name)
    assert (one.works, one.detail) == (False, detail)


def test_without_root_a_user_namespace_does_and_where_it_does_not_there_is_a_way() -> None:
    assert found(replace(WHOLE, root=False), "shaped links").detail.endswith("in a user namespace, without root")
    refused = found(replace(WHOLE, root=False, shaped_problem="this kernel forbids them"), "shaped links")
    assert str(refused.get).startswith("run xbench as root, or: sysctl -w")


def test_counters_are_of_no_use_without_a_gpu() -> None:
    here = PLAIN.model_copy(update={"facts": {}})
    assert found(Observations(here, CPU, {"problem": "NVML did not start"}), "GPU counters").works is None


# --- probes -------------------------------------------------------------------------------------------------------


def says(text: str) -> subprocess.Popen[str]:
    return program(f"print({text!r})")


def program(code: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-I", "-c", code]
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The findings leave out the probes that take time or depend on other processes."""
    monkeypatch.setattr(environment, "shaped_obstacle", lambda: None)
    monkeypatch.setattr(environment, "noise_warnings", lambda: [])


@pytest.mark.parametrize(
    ("probe", "said"),
    [
        (lambda: says('{"torch": "2.15.0"}'), {"torch": "2.15.0"}),
        (lambda: says(""), {"problem": "it ended with status 0 and no answer"}),
        (lambda: program("import os; os.abort()"), {"problem": "it ended with status -6 and no answer"}),
        (lambda: program("raise ImportError('lib.so: failed')"),
         {"problem": "it ended with status 1 and no answer: ImportError: lib.so: failed"}),
    ],
)  # fmt: skip
def test_a_probe_s_answer(probe: Callable[[], subprocess.Popen[str]], said: dict[str, Any]) -> None:
    assert answer(probe(), time.monotonic() + 60) == said


@pytest.mark.usefixtures("quick")
def test_probes_that_hang_are_ended_and_everything_else_is_told() -> None:
    started: list[subprocess.Popen[str]] = []

    def hang(what: str) -> subprocess.Popen[str]:
        started.append(program("import time; time.sleep(600)"))
        return started[-1]

    machine = take_inventory(timeout_s=0.1, ask=hang)
    assert len(started) == 2
    assert not any(pid_alive(probe.pid) for probe in started)
    told = {one.name: one for one in machine.findings}
    assert told["torch"].detail == "it is installed and does not work: no answer in time: it hangs, or the disk is slow"
    assert told["shaped links"].works
    assert machine.environment.device == "cpu"
    assert machine.environment.cores == len(os.sched_getaffinity(0))


def test_torch_and_nvml_that_cannot_be_imported_are_problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch", "pynvml"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('not today')\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    torch, nvml = (answer(environment.start_probe(what), time.monotonic() + 60) for what in ("torch", "nvml"))
    assert torch == {"problem": "it ended with status 1 and no answer: ImportError: not today"}
    assert nvml == NO_NVML


def test_the_torch_probe_knows_this_torch() -> None:
    import torch

    said = answer(environment.start_probe("torch"), time.monotonic() + 120)
    assert said["torch"] == torch.__version__
    assert said["gpus"] == (torch.cuda.device_count() if torch.cuda.is_available() else 0)
    assert len(said["gpu_names"]) == said["gpus"]
    assert said["device"] == ("cuda" if said["gpus"] else "cpu")


def test_gpus_are_counted_only_with_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def ask(what: str) -> subprocess.Popen[str]:
        asked.append(what)
        return says('{"gpus": [{}, {}]}') if len(asked) == 1 else says(json.dumps(NO_NVML))

    monkeypatch.setattr(environment, "nvidia_driver", lambda: None)
    assert (listed_gpus(ask=ask), asked) == (0, [])
    monkeypatch.setattr(environment, "nvidia_driver", lambda: "550.54")
    assert [listed_gpus(ask=ask) for _ in range(2)] == [2, 0]
    assert asked == ["nvml"] * 2


def test_an_nvml_without_gpus_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    class Empty:
        NVMLError = ZeroDivisionError

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(name)

    monkeypatch.setattr(gpu, "load_nvml", Empty)
    assert gpu.facts() == {"driver": None, "driver_cuda": None, "gpus": [], "links": []}


# --- the machine --------------------------------------------------------------------------------------------------

ON_GPUS = PLAIN.model_copy(update={"device": "NVIDIA H200", "device_count": 2})


def test_gpus_and_links_come_from_nvml_and_the_fingerprint_from_both_devices() -> None:
    one = {"index": 0, "name": "NVIDIA H200", "uuid": "GPU-1"}
    nvml = NVML | {"gpus": [one, one | {"index": 1}], "links": [{"one": 0, "other": 1, "path": "NVLink"}]}
    machine = machine_of(Observations(ON_GPUS, TORCH, nvml))
    assert [gpu.name for gpu in machine.gpus] == ["NVIDIA H200"] * 2
    assert machine.links[0].path == "NVLink"
    assert list(machine.fingerprints) == ["cuda", "cpu"]
    assert machine.fingerprints["cuda"] == fingerprint(ON_GPUS)
    assert machine.fingerprints["cpu"] == fingerprint(on_cpu(ON_GPUS)) != machine.fingerprints["cuda"]
    assert list(machine_of(BARE).fingerprints) == ["cpu"]
    assert Machine.model_validate_json(machine.model_dump_json()) == machine


def test_a_result_is_held_against_the_device_that_it_was_made_on() -> None:
    machine = machine_of(Observations(ON_GPUS, TORCH, NO_NVML))
    same = on_cpu(ON_GPUS)
    assert held_against(machine, "x.json", same).differs_from == {"x.json": []}
    assert held_against(machine, "x.json", ON_GPUS).differs_from == {"x.json": []}
    other = same.model_copy(update={"torch": "0.9"})
    assert held_against(machine, "x.json", other).differs_from == {"x.json": differences(other, same)}


# --- the command --------------------------------------------------------------------------------------------------


def answers(what: str) -> subprocess.Popen[str]:
    return says(json.dumps(CPU if what == "torch" else NO_NVML))


@pytest.fixture
def here(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(environment.take_inventory, "__kwdefaults__", {"timeout_s": 60.0, "ask": answers})


@pytest.mark.usefixtures("here")
def test_the_command_says_it_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["env"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert "torch         2.15.0, built for CUDA 13.2 with NCCL 2.30.7" in said.out
    assert "\n  nvidia-ml-py: not installed" in said.out
    assert "\n    to get it: pip install nvidia-ml-py" in said.out


@pytest.mark.usefixtures("here")
def test_json_has_stdout_alone_and_holds_the_same(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["env", "--json", "-"]) == 0
    said = capsys.readouterr()
    machine = Machine.model_validate_json(said.out)
    assert "What works here" in said.err
    assert cli.main(["env", "--json", str(tmp_path / "env.json")]) == 0
    again = Machine.model_validate_json((tmp_path / "env.json").read_text(encoding="utf-8"))
    assert again.fingerprints == machine.fingerprints
    assert again.findings == machine.findings


@pytest.mark.usefixtures("here")
def test_a_saved_result_is_held_against_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    path = ROOT / "tests" / "golden" / "comparison-v1.json"
    assert cli.main(["env", "--like", str(path), "--json", "-"]) == 0
    said = capsys.readouterr()
    machine = Machine.model_validate_json(said.out)
    reasons = differences(load(path).environment, machine.environment)  # type: ignore[union-attr]
    assert machine.differs_from == {str(path): reasons}
    assert "do not compare with those taken here" in " ".join(said.err.split())


def test_the_command_itself_and_the_facts_import_no_torch() -> None:
    code = "import sys, xbench.commands.env, xbench.environment as e; e.capture(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
