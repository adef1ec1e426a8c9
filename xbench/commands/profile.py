"""`xbench profile`: time every layer of a training step, fit the network, and plan schedules."""

from __future__ import annotations

import click

from xbench.commands.compare import run_and_render
from xbench.commands.options import ThemedCommand, examples, json_option, takes, verbose_option
from xbench.config import ProfileConfig


@click.command(
    "profile",
    cls=ThemedCommand,
    short_help="Time every layer of a training step, fit the network, plan schedules.",
    epilog=examples("xbench profile resnet50", "xbench profile train.py:make --fabric local:ranks=2 -v > profile.txt"),
)
@click.argument("names", metavar="[WORKLOAD]", default="resnet50")
@click.option("--all", "all_layers", is_flag=True, help="Show every layer, not only the ten slowest.")
@takes(
    ProfileConfig, "effort", "workloads", "fabric", "device", json_option, "timeout_s", verbose_option,
    "compress",
)  # fmt: skip
def profile(config: ProfileConfig, all_layers: bool, json_to: str | None, verbose: bool) -> int:
    """Time every layer of a training step, fit the network, plan schedules.

    WORKLOAD is a name from `xbench list workloads` or path/to/train.py:make. With more than one rank the all-reduce is
    measured, and every schedule is planned from that.
    """
    return run_and_render(config, json_to, verbose=verbose, all_layers=all_layers)
