"""What Nsight is told, in order, through a module that writes it down; and where ranges are refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from xbench import cli
from xbench.config import RunConfig
from xbench.crossover.job import crossover_steps
from xbench.errors import SpecError
from xbench.rank.nvtx import Ranges
from xbench.runs import prepare as preparing
from xbench.schedules import parse_modes
from xbench.spec import Effort, FabricSpec, WorkloadSpec
from xbench.workloads.probe import Preflight


class Heard:
    """torch.cuda.nvtx: a range is indented by those around it."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 0

    def range_push(self, name: str) -> None:
        self.lines.append("  " * self.depth + name)
        self.depth += 1

    def range_pop(self) -> None:
        self.depth -= 1

    def mark(self, text: str) -> None:
        self.lines.append("  " * self.depth + f"({text})")


class Turns:
    """Turns that are always ours."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    @contextmanager
    def turn(self) -> Iterator[None]:
        self.log.append("acquired")
        yield
        self.log.append("released")

    def end_block(self) -> None:
        self.log.append("ended")


def test_buckets_are_counted_within_each_step_of_a_block() -> None:
    heard = Heard()
    ranges = Ranges(heard)
    works: list[Any] = []
    with ranges.range("round 1 wfbp"):
        for step in (1, 2):
            ranges.mark(f"step {step}: computing")
            with ranges.step(step):
                works += [ranges.watch(nbytes, lambda nbytes=nbytes: nbytes) for nbytes in (2048, 512)]
    assert works == [2048, 512, 2048, 512]
    assert heard.lines == [
        "round 1 wfbp",
        "  (step 1: computing)",
        "  step 1",
        "    bucket 1, 2.00 KiB",
        "    bucket 2, 512 B",
        "  (step 2: computing)",
        "  step 2",
        "    bucket 1, 2.00 KiB",
        "    bucket 2, 512 B",
    ]
    assert heard.depth == 0


def test_a_step_that_fails_closes_its_ranges() -> None:
    heard = Heard()
    ranges = Ranges(heard)
    with pytest.raises(ZeroDivisionError), ranges.range("block"), ranges.step(1):
        ranges.watch(4, lambda: 1 // 0)  # type: ignore[arg-type, return-value]
    assert heard.depth == 0


def test_turns_are_ranges_from_when_the_device_is_ours() -> None:
    heard = Heard()
    ranges = Ranges(heard)
    log = heard.lines
    crossover_steps(
        ranges.turns(Turns(log)),
        2,
        wait_gradients=lambda: log.append("wait"),
        apply=lambda: ranges.mark("apply"),
        forward_backward=lambda: ranges.watch(1024, lambda: None),  # type: ignore[arg-type, return-value]
        mark=lambda: log.append("mark"),
    )
    assert heard.lines == [
        "acquired", "turn 1", "  bucket 1, 1.00 KiB", "released", "mark",
        "wait", "acquired", "turn 2", "  (apply)", "  bucket 1, 1.00 KiB", "released", "mark",
        "ended", "wait", "(apply)",
    ]  # fmt: skip


def test_off_is_off() -> None:
    ranges, turns = Ranges.when(False), Turns([])
    assert not ranges.on
    ranges.mark("x")
    with ranges.range("x"), ranges.step(1):
        assert ranges.watch(4, lambda: "work") == "work"  # type: ignore[arg-type, return-value, comparison-overlap]
    assert ranges.turns(turns) is turns


def test_on_is_torch_s_own() -> None:
    import torch.cuda.nvtx

    ranges = Ranges.when(True)
    assert ranges.on
    assert ranges._nvtx is torch.cuda.nvtx
    assert all(hasattr(torch.cuda.nvtx, name) for name in ("range_push", "range_pop", "mark"))


# --- refusal ------------------------------------------------------------------------------------------------------

REFUSED = "--nvtx marks the work of GPUs for Nsight Systems, and this would run on the CPU"


@pytest.mark.parametrize("command", ["compare", "profile"])
def test_ranges_on_the_cpu_are_refused_before_anything_is_done(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(preparing, "probe", lambda *words: pytest.fail("looked at the workloads first"))
    assert cli.main([command, "resnet18", "--nvtx", "--device", "cpu"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == (f"error: {REFUSED}\n  hint: leave --nvtx out, or try --device cuda --fabric local:ranks=1\n")


def test_ranges_are_refused_where_auto_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Preflight(device="cpu", gpus=0, torch="2.15", torchvision=None, nccl=None, cuda=None, workloads=[])
    monkeypatch.setattr(preparing, "probe", lambda *words: found)
    config = RunConfig(
        workloads=[WorkloadSpec(name="resnet18")], modes=parse_modes("ddp"), effort=Effort(),
        fabric=FabricSpec(name="local", ranks=2), nvtx=True,
    )  # fmt: skip
    with pytest.raises(SpecError, match=r"^--nvtx marks the work of GPUs"):
        preparing.prepare(config)
