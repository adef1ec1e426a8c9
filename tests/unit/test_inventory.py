"""`xbench env`: what works and what is missing, on machines that are written down and on this one."""

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
    differences,
    findings,
    fingerprint,
    held_against,
    listed_gpus,
    machine_of,
    on_cpu,
    take_inventory,
)
from xbench.profilers import gpu
from xbench.rank.journal import pid_alive
from xbench.records import load
from xbench.records.parts import Finding, Machine

ROOT = Path(__file__).parents[2]
TORCH = {"torch": "2.15.0", "torchvision": "0.29", "nccl": "2.30.7", "cuda": "13.2", "device": "cuda", "gpus": 8,
         "gpu_names": ["NVIDIA H200"] * 8}  # fmt: skip
CPU = TORCH | {"device": "cpu", "gpus": 0, "gpu_names": []}
NVML = {"driver": "580.65", "driver_cuda": "13.2", "gpus": [{}] * 8, "links": []}
NO_NVML = {"problem": "the Python package nvidia-ml-py is not installed (pip install nvidia-ml-py)"}
HERE = capture().model_copy(update={"cores": 64})
DRIVEN = HERE.model_copy(update={"facts": HERE.facts | {"nvidia_driver": "580.65"}})
WHOLE = Observations(here=DRIVEN, torch=TORCH, nvml=NVML)
BARE = Observations(
    here=HERE.model_copy(update={"cores": 1, "torch": None, "facts": {}}),
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
    here = HERE.model_copy(update={"facts": {}})
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
    """What takes time, or depends on who else is busy, is not looked at."""
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

ON_GPUS = HERE.model_copy(update={"device": "NVIDIA H200", "device_count": 2})


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


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--like", "/none"], "there is no result file '/none'"),
        (["--like", str(ROOT / "tests/golden/scaling-v1.json")], "does not say where it was made"),
        (["--json", "/none/x.json"], "--json: the folder of '/none/x.json' does not exist"),
    ],
)
def test_what_cannot_work_is_said_first(
    words: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(environment, "take_inventory", lambda: pytest.fail("took the inventory first"))
    assert cli.main(["env", *words]) == 2
    assert sentence in capsys.readouterr().err


def test_the_command_itself_imports_no_torch() -> None:
    code = "import sys; import xbench.commands.env, xbench.environment; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
