"""Targets of the formats of `xbench report`: a file, a file beside the record, or stdout, all checked first.

`--html` alone writes beside the record, `--html FILE` to that file, and `--html -` to stdout. An option without a value
gets `BESIDE` from click.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from xbench.commands.completing import complete_file
from xbench.commands.options import check_json
from xbench.errors import SpecError

F = TypeVar("F", bound=Callable[..., Any])

BESIDE = ""
STDOUT = "-"
RECORD = "record.json"
_HEAD_CHARACTERS = 4096


@dataclass(frozen=True)
class Output:
    """One format and its target: a path, or `STDOUT`."""

    format: str
    target: str

    @property
    def option(self) -> str:
        """Name of the option, such as '--html'."""
        return f"--{self.format}"


def format_option(name: str, text: str) -> Callable[[F], F]:
    """Add `--NAME [FILE|-]`, passed as `NAME_to`: None if it is absent, `BESIDE` if it has no value."""
    return click.option(f"--{name}", f"{name}_to", is_flag=False, flag_value=BESIDE, metavar="[FILE|-]",
                        shell_complete=complete_file, help=text)  # fmt: skip


def resolve(asked: Mapping[str, str | None], results: Sequence[Path]) -> list[Output]:
    """Return one output for each option given. `asked` maps a format to its option's value.

    Raises SpecError for a target that cannot be written, that is itself a result, or that two formats name.
    """
    outputs = [
        Output(name, value if value != BESIDE else str(beside(results, _extension(name))))
        for name, value in asked.items()
        if value is not None
    ]
    taken: dict[str, str] = {}
    for output in outputs:
        check_json(output.target, output.option)
        if output.target != STDOUT and _is_result(Path(output.target)):
            raise SpecError(
                f"{output.option}: {output.target!r} is a result, and would be written over",
                hint=f"name the results first, and {output.option} after them",
            )
        place = output.target if output.target == STDOUT else os.path.realpath(output.target)
        if place in taken:
            where = "stdout" if output.target == STDOUT else repr(output.target)
            raise SpecError(f"{taken[place]} and {output.option} both want {where}", hint=f"write {output.option} FILE")
        taken[place] = output.option
    return outputs


def beside(results: Sequence[Path], extension: str) -> Path:
    """Return the path beside the first result: `report.html` in a run's folder, `NAME.html` for `NAME.json`.

    For several results the file is `compared.html`.
    """
    first = results[0]
    if first.is_dir():
        first = first / RECORD
    stem = "report" if first.name == RECORD else first.name.removesuffix(".json")
    return first.parent / f"{'compared' if len(results) > 1 else stem}.{extension}"


def _extension(name: str) -> str:
    from xbench.report import FORMATS

    return str(FORMATS.entry(name).facts["extension"])


def _is_result(path: Path) -> bool:
    """True if the file begins as a record does. A report never overwrites a record."""
    try:
        if not path.is_file():
            return False
        with path.open(encoding="utf-8", errors="replace") as stream:
            return '"schema_version"' in stream.read(_HEAD_CHARACTERS)
    except OSError:
        return False
