"""`xbench env`: this machine, whatever of it is broken; probes that hang, crash, or have nothing to import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from xbench import cli, environment
from xbench.environment import differences, fingerprint
from xbench.machine import inventory
from xbench.machine.inventory import (
    Observations,
    answer,
    held_against,
    listed_gpus,
    machine_of,
    nvcc,
    on_cpu,
    take_inventory,
)
from xbench.machine.inventory_probe import installed, nvml_answer
from xbench.rank.journal import pid_alive
from xbench.records import load
from xbench.records.parts import Machine

ROOT = Path(__file__).parents[3]
GPUS = {"device": "cuda", "gpus": 2, "gpu_names": ["NVIDIA H200"] * 2, "torch": "2.15.0", "torchvision": "0.29",
        "nccl": "2.30.7", "cuda": "13.2"}  # fmt: skip
NONE = {"problem": "not installed", "installed": False}


def says(text: str) -> subprocess.Popen[str]:
    return program(f"print({text!r})")


def program(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-I", "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes time, or depends on who else is busy, is not looked at."""
    monkeypatch.setattr(inventory, "shaped_obstacle", lambda: None)
    monkeypatch.setattr(environment, "noise_warnings", lambda: [])


# --- probes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("probe", "said"),
    [
        (lambda: says('{"torch": "2.15.0"}'), {"torch": "2.15.0"}),
        (lambda: says(""), {"problem": "it ended with status 0 and no answer", "installed": True}),
        (lambda: says("[]"), {"problem": "it ended with status 0 and no answer", "installed": True}),
        (lambda: program("import os; os.abort()"), {"problem": "it ended with status -6 and no answer",
                                                    "installed": True}),
        (lambda: program("raise ImportError('lib.so: failed')"),
         {"problem": "it ended with status 1 and no answer: ImportError: lib.so: failed", "installed": True}),
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


def test_without_torch_and_nvml_the_probes_say_so(tmp_path: Path) -> None:
    for name in ("torch", "pynvml"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('not today')\n")
    paths = os.pathsep.join([str(tmp_path), str(ROOT)])
    said = {}
    for what in ("torch", "nvml"):
        done = subprocess.run(
            [*inventory.PROBE, what], env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, timeout=60
        )
        said[what] = json.loads(done.stdout)
    assert said["torch"] == {"problem": "ImportError: not today", "installed": True}
    assert said["nvml"] == {
        "problem": "the Python package nvidia-ml-py is not installed (pip install nvidia-ml-py)", "installed": True
    }  # fmt: skip


def test_the_torch_probe_knows_this_torch() -> None:
    import torch

    said = answer(inventory.start_probe("torch"), time.monotonic() + 120)
    assert said["torch"] == torch.__version__
    assert said["gpus"] == (torch.cuda.device_count() if torch.cuda.is_available() else 0)
    assert len(said["gpu_names"]) == said["gpus"]
    assert said["device"] == ("cuda" if said["gpus"] else "cpu")


def test_gpus_are_counted_only_with_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def ask(what: str) -> subprocess.Popen[str]:
        asked.append(what)
        return says('{"gpus": [{}, {}]}') if len(asked) == 1 else says(json.dumps(NONE))

    monkeypatch.setattr(environment, "nvidia_driver", lambda: None)
    assert (listed_gpus(ask=ask), asked) == (0, [])
    monkeypatch.setattr(environment, "nvidia_driver", lambda: "550.54")
    assert [listed_gpus(ask=ask) for _ in range(2)] == [2, 0]
    assert asked == ["nvml"] * 2


def test_a_package_is_there_or_not() -> None:
    assert installed("torch")


# --- the machine --------------------------------------------------------------------------------------------------


def test_gpus_and_links_come_from_nvml_and_the_fingerprint_from_both_devices() -> None:
    gpu = {"index": 0, "name": "NVIDIA H200", "uuid": "GPU-1"}
    nvml = {"driver": "580.65", "driver_cuda": "13.2", "gpus": [gpu, gpu | {"index": 1}],
            "links": [{"one": 0, "other": 1, "path": "NVLink"}]}  # fmt: skip
    machine = machine_of(Observations(torch=GPUS, nvml=nvml))
    assert (machine.environment.device, machine.environment.device_count) == ("NVIDIA H200", 2)
    assert [one.name for one in machine.gpus] == ["NVIDIA H200"] * 2
    assert machine.links[0].path == "NVLink"
    assert list(machine.fingerprints) == ["cuda", "cpu"]
    assert machine.fingerprints["cuda"] == fingerprint(machine.environment)
    assert machine.fingerprints["cpu"] == fingerprint(on_cpu(machine.environment)) != machine.fingerprints["cuda"]
    assert Machine.model_validate_json(machine.model_dump_json()) == machine


def test_without_torch_there_is_a_fingerprint_and_the_version_of_its_package() -> None:
    machine = machine_of(Observations(torch=NONE, nvml=NONE))
    assert list(machine.fingerprints) == ["cpu"]
    assert machine.environment.device_count == 0


def test_a_result_is_held_against_the_device_that_it_was_made_on() -> None:
    machine = machine_of(Observations(torch=GPUS, nvml=NONE))
    same = on_cpu(machine.environment)
    assert held_against(machine, "x.json", same).differs_from == {"x.json": []}
    assert held_against(machine, "x.json", machine.environment).differs_from == {"x.json": []}
    other = same.model_copy(update={"torch": "2.11.0"})
    assert held_against(machine, "x.json", other).differs_from == {"x.json": ["torch: 2.11.0 and 2.15.0"]}


def test_the_compiler_is_found_where_torch_looks(tmp_path: Path) -> None:
    home, path = tmp_path / "cuda", tmp_path / "path"
    for folder, release in ((home / "bin", "13.0"), (path, "12.4")):
        folder.mkdir(parents=True)
        (folder / "nvcc").write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{release}.48'\n")
        (folder / "nvcc").chmod(0o755)
    assert nvcc({"CUDA_HOME": str(home), "PATH": str(path)}) == f"13.0, {home / 'bin' / 'nvcc'}"
    assert nvcc({"PATH": str(path)}) == f"12.4, {path / 'nvcc'}"
    (path / "nvcc").write_text("#!/bin/sh\necho 'a wrapper'\n")
    assert nvcc({"PATH": str(path)}) == f"version unknown, {path / 'nvcc'}"


def test_an_nvml_without_gpus_answers() -> None:
    class Empty:
        NVMLError = ZeroDivisionError

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(name)

    assert nvml_answer(Empty()) == {"driver": None, "driver_cuda": None, "gpus": [], "links": []}


# --- the command --------------------------------------------------------------------------------------------------


def answers(what: str) -> subprocess.Popen[str]:
    return says(json.dumps(GPUS | {"device": "cpu", "gpus": 0, "gpu_names": []} if what == "torch" else NONE))


@pytest.fixture
def here(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory.take_inventory, "__kwdefaults__", {"timeout_s": 60.0, "ask": answers})


@pytest.mark.usefixtures("here")
def test_the_command_says_it_on_stdout(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert cli.main(["env"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert "torch         2.15.0, built for CUDA 13.2 with NCCL 2.30.7" in said.out
    assert "\n  nvidia-ml-py: not installed" in said.out
    assert "\n    to get it: pip install nvidia-ml-py" in said.out


@pytest.mark.usefixtures("here")
def test_json_has_stdout_alone_and_holds_the_same(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
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
    assert f"torch: 2.15.0 and {machine.environment.torch}" not in reasons
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
    monkeypatch.setattr(inventory, "take_inventory", lambda: pytest.fail("took the inventory first"))
    assert cli.main(["env", *words]) == 2
    assert sentence in capsys.readouterr().err


def test_the_command_itself_imports_no_torch() -> None:
    code = "import sys; import xbench.commands.env, xbench.machine.inventory; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
