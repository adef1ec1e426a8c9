"""`auto` on two real ranks where DDP itself wins the trial: it runs DDP, trains what DDP trains, and is told as DDP."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typed_commands import TINY, only_record, ran, said_by_two_ranks, xbench

from xbench.records import Comparison
from xbench.report.snippets import PLAIN_DDP

pytestmark = pytest.mark.integration
RANKS = Path(__file__).parent / "ranks"
FORCED = "from xbench.runs import execute; execute.WORKER = 'auto_on_ddp'; from xbench.__main__ import run; run()"
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


def compared(folder: Path, workload: str, *more: str) -> tuple[Comparison, subprocess.CompletedProcess[str]]:
    paths = os.pathsep.join([str(RANKS), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = ran(
        [
            sys.executable, "-c", FORCED, "compare", workload, "--fabric", "local:ranks=2", "--quick", "--rounds", "4",
            "--steps", "3", "--modes", "ddp,single,auto", "--output", str(folder), *more,
        ],
        env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    record = only_record(folder)
    assert isinstance(record, Comparison)
    return record, done


def check(record: Comparison) -> None:
    """`auto` is DDP's own reducer, was timed, and trains DDP's network bit for bit."""
    auto = record.modes["auto"]
    assert auto.status == "ok", auto.error
    assert auto.plan is not None
    assert auto.plan.carrier == "ddp"
    assert auto.plan.note is not None
    assert auto.plan.note.startswith("DDP's own reducer, after ")
    assert re.search(r"of: .*, DDP itself \d", auto.plan.note)
    assert auto.parity is not None
    assert (auto.parity.ok, auto.parity.shown, auto.parity.max_relative_difference) == (True, True, 0.0)
    assert auto.blocks == 4
    ddp = record.modes["ddp"]
    assert ddp.plan is not None
    assert auto.plan.buckets == ddp.plan.buckets
    assert auto.predicted_step_s == ddp.predicted_step_s
    assert auto.timeline is not None
    assert ddp.timeline is not None
    sent = [[part.nbytes for part in one.communication] for one in (auto.timeline, ddp.timeline)]
    assert sent[0] == sent[1]


def test_auto_runs_ddp_itself_and_is_handed_over_as_ddp(tmp_path: Path) -> None:
    record, _ = compared(tmp_path / "runs", TINY)
    check(record)
    (path,) = (tmp_path / "runs").glob("*/record.json")
    for emit in ("python", "ddp"):
        pasted = xbench("plan", str(path), "--emit", emit, "--mode", "auto")
        assert (pasted.returncode, pasted.stdout) == (0, PLAIN_DDP), pasted.stderr[-2000:]
    # a script that gives the record to xbench.attach trains under DDP too
    for out in said_by_two_ranks(RANKS / "attach_record.py", str(path), TINY, store=tmp_path / "store"):
        assert "DistributedDataParallel: ok" in out


def test_ddp_itself_looks_for_parameters_without_a_gradient(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(WITH_UNUSED)
    record, _ = compared(tmp_path / "runs", f"{tmp_path / 'own.py'}:make", "--overlap", "forward")
    check(record)
