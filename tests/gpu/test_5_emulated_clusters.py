"""Every schedule on emulated clusters: predicted against measured, a file for each cluster."""

from __future__ import annotations

import pytest
import torch
from runs import DRY, Keep, compared, errors, figures, middle

RATES = ("10gbit", "25gbit", "100gbit")
FABRICS = [(4, "1gbit")] if DRY else [(workers, rate) for workers in (8, 64) for rate in RATES]
WORKLOAD = "transformer-tiny" if DRY else "resnet50"
MODES = "compute,ddp,optimal" if DRY else "compute,ddp,single,wfbp,mgwfbp,optimal,auto"
EFFORT = ("--quick", "--rounds", "2") if DRY else ("--launches", "1", "--rounds", "3")


@pytest.mark.parametrize(("workers", "rate"), FABRICS)
def test_predicted_and_measured(workers: int, rate: str, device: torch.device, keep: Keep) -> None:
    record = compared(device.type, WORKLOAD, f"emulated:workers={workers},rate={rate}", MODES, *EFFORT)
    assert record.fabric.label == "emulated"
    found = figures(record)
    off = errors(found)
    steps = {name: mode.step_s.median for name, mode in record.modes.items() if mode.step_s is not None}
    best = min((name for name in steps if name != "compute"), key=lambda name: steps[name])
    keep(
        f"emulated-{workers}-{rate}", line=5, goal="median prediction error at most 3 %", held=middle(off) <= 0.03,
        finding=f"{WORKLOAD}: median {middle(off):.1%}, worst {max(off):.1%} of {len(off)} predictions; {best} takes "
        f"{steps[best] / steps['ddp']:.3f} of DDP's step",
        modes=found,
    )  # fmt: skip
