"""`latest`: earlier results are found again, whatever else lies beside them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from golden_file import GOLDEN
from outcome import RUNS, Refused, Run, keep

from xbench.record_files import run_folders
from xbench.records import load, save
from xbench.runs.run_folder import new_run_folder


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("report", "latest"), "Layers in gradient-ready order"),
        (("report",), "Layers in gradient-ready order"),
        (("plan", "latest"), "optimal"),
        (("plan", "latest", "--workers", "2,4"), "workers"),
    ],
)
def test_latest_is_the_newest_run(run: Run, words: tuple[str, ...], told: str) -> None:
    keep("20260101-120000-a", "comparison")
    keep("20260102-120000-b", "profile")
    code, out, err = run(*words)
    assert code == 0, err
    assert told in out + err
    assert ("the latest run: results/runs/20260102-120000-b\n" in err) == (words == ("report",))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("plan", "latest"), "holds no job"),
        (("plan", "latest", "--workers", "2,4"), "holds no job"),
        (("report", "latest", "--trace", "-"), "holds no step"),
        (("report", "--trace", "-"), "holds no step"),
    ],
)
def test_latest_passes_over_a_run_that_was_interrupted(run: Run, words: tuple[str, ...], why: str) -> None:
    keep("20260101-120000-whole", "profile")
    cut = load(keep("20260102-120000-cut", "comparison")).model_copy(
        update={"complete": False, "jobs": [], "modes": {}}
    )
    save(cut, RUNS / "20260102-120000-cut" / "record.json")
    keep("20260103-120000-live", "live")
    code, out, err = run(*words)
    assert code == 0, err
    assert "optimal" in out
    told = next(line for line in err.splitlines() if line.startswith("latest is "))
    assert told.startswith("latest is results/runs/20260101-120000-whole; passed over: ")
    assert told.endswith(", and 1 more run")
    (RUNS / "20260103-120000-live" / "record.json").unlink()
    assert why in run(*words)[2]
    assert "20260102-120000-cut" in run("report")[2]


def test_latest_without_any_run_that_will_do_tells_the_newest_one_s_reason(refused: Refused, run: Run) -> None:
    keep("20260101-120000-a", "live")
    keep("20260102-120000-b", "cluster")
    assert "20260102-120000-b" in refused("plan", "latest")


def test_without_a_run_latest_is_one_sentence(run: Run) -> None:
    expected = "error: there is no run in results/runs\n  hint: name a result, or make one: xbench compare\n"
    for words in (
        ("report",),
        ("report", "latest"),
        ("plan", "latest"),
        ("plan", "latest", "--workers", "2,4"),
        ("env", "--like", "latest"),
    ):
        assert run(*words) == (2, "", expected)


def test_a_file_called_latest_goes_before_the_newest_run(run: Run) -> None:
    keep("20260102-120000-b", "comparison")
    save(load(GOLDEN / "profile-v1.json"), Path("latest"))
    assert "Layers in gradient-ready order" in run("report", "latest")[1]


def test_folders_without_a_time_in_their_name_go_by_their_record(tmp_path: Path) -> None:
    named = tmp_path / "20260102-120000-b"
    for folder, changed in ((named, 0), (tmp_path / "mine", 1767398400), (tmp_path / "old", 1735862400)):
        folder.mkdir()
        (folder / "frame.json").write_text("{}")
        os.utime(folder / "frame.json", (changed, changed))
    assert run_folders(tmp_path) == [tmp_path / "mine", named, tmp_path / "old"]
    assert run_folders(tmp_path / "nowhere") == []


def test_a_folder_of_runs_keeps_itself_out_of_commits_and_changes_no_folder_of_the_user(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (new_run_folder(tmp_path / RUNS, "profile-a") / "record.json").write_text("{}")
    (tmp_path / "own").mkdir()
    new_run_folder(tmp_path / "own", "profile-a")
    assert (tmp_path / RUNS / ".gitignore").read_text() == "*\n"
    assert not (tmp_path / "own" / ".gitignore").exists()
    subprocess.run(["git", "-C", str(tmp_path), "add", "-A"], check=True)
    listed = subprocess.run(["git", "-C", str(tmp_path), "ls-files"], check=True, capture_output=True, text=True)
    assert listed.stdout == ""
