"""The step of a record on a device of another speed: its loader keeps its own."""

from __future__ import annotations

import pytest
from planning_cases import layer, step_times

from xbench.planning.conversion import scaled_times
from xbench.planning.step import StepModel


def test_without_input_all_times_scale_alike() -> None:
    found = scaled_times(step_times(bare_s=4.0), 0.25)
    assert (found.forward_s, found.backward_s, found.optimizer_s) == (0.25, 0.5, 0.25)
    assert (found.step_s, found.step_ci95, found.uninstrumented_step_s) == (1.0, (1.0, 1.0), 1.0)


def test_the_wait_for_input_stays_as_long() -> None:
    was = step_times(bare_s=4.0).model_copy(update={"input_s": 4.0})  # 8 s with instruments
    found = scaled_times(was, 0.25)
    assert (found.input_s, found.forward_s) == (4.0, 0.25)
    assert found.uninstrumented_step_s == pytest.approx(2.0 + 0.25 * 2.0)
    layers = [layer("a", [(8, 2.0)])]
    assert StepModel.of(layers, found).input_s == pytest.approx(StepModel.of(layers, was).input_s)
