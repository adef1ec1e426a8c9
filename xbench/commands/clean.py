"""`xbench clean`: remove what killed runs left."""

from __future__ import annotations

import click

from xbench.record_files import results_folder
from xbench.text import counted

FILES = ("temporary folder or unfinished file", "temporary folders and unfinished files")


@click.command("clean", short_help="Remove what killed runs left.")
@click.option("--all", "everything", is_flag=True, help="Remove namespaces of runs that are still alive, too.")
def clean(everything: bool) -> None:
    """Remove what killed runs left: network namespaces and processes in them, temporary folders, unfinished files."""
    from xbench.fabrics import stale

    files = stale.clean_files(results_folder())
    done = stale.clean(everything)
    files += done.files
    for name in [*done.removed, *files]:
        click.echo(f"removed {name}", err=True)
    for name in done.kept:
        click.echo(f"kept {name}: its run is alive (--all removes it)", err=True)
    for name in done.left:
        click.echo(f"left {name}: root made it, and removes it: sudo xbench clean", err=True)
    told = f"{counted(len(done.removed), 'namespace')} removed"
    if files:
        told += f", {counted(len(files), *FILES)} removed"
    if done.killed:
        told += f", {counted(len(done.killed), 'process', 'processes')} killed"
    click.echo(told, err=True)
