"""Files written whole, and the command that a record names."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from xbench.record_files import FRAME, command_line, frame_kind, write_whole


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
