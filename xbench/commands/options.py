"""Options made from the fields of a command's config (`xbench.config`), and helpers that several commands share.

`xbench.cli` adds `--debug` to every command. This module imports nothing heavy, so that `--help` stays fast.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from xbench.commands.completing import (
    complete_fabric,
    complete_file,
    complete_mode,
    complete_modes,
    complete_result,
    complete_workload,
    listed,
)
from xbench.commands.results import ResultPath
from xbench.errors import SpecError
from xbench.option_fields import option_of, options_of, read_config

if TYPE_CHECKING:
    from xbench.records import AnyRecord

F = TypeVar("F", bound=Callable[..., Any])
_COMPLETE: dict[str | None, dict[str, Any]] = {
    None: {},
    "fabric": {"shell_complete": complete_fabric},
    "mode": {"shell_complete": complete_mode},
    "modes": {"shell_complete": complete_modes},
    "workloads": {"shell_complete": listed(complete_workload)},
    "result": {"type": ResultPath(), "shell_complete": complete_result},
}


def takes(kind: type, *parts: str | Callable[[Any], Any]) -> Callable[[F], F]:
    """Give a command the options of these fields of `kind`, in this order; it gets their values as `config`.

    A field made of several options adds all of them. A part that is not a field's name is a decorator and is applied as
    it is.
    """
    options: list[Callable[[Any], Any]] = []
    for part in parts:
        if not isinstance(part, str):
            options.append(part)
        else:
            options += [field_option(owner, name) for owner, name in options_of(kind, part)]

    def decorate(command: F) -> F:
        @functools.wraps(command)
        def with_config(**values: Any) -> Any:
            config: Any = read_config(kind, values)
            return command(config=config, **values)

        made: Any = with_config
        for option in reversed(options):  # --help lists the last decorator applied first
            made = option(made)
        return made  # type: ignore[no-any-return]

    return decorate


def field_option(kind: type, name: str, **changed: Any) -> Callable[[F], F]:
    """Return the option of a single field, for a command that takes its value as a parameter of that name."""
    own = option_of(kind, name)
    arguments = {**own.click, **_COMPLETE[own.complete], **changed}
    shown = "default" in arguments and not arguments.get("is_flag")
    return click.option(*own.flags, name, show_default=shown, **arguments)


def verbose_option(command: F) -> F:
    """Add `-v/--verbose`."""
    return click.option(
        "-v", "--verbose", is_flag=True, help="Show every table and note, not only what fits on a screen."
    )(command)


def json_option(command: F) -> F:
    """Add `--json FILE|-`, passed as `json_to` and used by `write_json`."""
    return click.option(
        "--json",
        "json_to",
        metavar="FILE|-",
        shell_complete=complete_file,
        help="Also write the record as JSON; with - it goes to stdout, and tables go to stderr.",
    )(command)


def check_json(json_to: str | None, option: str = "--json") -> None:
    """Raise SpecError if `--json`, or another output option, names a file that cannot be written."""
    if json_to is None or json_to == "-":
        return
    path = Path(json_to)
    parent = path.absolute().parent
    try:
        if path.is_dir():
            named = path / f"record.{option.strip('-')}"
            raise SpecError(f"{option}: {json_to!r} is a folder", hint=f"write {named}")
        if not parent.is_dir():
            raise SpecError(f"{option}: the folder of {json_to!r} does not exist", hint=f"mkdir -p {path.parent}")
        writable = os.access(path if path.exists() else parent, os.W_OK)
    except (OSError, ValueError) as error:  # the name is too long, or holds a NUL
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise SpecError(f"{option}: {json_to!r} cannot be written: {reason}") from None
    if not writable:
        raise SpecError(f"{option}: you may not write {json_to!r}", hint=f"{option} FILE writes where you may")


def echo_utf8(text: str) -> None:
    """Write a file's text to stdout in UTF-8, whatever the terminal's encoding."""
    encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "")
    click.echo(text if encoding == "utf8" else text.encode(), nl=False)


def show_result(
    record: AnyRecord, *taken: str | None, verbose: bool = False, all_layers: bool = False, place: str | None = None
) -> None:
    """Draw the record's tables on stdout, or on stderr if one of the targets `taken` is stdout ('-').

    `place` is the record's path in suggested commands; without it they say RECORD.
    """
    from xbench.report.advice import RECORD
    from xbench.report.console import make_console
    from xbench.report.formats.terminal import show

    show(record, make_console(stderr="-" in taken), verbose=verbose, all_layers=all_layers, place=place or RECORD)


def write_json(record: AnyRecord, json_to: str | None) -> None:
    """Write the record to the target of `--json`: nowhere, a file, or stdout. Raises OSError."""
    from xbench.records import dump, save

    if json_to == "-":
        echo_utf8(dump(record))
    elif json_to is not None:
        save(record, Path(json_to))


def check_json_and_csv(json_to: str | None, csv_to: str | None) -> None:
    """Raise SpecError for a target of `--json` or `--csv` that cannot be written, and if both name stdout."""
    check_json(json_to)
    check_json(csv_to, option="--csv")
    if json_to == "-" and csv_to == "-":
        raise SpecError("--json - and --csv - both want stdout", hint="write --csv FILE")


def write_csv(record: AnyRecord, csv_to: str | None) -> None:
    """Write the record's main table to the target of `--csv`: nowhere, a file, or stdout. Raises OSError."""
    from xbench.report.formats.csv import render

    if csv_to == "-":
        click.echo(render(record), nl=False)
    elif csv_to is not None:
        Path(csv_to).write_text(render(record), encoding="utf-8")
