"""`auto` on two real ranks where DDP itself wins the trial: it runs DDP, trains what DDP trains, and is told as DDP."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typed_commands import comparison, said_by_ranks, with_ranks_of, xbench

from xbench.report.snippets import PLAIN_DDP

pytestmark = pytest.mark.integration
RANKS = Path(__file__).parent / "ranks"
WITH_UNUSED = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(32, 64), nn.BatchNorm1d(64), nn.Linear(64, 10)
        self.never = nn.Linear(4, 4)

    def forward(self, x):
        return self.head(self.norm(self.body(x)).relu())


def make():
    return Net(), (torch.randn(16, 32), torch.randint(0, 10, (16,))), nn.CrossEntropyLoss()
"""


def test_auto_runs_ddp_itself_and_is_handed_over_as_ddp(tmp_path: Path) -> None:
    """The model has a parameter without a gradient, which DDP must look for, and buffers, which DDP broadcasts."""
    (tmp_path / "own.py").write_text(WITH_UNUSED)
    workload = f"{tmp_path / 'own.py'}:make"
    done = with_ranks_of(
        "auto_on_ddp", "compare", workload, "--fabric", "local:ranks=2", "--quick", "--rounds", "2",
        "--modes", "ddp,auto", results=tmp_path / "runs",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    record = comparison(tmp_path / "runs")
    auto, ddp = record.modes["auto"], record.modes["ddp"]
    assert auto.status == "ok", auto.error
    assert (auto.plan.carrier, auto.plan.buckets) == ("ddp", ddp.plan.buckets)
    assert auto.plan.note is not None
    assert re.match(r"DDP's own reducer, after \d+ steps each of: auto .*, DDP itself \d", auto.plan.note)
    # it was timed, and trains DDP's network bit for bit, with DDP's collectives
    assert (auto.parity.ok, auto.parity.shown, auto.parity.max_relative_difference) == (True, True, 0.0)
    assert auto.blocks == 2
    assert auto.predicted_step_s == ddp.predicted_step_s
    assert auto.timeline is not None
    assert ddp.timeline is not None
    sent = [[part.nbytes for part in one.communication] for one in (auto.timeline, ddp.timeline)]
    assert sent[0] == sent[1]
    # what is handed over is DDP as it comes, and a script that gives the record to xbench.attach trains under DDP
    (path,) = (tmp_path / "runs").glob("*/record.json")
    for emit in ("python", "ddp"):
        pasted = xbench("plan", str(path), "--emit", emit, "--mode", "auto")
        assert (pasted.returncode, pasted.stdout) == (0, PLAIN_DDP), pasted.stderr[-2000:]
    for out in said_by_ranks(2, RANKS / "paste_tuned.py", str(path), workload, "auto", store=tmp_path / "store"):
        assert "DistributedDataParallel: ok" in out
