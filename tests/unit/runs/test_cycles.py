"""Modes whose steps differ and repeat are timed in whole cycles."""

from __future__ import annotations

import pytest

from xbench.rank.program import phases, whole_cycles
from xbench.runs.event_collector import block_step_s
from xbench.schedules import parse_modes
from xbench.spec import Effort, FabricSpec, RunSpec, WorkloadSpec


def test_a_block_is_the_median_of_whole_cycles() -> None:
    assert block_step_s("spb", [1.0, 3.0, 1.0, 3.0, 2.0, 6.0], 2) == 2.0
    assert block_step_s("spb", [1.0, 3.0, 50.0], 2) == 2.0
    assert block_step_s("ddp", [1.0, 3.0, 50.0]) == 3.0
    assert block_step_s("spb", [1.0, 2.0], 4) == pytest.approx(1.5)


def test_steps_are_rounded_up_to_whole_cycles() -> None:
    assert [whole_cycles(steps, 4) for steps in (1, 4, 5)] == [4, 4, 8]
    assert whole_cycles(7, 1) == 7


def test_partial_modes_are_held_to_one_network() -> None:
    run = RunSpec(
        kind="comparison",
        workloads=(WorkloadSpec(name="resnet18"),),
        modes=parse_modes("compute,ddp,spb"),
        fabric=FabricSpec(name="local", ranks=2),
        effort=Effort(rounds=1),
    )
    assert [phase.mode for phase in phases(run, 0) if phase.kind == "parity"] == ["ddp", "spb"]
