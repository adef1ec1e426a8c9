"""`xbench env` and `clean`: what this machine has and what works on it; and what killed runs left on it."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from xbench.commands.options import ResultPath, check_json, json_option, write_text
from xbench.errors import RecordError, SpecError
from xbench.record_files import results_folder
from xbench.text import counted

if TYPE_CHECKING:
    from xbench.records import Environment


def _environment(path: Path) -> Environment:
    """Read where a result was made. Raises RecordError."""
    from xbench.records import load

    found: Environment | None = getattr(load(path), "environment", None)
    if found is None:
        raise RecordError(f"{str(path)!r} does not say where it was made", hint="give what xbench compare wrote")
    return found


@click.command("env", short_help="Say what this machine has, what works on it, and what is missing.")
@click.option("--like", type=ResultPath(_environment), metavar="RESULT",
              help="Say whether the times of this saved result compare with those taken here.")  # fmt: skip
@click.option("--links", metavar="SPEC",
              help="Raise this --fabric, measure one TCP stream through it, and remove it; nothing else.")  # fmt: skip
@partial(json_option, told="Write the same facts as JSON too; with - they go to stdout, and the text to stderr.")
def env(like: Path | None, links: str | None, json_to: str | None) -> None:
    """Say what this machine has, what works on it, and what is missing.

    Each missing thing has its cost and the command that brings it. Times of two results compare when their fingerprints
    are equal.
    """
    if links is not None:
        for option, given in (("--like", like), ("--json", json_to)):
            if given is not None:
                raise SpecError(f"--links and {option} exclude each other", hint="run one after the other")
        _check_links(links)
        return

    from xbench.environment import held_against, take_inventory
    from xbench.report.console import make_console
    from xbench.report.machine import render_machine

    check_json(json_to)
    other = _environment(like) if like is not None else None
    machine = take_inventory()
    if other is not None:
        machine = held_against(machine, str(like), other)
    render_machine(machine, make_console(stderr=json_to == "-"))
    write_text(json_to, lambda: machine.model_dump_json(indent=1) + "\n")


def _check_links(text: str) -> None:
    """Raise a fabric, say on stderr what one TCP stream achieves in it, and remove it."""
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
        one, many = "temporary folder or unfinished file", "temporary folders and unfinished files"
        told += f", {counted(len(files), one, many)} removed"
    if done.killed:
        told += f", {counted(len(done.killed), 'process', 'processes')} killed"
    click.echo(told, err=True)
