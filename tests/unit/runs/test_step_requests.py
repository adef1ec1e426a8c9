"""Requests for training steps that a mode cannot run, refused before anything is launched."""

from __future__ import annotations

import pytest

from xbench.config import RunConfig
from xbench.errors import SpecError
from xbench.runs.prepare import check_request
from xbench.schedules import parse_modes
from xbench.spec import WorkloadSpec

CLIPPED = WorkloadSpec(name="resnet18", clip=1.0)
SCALED = WorkloadSpec(name="resnet18", amp="fp16")


@pytest.mark.parametrize("mode", ["dear", "priority", "auto:forward"])
@pytest.mark.parametrize(("workload", "flag"), [(CLIPPED, "--clip"), (SCALED, "--amp fp16")])
def test_no_update_is_put_off_where_gradients_are_clipped_or_unscaled(
    workload: WorkloadSpec, flag: str, mode: str
) -> None:
    said = f"mode '{mode}' updates each layer in the next forward pass, and {flag} needs"
    with pytest.raises(SpecError, match=said):
        check_request(RunConfig(workloads=[workload], modes=parse_modes(f"ddp,{mode}")))
    for without in (WorkloadSpec(name="resnet18"), WorkloadSpec(name="resnet18", amp="bf16")):
        check_request(RunConfig(workloads=[without], modes=parse_modes(f"ddp,{mode}")))


def test_nor_does_auto_put_any_off() -> None:
    for workload in (CLIPPED, WorkloadSpec(name="resnet18")):
        check_request(RunConfig(workloads=[workload], modes=parse_modes("ddp,auto")))
