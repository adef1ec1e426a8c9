"""`xbench report RESULT`: the same table as after the run, from the saved record alone."""

from __future__ import annotations

from pathlib import Path

import click

from xbench.commands.options import check_json, json_option, write_json


@click.command(name="report", short_help="Show a saved result again; needs neither torch nor a GPU.")
@click.argument("result", type=click.Path(path_type=Path))
@click.option("--all", "show_all", is_flag=True, help="Every layer of a profile, not the ten largest.")
@json_option
def report(result: Path, show_all: bool, json_to: str | None) -> None:
    """Show a saved result again; needs neither torch nor a GPU.

    RESULT is a record, or the folder of a run such as results/runs/20260101-120000-resnet50. The table goes to stdout;
    with --json - it goes to stderr, and stdout carries the JSON alone.
    """
    from xbench.records import load
    from xbench.report.terminal import make_console, show

    check_json(json_to)
    record = load(result)
    show(record, make_console(stderr=json_to == "-"), all_layers=show_all)
    write_json(record, json_to)
