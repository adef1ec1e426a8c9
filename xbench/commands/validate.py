"""`xbench validate`: compare predictions to measured steps, over a matrix of workloads and links."""

from __future__ import annotations

import click

from xbench.commands.options import ThemedCommand, check_targets, examples, json_option, show_run, takes, write_text
from xbench.config import ValidateConfig
from xbench.errors import SpecError
from xbench.output_files import MARKDOWN_MARK


@click.command(
    "validate",
    cls=ThemedCommand,
    short_help="Hold predictions against measured steps, over a matrix of workloads and links.",
    epilog=examples(
        "xbench validate --workloads resnet18 --rates 1gbit",
        "xbench validate --cells 24 --hosts 2,2,2,3,4",
        "xbench validate --resume latest",
    ),
)
@takes(
    ValidateConfig, "workloads", "links", "rates", "hosts", "modes", "collectives", "held_out", "cells",
    "seed", "cell_minutes", "resume", "device",
    click.option("--markdown", "markdown_to", metavar="FILE|-", help="Write the tables as Markdown too."),
    json_option, "timeout_s", "output",
)  # fmt: skip
def validate(config: ValidateConfig, markdown_to: str | None, json_to: str | None) -> int:
    """Hold predictions against measured steps, over a matrix of workloads and links.

    Every workload is profiled and compared on shaped links of every rate: predictions are made from the profile, before
    anything is timed. Shows how far off they were, and whether mode auto kept what it promises. Takes an hour or more;
    the record is saved after every cell, and --resume goes on from it. With --cells, so many cells are drawn by a seed,
    and the same command goes on from its own record.
    """
    from xbench.report.console import make_console
    from xbench.report.kinds.validation import markdown
    from xbench.runs.validate import validate as run

    check_targets({"--json": json_to, "--markdown": markdown_to})
    _check_modes(config)
    console = make_console()
    record, path, error = run(config, console)
    show_run(console, record, path, json_to, markdown_to)
    write_text(markdown_to, lambda: f"{MARKDOWN_MARK}\n\n{markdown(record)}")
    if error is not None:
        raise error
    return 1 if any(cell.error is not None for cell in record.cells) else 0


def _check_modes(config: ValidateConfig) -> None:
    """Raise SpecError for modes that cannot be validated."""
    from xbench.modes import mode_info

    for mode in config.modes:
        if mode_info(mode.name).gradients == "partial":
            raise SpecError(f"--modes: {mode.text!r} cannot be validated: it trains another network than DDP")
        if mode.paired or mode.text != mode.name:
            raise SpecError(
                f"--modes: {mode.text!r} cannot be validated: it takes single-job modes, each once",
                hint=f"write {mode.carrier}",
            )
