"""`xbench env`: report what this machine has, what works on it, and the cost of what is missing."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from xbench.commands.options import ResultPath, check_json, json_option, write_text
from xbench.errors import RecordError

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
@partial(json_option, told="Write the same facts as JSON too; with - they go to stdout, and the text to stderr.")
def env(like: Path | None, json_to: str | None) -> None:
    """Say what this machine has, what works on it, and what is missing.

    GPUs, driver, links, processor, torch; for each thing that is missing what it costs, and the command that brings it;
    and a fingerprint: times of two results compare when theirs are equal. Takes a few seconds, and answers without
    torch.
    """
    from xbench.machine.inventory import held_against, take_inventory
    from xbench.report.console import make_console
    from xbench.report.machine import render_machine

    check_json(json_to)
    other = _environment(like) if like is not None else None
    machine = take_inventory()
    if other is not None:
        machine = held_against(machine, str(like), other)
    render_machine(machine, make_console(stderr=json_to == "-"))
    write_text(json_to, lambda: machine.model_dump_json(indent=1) + "\n")
