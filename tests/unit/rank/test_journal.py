"""A rank's journal has one owner, holds whole events, and is read as far as it is whole."""

from __future__ import annotations

import errno
import io
import math
import os
from pathlib import Path
from typing import Any

import pytest

from xbench.errors import RunError
from xbench.rank.events import (
    Event,
    PhaseBegan,
    RankEnded,
    RankFailed,
    RankStarted,
    StepTrained,
    Warned,
    parse,
)
from xbench.rank.journal import Journal, JournalReader, Journals, to_all

HELLO, END = RankStarted(t=1.0, rank=1, pid=1), RankEnded(t=2.0)


def test_a_second_owner_is_an_error_and_changes_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path, 0, 1)
    journal.write(HELLO)
    with pytest.raises(RunError, match=r"job0-rank1.jsonl' belongs to another rank"):
        Journal(tmp_path, 0, 1)
    journal.write(END)
    assert JournalReader(tmp_path, 0, 1).poll() == [HELLO, END]


def test_a_last_line_that_was_cut_off_is_left_out_until_it_is_whole(tmp_path: Path) -> None:
    path, reader = tmp_path / "job0-rank0.jsonl", JournalReader(tmp_path, 0, 0)
    path.write_text(HELLO.line() + END.line()[:10])
    assert reader.poll() == [HELLO]
    with path.open("a") as stream:
        stream.write(END.line()[10:])
    assert reader.poll() == [END]


@pytest.mark.parametrize(
    "broken",
    [b'{"event": "blo', b"\xff\x00", b"[1]", b'{"mode": 3}', b'{"event": 4}', b'{"event": "block"}', b"[" * 99999],
)
def test_a_broken_line_in_the_middle_is_told(tmp_path: Path, broken: bytes) -> None:
    lines = HELLO.line().encode() + broken + b"\n" + END.line().encode()
    (tmp_path / "job0-rank0.jsonl").write_bytes(lines)
    warned = Warned(t=0.0, message="job0-rank0.jsonl has a broken line, which was left out")
    assert JournalReader(tmp_path, 0, 0).poll() == [HELLO, warned, END]


def test_a_disk_that_is_full_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path, 0, 0)
    journal.write(HELLO)

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
        journal.write(Warned(message="word " * 100))
    assert full.value.errno == errno.EDQUOT
    Full.room = 10_000
    journal.write(END)
    assert JournalReader(tmp_path, 0, 0).poll() == [HELLO, END]


def test_events_from_other_machines_are_on_disk_before_they_are_taken(tmp_path: Path) -> None:
    taken: list[tuple[int, int, Event]] = []
    take = to_all(Journals(tmp_path / "launch0").take, lambda *event: taken.append(event))
    said: list[tuple[int, int, Event]] = [(0, 0, HELLO), (0, 1, HELLO), (0, 1, END)]
    for event in said:
        take(*event)
    assert taken == said
    assert (tmp_path / "launch0" / "job0-rank1.jsonl").read_text() == HELLO.line() + END.line()


def test_an_event_is_a_line_of_the_fields_that_were_given() -> None:
    assert PhaseBegan(t=1.5, name="gate ddp").line() == '{"event": "phase", "t": 1.5, "name": "gate ddp"}\n'
    failed = RankFailed(t=1.5, message="no", hint=None)
    assert failed.line() == '{"event": "error", "t": 1.5, "message": "no", "hint": null}\n'
    lost = StepTrained(t=1.5, step=3, loss=math.nan)
    assert math.isnan(parse(lost.line()).loss)  # type: ignore[attr-defined]


def test_a_reader_ignores_fields_of_another_version() -> None:
    assert parse(b'{"event": "end", "t": 2.0, "mood": "good"}') == END
