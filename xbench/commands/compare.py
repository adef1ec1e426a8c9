"""`xbench profile`, `compare` and `converge`: measure steps and schedules on real links, and show what was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from xbench.commands.options import ThemedCommand, check_json, examples, json_option, show_run, takes, verbose_option
from xbench.config import CompareConfig, ConvergeConfig, ProfileConfig, RunConfig

if TYPE_CHECKING:
    from xbench.runs.launch_policy import LaunchPolicy


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


@click.command(
    "compare",
    cls=ThemedCommand,
    short_help="Run schedules side by side on real links and say which is fastest.",
    epilog=examples(
        "xbench compare resnet18 --quick",
        "xbench compare train.py:make --modes ddp,auto --fabric shaped:hosts=2,rate=1gbit",
        "xbench compare resnet50 --modes sequential,concurrent,crossover",
    ),
)
@click.argument("names", nargs=-1, metavar="[WORKLOAD]...")
@takes(
    CompareConfig, "modes", "reference", "workloads", "effort", "until", "fabric", "device",
    json_option, "timeout_s", verbose_option, "compress",
)  # fmt: skip
def compare(config: CompareConfig, json_to: str | None, verbose: bool) -> int:
    """Run schedules side by side on real links and say which is fastest.

    WORKLOAD is a name from `xbench list workloads` or path/to/train.py:make [default: resnet50]. Two, or a paired mode
    such as crossover, make two jobs that share the devices. A schedule that does not train DDP's network is shown as
    failed.
    """
    if config.until is None:
        return run_and_render(config, json_to, verbose=verbose)

    from xbench.runs.launch_policy import UntilPrecise

    return run_and_render(config, json_to, UntilPrecise(*config.until), verbose=verbose)


def run_and_render(
    config: RunConfig,
    json_to: str | None,
    policy: LaunchPolicy | None = None,
    *,
    verbose: bool,
    all_layers: bool = False,
) -> int:
    """Execute a run, show its record, and write JSON on request. Return the exit code or raise the XbenchError."""
    check_json(json_to)

    from xbench.report.console import make_console
    from xbench.runs.execute import execute

    console = make_console()
    result = execute(config, console, policy)
    if not result.speaks:  # rank 0 holds the samples and shows them
        return result.error.exit_code if result.error is not None else 0
    show_run(
        console, result.record, result.path, json_to, verbose=verbose, all_layers=all_layers, place=str(result.path)
    )
    if result.error is not None:
        raise result.error
    failed = getattr(result.record, "modes", {})
    return 1 if any(mode.status == "failed" for mode in failed.values()) else 0


@click.command(
    "converge",
    cls=ThemedCommand,
    short_help="Train on real data under every schedule, and compare loss and accuracy.",
    epilog=examples("xbench converge resnet18 --modes ddp,spb", "xbench converge train.py:make --seeds 5 --epochs 8"),
)
@click.argument("names", metavar="[WORKLOAD]", default="resnet18")
@takes(
    ConvergeConfig, "modes", "dataset", "seeds", "epochs", "samples", "lr", "batch_size", "image_size", "seq_len",
    "dtype", "optimizer", "optimizer_impl", "seed", "fabric", "device", json_option, "timeout_s",
)  # fmt: skip
def converge(config: ConvergeConfig, json_to: str | None) -> int:
    """Train on real data under every schedule, and compare loss and accuracy.

    WORKLOAD is an image model from `xbench list workloads` or path/to/train.py:make [default: resnet18]. Every mode
    trains the same samples from the same seeds; images have 32 × 32 pixels, and a batch 32 of them.
    """
    check_json(json_to)

    from xbench.report.console import make_console
    from xbench.runs.converge import execute

    console = make_console()
    record, path, error = execute(config, console)
    show_run(console, record, path, json_to)
    if error is not None:
        raise error
    return 1 if any(mode.status == "failed" for mode in record.modes.values()) else 0
