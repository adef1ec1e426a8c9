"""A validation's cells: how much is measured in each, and what is made of a comparison."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from xbench.config import Matrix, RunConfig, ValidateConfig
from xbench.errors import FabricError, Interrupted, SpecError, XbenchError
from xbench.fabrics import parse_fabric
from xbench.planning.cost import CostCurve
from xbench.planning.plans import Planner
from xbench.planning.step import StepModel
from xbench.records import (
    AnyRecord,
    Comparison,
    Profile,
    Validation,
    ValidationCell,
    WorkloadRecord,
    load,
    load_measured,
    save,
)
from xbench.runs import validate as matrix
from xbench.runs import validation_places as places
from xbench.runs.draw import draw
from xbench.runs.execute import Result
from xbench.runs.run_folder import Kept
from xbench.runs.validate import effort_for, validate
from xbench.runs.validation_cells import cell_of
from xbench.schedules import parse_modes
from xbench.spec import FabricSpec, WorkloadSpec
from xbench.stats.blocks import mode_values
from xbench.stats.compare import paired_ratio

pytestmark = pytest.mark.usefixtures("hangs_up")

MODES = parse_modes("compute,ddp,single,wfbp,mgwfbp,optimal,auto")
MIB = 1024 * 1024
NET, TWO = [WorkloadSpec(name="net")], [parse_fabric("local:ranks=2")]
GOLDEN = Path(__file__).parents[2] / "golden"


def found(monkeypatch: pytest.MonkeyPatch, record: WorkloadRecord) -> None:
    """A probe finds this workload whatever is asked for, under the name and the batch size that were."""

    def probed(specs: Sequence[WorkloadSpec], *_: object) -> SimpleNamespace:
        items = [
            SimpleNamespace(record=record.model_copy(update={"spec": spec, "title": spec.title})) for spec in specs
        ]
        return SimpleNamespace(specs=specs, workloads=items, model_dump=dict)

    monkeypatch.setattr(places, "probe", probed)


def config_of(workloads: Sequence[WorkloadSpec], fabrics: Sequence[FabricSpec], **fields: Any) -> ValidateConfig:
    fields.setdefault("matrix", Matrix(fabrics))
    return ValidateConfig(workloads=workloads, modes=MODES, **fields)


def workload(grad_bytes: int) -> WorkloadRecord:
    return WorkloadRecord(
        spec=WorkloadSpec(name="net"), title="net", parameters=1, tensors=1,
        grad_bytes=grad_bytes, batch_size=1, input=""
    )  # fmt: skip


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


def test_modes_that_overlap_the_next_forward_pass_are_predicted_too() -> None:
    record = measured()
    (job,) = record.jobs
    profile = load(GOLDEN / "profile-v1.json")
    assert isinstance(profile, Profile)
    assert profile.step is not None
    planner = Planner(
        StepModel.of(profile.layers, profile.step), profile.cost_model, layers=tuple(profile.layers), overlap="forward"
    )
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


def resumed(cells: list[ValidationCell]) -> Validation:
    golden = load(GOLDEN / "validation-v1.json")
    assert isinstance(golden, Validation)
    return golden.model_copy(update={"cells": cells, "modes": [mode.text for mode in MODES]})


def quiet() -> Console:
    return Console(file=io.StringIO())


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ({"collectives": "sockets"}, "that validation went over the backend sockets, which was removed"),
        (
            {"modes": ["compute", "ddp"]},
            "that validation is of compute, ddp, and --modes asks for compute, ddp, si",
        ),
        ({"overlap": "forward"}, "auto could overlap the forward pass in that validation, and --overlap is backward"),
    ],
)
def test_a_validation_of_another_kind_is_not_gone_on_with(before: dict[str, object], said: str) -> None:
    request = config_of(NET, TWO, resume=resumed([]).model_copy(update=before))
    with pytest.raises(SpecError, match=said):
        validate(request, quiet())


def test_what_auto_may_overlap_is_asked_of_every_cell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[RunConfig] = []

    def stopped(request: RunConfig, _: object) -> None:
        asked.append(request)
        raise Interrupted("interrupted")

    monkeypatch.setattr(matrix, "execute", stopped)
    found(monkeypatch, workload(MIB))
    request = config_of(NET, TWO, overlap="forward", output=tmp_path)
    record, _, _ = validate(request, quiet())
    assert [one.overlap for one in asked] == [record.overlap] == ["forward"]


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


# --- drawings -----------------------------------------------------------------------------------------------------

DRAWN = Matrix([parse_fabric(f"shaped:hosts=2,rate={rate}") for rate in ("1gbit", "10gbit")], cells=4, seed=3)
NETS = [WorkloadSpec(name="net", batch_size=size) for size in (2, 4)]


class Runs:
    """Stands for `execute`: comparisons of any cell, each with the next error of a list, if there is one left."""

    def __init__(self, folder: Path, errors: Sequence[XbenchError | None] = ()) -> None:
        self.folder, self.errors = folder, list(errors)
        self.asked: list[ValidateConfig] = []

    def __call__(self, request: ValidateConfig, _: object) -> Result:
        self.asked.append(request)
        error = self.errors.pop(0) if self.errors else None
        record = measured()
        (spec,) = request.workloads
        (job,) = record.jobs
        ran = job.workload.model_copy(update={"spec": spec, "batch_size": spec.batch_size})
        fabric = record.fabric.model_copy(update={"spec": str(request.fabric)})
        update = {"jobs": [job.model_copy(update={"workload": ran})], "fabric": fabric, "complete": error is None}
        return Result(record.model_copy(update=update), self.folder / f"run{len(self.asked)}" / "record.json", error)


def drawn(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, errors: Sequence[XbenchError | None] = (), **fields: Any
) -> tuple[Kept[Validation], Runs]:
    runs = Runs(tmp_path, errors)
    monkeypatch.setattr(matrix, "execute", runs)
    found(monkeypatch, workload(MIB))
    return validate(config_of(NETS, [], matrix=DRAWN, output=tmp_path, **fields), quiet()), runs


def test_a_drawing_is_measured_cell_by_cell_and_held_in_the_record(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (record, path, error), runs = drawn(monkeypatch, tmp_path)
    assert error is None
    cells = draw(NETS, DRAWN.fabrics, 4, 3)
    assert record.drawing is not None
    assert record.drawing.seed == 3
    there = [(cell.workload, cell.fabric, cell.held_out) for cell in record.drawing.cells]
    assert there == [(cell.workload, str(cell.fabric), cell.held_out) for cell in cells]
    assert [(cell.number, cell.held_out) for cell in record.cells] == [
        (place + 1, cell.held_out) for place, cell in enumerate(cells)
    ]
    assert [(list(one.workloads), one.fabric) for one in runs.asked] == [
        ([cell.workload], cell.fabric) for cell in cells
    ]
    assert load(path) == record
    assert (record.complete, record.discarded) == (True, [])


def test_the_same_command_goes_on_with_an_unfinished_drawing_in_the_same_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (first, path, error), _ = drawn(monkeypatch, tmp_path, [None, Interrupted("interrupted")])
    assert isinstance(error, Interrupted)
    assert len(first.cells) == 1
    (second, again, _), runs = drawn(monkeypatch, tmp_path)
    assert again == path
    assert len(runs.asked) == 3
    assert second.complete
    assert second.cells[0] == first.cells[0]
    assert [one.partition(",")[0] for one in second.discarded] == ["cell 2"]
    assert second.discarded[0].endswith(": interrupted")
    with pytest.raises(SpecError, match="this drawing was measured to the end"):
        drawn(monkeypatch, tmp_path)


def test_another_drawing_or_other_modes_begin_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (_, path, _), _ = drawn(monkeypatch, tmp_path, [Interrupted("interrupted")])
    (_, other, _), runs = drawn(monkeypatch, tmp_path, overlap="forward")
    assert other != path
    assert len(runs.asked) == 4


def test_a_drawing_is_not_continued_on_another_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    drawn(monkeypatch, tmp_path, [None, Interrupted("interrupted")])
    monkeypatch.setattr("xbench.environment.commit", lambda: "5bababa")
    with pytest.raises(SpecError, match=r"measured on commit .*, and this is commit 5bababa: one drawing"):
        drawn(monkeypatch, tmp_path)


def test_a_resumed_record_must_be_of_the_drawing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="that validation has other cells than --cells and --seed draw"):
        drawn(monkeypatch, tmp_path, resume=resumed([]))


def test_a_launch_whose_links_changed_is_repeated_and_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (record, _, _), runs = drawn(monkeypatch, tmp_path, [FabricError("the links changed")])
    assert len(runs.asked) == 5
    assert [cell.error for cell in record.cells] == [None] * 4
    assert record.discarded == [f"{tmp_path / 'run1' / 'record.json'}: the links changed"]
    assert record.cells[0].record == str(tmp_path / "run2" / "record.json")


def test_a_cell_fails_when_its_links_change_again_and_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (record, _, _), runs = drawn(monkeypatch, tmp_path, [FabricError("the links changed")] * 4)
    assert len(runs.asked) == 7
    assert [cell.error for cell in record.cells] == ["the links changed", None, None, None]
    assert (record.cells[0].number, len(record.discarded)) == (1, 4)


def test_a_drawn_cell_is_measured_once_however_the_machine_s_speed_changed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(matrix, "unsteady", lambda _: True)
    (record, _, _), runs = drawn(monkeypatch, tmp_path)
    assert len(runs.asked) == 4
    assert [cell.set_aside for cell in record.cells] == [[]] * 4


def test_held_out_cells_are_in_no_figure_before_all_are_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = next(place for place, cell in enumerate(draw(NETS, DRAWN.fabrics, 4, 3)) if cell.held_out)
    part, whole = tmp_path / "part", tmp_path / "whole"
    part.mkdir()
    whole.mkdir()
    errors = [None] * (place + 1) + [Interrupted("interrupted")]
    (record, _, _), _ = drawn(monkeypatch, part, errors)
    (complete, _, _), _ = drawn(monkeypatch, whole)
    each = complete.errors[0].count // 4
    names = [row.name for row in complete.errors]
    assert names[1:3] == ["other cells", "held-out cells"]
    assert [row.count for row in complete.errors[:3]] == [4 * each, 3 * each, each]
    assert sum(row.count for row in record.errors[:1]) == place * each
    assert len(record.cells) == place + 1
