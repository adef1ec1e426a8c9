"""`xbench converge`: train on real data and compare the effect of schedules on loss and accuracy."""

from __future__ import annotations

import click

from xbench.commands.completing import complete_workload
from xbench.commands.options import check_json, json_option, show_result, takes, write_json
from xbench.commands.themes import ThemedCommand, examples
from xbench.config import ConvergeConfig


@click.command(
    "converge",
    cls=ThemedCommand,
    short_help="Train on real data under every schedule, and compare loss and accuracy.",
    epilog=examples(
        "xbench converge resnet18 --modes ddp,spb",
        "xbench converge train.py:make --seeds 5 --epochs 8",
    ),
)
@click.argument("names", metavar="[WORKLOAD]", shell_complete=complete_workload, default="resnet18")
@takes(
    ConvergeConfig,
    "modes",
    "dataset",
    "seeds",
    "epochs",
    "samples",
    "lr",
    "workloads",
    "fabric",
    "device",
    json_option,
    "timeout_s",
    "output",
)
def converge(config: ConvergeConfig, json_to: str | None) -> int:
    """Train on real data under every schedule, and compare loss and accuracy.

    WORKLOAD is an image model from `xbench workloads` or path/to/train.py:make [default: resnet18]. Every mode trains
    the same samples from the same seeds. Shows accuracy and loss with intervals, beside step time, bytes sent, memory
    kept for backward and work done there. An image model gets images of 32 × 32 pixels and a batch of 32 unless options
    say otherwise.
    """
    check_json(json_to)

    from xbench.report.console import make_console
    from xbench.runs.converge import execute

    console = make_console()
    record, path, error = execute(config, console)
    console.print()
    show_result(record, json_to)
    console.print(f"\nrecord: {path}", highlight=False, soft_wrap=True)
    write_json(record, json_to)
    if error is not None:
        raise error
    return 1 if any(mode.status == "failed" for mode in record.modes.values()) else 0
