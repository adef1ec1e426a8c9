"""Two jobs on the one device: one after the other, both at once, and in turns.

The link is emulated and runs nothing on the device. So the figure of both at once, which needs two processes, is an
upper limit: on a real link they share a GPU by time slices, of which NCCL's kernels take some.
"""

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
    record = compared(device.type, WORKLOAD, fabric, "compute,sequential,concurrent,crossover", *EFFORT)
    found = figures(record)
    took = {name: mode.step_s.median for name, mode in record.modes.items() if mode.step_s is not None}
    exposed = took["sequential"] / took["compute"] - 1  # M/C, of one job's step under DDP
    gain, beside = took["sequential"] / took["crossover"], took["concurrent"] / took["crossover"]
    name = fabric.replace("emulated:workers=", "").replace(",rate=", "-")
    keep(
        f"crossover-{name}", line=6, goal="1.2× one after the other where M/C ≥ 0.2, never below both at once",
        held=(gain >= GAIN or exposed < WORTH) and beside >= 1.0,
        finding=f"{WORKLOAD}: {gain:.2f}× one after the other, {beside:.2f}× both at once; exposed {exposed:.2f} of "
        "computing under DDP",
        modes=found, exposed_over_compute=exposed, gain=gain, over_concurrent=beside,
    )  # fmt: skip
