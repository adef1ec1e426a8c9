"""`xbench runs`: list earlier results."""

from __future__ import annotations

import json
from pathlib import Path

import click

from xbench.config import RUNS
from xbench.record_files import run_folders


@click.command("runs", short_help="List earlier runs, newest first; needs no torch.")
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), default=RUNS, show_default=True,
              help="Folder that keeps the runs.")  # fmt: skip
@click.option("--most", type=click.IntRange(1, 1_000_000), default=10, show_default=True, help="Runs to list.")
@click.option("--json", "as_json", is_flag=True, help="Print the same facts as JSON.")
def runs(output: Path, most: int, as_json: bool) -> None:
    """List earlier runs, newest first; needs no torch.

    Each run is shown with its time, kind and subject, the first sentence of its report, and its path. `latest` stands
    for the newest run wherever a command takes a result: `xbench report latest`.
    """
    from xbench.report import runs as told
    from xbench.report.console import make_console

    folders = run_folders(output)
    found = [told.read_run(folder) for folder in folders[:most]]
    if as_json:
        click.echo(json.dumps(told.as_json(found), indent=1, ensure_ascii=False))
        return
    told.render_runs(found, make_console(stderr=False))
    if not folders:
        click.echo(f"no runs in {output}", err=True)
    elif len(folders) > most:
        click.echo(f"{len(folders) - most} more: --most {len(folders)} lists them", err=True)
