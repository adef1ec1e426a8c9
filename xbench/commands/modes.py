"""`xbench modes`: the schedules and paired modes, one line each."""

from __future__ import annotations

import click

from xbench.schedules import MODES, obstacle


@click.command(name="modes", short_help="List the schedules and paired modes that compare takes.")
def modes() -> None:
    """List the schedules and paired modes that compare takes.

    A paired mode takes a single-job schedule as its carrier, as in crossover:mgwfbp; its default is shown.
    """
    entries = list(MODES)
    width = max(len(entry.name) for entry in entries)
    for title, paired in (("one job:", False), ("two jobs that share the devices:", True)):
        click.echo(title)
        for entry in entries:
            if bool(entry.facts.get("paired")) is paired:
                carrier = f" (carried by {entry.facts['carrier']})" if paired else ""
                why = obstacle(entry.name)
                missing = f" [unavailable: {why}; {entry.facts['remedy']}]" if why else ""
                click.echo(f"  {entry.name:<{width}}  {entry.summary}{carrier}{missing}")
