"""Folders of runs are never shared, and records are kept where there is room."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from xbench.errors import RunError, SpecError
from xbench.records import load
from xbench.runs import run_folder
from xbench.runs.run_folder import keep, new_run_folder

GOLDEN = Path(__file__).parents[2] / "golden"
KINDS = sorted(GOLDEN.glob("*-v1.json"))


def test_runs_of_the_same_second_have_folders_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "strftime", lambda form: "20260131-142501")
    names = [new_run_folder(tmp_path / "runs", "comparison-resnet18").name for _ in range(3)]
    first = "20260131-142501-comparison-resnet18"
    assert names == [first, f"{first}-2", f"{first}-3"]


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecError, match=r"XBENCH_RESULTS: '.*file/.*' cannot be made: Not a directory"):
        new_run_folder(tmp_path / "file", "profile-a")


@pytest.mark.parametrize("golden", KINDS, ids=lambda path: path.stem)
def test_every_kind_has_a_second_place_for_a_full_disk(
    golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = load(golden)
    spare = tmp_path / "spare"
    spare.mkdir()
    monkeypatch.setattr(run_folder, "_spare_folders", lambda: [str(tmp_path / "file" / "x"), str(spare)])
    (tmp_path / "file").write_text("")  # no folder can be made of it: any OSError is as good as a full disk
    path = keep(record, tmp_path / "file" / "20260131-142501-run" / "record.json")
    assert "Not a directory" in capsys.readouterr().err
    assert re.fullmatch(r"xbench-20260131-142501-run-record-[0-9a-f]{8}\.json", path.name)
    assert load(path) == record
    assert keep(record, path.parent.parent / "file" / "20260131-142501-run" / "record.json") == path


def test_a_record_that_no_place_takes_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(text: str, path: str) -> None:
        raise OSError(28, "No space left on device", path)

    monkeypatch.setattr(run_folder, "write_file", full)
    with pytest.raises(RunError, match=r"could not be written anywhere: .*No space left"):
        keep(load(KINDS[0]), tmp_path / "record.json")


def test_a_file_of_others_in_the_place_of_a_record_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spare, mine = tmp_path / "spare", tmp_path / "baseline.json"
    spare.mkdir()
    monkeypatch.setattr(run_folder, "_spare_folders", lambda: [str(spare)])
    for place in (mine, tmp_path / "link"):
        place.write_text("mine") if place == mine else place.symlink_to(mine)
        assert keep(load(KINDS[0]), place).parent == spare
    assert mine.read_text() == "mine"
    assert "xbench did not write" in capsys.readouterr().err


FLOWS = ("runs/execute", "runs/converge", "regress/check", "regress/baseline", "cluster/live/run")


@pytest.mark.parametrize("module", FLOWS)
def test_every_flow_saves_by_keep_and_makes_its_folder_here(module: str) -> None:
    package = Path(run_folder.__file__).parents[1]
    text = (package / f"{module}.py").read_text()
    assert re.search(r"keep\(|FabricRun\[", text)
    assert "new_run_folder(" in text
    assert not re.search(r"\bsave\(|strftime", text)
