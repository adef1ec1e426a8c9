"""Costs of sharded modes in a rank's profile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from xbench.errors import UsageError
from xbench.rank import sharded_costs
from xbench.records import UnitCost
from xbench.schedules import parse_modes


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A session of one rank on a CPU, which runs `fsdp` and `replicate`; `said` has the remarks."""
    monkeypatch.setattr(sharded_costs, "gathered", lambda value: [value])
    monkeypatch.setattr(sharded_costs, "silent_group", lambda: None)
    monkeypatch.setattr(sharded_costs.dist, "destroy_process_group", lambda group: None)
    monkeypatch.setattr(sharded_costs, "_wait_s", lambda *_: 0.0)
    said: list[str] = []
    return SimpleNamespace(
        run=SimpleNamespace(modes=parse_modes("ddp,fsdp,auto:shard,replicate"), effort=SimpleNamespace(is_quick=False)),
        device=torch.device("cpu"),
        workload=SimpleNamespace(scaler=None),
        snapshot=SimpleNamespace(restore=lambda workload: None),
        note=lambda text: None,
        rank=0,
        journal=SimpleNamespace(write=lambda event: said.append(event.message)),
        said=said,
    )


@pytest.mark.parametrize(
    ("backend", "emulated", "measured"),
    [("nccl", None, ["reduce_scatter", "all_gather"]), ("nccl", "link", []), ("gloo", None, [])],
)
def test_over_nccl_both_halves_of_dear_are_measured(
    session: Any, monkeypatch: pytest.MonkeyPatch, backend: str, emulated: object, measured: list[str]
) -> None:
    monkeypatch.setattr(sharded_costs.dist, "group", SimpleNamespace(WORLD="world"))
    monkeypatch.setattr(sharded_costs.dist, "get_world_size", lambda: 2)
    session.run.modes, session.run.backend = parse_modes("ddp,dear"), backend
    session.program = SimpleNamespace(emulated=emulated)
    assert [name for name, _ in sharded_costs._links(session, 8)] == measured


LACKS = "predictions of fsdp and auto:shard lack the host's time for units: RuntimeError: mixed dtypes"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("mixed dtypes"), [LACKS]),
        (UsageError("fully_shard refuses this model"), []),  # the mode says so itself
    ],
)
def test_a_mode_whose_units_cannot_be_measured_is_named(
    session: Any, monkeypatch: pytest.MonkeyPatch, error: Exception, said: list[str]
) -> None:
    def measure(schedule: Any, *_: object, **__: object) -> tuple[float, float]:
        if schedule.name == "fsdp":
            raise error
        return 0.002, 0.001

    monkeypatch.setattr(sharded_costs, "measure_unit_cost", measure)
    assert sharded_costs.unit_costs(session, [], 0.3) == {"replicate": UnitCost(unit_s=0.002, tensor_s=0.001)}
    assert session.said == said


@pytest.mark.parametrize(("bare_s", "turns"), [(0.3, sharded_costs.TURNS), (5.0, 1)])
def test_slow_steps_take_one_turn(session: Any, monkeypatch: pytest.MonkeyPatch, bare_s: float, turns: int) -> None:
    taken = []

    def measure(*_: object, turns: int, **__: object) -> tuple[float, float]:
        taken.append(turns)
        return 0.0, 0.0

    monkeypatch.setattr(sharded_costs, "measure_unit_cost", measure)
    sharded_costs.unit_costs(session, [], bare_s)
    assert taken == [turns, turns]
