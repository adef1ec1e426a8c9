"""How many steps a block has."""

from __future__ import annotations

import pytest

from xbench.rank.program import steps_in_block
from xbench.schedules import parse_modes
from xbench.spec import Effort, FabricSpec, RunSpec, WorkloadSpec


def run_of(effort: Effort) -> RunSpec:
    return RunSpec(
        kind="comparison",
        workloads=(WorkloadSpec(name="resnet18"),),
        modes=parse_modes("compute,ddp"),
        fabric=FabricSpec(name="local", ranks=2),
        effort=effort,
    )


@pytest.mark.parametrize(
    ("step_s", "steps"), [(0.001, 400), (0.008, 375), (0.5, 6), (2.0, 4), (0.0, 50)], ids=lambda value: f"{value:g}"
)
def test_a_block_fills_three_seconds_within_reason(step_s: float, steps: int) -> None:
    assert steps_in_block(run_of(Effort()), step_s) == steps


def test_who_says_how_many_gets_so_many() -> None:
    assert steps_in_block(run_of(Effort(steps=7)), 0.001) == 7
