"""Requests for modes under torch.compile: what is refused before a launch, and what a record says of them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from samples_of_runs import A, collector_of, frame, run_of, timed

from xbench.config import ConvergeConfig
from xbench.errors import SpecError
from xbench.records import Comparison, StepTimes
from xbench.report.answer import answer, verdict
from xbench.runs import converge
from xbench.runs.build_records import UNPREDICTED, comparison_record
from xbench.runs.prepare import check_available, check_on_gpu, default_reference
from xbench.schedules import parse_modes
from xbench.spec import FabricSpec
from xbench.torch_compile import compiler_obstacle


def test_without_a_compiler_they_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    why = "torch.compile needs a C++ compiler (g++ or clang++), and none is installed"
    assert compiler_obstacle() == why
    with pytest.raises(SpecError, match=r"mode 'ddp\+compile' cannot run here: torch\.compile needs a C"):
        check_available(parse_modes("compute,ddp+compile"), None)
    assert check_available(parse_modes("ddp,ddp+compile"), None) == [f"mode ddp+compile cannot run here: {why}"]


def test_the_compiler_that_the_environment_names_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = tmp_path / "mycc"
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "mycc")
    assert compiler_obstacle() == "torch.compile needs a C++ compiler (mycc), and none is installed"
    compiler.touch(mode=0o755)
    assert compiler_obstacle() is None


def test_gpus_need_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SpecError, match=r"mode 'fsdp\+compile' needs Triton"):
        check_on_gpu(parse_modes("ddp,fsdp+compile"))
    check_on_gpu(parse_modes("ddp,fsdp"))


def test_commands_without_steps_to_compile_in_refuse_them() -> None:
    local = FabricSpec(name="local", ranks=2)
    config = ConvergeConfig(workloads=[A], fabric=local, modes=parse_modes("ddp,ddp+compile"))
    with pytest.raises(SpecError, match=r"'ddp\+compile' is compiled, and converge trains eagerly"):
        converge.check(config)


def test_the_silent_step_is_never_the_reference() -> None:
    assert default_reference(parse_modes("compute+compile,crossover,wfbp")) == "wfbp"
    run = run_of("sequential,crossover,compute+compile,wfbp", A, A, reference="sequential")
    assert run.reference_of(run.modes[2]) == "wfbp"


def compared(modes: str) -> Comparison:
    """A run in which ddp takes a second a step, compiled 0.6 s, and 0.4 s without communication."""
    collector = collector_of(run_of(modes))
    collector.jobs[0].step = StepTimes(
        forward_s=0.3, backward_s=0.4, optimizer_s=0.0, step_s=0.7, steps=1, warmup_steps=0, step_ci95=(0.7, 0.7),
        uninstrumented_step_s=0.7, overhead_ratio=0.0, uninstrumented_ci95=(0.7, 0.7), overhead_ci95=(0.0, 0.0),
    )  # fmt: skip
    for mode in collector.run.modes:
        timed(collector, mode.text, {"ddp": 1.0, "ddp+compile": 0.6, "compute+compile": 0.4}[mode.text])
    return comparison_record(frame(collector.run), collector)


def test_a_compiled_mode_may_win_and_has_its_own_control() -> None:
    record = compared("ddp,ddp+compile,compute+compile")
    assert answer(record)[0].startswith("ddp+compile is fastest: 40.0 % less time per sample than ddp")
    assert verdict(record, record.modes["compute+compile"]) == "control"
    exposed_s = {name: mode.exposed_s for name, mode in record.modes.items()}
    assert exposed_s == {
        "ddp": pytest.approx(0.3), "ddp+compile": pytest.approx(0.2), "compute+compile": pytest.approx(0.0)
    }  # fmt: skip
    assert {name: mode.note for name, mode in record.modes.items()} == {
        "ddp": None, "ddp+compile": UNPREDICTED, "compute+compile": None
    }  # fmt: skip
    without_control = compared("ddp,ddp+compile").modes["ddp+compile"]
    assert (without_control.exposed_s, without_control.removed_share) == (None, None)
