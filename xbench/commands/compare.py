"""`xbench compare`: run schedules side by side on real links and say which is fastest."""

from __future__ import annotations

import click

from xbench.commands.completing import complete_workload
from xbench.commands.options import check_json, json_option, show_result, takes, verbose_option, write_json
from xbench.commands.themes import ThemedCommand, examples
from xbench.config import RunConfig


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
@click.argument("names", nargs=-1, metavar="[WORKLOAD]...", shell_complete=complete_workload)
@takes(
    RunConfig,
    "modes",
    "reference",
    "overlap",
    "workloads",
    "effort",
    "fabric",
    "device",
    json_option,
    "timeout_s",
    "output",
    verbose_option,
    "nvtx",
    "copies",
    "compress",
    "collectives",
)
def compare(config: RunConfig, json_to: str | None, verbose: bool) -> int:
    """Run schedules side by side on real links and say which is fastest.

    WORKLOAD is a name from `xbench workloads` or path/to/train.py:make [default: resnet50]. Name two, or none or one
    with a paired mode such as crossover, and two jobs share the devices. Before timing, every schedule must train the
    network that DDP trains; a schedule that does not is shown as failed.
    """
    return run_and_render(config, json_to, verbose=verbose)


def run_and_render(config: RunConfig, json_to: str | None, *, verbose: bool, all_layers: bool = False) -> int:
    """Execute a run, show its record, and write JSON on request. Return the exit code or raise the XbenchError."""
    check_json(json_to)

    from xbench.report.console import make_console
    from xbench.runs.execute import execute

    console = make_console()
    result = execute(config, console)
    if result.speaks:
        console.print()
        show_result(result.record, json_to, verbose=verbose, all_layers=all_layers, place=str(result.path))
        console.print(f"\nrecord: {result.path}", highlight=False, soft_wrap=True)
        write_json(result.record, json_to)
    else:  # rank 0 holds the samples and shows them
        return result.error.exit_code if result.error is not None else 0
    if result.error is not None:
        raise result.error
    failed = getattr(result.record, "modes", {})
    return 1 if any(mode.status == "failed" for mode in failed.values()) else 0
