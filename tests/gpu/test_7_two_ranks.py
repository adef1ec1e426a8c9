"""Two ranks on the one device over Gloo: every schedule trains what DDP trains, and none reads too early."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from runs import DRY, Keep, compared

RACES = Path(__file__).parents[1] / "integration" / "ranks" / "races.py"
MODES = "ddp,auto" if DRY else "ddp,single,wfbp,mgwfbp,optimal,auto"
WORKLOAD = "transformer-tiny" if DRY else "resnet18"


def test_two_ranks(device: torch.device, keep: Keep) -> None:
    effort = ("--quick", "--rounds", "2")
    record = compared(device.type, WORKLOAD, "emulated:workers=2,rate=10gbit,ranks=2", MODES, *effort)
    gates = {name: mode.parity for name, mode in record.modes.items()}
    assert all(gate is not None and gate.ok and gate.bitwise_across_ranks for gate in gates.values()), gates
    worst = max(gate.max_relative_difference or 0.0 for gate in gates.values() if gate is not None)
    keep(
        "two-ranks", line=7, goal="every schedule trains what DDP trains, bit for bit alike on both ranks", held=True,
        finding=f"{len(gates)} schedules; largest difference from DDP {worst:.2g} of an update",
        gates={name: gate.model_dump() for name, gate in gates.items() if gate is not None},
    )  # fmt: skip


@pytest.mark.skipif(DRY, reason="tests/integration/test_races.py runs this on a CPU")
def test_races(device: torch.device, keep: Keep, tmp_path: Path) -> None:
    said = subprocess.run(
        [sys.executable, str(RACES), device.type], env=os.environ | {"STORE": str(tmp_path / "store")},
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    lines = said.stdout.splitlines()
    same, caught = lines[:-3], lines[-3:]  # the last three are engines that do not wait
    held = len(lines) == 17 and all(line.endswith(": same") for line in same)
    held = held and all(line.endswith(": caught") for line in caught)
    keep(
        "races", line=7, goal="no schedule reads what still travels, and engines that do are caught", held=held,
        finding=f"{len(same)} schedules and waits" if held else "; ".join(lines) or said.stderr[-300:],
        lines=lines,
    )  # fmt: skip
    assert held, said.stdout + said.stderr[-3000:]
