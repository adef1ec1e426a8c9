"""`xbench report`: saved results in any format."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from xbench.commands import options
from xbench.errors import SpecError
from xbench.output_files import is_regular
from xbench.record_files import RECORD

if TYPE_CHECKING:
    from xbench.records import AnyRecord

F = TypeVar("F", bound=Callable[..., Any])

OF_SEVERAL = "html"
"""The only format that shows several results in one file."""

BESIDE = ""
"""Value of a format's option that is given without a value."""


def _format_option(name: str, text: str) -> Callable[[F], F]:
    """Add `--NAME [FILE|-]`, passed as `NAME_to`: None if it is absent, `BESIDE` if it has no value."""
    return click.option(f"--{name}", f"{name}_to", is_flag=False, flag_value=BESIDE, metavar="[FILE|-]", help=text)


@click.command(
    "report",
    cls=options.ThemedCommand,
    short_help="Show a saved result again; needs neither torch nor a GPU.",
    epilog=options.examples(
        "xbench report latest",
        "xbench report latest --html",
        "xbench report before.json after.json --html compared.html",
    ),
)
@click.argument("results", nargs=-1, type=click.Path(path_type=Path), metavar="[RESULT]...")  # fmt: skip
@click.option("--all", "show_all", is_flag=True, help="Every layer of a profile, not the ten largest.")
@_format_option("html", "One page that opens offline, with plots; several RESULTs in one.")
@_format_option("trace", "The recorded and predicted steps, for ui.perfetto.dev or chrome://tracing.")
@_format_option("markdown", "Short, for a pull request; layers and environment folded.")
@_format_option("csv", "Tidy tables: samples, and beside FILE steps, modes and layers.")
@_format_option("junit", "JUnit XML for CI systems, one case a mode.")
@options.json_option
@options.verbose_option
def report(
    results: tuple[Path, ...], show_all: bool, json_to: str | None, verbose: bool, **formats: str | None
) -> None:
    """Show a saved result again; needs neither torch nor a GPU.

    RESULT is a record, the folder of a run, or latest [default: latest]. The table goes to stdout. A format is written
    to its FILE, to stdout for -, and without either beside the RESULT; there is no table then.
    """
    from xbench.records import load

    use = _rendered_trace if formats["trace_to"] is not None else load
    if not results:
        if json_to is not None:  # a RESULT that stands after --json would be read as its FILE
            options.check_targets(
                {"--json": json_to}, [Path(json_to)], "name the result first, and {option} FILE after it"
            )
        results = (options.latest(use),)
        click.echo(f"the latest run: {results[0]}", err=True)
    results = tuple(options.latest(use) if options.is_latest(path) else path for path in results)
    asked = {name: formats[f"{name}_to"] for name in ("html", "trace", "markdown", "csv", "junit")}
    targets = resolve(asked, results, json_to)
    _check_together(len(results), targets, json_to)
    records = [load(path) for path in results]
    rendered = {name: _rendered(name, target, records, str(results[0])) for name, target in targets.items()}
    for name, files in rendered.items():
        for target, text in files.items():
            options.write_text(target, partial(str, text))
            if target != options.STDOUT:
                click.echo(f"{name}: {target}", err=True)
    if not targets:
        _show(results, records, show_all, verbose, to_stderr=json_to == options.STDOUT)
    options.write_json(records[0], json_to)


def _rendered_trace(path: Path) -> str:
    """Return the trace of a result. Raises UsageError for one without steps to draw."""
    from xbench.records import load
    from xbench.report import FORMATS

    return str(FORMATS.load("trace")(load(path)))


def resolve(asked: Mapping[str, str | None], results: Sequence[Path], json_to: str | None = None) -> dict[str, str]:
    """Return the target of each format that was asked for. `asked` maps a format to its option's value.

    `--html` alone writes beside the record, `--html FILE` to that file, and `--html -` to stdout. Raises SpecError for
    a target that cannot be written, that is itself a result, or that two formats or `--json` name.
    """
    from xbench.report import FORMATS

    targets = {
        name: value if value != BESIDE else str(path_beside(results, str(FORMATS.entry(name).facts["extension"])))
        for name, value in asked.items()
        if value is not None
    }
    by_option = {f"--{name}": target for name, target in targets.items()} | {"--json": json_to}
    options.check_targets(by_option, results, "name the results first, and {option} after them")
    return targets


def path_beside(results: Sequence[Path], extension: str) -> Path:
    """Return the path beside the first result: `report.html` in a run's folder, `NAME.html` for `NAME.json`.

    For several results the file is `compared.html`.
    """
    first = results[0] / RECORD if os.path.isdir(results[0]) else results[0]
    stem = "report" if first.name == RECORD else first.name.removesuffix(".json")
    return first.parent / f"{'compared' if len(results) > 1 else stem}.{extension}"


def _check_together(count: int, targets: Mapping[str, str], json_to: str | None) -> None:
    """Raise SpecError if a format for one result gets several."""
    single = [f"--{name}" for name in targets if name != OF_SEVERAL] + (["--json"] if json_to else [])
    if count > 1 and single:
        raise SpecError(
            f"{single[0]} takes one RESULT, and there are {count}",
            hint=f"run it once for each; --{OF_SEVERAL} takes several",
        )


def _rendered(name: str, target: str, records: Sequence[AnyRecord], place: str) -> dict[str, str]:
    """Return the texts to write, by target. Nothing is written until all are rendered. `place` is the first's path."""
    from xbench.report import FORMATS

    if name == OF_SEVERAL:
        from xbench.report.formats.html import page

        return {target: page(records, place)}
    if name == "csv" and target != options.STDOUT and is_regular(Path(target)):
        from xbench.report.formats.csv import tables

        main, *others = (found := tables(records[0]))
        path = Path(target)
        files = {str(path.with_name(f"{path.stem}-{other}{path.suffix}")): found[other] for other in others}
        for beside in files:
            options.check_targets({"--csv": beside})
        return {target: found[main], **files}
    return {target: FORMATS.load(name)(records[0])}


def _show(
    results: Sequence[Path], records: Sequence[AnyRecord], show_all: bool, verbose: bool, *, to_stderr: bool
) -> None:
    """Draw the tables of each result, under its path if there are several."""
    from xbench.report.console import make_console
    from xbench.report.formats.terminal import show

    console = make_console(stderr=to_stderr)
    for path, record in zip(results, records, strict=True):
        if len(records) > 1:
            console.rule(str(path), align="left", style="dim")
        show(record, console, verbose=verbose, all_layers=show_all, place=str(path))
