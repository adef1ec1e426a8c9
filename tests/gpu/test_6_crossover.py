"""Two jobs on the one device: one after the other, and in turns."""

from __future__ import annotations

import pytest
import torch
from runs import DRY, Keep, compared, figures

FABRICS = ["emulated:workers=4,rate=1gbit"] if DRY else [
    "emulated:workers=8,rate=10gbit", "emulated:workers=64,rate=10gbit", "emulated:workers=64,rate=25gbit"
]  # fmt: skip
WORKLOAD = "transformer-tiny" if DRY else "resnet50"
EFFORT = ("--quick", "--rounds", "2") if DRY else ("--launches", "1", "--rounds", "4")
GAIN, WORTH = 1.2, 0.2


@pytest.mark.parametrize("fabric", FABRICS)
def test_crossover(fabric: str, device: torch.device, keep: Keep) -> None:
    record = compared(device.type, WORKLOAD, fabric, "compute,sequential,crossover", *EFFORT)
    found = figures(record)
    took = {name: mode.step_s.median for name, mode in record.modes.items() if mode.step_s is not None}
    exposed = took["sequential"] / took["compute"] - 1  # M/C, of one job's step under DDP
    gain = took["sequential"] / took["crossover"]
    name = fabric.replace("emulated:workers=", "").replace(",rate=", "-")
    keep(
        f"crossover-{name}", line=6, goal="1.2× one after the other where M/C ≥ 0.2",
        held=gain >= GAIN or exposed < WORTH,
        finding=f"{WORKLOAD}: {gain:.2f}× one after the other; exposed {exposed:.2f} of computing under DDP",
        modes=found, exposed_over_compute=exposed, gain=gain,
    )  # fmt: skip
