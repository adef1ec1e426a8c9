"""A validation's cells: how much is measured in each, and what is made of a comparison."""

from __future__ import annotations

from pathlib import Path

import pytest

from xbench.errors import SpecError
from xbench.fabrics import parse_fabric
from xbench.planning.plans import Planner
from xbench.planning.step import StepModel
from xbench.records import Comparison, Profile, ValidationCell, WorkloadRecord, load
from xbench.runtime.validate import ValidateRequest, cell_of, effort_for
from xbench.schedules import parse_modes
from xbench.spec import WorkloadSpec

MODES = parse_modes("compute,ddp,single,wfbp,mgwfbp,optimal,auto")
MIB = 1024 * 1024
GOLDEN = Path(__file__).parents[2] / "golden"


def workload(grad_bytes: int) -> WorkloadRecord:
    return WorkloadRecord(
        spec=WorkloadSpec(name="net"), title="net", parameters=1, tensors=1,
        grad_bytes=grad_bytes, batch_size=1, input=""
    )  # fmt: skip


def effort(grad_bytes: int, fabric: str, known: list[ValidationCell] | None = None):  # type: ignore[no-untyped-def]
    spec = parse_fabric(fabric)
    request = ValidateRequest([WorkloadSpec(name="net")], [spec], MODES, cell_s=150.0)
    return effort_for(workload(grad_bytes), spec, known or [], request)


def test_short_steps_fill_blocks_and_long_ones_are_counted() -> None:
    short = effort(MIB, "shaped:hosts=2,rate=10gbit")
    assert (short.rounds, short.steps, short.warmup_steps) == (6, None, 2)
    # 0.5 s to compute and 1 s to send 125 MB at 1 Gbit/s: 150 s are 14 steps of each of seven modes.
    counted = effort(125_000_000, "shaped:hosts=2,rate=1gbit")
    assert (counted.rounds, counted.steps, counted.warmup_steps) == (4, 2, 1)
    more = effort(62_500_000, "shaped:hosts=2,rate=1gbit")
    assert (more.rounds, more.steps) == (6, 2)


def test_very_long_steps_are_measured_twice() -> None:
    found = effort(531_000_000, "shaped:hosts=2,rate=100mbit")
    assert (found.rounds, found.steps, found.warmup_steps, found.parity_steps) == (2, 2, 1, 1)


def test_what_a_cell_knows_of_the_computation_is_used() -> None:
    slow = cell_of(measured(), "a").model_copy(update={"compute_s": 2.0, "workload": workload(MIB)})
    assert effort(MIB, "shaped:hosts=2,rate=10gbit").steps is None
    assert effort(MIB, "shaped:hosts=2,rate=10gbit", [slow]).steps == 2


def measured() -> Comparison:
    record, profile = load(GOLDEN / "comparison-v1.json"), load(GOLDEN / "profile-v1.json")
    assert isinstance(record, Comparison)
    assert isinstance(profile, Profile)
    assert profile.step is not None
    plans = Planner(StepModel.of(profile.layers, profile.step), profile.cost_model).plans()
    job = record.jobs[0].model_copy(update={"step": profile.step, "layers": profile.layers, "plans": plans})
    return record.model_copy(update={"jobs": [job], "cost_model": profile.cost_model})


def test_a_cell_holds_each_predicted_mode_against_its_measurement() -> None:
    record = measured()
    cell = cell_of(record, "results/runs/one/record.json")
    assert cell.predicted_on == 2
    assert cell.record == "results/runs/one/record.json"
    names = [name for name, mode in record.modes.items() if name in record.jobs[0].plans and mode.step_s is not None]
    assert [point.mode for point in cell.points] == names
    for point in cell.points:
        assert point.error == pytest.approx(point.predicted_step_s / point.measured_step_s.median - 1)
        # The control ran at the profile's speed times some factor, and a prediction at that speed is another number.
        assert point.error_at_speed is not None
        assert point.predicted_step_s == record.jobs[0].plans[point.mode].predicted_step_s


def test_a_cell_without_a_profile_is_refused() -> None:
    record = measured()
    bare = record.model_copy(update={"jobs": [record.jobs[0].model_copy(update={"step": None})]})
    with pytest.raises(SpecError, match="holds no profile"):
        cell_of(bare, "x")
