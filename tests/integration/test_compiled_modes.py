"""Modes under torch.compile in a comparison, as users type it."""

from __future__ import annotations

from pathlib import Path

import pytest
from typed_commands import compared, comparison, xbench

from xbench.runs.build_records import UNPREDICTED
from xbench.torch_compile import compiler_obstacle

pytestmark = [
    pytest.mark.integration, pytest.mark.skipif(compiler_obstacle() is not None, reason=str(compiler_obstacle()))
]  # fmt: skip
FACTORY = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1))

    def forward(self, x):
        return x + self.inner(x)


def make():
    model = nn.Sequential(Block(), Block(), nn.Linear(64, 8))
    return model, (torch.randn(16, 64), torch.randn(16, 8)), nn.functional.mse_loss
"""


FAILING_BACKWARD = """

def make_failing():
    import torch._inductor.compile_fx as inductor
    import torch._inductor.config as config

    config.force_disable_caches = True
    inner = inductor.fx_codegen_and_compile

    def compiled(*args, **kwargs):
        if kwargs.get("is_backward"):
            raise RuntimeError("no kernel for this")
        return inner(*args, **kwargs)

    inductor.fx_codegen_and_compile = compiled
    return make()
"""


def test_a_comparison_compiles_before_it_times(tmp_path: Path) -> None:
    modes = ("ddp", "ddp+compile", "fsdp+compile", "compute+compile")
    record = compared(tmp_path, FACTORY, ",".join(modes), timeout_s=400)
    assert record.reference == "ddp"
    assert not any("torch.compile" in warning for warning in record.warnings)
    for name in modes[1:3]:
        result = record.modes[name]
        assert result.status == "ok", (name, result.error)
        assert (result.parity.ok, result.parity.shown, result.parity.reference) == (True, True, "ddp")
        assert (result.predicted_step_s, result.timeline, result.note) == (None, None, UNPREDICTED)
        assert result.memory is not None
        control = record.modes["compute+compile"].step_s
        assert result.exposed_s == pytest.approx(result.step_s.median - control.median)


def test_compiled_modes_take_every_kind_of_step(tmp_path: Path) -> None:
    modes = ("ddp", "ddp+compile", "fsdp+compile")
    options = ("--accumulate", "2", "--clip", "0.05", "--amp", "bf16", "--checkpoint", "blocks")
    record = compared(tmp_path, FACTORY, ",".join(modes), *options, timeout_s=400)
    for name in modes:
        assert record.modes[name].status == "ok", (name, record.modes[name].error)


def test_a_mode_whose_backward_pass_cannot_be_compiled_is_left_out(tmp_path: Path) -> None:
    """The graph of the backward pass is compiled in the first step that trains, after the mode was tried."""
    script, output = tmp_path / "mine.py", tmp_path / "runs"
    script.write_text(FACTORY + FAILING_BACKWARD)
    modes = "ddp,ddp+compile,fsdp+compile,wfbp"
    done = xbench("compare", f"{script}:make_failing", "--fabric", "local:ranks=2", "--modes", modes, "--quick",
                  "--rounds", "1", results=output, timeout_s=400)  # fmt: skip
    record = comparison(output)
    assert record.complete, done.stderr[-3000:]
    for name in ("ddp+compile", "fsdp+compile"):
        failed = record.modes[name]
        assert failed.status == "failed"
        assert "torch.compile failed: " in failed.error
        assert "no kernel for this" in failed.error
    assert [record.modes[name].status for name in ("ddp", "wfbp")] == ["ok", "ok"]
