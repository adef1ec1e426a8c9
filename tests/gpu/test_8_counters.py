"""The GPU's counters during a run: power, clocks, throttle reasons, energy a sample, and what reading them costs."""

from __future__ import annotations

import torch
from runs import DRY, Keep, compared

WORKLOAD = "transformer-tiny" if DRY else "resnet50"
EFFORT = ("--quick", "--rounds", "1") if DRY else ("--launches", "1", "--rounds", "4")


def test_counters(device: torch.device, keep: Keep) -> None:
    record = compared(device.type, WORKLOAD, "local:ranks=1", "compute,ddp", *EFFORT)
    use = record.modes["compute"].gpu
    if use is None:
        why = record.gpu_missing or ("a CPU has none" if DRY else "nothing was read")
        keep("counters", line=8, goal="read during every block", held=None if DRY else False, finding=why)
        return
    cost = use.sampling_share
    keep(
        "counters", line=8, goal="read during every block, for at most 1 % of the time",
        held=cost is not None and cost <= 0.01,
        finding=f"{use.power_w or 0:.0f} W, {use.energy_j_per_sample or 0:.3g} J a sample, "
        f"{use.sm_clock_mhz or 0:.0f} MHz, throttled: {', '.join(use.throttled) or 'no'}; reading took "
        f"{100 * (cost or 0):.2f} %",
        use=use.model_dump(), warnings=record.warnings,
    )  # fmt: skip
