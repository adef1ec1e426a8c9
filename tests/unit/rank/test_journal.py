"""A rank's journal has one owner, holds whole events, and is read as far as it is whole."""

from __future__ import annotations

import errno
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from xbench.errors import RunError
from xbench.rank.journal import Journal, JournalReader, Journals, kept_by


def test_a_second_owner_is_an_error_and_changes_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path, 0, 1)
    journal.write("hello", pid=1)
    with pytest.raises(RunError, match=r"job0-rank1.jsonl' belongs to another rank"):
        Journal(tmp_path, 0, 1)
    journal.write("end")
    assert [event["event"] for event in JournalReader(tmp_path, 0, 1).poll()] == ["hello", "end"]


def test_a_last_line_that_was_cut_off_is_left_out_until_it_is_whole(tmp_path: Path) -> None:
    path, reader = tmp_path / "job0-rank0.jsonl", JournalReader(tmp_path, 0, 0)
    path.write_bytes(b'{"event": "hello"}\n{"event": "blo')
    assert [event["event"] for event in reader.poll()] == ["hello"]
    with path.open("ab") as stream:
        stream.write(b'ck"}\n')
    assert [event["event"] for event in reader.poll()] == ["block"]


@pytest.mark.parametrize(
    "broken", [b'{"event": "blo', b"\xff\x00", b"[1]", b'{"mode": 3}', b'{"event": 4}', b"[" * 99999]
)
def test_a_broken_line_in_the_middle_is_told(tmp_path: Path, broken: bytes) -> None:
    (tmp_path / "job0-rank0.jsonl").write_bytes(b'{"event": "hello"}\n' + broken + b'\n{"event": "end"}\n')
    told = JournalReader(tmp_path, 0, 0).poll()
    assert [event["event"] for event in told] == ["hello", "warning", "end"]
    assert told[1]["message"] == "job0-rank0.jsonl has a broken line, which was left out"


def test_a_disk_that_is_full_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path, 0, 0)
    journal.write("hello")

    class Full(io.FileIO):
        room = 10

        def write(self, data: Any) -> int:
            if not Full.room:
                raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
            written = super().write(data[: Full.room])
            Full.room -= written
            return written

    journal._events = Full(tmp_path / "job0-rank0.jsonl", "r+b")
    journal._events.seek(0, io.SEEK_END)
    with pytest.raises(OSError, match="quota") as full:
        journal.write("block", stamps=[0.0] * 100)
    assert full.value.errno == errno.EDQUOT
    Full.room = 10_000
    journal.write("error", message="the disk is full")
    assert [event["event"] for event in JournalReader(tmp_path, 0, 0).poll()] == ["hello", "error"]


def test_events_from_other_machines_are_on_disk_before_they_are_taken(tmp_path: Path) -> None:
    taken = []
    take = kept_by(Journals(tmp_path / "launch0"), lambda job, rank, event: taken.append((job, rank, event["event"])))
    take(0, 0, {"event": "hello", "t": 1.0})
    take(0, 1, {"event": "hello", "t": 1.0})
    take(0, 1, {"event": "end", "t": 2.0})
    assert taken == [(0, 0, "hello"), (0, 1, "hello"), (0, 1, "end")]
    lines = (tmp_path / "launch0" / "job0-rank1.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["hello", "end"]
