"""`xbench fabric`: list fabrics, check that one works here, and remove what a killed run left."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from xbench.commands.options import list_entries
from xbench.config import RUNS
from xbench.text import counted

FILES = ("temporary folder or unfinished file", "temporary folders and unfinished files")


@click.group("fabric", short_help="List and check fabrics, or remove what killed runs left.")
def fabric() -> None:
    """List and check fabrics, or remove what killed runs left.

    A shaped fabric is a set of network namespaces named xb<run id>-<host>. A run removes its own, and its temporary
    folders, whatever happens, save when it is killed with SIGKILL; then `xbench fabric clean` does.
    """


@fabric.command("list")
def list_fabrics() -> None:
    """List the fabrics that --fabric takes."""
    from xbench.fabrics import FABRICS

    list_entries(FABRICS)


@fabric.command("clean")
@click.option("--all", "everything", is_flag=True, help="Remove namespaces of runs that are still alive, too.")
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), default=RUNS, show_default=True,
              help="Folder of results, below which unfinished files are looked for.")  # fmt: skip
def clean(everything: bool, output: Path) -> None:
    """Remove what killed runs left: namespaces and processes in them, temporary folders, unfinished files."""
    from xbench.fabrics import stale

    files = stale.clean_files(output)
    done = stale.clean(everything)
    files += done.files
    for name in [*done.removed, *files]:
        click.echo(f"removed {name}", err=True)
    for name in done.kept:
        click.echo(f"kept {name}: its run is alive (--all removes it)", err=True)
    for name in done.left:
        click.echo(f"left {name}: root made it, and removes it: sudo xbench fabric clean", err=True)
    told = f"{counted(len(done.removed), 'namespace')} removed"
    if files:
        told += f", {counted(len(files), *FILES)} removed"
    if done.killed:
        told += f", {counted(len(done.killed), 'process', 'processes')} killed"
    click.echo(told, err=True)


@fabric.command("check")
@click.argument("text", metavar="[FABRIC]", default="shaped:hosts=2,rate=1gbit")
def check(text: str) -> None:
    """Raise a fabric, measure one TCP stream through it, remove it.

    FABRIC is what --fabric takes.  [default: shaped:hosts=2,rate=1gbit]
    """
    from xbench.fabrics import choose, open_fabric, parse_fabric, rootless
    from xbench.units import format_percent, format_rate, parse_rate

    spec, reason = choose(parse_fabric(text), gpus=0, environ=os.environ)
    if rootless.reexec_needed(spec):
        click.echo("as an ordinary user: in a user namespace", err=True)
        rootless.reexec(sys.argv)
    with open_fabric(spec) as raised:
        click.echo(f"{spec}: {reason}", err=True)
        for host in raised.hosts:
            cores = "; ".join(",".join(map(str, rank)) for rank in host.cores)
            click.echo(f"host {host.index}: {host.name}, {host.address} on {host.interface}, cores {cores}", err=True)
        measured = raised.measure_bandwidth()
        if measured is not None and spec.rate is not None:
            asked = parse_rate(spec.rate)
            share = format_percent(measured / asked)
            click.echo(f"asked {format_rate(asked)}, measured {format_rate(measured)} ({share})", err=True)
        for line in [*raised.notes, *raised.warnings]:
            click.echo(line, err=True)
