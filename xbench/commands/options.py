"""What several commands share: options, paths of results, targets of output, and `--help` by theme.

Most options are made from the fields of a command's config (`xbench.config`). This module imports nothing heavy, so
that `--help` stays fast.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from xbench.errors import SpecError, UsageError
from xbench.option_fields import option_of, options_of, read_config
from xbench.output_files import check_file, write_file
from xbench.record_files import RECORD, is_record, results_folder, run_folders
from xbench.text import counted

if TYPE_CHECKING:
    from rich.console import Console

    from xbench.records import AnyRecord

F = TypeVar("F", bound=Callable[..., Any])

LATEST = "latest"
STDOUT = "-"
MAX_PASSED = 20
"""Most runs that `latest` looks at."""


# --- results as users type them -----------------------------------------------------------------------------------


def _load(path: Path) -> object:
    from xbench.records import load

    return load(path)


class ResultPath(click.Path):
    """Path of a result: a record, or the folder of a run. `latest` stands for a run, unless such a file exists.

    It is the newest run that `use` takes; `use` raises UsageError for one that lacks what the command needs.
    """

    def __init__(self, use: Callable[[Path], object] = _load) -> None:
        super().__init__(path_type=Path)
        self.use = use

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See `click.ParamType.convert`. Raises UsageError if there is no such run."""
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        return latest(self.use) if is_latest(path) else path


def is_latest(path: Path) -> bool:
    """True if the path is the word `latest`, and no such file exists."""
    return str(path) == LATEST and not path.exists()


def latest(use: Callable[[Path], object] = _load) -> Path:
    """Return the folder of the newest run in results/runs that `use` takes. Says on stderr which it passed over.

    Raises SpecError if there is no run, and the newest one's UsageError if `use` takes none.
    """
    runs = run_folders(results_folder())
    if not runs:
        raise SpecError(f"there is no run in {results_folder()}", hint="name a result, or make one: xbench compare")
    passed: list[UsageError] = []
    for folder in runs[:MAX_PASSED]:
        try:
            use(folder)
        except UsageError as error:
            passed.append(error)
            continue
        if passed:
            more = f", and {counted(len(passed) - 1, 'more run')}" if len(passed) > 1 else ""
            click.echo(f"latest is {folder}; passed over: {passed[0]}{more}", err=True)
        return folder
    raise passed[0]


# --- options ------------------------------------------------------------------------------------------------------


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

        return with_options(*options)(with_config)  # type: ignore[return-value]

    return decorate


def with_options(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    """Return a decorator that applies these, so that --help lists them in this order."""

    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def field_option(kind: type, name: str, **changed: Any) -> Callable[[F], F]:
    """Return the option of a single field, for a command that takes its value as a parameter of that name."""
    own = option_of(kind, name)
    arguments = {**own.click, **changed}
    shown = "default" in arguments and not arguments.get("is_flag")
    return click.option(*own.flags, name, show_default=shown, **arguments)


def verbose_option(command: F) -> F:
    """Add `-v/--verbose`."""
    told = "Show every table and note."
    return click.option("-v", "--verbose", is_flag=True, help=told)(command)


_FORCE = "xbench.force"


def json_option(
    command: F, told: str = "Also write the record as JSON; - is stdout, and tables then go to stderr."
) -> F:
    """Add `--json FILE|-`, passed as `json_to` and used by `write_json`.

    And `--force`, for all files that the command writes; `forced` returns its value.
    """

    def keep(context: click.Context, parameter: click.Parameter, value: bool) -> None:
        context.meta[_FORCE] = value

    of_force = "Replace files that xbench did not write; follow links."
    command = click.option("--force", is_flag=True, expose_value=False, callback=keep, help=of_force)(command)
    return click.option("--json", "json_to", metavar="FILE|-", help=told)(command)


def forced() -> bool:
    """Return whether the running command was given `--force`."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(_FORCE, False))


def csv_option(told: str) -> Callable[[F], F]:
    """Add `--csv FILE|-`, passed as `csv_to` and used by `write_csv`."""
    return click.option("--csv", "csv_to", metavar="FILE|-", help=told)


# --- checks of targets, before anything is measured ---------------------------------------------------------------


def check_json(json_to: str | None) -> None:
    """Raise SpecError if `--json` names a file that cannot be written (`output_files.check_file`)."""
    check_targets({"--json": json_to})


RECORD_OPTIONS = ("--json", "--keep")
"""Options that write a record. They may replace another one; a text may not."""


def check_targets(
    targets: Mapping[str, str | None], inputs: Sequence[Path] = (), hint: str = "name another FILE"
) -> None:
    """Raise SpecError for a target that cannot be written, that holds a result, or that two options name.

    `targets` maps an option to its FILE or `STDOUT`. Files that xbench did not write are refused without `--force`
    (`output_files.check_file`). An option in `RECORD_OPTIONS` may replace a result, but none of `inputs`.
    `hint` is for a target that holds a result, and `{option}` in it is that target's option.
    """
    read = {os.path.realpath(path / RECORD if os.path.isdir(path) else path) for path in inputs}
    taken: dict[str, str] = {}
    for option, target in targets.items():
        if target is None:
            continue
        where = "stdout" if target == STDOUT else repr(target)
        place = target if target == STDOUT else os.path.realpath(target)
        if target != STDOUT and (place in read or option not in RECORD_OPTIONS) and is_record(Path(target)):
            raise SpecError(
                f"{option}: {where} is a result, and would be written over", hint=hint.format(option=option)
            )
        if target != STDOUT:
            check_file(target, option, force=forced())
        if place in taken:
            raise SpecError(f"{taken[place]} and {option} both want {where}", hint=f"name another FILE for {option}")
        taken[place] = option


# --- output -------------------------------------------------------------------------------------------------------


def show_result(
    record: AnyRecord, *taken: str | None, verbose: bool = False, all_layers: bool = False, place: str | None = None
) -> None:
    """Draw the record's tables on stdout, or on stderr if one of the targets `taken` is stdout ('-').

    `place` is the record's path in suggested commands; without it they say RECORD.
    """
    from xbench.report import advice
    from xbench.report.console import make_console
    from xbench.report.formats.terminal import show

    console, place = make_console(stderr=STDOUT in taken), place or advice.RECORD
    show(record, console, verbose=verbose, all_layers=all_layers, place=place)


def show_run(
    console: Console, record: AnyRecord, path: Path, json_to: str | None, *taken: str | None, **shown: Any
) -> None:
    """Draw the record of a run as `show_result` does, name its path on the console, and write it to `--json`."""
    console.print()
    show_result(record, json_to, *taken, **shown)
    console.print(f"\nrecord: {path}", highlight=False, soft_wrap=True)
    write_json(record, json_to)


def write_json(record: AnyRecord, json_to: str | None) -> None:
    """Write the record to the target of `--json`, as `write_text` does."""
    from xbench.records import dump

    write_text(json_to, lambda: dump(record))


def write_csv(record: AnyRecord, csv_to: str | None) -> None:
    """Write the record's main table to the target of `--csv`, as `write_text` does."""
    from xbench.report.formats.csv import render

    write_text(csv_to, lambda: render(record))


def write_text(target: str | None, text: Callable[[], str]) -> None:
    """Write a text to a target of an option: nowhere, a file (`output_files.write_file`), or stdout.

    Raises OSError, and SpecError for a file that may not be replaced.
    """
    if target == STDOUT:  # a file's text: UTF-8, whatever the terminal's encoding
        encoding = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().replace("-", "")
        click.echo(text() if encoding == "utf8" else text().encode(), nl=False)
    elif target is not None:
        write_file(text(), target, force=forced())


# --- help ---------------------------------------------------------------------------------------------------------

OTHER = "Options"
THEMES: dict[str, tuple[str, ...]] = {
    "What to run": (
        "--modes", "--reference", "--workloads", "--batch-size", "--image-size", "--seq-len", "--dtype",
        "--optimizer", "--optimizer-impl", "--accumulate", "--amp", "--checkpoint", "--clip", "--seed", "--dataset",
        "--seeds", "--epochs", "--samples", "--lr", "--config", "--check", "--base", "--baseline", "--layer", "--job",
        "--resume", "--workers", "--model",
    ),
    "Links and devices": (
        "--fabric", "--links", "--device", "--compress",
        "--topology", "--rate", "--latency", "--compute-scale", "--link",
    ),
    "Measurement": (
        "--launches", "--rounds", "--quick", "--until", "--minutes", "--margin",
        "--pairs", "--budget", "--strict", "--no-confirm", "--error-band",
    ),
    "Output": (
        "--all", "--verbose", "--emit", "--mode", "--json", "--csv", "--markdown", "--junit", "--html", "--trace",
        "--keep", "--force",
    ),
    "Expert": ("--timeout", "--help"),
}  # fmt: skip
"""Options by heading. Options that are not listed here appear under `OTHER`, which comes first."""


def examples(*lines: str) -> str:
    """Return the end of a command's help: one example a line, as it is typed."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


class ThemedCommand(click.Command):
    """Command whose help groups its options."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See `click.Command.format_options`."""
        heading_of = {name: heading for heading, names in THEMES.items() for name in names}
        rows: dict[str, list[tuple[str, str]]] = {heading: [] for heading in (OTHER, *THEMES)}
        for parameter in self.get_params(ctx):
            row = parameter.get_help_record(ctx)
            if row is not None and isinstance(parameter, click.Option):
                heading = next((heading_of[name] for name in parameter.opts if name in heading_of), OTHER)
                rows[heading].append(row)
        for heading, found in rows.items():
            if found:
                with formatter.section(heading):
                    formatter.write_dl(found)
