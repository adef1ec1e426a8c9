"""`xbench report`: saved results in any format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from xbench.commands.options import (
    STDOUT,
    Output,
    ThemedCommand,
    check_targets,
    examples,
    format_option,
    is_latest,
    json_option,
    latest,
    resolve,
    verbose_option,
    write_json,
    write_text,
)
from xbench.errors import SpecError
from xbench.output_files import is_regular

if TYPE_CHECKING:
    from xbench.records import AnyRecord

OF_SEVERAL = "html"
"""The only format that shows several results in one file."""


@click.command(
    "report",
    cls=ThemedCommand,
    short_help="Show a saved result again; needs neither torch nor a GPU.",
    epilog=examples(
        "xbench report latest",
        "xbench report latest --html",
        "xbench report before.json after.json --html compared.html",
    ),
)
@click.argument("results", nargs=-1, type=click.Path(path_type=Path), metavar="[RESULT]...")  # fmt: skip
@click.option("--all", "show_all", is_flag=True, help="Every layer of a profile, not the ten largest.")
@format_option("html", "One page that opens offline, with plots; several RESULTs in one.")
@format_option("trace", "The recorded and predicted steps, for ui.perfetto.dev or chrome://tracing.")
@format_option("markdown", "Short, for a pull request; layers and environment folded.")
@format_option("csv", "Tidy tables: samples, and beside FILE steps, modes and layers.")
@format_option("junit", "JUnit XML for CI systems, one case a mode.")
@json_option
@verbose_option
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
            check_targets({"--json": json_to}, [Path(json_to)], "name the result first, and {option} FILE after it")
        results = (latest(use),)
        click.echo(f"the latest run: {results[0]}", err=True)
    results = tuple(latest(use) if is_latest(path) else path for path in results)
    asked = {name: formats[f"{name}_to"] for name in ("html", "trace", "markdown", "csv", "junit")}
    outputs = resolve(asked, results, json_to)
    _check_together(len(results), outputs, json_to)
    records = [load(path) for path in results]
    for output, files in [(output, _rendered(output, records, str(results[0]))) for output in outputs]:
        for target, text in files.items():
            _write(output.format, target, text)
    if not outputs:
        _show(results, records, show_all, verbose, to_stderr=json_to == STDOUT)
    write_json(records[0], json_to)


def _rendered_trace(path: Path) -> str:
    """Return the trace of a result. Raises UsageError for one without steps to draw."""
    from xbench.records import load
    from xbench.report import FORMATS

    return str(FORMATS.load("trace")(load(path)))


def _check_together(count: int, outputs: Sequence[Output], json_to: str | None) -> None:
    """Raise SpecError if a format for one result gets several."""
    single = [output.option for output in outputs if output.format != OF_SEVERAL] + (["--json"] if json_to else [])
    if count > 1 and single:
        raise SpecError(
            f"{single[0]} takes one RESULT, and there are {count}",
            hint=f"run it once for each; --{OF_SEVERAL} takes several",
        )


def _rendered(output: Output, records: Sequence[AnyRecord], place: str) -> dict[str, str]:
    """Return the texts to write, by target. Nothing is written until all are rendered. `place` is the first's path."""
    from xbench.report import FORMATS

    if output.format == OF_SEVERAL:
        from xbench.report.formats.html import page

        return {output.target: page(records, place)}
    if output.format == "csv" and output.target != STDOUT and is_regular(Path(output.target)):
        from xbench.report.formats.csv import tables

        main, *others = (found := tables(records[0]))
        path = Path(output.target)
        files = {str(path.with_name(f"{path.stem}-{name}{path.suffix}")): found[name] for name in others}
        for target in files:
            check_targets({output.option: target})
        return {output.target: found[main], **files}
    return {output.target: FORMATS.load(output.format)(records[0])}


def _write(format: str, target: str, text: str) -> None:
    """Write to stdout, or to a file, and print its path on stderr. Raises as `write_text` does."""
    write_text(target, lambda: text)
    if target != STDOUT:
        click.echo(f"{format}: {target}", err=True)


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
