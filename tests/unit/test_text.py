"""Text for people: lists, counts and cuts, and what a terminal that is not UTF-8 gets in place of characters."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xbench.text import _PLAIN, STAND_INS, and_of, counted, cut, entries, one_line, quoted

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.mark.parametrize(("names", "text"), [(["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c")])
def test_lists(names: list[str], text: str) -> None:
    assert and_of(names) == text


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a, b", ["a", "b"]),
        ("a:x=1,y=2,b:z=3,c", ["a:x=1,y=2", "b:z=3", "c"]),
        ("a:x=1, y=2", ["a:x=1,y=2"]),
        ("a,x=1", ["a", "x=1"]),
        ("a,,b", ["a", "", "b"]),
        ("", [""]),
    ],
)
def test_a_list_keeps_the_options_of_an_entry_together(text: str, found: list[str]) -> None:
    assert entries(text) == found


def test_counts_have_their_plural() -> None:
    assert [counted(number, "bucket") for number in range(3)] == ["0 buckets", "1 bucket", "2 buckets"]
    assert [counted(number, "launch", "launches") for number in (1, 3)] == ["1 launch", "3 launches"]


def test_a_text_is_one_line_and_cut_where_it_is_too_long_alone() -> None:
    assert one_line("  two\n\twords ") == "two words"
    assert cut("abcd", 4) == "abcd"
    assert cut("abcde", 4) == "abc…"
    assert quoted("abcde", 4) == "'abc…'"


@pytest.mark.parametrize(
    ("text", "encoding", "shown"),
    [
        ("████├┼┤ 41.1 µs ±2e-07", "ascii", b"####[+] 41.1 us ~2e-07"),
        ("████├┼┤ 41.1 µs ±2e-07", "latin-1", b"####[+] 41.1 \xb5s \xb12e-07"),
        ("── α", "ascii", b"-- a"),
        ("漢", "ascii", b"\\u6f22"),
        ("plain", "ascii", b"plain"),
    ],
)
def test_stand_ins(text: str, encoding: str, shown: bytes) -> None:
    assert text.encode(encoding, STAND_INS) == shown


def test_a_stand_in_is_as_wide_as_what_it_stands_for() -> None:
    assert {len(plain) for plain in _PLAIN.values()} == {1}
    assert all(plain.isascii() for plain in _PLAIN.values())


@given(st.text())
def test_any_text_can_be_shown(text: str) -> None:
    assert text.encode("ascii", STAND_INS).isascii()


def test_every_character_that_reports_are_drawn_with_has_one() -> None:
    drawn = {one for path in GOLDEN.glob("*.txt") for one in path.read_text(encoding="utf-8") if not one.isascii()}
    assert drawn
    assert drawn - _PLAIN.keys() == set()


@pytest.mark.parametrize(("kind", "columns"), [("comparison", "60"), ("scaling", "100")])
def test_a_report_in_ascii_keeps_its_shape(kind: str, columns: str) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": columns}
    command = [sys.executable, "-m", "xbench", "report", str(GOLDEN / f"{kind}-v1.json")]
    done = subprocess.run(command, env=environment, capture_output=True, timeout=60, check=True)
    shown = [line.rstrip() for line in done.stdout.decode("ascii").replace(command[-1], "RECORD").splitlines()]
    golden = (GOLDEN / f"{kind}-{columns}.txt").read_text(encoding="utf-8")
    assert shown == [line.rstrip() for line in golden.encode("ascii", STAND_INS).decode().splitlines()]
