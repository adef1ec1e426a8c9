"""`plain-ddp` on real ranks: a second set of processes without host tuning, in the rounds of the others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typed_commands import left_behind, may_raise_priorities, only_record, xbench

from xbench.records import Comparison

pytestmark = pytest.mark.integration

SCRIPT = """
import json
import os
from contextlib import suppress
from pathlib import Path

import torch
from torch import nn


class Watched(nn.Linear):
    "A layer that notes its process, and the priorities of Gloo's threads there, in every call."

    def forward(self, inputs):
        found = []
        for thread in Path("/proc/self/task").iterdir():
            with suppress(OSError):  # the thread ended
                if (thread / "comm").read_text().strip() == "pt_gloo_runloop":
                    found.append(os.getpriority(os.PRIO_PROCESS, int(thread.name)))
        with open("FOLDER/" + str(os.getpid()), "a") as stream:
            stream.write(json.dumps(min(found, default=0)) + "\\n")
        return super().forward(inputs)


def make():
    model = nn.Sequential(Watched(16, 16), nn.ReLU(), nn.Linear(16, 4))
    return model, (torch.randn(4, 16), torch.randn(4, 4)), nn.functional.mse_loss
"""


def test_it_runs_in_ranks_of_its_own_in_the_rounds_of_the_others(tmp_path: Path) -> None:
    seen, script, output = tmp_path / "seen", tmp_path / "mine.py", tmp_path / "runs"
    seen.mkdir()
    script.write_text(SCRIPT.replace("FOLDER", str(seen)))
    done = xbench("compare", f"{script}:make", "--fabric", "local:ranks=2", "--modes", "ddp,plain-ddp,single",
                  "--quick", "--rounds", "3", "--steps", "3", "--output", str(output))  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert not left_behind()
    record = only_record(output)
    assert isinstance(record, Comparison)
    assert record.complete
    for name, mode in record.modes.items():
        assert mode.status == "ok", (name, mode.error)
        assert mode.parity is not None
        assert mode.parity.ok
        assert mode.blocks == 3
    rounds = [[sample.mode for sample in record.samples if sample.round == number] for number in range(3)]
    assert all(sorted(modes) == ["ddp", "plain-ddp", "single"] for modes in rounds)
    assert len(record.modes["plain-ddp"].other_ranks) == 1  # its step is recorded too

    lowest = {path.name: [json.loads(line) for line in path.read_text().splitlines()] for path in seen.iterdir()}
    of_ranks = {pid: values for pid, values in lowest.items() if len(values) > 20}  # the preflight runs a step too
    assert len(of_ranks) == 4
    fewest = sorted(of_ranks, key=lambda pid: len(of_ranks[pid]))[:2]  # they profile nothing and run one mode
    for pid, values in of_ranks.items():
        raised = min(values) < 0
        assert raised is (pid not in fewest and may_raise_priorities()), (pid, min(values))
