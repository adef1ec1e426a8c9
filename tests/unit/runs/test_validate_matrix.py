"""A validation's cells: how much is measured in each, and what is made of a comparison."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from validation_runs import GOLDEN, MIB, NET, NETS, TWO, Runs, config_of, found, measured, quiet, resumed, workload

from xbench.config import Matrix, ValidateConfig
from xbench.errors import Interrupted, SpecError
from xbench.fabrics import parse_fabric
from xbench.planning.cost import CostCurve
from xbench.planning.plans import Planner
from xbench.planning.step import StepModel
from xbench.records import (
    AnyRecord,
    Profile,
    Unit,
    UnitCost,
    ValidationCell,
    load,
    load_measured,
    save,
)
from xbench.runs import validate as matrix
from xbench.runs import validation_places as places
from xbench.runs.execute import Result
from xbench.runs.validate import effort_for, validate
from xbench.runs.validation_cells import cell_of
from xbench.schedules import parse_modes
from xbench.stats.blocks import mode_values
from xbench.stats.compare import paired_ratio

pytestmark = pytest.mark.usefixtures("hangs_up")


def effort(grad_bytes: int, fabric: str, known: list[ValidationCell] | None = None):  # type: ignore[no-untyped-def]
    spec = parse_fabric(fabric)
    request = config_of(NET, [spec], cell_minutes=2.5)
    return effort_for(workload(grad_bytes), spec, known or [], request)


def test_short_steps_fill_blocks_and_long_ones_are_counted() -> None:
    short = effort(MIB, "shaped:hosts=2,rate=10gbit")
    assert (short.rounds, short.steps, short.warmup_steps) == (6, None, 2)
    # 0.5 s to compute and 1 s to send 125 MB at 1 Gbit/s: 150 s are 14 steps of each of seven modes.
    counted = effort(125_000_000, "shaped:hosts=2,rate=1gbit")
    assert (counted.rounds, counted.steps, counted.warmup_steps) == (4, 2, 1)
    more = effort(62_500_000, "shaped:hosts=2,rate=1gbit")
    assert (more.rounds, more.steps) == (6, 2)


def test_very_long_steps_are_measured_in_one_round() -> None:
    found = effort(531_000_000, "shaped:hosts=2,rate=100mbit")
    assert (found.rounds, found.steps, found.warmup_steps, found.parity_steps) == (1, 2, 1, 1)


def test_what_a_cell_knows_of_the_computation_is_used() -> None:
    slow = cell_of(measured(), "a").model_copy(update={"compute_s": 2.0, "workload": workload(MIB)})
    assert effort(MIB, "shaped:hosts=2,rate=10gbit").steps is None
    assert effort(MIB, "shaped:hosts=2,rate=10gbit", [slow]).steps == 2


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


def test_modes_that_overlap_the_next_forward_pass_are_predicted_too() -> None:
    record = measured()
    (job,) = record.jobs
    profile = load(GOLDEN / "profile-v1.json")
    assert isinstance(profile, Profile)
    assert profile.step is not None
    planner = Planner(StepModel.of(profile.layers, profile.step), profile.cost_model, layers=tuple(profile.layers))
    plans = {**job.plans, "dear": planner.plan("dear"), "priority": planner.plan("priority")}
    plans["auto"] = plans["dear"].model_copy(update={"mode": "auto", "carrier": "dear"})
    ahead = {name: record.modes["ddp"].model_copy(update={"mode": name}) for name in ("auto", "dear", "priority")}
    record = record.model_copy(
        update={"jobs": [job.model_copy(update={"plans": plans})], "modes": {**record.modes, **ahead}}
    )
    points = {point.mode: point for point in cell_of(record, "a").points}
    assert points["dear"].predicted_step_s == plans["dear"].predicted_step_s
    assert points["auto"].error_at_speed == points["dear"].error_at_speed
    # Held to what was measured on the same fabric, a carried plan is predicted as the plan says.
    again = {point.mode: point for point in cell_of(record, "a", record).points}
    for name in ahead:
        assert again[name].predicted_step_s == pytest.approx(plans[name].predicted_step_s)


def test_torch_s_own_modes_are_predicted_at_the_speed_of_the_blocks() -> None:
    record = measured()
    assert record.cost_model is not None
    assert record.modes["compute"].step_s is not None
    names = [tensor.name for layer in record.jobs[0].layers for tensor in layer.tensors]
    replicate = record.modes["ddp"].model_copy(
        update={"mode": "replicate", "predicted_step_s": 0.5, "units": [Unit(name="", parameters=names)]}
    )
    record = record.model_copy(
        update={
            "modes": {**record.modes, "replicate": replicate},
            "spec": record.spec.model_copy(update={"modes": (*record.spec.modes, *parse_modes("replicate"))}),
            "unit_costs": {"replicate": UnitCost(unit_s=0.003, tensor_s=0.0002)},
        }
    )
    cell = cell_of(record, "a")
    point = next(point for point in cell.points if point.mode == "replicate")
    measured_s = point.measured_step_s.median
    assert (point.predicted_step_s, point.error) == (0.5, 0.5 / measured_s - 1)
    blocks_s, sent = record.modes["compute"].step_s.median, sum(layer.grad_bytes for layer in record.jobs[0].layers)
    units_s = blocks_s / cell.compute_s * (0.003 + 0.0002 * len(names))
    at_speed_s = blocks_s + CostCurve.of(record.cost_model)(sent) + units_s
    assert point.error_at_speed == pytest.approx(at_speed_s / measured_s - 1)
    # Other modes' collectives were not measured on the cell's own workers.
    assert "replicate" not in {one.mode for one in cell_of(record, "a", record).points}


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ({"collectives": "sockets"}, "that validation went over the backend sockets, which was removed"),
        (
            {"modes": ["compute", "ddp"]},
            "that validation is of compute, ddp, and --modes asks for compute, ddp, si",
        ),
    ],
)
def test_a_validation_of_another_kind_is_not_gone_on_with(before: dict[str, object], said: str) -> None:
    request = config_of(NET, TWO, resume=resumed([]).model_copy(update=before))
    with pytest.raises(SpecError, match=said):
        validate(request, quiet())


def test_an_interrupted_resume_keeps_the_cells_it_has_not_come_to(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one = cell_of(measured(), "results/runs/one/record.json")
    spec = one.workload.spec
    fabrics = [parse_fabric(f"local:ranks={ranks}") for ranks in (2, 3, 4)]
    there = {
        str(fabric): one.model_copy(update={"fabric": one.fabric.model_copy(update={"spec": str(fabric)})})
        for fabric in fabrics
    }
    failed = there["local:ranks=3"].model_copy(update={"error": "it hung"})
    before = resumed([there["local:ranks=2"], failed, there["local:ranks=4"]])

    def interrupted(*_: object) -> ValidationCell:
        raise Interrupted("interrupted")

    monkeypatch.setattr(matrix, "_run_cell", interrupted)
    found(monkeypatch, one.workload)
    request = config_of([spec], fabrics, output=tmp_path, resume=before)
    record, path, error = validate(request, quiet())
    assert isinstance(error, Interrupted)
    assert not record.complete
    assert record.cells == [there["local:ranks=2"], failed, there["local:ranks=4"]]
    assert load(path) == record


def test_a_resumed_record_loses_no_cell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    one = cell_of(measured(), "results/runs/one/record.json")
    fabrics = [parse_fabric(f"local:ranks={ranks}") for ranks in (2, 3, 4)]
    cells = [
        one.model_copy(update={"fabric": one.fabric.model_copy(update={"spec": str(fabric)})}) for fabric in fabrics
    ]
    found(monkeypatch, one.workload)
    request = config_of([one.workload.spec], fabrics[:1], output=tmp_path, resume=resumed(cells))
    said = rf"has measured cells that are not asked for, such as {one.workload.title} on local:ranks=3"
    with pytest.raises(SpecError, match=said):
        validate(request, quiet())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("fabric", "fields", "said"),
    [
        ("shaped:hosts=2,rate=1gbit", {"device": "cuda"}, "takes for one host"),
        ("emulated:workers=4,rate=1gbit", {"modes": parse_modes("ddp,fsdp")}, "mode 'fsdp' sends by"),
    ],
)
def test_a_matrix_that_cannot_be_measured_is_refused_before_the_probe(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fabric: str, fields: dict[str, Any], said: str
) -> None:
    monkeypatch.setattr(places, "probe", lambda *_: pytest.fail("probed"))
    config = replace(config_of(NET, [parse_fabric(fabric)], output=tmp_path), **fields)
    with pytest.raises(SpecError, match=said) as caught:
        validate(config, quiet())
    assert caught.value.hint == "try other --links, --modes or --device"
    assert not list(tmp_path.iterdir())


def test_links_that_the_probed_device_cannot_use_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found(monkeypatch, workload(MIB), "cuda")
    config = config_of(NET, [parse_fabric("shaped:hosts=2,rate=1gbit")], device="auto", output=tmp_path)
    with pytest.raises(SpecError, match="takes for one host"):
        validate(config, quiet())


def test_an_interruption_while_a_cell_is_measured_again_keeps_its_first_measurement(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runs = Runs(tmp_path, [None, Interrupted("interrupted")])
    monkeypatch.setattr(matrix, "execute", runs)
    monkeypatch.setattr(matrix, "unsteady", lambda cell: True)
    found(monkeypatch, workload(MIB))
    record, path, error = validate(config_of(NETS, TWO, output=tmp_path), quiet())
    assert isinstance(error, Interrupted)
    assert [cell.record for cell in record.cells] == [str(tmp_path / "run1" / "record.json")]
    assert [cell.error for cell in record.cells] == [None]
    assert (record.complete, record.error, len(runs.asked)) == (False, "interrupted", 2)
    assert load(path) == record


def test_a_cell_without_a_profile_is_refused() -> None:
    record = measured()
    bare = record.model_copy(update={"jobs": [record.jobs[0].model_copy(update={"step": None})]})
    with pytest.raises(SpecError, match="holds no profile"):
        cell_of(bare, "x")


def test_a_cell_whose_interruption_came_while_it_was_saved_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spec = measured().jobs[0].workload.spec

    def saved_first(*_: object) -> Result:
        return Result(measured(), tmp_path / "record.json", Interrupted("interrupted"))

    monkeypatch.setattr(matrix, "execute", saved_first)
    found(monkeypatch, measured().jobs[0].workload)
    fabrics = [parse_fabric(f"local:ranks={ranks}") for ranks in (2, 3)]
    record, path, error = validate(config_of([spec], fabrics, output=tmp_path), quiet())
    assert isinstance(error, Interrupted)
    assert [cell.error for cell in record.cells] == [None]
    assert (record.complete, record.error) == (False, "interrupted")
    assert load(path) == record


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stop_while_the_matrix_is_saved_comes_after_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: signal.Signals
) -> None:
    cell = cell_of(measured(), "results/runs/one/record.json")
    keep = matrix.keep

    def slowly(record: AnyRecord, path: Path) -> Path:
        os.kill(os.getpid(), number)
        return keep(record, path)

    monkeypatch.setattr(matrix, "_run_cell", lambda *_: (cell, None))
    monkeypatch.setattr(matrix, "keep", slowly)
    found(monkeypatch, cell.workload)
    request = config_of([cell.workload.spec], TWO, output=tmp_path)
    record, path, error = validate(request, quiet())
    assert isinstance(error, Interrupted)
    assert record.complete
    assert load(path) == record


def test_two_modes_of_a_cell_are_compared_and_the_control_with_none() -> None:
    record = measured()
    cell = cell_of(record, "a")
    trained = [mode.text for mode in record.spec.modes if mode.name != "compute"]
    assert [(pair.mode, pair.other) for pair in cell.pairs] == list(combinations(trained, 2))
    assert record.jobs[0].step is not None
    assert record.cost_model is not None
    planner = Planner(StepModel.of(record.jobs[0].layers, record.jobs[0].step), record.cost_model)
    assert cell.communication_s == CostCurve.of(record.cost_model)(planner.step.grad_bytes)
    blocks = {mode.text: mode_values(record.spec, mode, record.samples) for mode in record.spec.modes}
    for pair in cell.pairs:
        assert pair.ratio == pytest.approx(1 / paired_ratio(blocks[pair.other], blocks[pair.mode]).value)
        assert pair.ci95[0] < pair.ratio < pair.ci95[1]


def test_auto_is_tested_against_ddp_from_the_blocks_of_the_cell() -> None:
    record = measured()
    own = [sample for sample in record.samples if sample.mode == "ddp"]
    auto = [sample.model_copy(update={"mode": "auto", "step_s": 0.9 * sample.step_s}) for sample in own]
    record = record.model_copy(
        update={
            "samples": [*record.samples, *auto],
            "modes": {**record.modes, "auto": record.modes["ddp"].model_copy(update={"mode": "auto"})},
            "spec": record.spec.model_copy(update={"modes": (*record.spec.modes, *parse_modes("auto"))}),
        }
    )
    faster, same = cell_of(record, "a"), cell_of(measured(), "a")
    assert faster.auto_not_slower_p is not None
    assert faster.auto_not_slower_p < 0.001
    assert same.auto_not_slower_p is None


def test_a_ratio_to_another_reference_is_not_called_one_to_ddp() -> None:
    assert any(point.ratio_to_ddp is not None for point in cell_of(measured(), "a").points)
    other = cell_of(measured().model_copy(update={"reference": "optimal"}), "a")
    assert {(point.ratio_to_ddp, point.against_ddp, point.verdict) for point in other.points} == {(None, None, None)}


def test_a_held_out_size_is_predicted_from_the_measurement_on_fewer_workers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    few, many = (parse_fabric(f"emulated:workers={workers},rate=1gbit") for workers in (2, 8))
    runs = Runs(tmp_path)

    def saved(request: ValidateConfig, console: object) -> Result:
        result = runs(request, console)
        fabric = result.record.fabric.model_copy(update={"world_size": request.fabric.world_size})
        path = save(result.record.model_copy(update={"fabric": fabric}), tmp_path / f"{fabric.world_size}.json")
        return Result(load_measured(path), path, None)

    monkeypatch.setattr(matrix, "execute", saved)
    found(monkeypatch, workload(MIB))
    request = config_of(NETS[:1], [], matrix=Matrix([few], [many]), output=tmp_path)
    record, _, error = validate(request, quiet())
    assert error is None
    assert [(cell.predicted_on, cell.fabric.world_size) for cell in record.cells] == [(2, 2), (2, 8)]
    two, eight = ({point.mode: point.predicted_step_s for point in cell.points} for cell in record.cells)
    assert two.keys() == eight.keys()
    assert all(eight[mode] > two[mode] for mode in two if mode != "compute")
    assert record.errors[0].count == sum(mode != "compute" for mode in two)  # of the cell of its own size
