"""The host's time for units and tensors, from steps of which the time is given by their units."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from xbench.profilers import unit_cost
from xbench.schedules.base import AttachConfig, Handle, Schedule

BLOCKS = ["a", "b", "c"]
BARE_S = 10.0


class _Wrapped(Handle):
    def __init__(self, model: nn.Module, units: int) -> None:
        super().__init__(model)
        self._units = units

    @property
    def units(self) -> dict[str, list[str]]:
        return {str(unit): [] for unit in range(self._units)}


class _Units(Schedule):
    """Blocks and the root, or the units given and the root."""

    name = "units"

    def attach(self, setup: AttachConfig) -> Handle:
        return _Wrapped(setup.model, (len(BLOCKS) if setup.units is None else len(setup.units)) + 1)


@dataclass
class _Workload:
    model: nn.Module
    units: int = 0
    optimizer: None = None

    def under(self, model: Any, no_sync: object, synchronize: Callable[[], None]) -> _Workload:
        return _Workload(self.model, len(synchronize.__self__.units))  # type: ignore[attr-defined]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int], float]], tuple[float, float]]:
    model = nn.Linear(2, 2)  # two tensors
    model.register_parameter("frozen", nn.Parameter(torch.zeros(1), requires_grad=False))

    def measure(more_s: Callable[[int], float]) -> tuple[float, float]:
        monkeypatch.setattr(unit_cost, "_step_s", lambda workload, _: BARE_S + more_s(workload.units))
        group: Any = None
        workload: Any = _Workload(model)
        return unit_cost.measure_unit_cost(_Units(), group, workload, 2)

    return measure


def test_a_unit_is_the_difference_and_tensors_are_the_rest(measured: Any) -> None:
    assert measured(lambda units: 0.5 * units + 3.0 if units else 0.0) == pytest.approx((0.5, 1.5))


@pytest.mark.parametrize(
    ("apart_s", "joined_s", "expected"),
    [
        (4.0, 6.0, (0.0, 2.0)),  # one large unit takes longer: a unit costs nothing, and the step of blocks is kept
        (4.0, -1.0, (1.0, 0.0)),  # all is of the units
        (-1.0, -1.0, (0.0, 0.0)),  # below the noise
    ],
)
def test_times_are_not_below_zero(measured: Any, apart_s: float, joined_s: float, expected: Sequence[float]) -> None:
    assert measured(lambda units: {0: 0.0, 4: apart_s, 2: joined_s}[units]) == pytest.approx(expected)


def test_a_failing_step_leaves_the_model_as_it_was(measured: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    detached = []
    monkeypatch.setattr(_Wrapped, "meets_at_detach", True, raising=False)
    monkeypatch.setattr(_Wrapped, "detach", lambda self: detached.append(self))

    def fails(units: int) -> float:
        if units:
            raise RuntimeError("mixed Tensor and DTensor")
        return 0.0

    with pytest.raises(RuntimeError, match="mixed"):
        measured(fails)
    assert len(detached) == 1
