"""Temporary folders and unfinished files: what a killed process left is told from what a living one needs."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from xbench import scratch
from xbench.cluster.live import ray_engine
from xbench.errors import SpecError
from xbench.fabrics import stale
from xbench.scratch import OWNER, Scratch, part_file, remove_left, short_place

KILLED = """
import os, sys
from pathlib import Path
from xbench.scratch import Scratch, part_file
made = Scratch(sys.argv[1])
_, part = part_file(Path(made.name) / "record.json")
print(made.name, flush=True)
os.kill(os.getpid(), 9)
"""


def left_by_a_killed_process(place: Path, prefix: str) -> Path:
    words = [sys.executable, "-c", KILLED, prefix]
    done = subprocess.run(words, env={**os.environ, "TMPDIR": str(place)}, capture_output=True, text=True, timeout=60)
    return Path(done.stdout.strip())


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    return process.pid


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(scratch, "_SHORT", ())
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("prefix", ["xb-", "xb-turns-", "xbench-base-", "xbench-horovod-"])
def test_what_a_killed_process_left_is_removed(tmp_path: Path, prefix: str) -> None:
    left = left_by_a_killed_process(tmp_path, prefix)
    assert len(list(left.iterdir())) == 2
    assert remove_left([tmp_path]) == [left]
    assert list(tmp_path.iterdir()) == []


def test_what_a_living_process_made_is_kept_and_removed_by_itself(temporary: Path) -> None:
    with Scratch("xb-") as made:
        assert os.stat(made).st_mode & 0o777 == 0o700
        assert remove_left([temporary]) == []
        assert Path(made).is_dir()
    assert list(temporary.iterdir()) == []


def test_a_child_that_lives_on_does_not_hold_the_folder_of_a_killed_maker(tmp_path: Path) -> None:
    parts = KILLED.replace("print(made", "import subprocess; subprocess.Popen(['sleep', '5']); print(made")
    words = [sys.executable, "-c", parts, "xb-"]
    with open(tmp_path / "out", "w+b") as out:
        subprocess.run(words, env={**os.environ, "TMPDIR": str(tmp_path)}, stdout=out, timeout=60)
    assert len(remove_left([tmp_path])) == 1


def test_folders_of_others_with_such_names_are_kept(tmp_path: Path) -> None:
    names = [f"xb-{dead_pid()}-abcdefgh", f"xbench-{dead_pid()}-results1", "xbench-20261125-093359-comparison"]
    for name in names:
        (tmp_path / name / "results").mkdir(parents=True)
    (tmp_path / "target" / OWNER).mkdir(parents=True)
    (tmp_path / f"xb-{dead_pid()}-linkedto").symlink_to(tmp_path / "target")
    linked = tmp_path / f"xb-{dead_pid()}-hgfedcba"
    linked.mkdir()
    (linked / OWNER).symlink_to("/dev/null")
    assert remove_left([tmp_path, tmp_path / "nowhere"]) == []
    assert len(list(tmp_path.iterdir())) == 6


def test_unfinished_files_of_dead_processes_are_removed_wherever_results_lie(temporary: Path) -> None:
    run = temporary / "runs" / "20261125-093359-comparison" / "launch0"
    run.mkdir(parents=True)
    dead, alive = f".record.json.{dead_pid()}-k3x9_2ab.part", f".record.json.{os.getpid()}-k3x9_2ab.part"
    for name in (dead, alive, "record.json", ".hidden.part"):
        (run.parent / name).touch()
    removed = stale.clean_files(temporary / "runs")
    assert removed == [run.parent / dead]
    assert sorted(path.name for path in run.parent.iterdir()) == sorted(
        [alive, "launch0", "record.json", ".hidden.part"]
    )


def test_the_next_unfinished_file_removes_those_of_killed_processes_beside_it(tmp_path: Path) -> None:
    (tmp_path / f".old.{dead_pid()}-k3x9_2ab.part").touch()
    handle, name = part_file(tmp_path / "new")
    os.close(handle)
    assert [str(path) for path in tmp_path.iterdir()] == [name]
    assert remove_left([tmp_path]) == []


def test_a_cluster_of_ray_starts_where_its_sockets_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Ray:
        def init(self, **options: object) -> None:
            self.place = os.environ["RAY_TMPDIR"]

    for name in ("PYTHONPATH", "RAY_USAGE_STATS_ENABLED"):  # which are set beside it
        monkeypatch.setenv(name, os.environ.get(name, "0"))
    for place, used in (("/dev/shm", "/dev/shm"), (str(tmp_path / ("t" * 40)), "/tmp")):
        monkeypatch.setenv("RAY_TMPDIR", "")
        monkeypatch.delenv("RAY_TMPDIR")
        monkeypatch.setattr(tempfile, "tempdir", place)
        ray = Ray()
        ray_engine._join(ray, 2, "cpu", None)
        assert ray.place == used


def test_no_short_folder_is_one_sentence_that_names_tmpdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("t" * 110)))
    monkeypatch.setattr(scratch, "_SHORT", ())
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(SpecError, match="too long a path for a Unix socket") as caught:
        short_place(20)
    assert caught.value.hint is not None
    assert "TMPDIR" in caught.value.hint
