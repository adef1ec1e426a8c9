"""A drawing: which cells are measured, in how many sittings, how often, and what reports may count."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from validation_runs import MIB, NETS, TWO, Runs, config_of, found, quiet, resumed, workload

from xbench.config import Matrix
from xbench.errors import FabricError, Interrupted, SpecError, XbenchError
from xbench.fabrics import parse_fabric
from xbench.records import Validation, load
from xbench.runs import validate as matrix
from xbench.runs import validation_places as places
from xbench.runs.run_folder import Kept
from xbench.runs.validate import validate
from xbench.runs.validation_places import MatrixCell, draw
from xbench.schedules import parse_modes
from xbench.spec import WorkloadSpec

FOUR = parse_fabric("local:ranks=4")
DRAWN = Matrix([parse_fabric(f"shaped:hosts=2,rate={rate}") for rate in ("1gbit", "10gbit")], cells=4, seed=3)


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
    (_, other, _), runs = drawn(monkeypatch, tmp_path, modes=parse_modes("compute,ddp,auto"))
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


def test_a_drawing_is_not_gone_on_with_as_a_whole_matrix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (first, _, _), _ = drawn(monkeypatch, tmp_path, [None, Interrupted("interrupted")])
    with pytest.raises(SpecError, match="that validation has other cells") as caught:
        validate(config_of(NETS, DRAWN.fabrics, output=tmp_path, resume=first), quiet())
    assert caught.value.hint == f"write the options that it began with: {first.command}"


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


def test_each_workload_is_to_fit_on_the_most_hosts_that_it_was_drawn_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def probe(specs: Sequence[WorkloadSpec], device: str, ranks: Sequence[int]) -> Any:
        asked.append(dict(zip(specs, ranks, strict=True)))
        raise SpecError("seen")

    monkeypatch.setattr(places, "probe", probe)
    small, large = NETS
    cells = [MatrixCell(small, FOUR), MatrixCell(large, TWO[0]), MatrixCell(small, TWO[0])]
    monkeypatch.setattr(places, "draw", lambda *_: cells)
    config = config_of(NETS, TWO, matrix=Matrix([*TWO, FOUR], cells=3))
    with pytest.raises(SpecError, match="seen"):
        places.places_of(config)
    assert asked == [{small: 4, large: 2}]
