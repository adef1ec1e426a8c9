"""`xbench validate`: compare predictions to measured steps, over a matrix of workloads and links."""

from __future__ import annotations

from pathlib import Path

import click

from xbench.commands.options import check_json, json_option, show_result, takes, write_json
from xbench.commands.themes import ThemedCommand, examples
from xbench.config import ValidateConfig
from xbench.errors import SpecError


@click.command(
    "validate",
    cls=ThemedCommand,
    short_help="Hold predictions against measured steps, over a matrix of workloads and links.",
    epilog=examples(
        "xbench validate --workloads resnet18 --rates 1gbit",
        "xbench validate --resume latest",
    ),
)
@takes(
    ValidateConfig,
    "workloads",
    "rates",
    "hosts",
    "modes",
    "overlap",
    "collectives",
    "held_out",
    "cell_minutes",
    "resume",
    "device",
    click.option("--markdown", "markdown_to", metavar="FILE|-", help="Write the tables as Markdown too."),
    json_option,
    "timeout_s",
    "output",
)
def validate(config: ValidateConfig, markdown_to: str | None, json_to: str | None) -> int:
    """Hold predictions against measured steps, over a matrix of workloads and links.

    Every workload is profiled and compared on shaped links of every rate: predictions are made from the profile, before
    anything is timed. Shows how far off they were, and whether mode auto kept what it promises. Takes an hour or more;
    the record is saved after every cell, and --resume goes on from it.
    """
    from xbench.report.console import make_console
    from xbench.report.kinds.validation import markdown
    from xbench.runs.validate import validate as run

    check_json(json_to)
    check_json(markdown_to, option="--markdown")
    if json_to == "-" and markdown_to == "-":
        raise SpecError("--json - and --markdown - both want stdout", hint="write --markdown FILE")
    _check_modes(config)
    console = make_console()
    record, path, error = run(config, console)
    console.print()
    show_result(record, json_to, markdown_to)
    console.print(f"\nrecord: {path}", highlight=False, soft_wrap=True)
    write_json(record, json_to)
    if markdown_to == "-":
        click.echo(markdown(record), nl=False)
    elif markdown_to is not None:
        Path(markdown_to).write_text(markdown(record), encoding="utf-8")
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
