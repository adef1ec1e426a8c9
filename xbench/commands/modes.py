"""`xbench modes`: list the schedules and paired modes, one line each."""

from __future__ import annotations

import click

from xbench.modes import MODES
from xbench.schedules import obstacle


@click.command(name="modes", short_help="List the schedules and paired modes that compare takes.")
def modes() -> None:
    """List the schedules and paired modes that compare takes.

    A paired mode takes a single-job schedule as its carrier, as in crossover:mgwfbp; its default is shown.
    """
    infos = list(MODES)
    width = max(len(info.name) for info in infos)
    for title, paired in (("one job:", False), ("two jobs that share the devices:", True)):
        click.echo(title)
        for info in infos:
            if info.paired is paired:
                carrier = f" (gradients exchanged with {info.base_schedule})" if paired else ""
                why = obstacle(info.name)
                remedy = f"; {info.remedy}" if info.remedy else ""
                missing = f" [unavailable: {why}{remedy}]" if why else ""
                click.echo(f"  {info.name:<{width}}  {info.summary}{carrier}{missing}")
    for name, why in MODES.broken.items():
        click.echo(f"{name} cannot be imported: {why}", err=True)
