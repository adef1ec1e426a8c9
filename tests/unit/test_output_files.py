"""Files that are written: which may be replaced, failed writes, what is no regular file; and a record's command."""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from xbench.errors import RunError, SpecError
from xbench.output_files import check_file, check_folder, is_own, write_file
from xbench.record_files import FRAME, command_line, frame_kind, write_whole
from xbench.records import dump, load
from xbench.report import FORMATS
from xbench.report.formats import csv
from xbench.report.kinds.regression import regression_markdown

GOLDEN = Path(__file__).parents[1] / "golden"
RECORDS = sorted(GOLDEN.glob("*-v1.json"))


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_every_text_that_is_written_is_known_again(path: Path) -> None:
    record = load(path)
    texts = {"record": dump(record), **csv.tables(record)}
    for entry in FORMATS:
        if entry.name not in ("terminal", "html") or (entry.name, record.kind) == ("html", "comparison"):
            try:
                texts[entry.name] = FORMATS.load(entry.name)(record)
            except SpecError:
                assert entry.name == "trace"
    assert [name for name, text in texts.items() if not is_own(text)] == []
    assert len(texts) >= 4


def test_other_markdown_and_other_facts_are_known_again() -> None:
    record: Any = load(GOLDEN / "regression-v1.json")
    assert is_own(regression_markdown(record))
    assert is_own('{\n "schema_version": 1,\n "kind": "machine",\n "created": "now"}')


FOREIGN = {
    "script": "import xbench\n",
    "trace": '{\n  "schemaVersion": 1,\n  "traceEvents": []}',
    "schema": '{"schema_version": 3, "name": "dbt"}',
    "page": '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>xbench</title>',
    "markdown": "# xbench\n",
    "junit": '<?xml version="1.0"?>\n<testsuites name="pytest tests">',
    "table": "label,path\nreal,a.png\nfake,b.png\n",
    "other table": "workload,label\nresnet18,cat\n",
    "space": "\n",
    "binary": "\x00\x1f\x8b",
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_file_of_others_is_replaced_by_force_alone(name: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(FOREIGN[name])
    for refuse in (check_file, lambda target: write_file("new", target)):
        with pytest.raises(SpecError, match="did not write") as caught:
            refuse(str(path))
        assert "--force" in str(caught.value.hint)
    assert path.read_text() == FOREIGN[name]
    write_file("new", str(path), force=True)
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_an_empty_file_and_one_of_ours_are_replaced_and_keep_their_permissions(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch(mode=0o600)
    for text in ("<!-- xbench -->\nfirst", "<!-- xbench -->\nsecond"):
        write_file(text, str(path))
        assert path.read_text() == text
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("there", [True, False])
def test_nothing_is_written_through_a_link(there: bool, tmp_path: Path) -> None:
    place, link = tmp_path / "place", tmp_path / "link"
    if there:
        place.write_text("<!-- xbench -->")
    link.symlink_to(place)
    with pytest.raises(SpecError, match="is a link to"):
        write_file("new", str(link))
    assert place.exists() == there
    write_file("new", str(link), force=True)
    assert (link.is_symlink(), place.read_text()) == (True, "new")


def test_a_link_of_links_in_a_loop_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(SpecError, match="loop"):
        check_file(str(tmp_path / "loop"))


def test_a_descriptor_a_pipe_and_a_device_are_written_as_they_are(tmp_path: Path) -> None:
    target = tmp_path / "redirected"
    with target.open("w") as stream:
        link = tmp_path / "out"
        link.symlink_to(f"/dev/fd/{stream.fileno()}")
        for name in (f"/dev/fd/{stream.fileno()}", str(link)):
            check_file(name)
            write_file("told", name)
    assert target.read_text() == "told"
    write_file("text", "/dev/null")
    assert Path("/dev/null").is_char_device()
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        write_file("text", "/dev/full")
    pipe, read = tmp_path / "pipe", list[str]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_file("piped", str(pipe))
    reader.join()
    assert (read, pipe.is_fifo()) == (["piped"], True)


def test_a_pipe_without_a_reader_is_one_sentence() -> None:
    read, write = os.pipe()
    os.close(read)
    with pytest.raises(RunError, match="closed"):
        write_file("text", f"/dev/fd/{write}")
    os.close(write)


def test_a_failed_write_leaves_the_file_as_it_was_and_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("xbench.record_files.os.fsync", full)
    new, old = tmp_path / "new", tmp_path / "old"
    old.write_text("<!-- xbench -->")
    for path in (new, old):
        with pytest.raises(OSError, match="No space left") as caught:
            write_file("text", str(path))
        assert caught.value.filename == str(path)
    assert list(tmp_path.iterdir()) == [old]
    assert old.read_text() == "<!-- xbench -->"


def test_a_file_that_cannot_be_renamed_over_is_written_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mounted(*_: object) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    monkeypatch.setattr("xbench.record_files.os.replace", mounted)
    path = tmp_path / "file"
    path.touch()
    write_file("text", str(path))
    assert path.read_text() == "text"
    with pytest.raises(OSError, match="busy"):
        write_file("text", str(tmp_path / "new"))
    assert list(tmp_path.iterdir()) == [path]


UNWRITABLE: dict[str, tuple[Callable[[Path], str], bool]] = {
    "no folder": (lambda folder: str(folder / "a folder" / "x"), True),
    "a file for a folder": (lambda folder: str(Path(__file__) / "x"), False),
    "a folder": (str, False),
    "/proc": (lambda folder: "/proc/x.html", False),
    "long": (lambda folder: str(folder / ("x" * 300)), False),
    "nul": (lambda folder: f"{folder}/a\0b", False),
}
"""Targets below a folder, and whether the hint is to make a folder."""


@pytest.mark.parametrize("name", UNWRITABLE)
def test_a_target_that_cannot_be_written_is_refused_before_the_work(name: str, tmp_path: Path) -> None:
    target, is_to_be_made = UNWRITABLE[name]
    with pytest.raises(SpecError, match="--html: ") as caught:
        check_file(target(tmp_path), "--html")
    assert len(str(caught.value).splitlines()) == 1
    assert (caught.value.hint or "").startswith("mkdir") is is_to_be_made
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("folder", ["/proc/x", "/proc/1/x/y", f"{__file__}/x", "x" * 300])
def test_a_folder_that_cannot_be_made_is_refused(folder: str) -> None:
    with pytest.raises(SpecError, match="--output: "):
        check_folder(Path(folder), "--output")


def test_a_folder_that_can_be_made_is_left_unmade(tmp_path: Path) -> None:
    check_folder(tmp_path / "a" / "b", "--output")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_may_not_be_looked_into_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(path: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr("xbench.output_files.os.stat", forbidden)
    with pytest.raises(SpecError, match="cannot be written: permission denied"):
        check_file("/root/x.json", "--json")


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_a_file_has_the_mode_that_the_user_s_mask_gives(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        path = write_whole("private or not", tmp_path / "record.json")
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"kind": 3}', "[" * 100_000, '{"kind": "meas'])
def test_a_frame_that_says_nothing_names_no_kind(tmp_path: Path, text: str) -> None:
    assert frame_kind(tmp_path) is None
    (tmp_path / FRAME).write_text(text)
    assert frame_kind(tmp_path) is None


def test_the_command_of_a_record_can_be_written_to_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["xbench", "plan", "my run", os.fsdecode(b"a\xffb")])
    assert command_line() == "xbench plan 'my run' 'a?b'"
