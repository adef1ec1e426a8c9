"""Printing is safe by itself: text that never was in a record comes from traces, suites, paths and exceptions."""

from __future__ import annotations

import io

import click
import pytest
from rich.table import Table
from rich.text import Text

from xbench import cli
from xbench.errors import SpecError, XbenchError, listed
from xbench.report.console import HarmlessConsole, fact, say
from xbench.text import defused

HOSTILE = "a\x1b]52;c;cm0=\x07\x1b[2J\x9b8m\u202eb"


def printed(width: int = 80, *, colour: bool = False) -> tuple[HarmlessConsole, io.StringIO]:
    stream = io.StringIO()
    return HarmlessConsole(file=stream, width=width, force_terminal=colour, highlight=False, markup=False), stream


def test_a_console_writes_controls_out_and_keeps_its_own() -> None:
    console, stream = printed(colour=True)
    say(console, HOSTILE, "bold")
    text = stream.getvalue()
    assert r"\x1b]52;c;cm0=" in text
    assert text.count("\x1b") == 2, "bold, and its end"
    assert not {"\x07", "\x9b", "\u202e"} & set(text)


@pytest.mark.parametrize("width", range(20, 40))
def test_no_folded_line_is_a_command(width: int) -> None:
    console, stream = printed(width)
    say(console, f"a sentence {'x' * 9} and then ::error::pwn and ::add-mask::b")
    fact(console, "", "::error::pwn")
    console.print("::error::pwn", soft_wrap=True)
    console.print(Text.assemble(" ", ("::", "bold"), "error::pwn"))
    lines = stream.getvalue().splitlines()
    assert any("error" in line for line in lines)
    assert [line for line in lines if line.lstrip().startswith("::")] == []


def test_cells_of_a_table_are_harmless() -> None:
    console, stream = printed()
    table = Table("::error::name", box=None)
    table.add_row("##[error]pwn\x1b[0m")
    console.print(table)
    assert "\x1b" not in stream.getvalue()
    assert stream.getvalue().split()[:3] == [":", ":error::name", "##"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a::b\n ::error::c\n::d", "a::b\n : :error::c\n: :d"),
        ("##[group]a ##vso[task]b ## c", "## [group]a ## vso[task]b ## c"),
        ("a\r\nb\tc", "a\\r\nb\\tc"),
        ("plain", "plain"),
    ],
)
def test_lines_are_no_commands(text: str, shown: str) -> None:
    assert defused(text) == shown
    assert defused(shown) == shown


@pytest.mark.parametrize("error", [
    SpecError(f"bad {HOSTILE}", hint=f"try {HOSTILE}\n::error::pwn"),
    XbenchError(HOSTILE, detail=f"{HOSTILE}\n::error::x"),
    RuntimeError(f"{HOSTILE}\n::error::pwn"), OSError(2, HOSTILE, HOSTILE), click.UsageError(HOSTILE),
    ModuleNotFoundError(HOSTILE, name=f"{HOSTILE}.x"), SpecError("x" * 100_000, hint="y" * 100_000),
])  # fmt: skip
@pytest.mark.parametrize("debug", [False, True])
def test_an_error_is_printed_harmless_and_short(
    error: Exception, debug: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(cli.cli, "main", fail)
    assert cli.main(["--debug"] if debug else []) in (1, 2)
    told = capsys.readouterr().err
    assert told.startswith("error: ")
    assert not set(told) & {"\x1b", "\x07", "\x9b", "\u202e", "\r"}
    assert [line for line in told.splitlines() if line.lstrip().startswith("::")] == []
    if not debug:
        assert len(told.splitlines()) <= 2
        assert len(told) < 2100


def test_a_list_in_a_hint_is_short() -> None:
    assert listed(["a", "b"]) == "a, b"
    assert listed([f"column{number}" for number in range(60_000)]).endswith(" and 59983 more")
    assert len(listed(["x" * 10_000, "y"])) < 200
