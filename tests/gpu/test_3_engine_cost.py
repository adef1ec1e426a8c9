"""What the engine itself costs: one rank, every schedule against the bare loop and against DDP."""

from __future__ import annotations

import pytest
from runs import DRY, Keep, compared, figures, ratios

WORKLOADS = ["transformer-tiny"] if DRY else ["resnet50", "gpt2-small"]
OURS = ("single", "wfbp")
EFFORT = ("--quick", "--rounds", "2") if DRY else ("--launches", "1", "--rounds", "8")


@pytest.mark.parametrize("workload", WORKLOADS)
def test_engine_cost(workload: str, device, keep: Keep) -> None:  # type: ignore[no-untyped-def]
    record = compared(device.type, workload, "local:ranks=1", "compute,ddp,single,wfbp", *EFFORT)
    found = figures(record)
    worst = max(ratio.value for name in OURS if (ratio := record.modes[name].ratio) is not None)
    keep(
        f"engine-cost-{workload}", line=3, goal="no schedule slower than DDP, one rank", held=worst <= 1.0,
        finding=f"of DDP's step: {ratios(record, *OURS)}", backend=record.fabric.backend, modes=found,
    )  # fmt: skip
