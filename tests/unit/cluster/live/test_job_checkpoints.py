"""Checkpoints of live jobs: whole, or passed over for the one before."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xbench.cluster.live.checkpoints import PART, at, candidates, clear_parts, kept_steps, newest, write

KEY = "0123456789abcdef"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_was_kept_comes_back(tmp_path: Path) -> None:
    assert newest(tmp_path, KEY) == (0, None, [])
    assert kept_steps(tmp_path, KEY) == 0
    write(tmp_path, KEY, 50, b"fifty")
    assert newest(tmp_path, KEY) == (50, b"fifty", [])
    assert at(tmp_path, KEY, 50) == b"fifty"
    assert at(tmp_path, KEY, 0) is None
    with pytest.raises(ValueError, match="no checkpoint of step 49"):
        at(tmp_path, KEY, 49)


def test_two_are_kept_and_no_more(tmp_path: Path) -> None:
    for steps in (8, 9, 10, 100_000_000, 100_000_001):
        write(tmp_path, KEY, steps, bytes(steps % 7))
    assert [one.steps for one in candidates(tmp_path, KEY)[0]] == [100_000_001, 100_000_000]
    assert len(names(tmp_path)) == 2


def test_the_same_step_again_replaces_it(tmp_path: Path) -> None:
    write(tmp_path, KEY, 5, b"old")
    write(tmp_path, KEY, 5, b"new")
    assert newest(tmp_path, KEY)[:2] == (5, b"new")


def test_another_job_s_are_left_alone_and_do_not_count(tmp_path: Path) -> None:
    write(tmp_path, "other", 900, b"foreign")
    for steps in (1, 2, 3):
        write(tmp_path, KEY, steps, b"own")
    assert newest(tmp_path, KEY) == (3, b"own", ["checkpoint-00000900.xb: it is another job's"])
    assert names(tmp_path) == [f"checkpoint-{steps:08}.xb" for steps in (2, 3, 900)]


@given(st.data())
def test_one_that_was_cut_off_or_changed_anywhere_counts_as_the_one_before(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("job")
    write(folder, KEY, 10, b"ten")
    path = write(folder, KEY, 20, b"twenty, and more of it")
    whole = path.read_bytes()
    if data.draw(st.booleans()):
        broken = whole[: data.draw(st.integers(0, len(whole) - 1))]
    else:
        place = data.draw(st.integers(whole.index(b"\n") + 1, len(whole) - 1))
        broken = whole[:place] + bytes([whole[place] ^ data.draw(st.integers(1, 255))]) + whole[place + 1 :]
    path.write_bytes(broken)
    steps, content, skipped = newest(folder, KEY)
    assert (steps, content) == (10, b"ten")
    assert len(skipped) == 1
    assert skipped[0].startswith("checkpoint-00000020.xb: it")


def test_other_files_are_no_checkpoints(tmp_path: Path) -> None:
    write(tmp_path, KEY, 1, b"one")
    for number, text in enumerate([b"", b"\n", b"[]\n", b'{"format": "xbench checkpoint 2"}\n', b"\xff" * 5000]):
        (tmp_path / f"checkpoint-0000009{number}.xb").write_bytes(text)
    assert newest(tmp_path, KEY)[:2] == (1, b"one")
    assert [line.partition(": ")[2] for line in newest(tmp_path, KEY)[2]] == ["it is no checkpoint of xbench"] * 5


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    write(tmp_path, KEY, 1, b"one")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, broken, full)
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path, KEY, 2, b"two")
    assert newest(tmp_path, KEY) == (1, b"one", [])
    assert names(tmp_path) == ["checkpoint-00000001.xb"]


def test_what_a_dead_process_was_writing_is_removed(tmp_path: Path) -> None:
    write(tmp_path, KEY, 1, b"one")
    (tmp_path / f"checkpoint-00000002.xb{PART}").write_bytes(b"half")
    assert newest(tmp_path, KEY) == (1, b"one", [])
    clear_parts(tmp_path)
    assert names(tmp_path) == ["checkpoint-00000001.xb"]
