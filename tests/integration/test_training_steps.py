"""Options of the training step on real ranks: every mode trains what DDP trains with the same option."""

from __future__ import annotations

from pathlib import Path

import pytest
from packages_at_hand import installed
from typed_commands import compared

from xbench.records import ModeResult

pytestmark = pytest.mark.integration

NETWORK = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.narrow, self.norm = nn.Linear(32, 64), nn.Linear(64, 32), nn.BatchNorm1d(32)

    def forward(self, x):
        return x + self.norm(self.narrow(self.wide(x).relu()))


def make():
    model = nn.Sequential(nn.Linear(16, 32), nn.Sequential(Block(), Block()), nn.Linear(32, 10))
    return model, (torch.randn(12, 16), torch.randint(0, 10, (12,))), nn.CrossEntropyLoss()
"""
WRONG = ("forgetful", "eager", "unclipped", "summing", "stubborn")

OVERFLOWS = (
    NETWORK.replace("def make", "class Overflow(torch.autograd.Function):\n"
    "    @staticmethod\n"
    "    def forward(ctx, x, overflows):\n"
    "        ctx.overflows = overflows\n"
    "        return x.clone()\n\n"
    "    @staticmethod\n"
    "    def backward(ctx, gradient):\n"
    "        return gradient * float('inf') if ctx.overflows else gradient, None\n\n\n"
    "class Last(nn.Linear):\n"
    "    steps = 0\n\n"
    "    def forward(self, x):\n"
    "        self.steps += torch.is_grad_enabled()\n"
    "        ready = torch.distributed.is_initialized() and torch.distributed.get_rank() == 1\n"
    "        return Overflow.apply(super().forward(x), ready and self.steps == 2)\n\n\ndef make")
    .replace("nn.Linear(32, 10))", "Last(32, 10))")
)  # fmt: skip
"""Gradients are infinite on rank 1 alone, in the second step alone."""

SHARDED = ("fsdp", "replicate", "zero1")


@pytest.fixture(scope="module")
def with_wrong_modes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which the modes of `tests/packages/xbench_wrong_steps.py` are installed."""
    modes = {name: f"xbench_wrong_steps:{name.capitalize()}" for name in WRONG}
    return installed(tmp_path_factory.mktemp("site"), "xbench_wrong_steps", modes)


def assert_parity(mode: ModeResult) -> None:
    assert mode.parity is not None, mode.error
    assert (mode.status, mode.parity.ok, mode.parity.shown) == ("ok", True, True), mode.parity


def assert_refused(mode: ModeResult) -> None:
    assert mode.parity is not None, mode.error
    assert (mode.status, mode.parity.ok) == ("failed", False)


def test_micro_steps(tmp_path: Path, with_wrong_modes: dict[str, str]) -> None:
    right = ["ddp", "wfbp", "optimal", "dear", "priority", *SHARDED]
    modes = ",".join([*right, "forgetful", "eager", "spb"])
    record = compared(tmp_path, NETWORK, modes, "--accumulate", "3", env=with_wrong_modes)
    for name in right:
        assert_parity(record.modes[name])
    assert_refused(record.modes["forgetful"])
    eager, spb = record.modes["eager"], record.modes["spb"]
    assert eager.error.startswith("eager has no no_sync, so it would send gradients in every micro-step")
    assert (spb.status, spb.parity.ok) == ("ok", True)

    (job,) = record.jobs
    assert job.workload.spec.accumulate == 3
    assert job.workload.batch_size == 36
    assert job.step.micro_steps == 3
    assert job.step.accumulate_s > 0
    assert job.plans["optimal"].timeline.compute[0].name == "accumulate"
    for name in ("ddp", "optimal"):
        assert record.modes[name].timeline.compute[0].name == "accumulate"
        sent = sum(bucket.nbytes or 0 for bucket in record.modes[name].timeline.communication)
        assert sent == job.workload.grad_bytes  # once, in spite of three backward passes


@pytest.mark.parametrize("norm", ["0.05", "1000"])
def test_clipped_gradients(norm: str, tmp_path: Path, with_wrong_modes: dict[str, str]) -> None:
    right = ["ddp", "wfbp", "optimal", "auto", *SHARDED] if norm == "0.05" else ["ddp", "wfbp"]
    modes = ",".join([*right, "unclipped", "summing", *(["spb:variant=temporal"] if norm == "0.05" else [])])
    record = compared(tmp_path, NETWORK, modes, "--clip", norm, "--accumulate", "2", env=with_wrong_modes)
    for name in right:
        assert_parity(record.modes[name])
    assert_refused(record.modes["summing"])
    if norm == "0.05":
        assert_refused(record.modes["unclipped"])
        said = record.modes["summing"].parity
        assert "the averaged gradients of 'all parameters' differ" in (said.message or "")
    else:  # larger than any norm here, so nothing is clipped
        assert_parity(record.modes["unclipped"])
    (job,) = record.jobs
    assert job.workload.spec.clip == float(norm)
    assert job.step.updates_together
    optimizer = [slice_.name for slice_ in job.plans["wfbp"].timeline.compute].count("optimizer")
    assert optimizer == 1  # after all gradients have arrived
    assert "dear" not in job.plans


@pytest.mark.parametrize(
    "options", ["--clip 1 --launches 2", "--optimizer adamw --optimizer-impl fused"], ids=["clipped", "fused kernels"]
)
def test_fp16_skips_the_same_steps_on_all_ranks(tmp_path: Path, with_wrong_modes: dict[str, str], options: str) -> None:
    right = ["ddp", "wfbp", "optimal", *SHARDED]
    modes = ",".join([*right, "stubborn"])
    record = compared(tmp_path, OVERFLOWS, modes, "--amp", "fp16", *options.split(), env=with_wrong_modes)
    for name in right:
        assert_parity(record.modes[name])
    assert_refused(record.modes["stubborn"])
    (job,) = record.jobs
    assert job.step.updates_together
    assert job.workload.spec.optimizer_impl == ("fused" if "fused" in options else "default")


def test_checkpointed_blocks_under_autocast_with_foreach_kernels(tmp_path: Path) -> None:
    right = ["ddp", "wfbp", "optimal", "dear", "priority", *SHARDED]
    options = ("--checkpoint", "blocks", "--amp", "bf16", "--optimizer-impl", "foreach")
    record = compared(tmp_path, NETWORK, ",".join(right), *options)
    for name in right:
        assert_parity(record.modes[name])
    (job,) = record.jobs
    spec = job.workload.spec
    assert (spec.checkpoint, spec.amp, spec.optimizer_impl) == ("blocks", "bf16", "foreach")
    assert (job.workload.dtype, job.step.updates_together) == ("fp32", False)
    assert {layer.kind for layer in job.layers} == {"BatchNorm1d", "Linear"}


def test_groups_of_shards_and_planned_units_take_every_kind_of_step(tmp_path: Path) -> None:
    modes = ("ddp", "hsdp:group=2", "auto:shard")
    options = ("--accumulate", "2", "--clip", "0.05", "--amp", "bf16", "--checkpoint", "blocks")
    record = compared(tmp_path, NETWORK, ",".join(modes), *options, ranks=4)
    for name in modes:
        assert_parity(record.modes[name])
