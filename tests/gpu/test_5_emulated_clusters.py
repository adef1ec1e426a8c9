"""Every schedule on emulated clusters: predicted against measured."""

from __future__ import annotations

import torch
from runs import DRY, Keep, compared, errors, figures, middle

RATES = ("10gbit", "25gbit", "100gbit")
FABRICS = [(4, "1gbit")] if DRY else [(workers, rate) for workers in (8, 64) for rate in RATES]
WORKLOAD = "transformer-tiny" if DRY else "resnet50"
MODES = "compute,ddp,optimal" if DRY else "compute,ddp,single,wfbp,mgwfbp,optimal,auto"
EFFORT = ("--quick", "--rounds", "2", "--steps", "3") if DRY else ("--launches", "1", "--rounds", "3", "--steps", "6")


def test_predicted_and_measured(device: torch.device, keep: Keep) -> None:
    cells = {}
    for workers, rate in FABRICS:
        record = compared(device.type, WORKLOAD, f"emulated:workers={workers},rate={rate}", MODES, *EFFORT)
        assert record.fabric.label == "emulated"
        cells[f"{workers} workers at {rate}"] = figures(record)
    off = [error for cell in cells.values() for error in errors(cell)]
    keep(
        "emulated-clusters", line=5, goal="median prediction error at most 3 %", held=middle(off) <= 0.03,
        finding=f"{WORKLOAD}: median {middle(off):.1%}, worst {max(off):.1%} of {len(off)} predictions", cells=cells,
    )  # fmt: skip
