"""`xbench compare`: run schedules side by side on real links and say which is fastest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xbench.commands.completing import complete_mode, complete_modes, complete_workload
from xbench.commands.options import (
    carry_options,
    check_json,
    effort_from,
    effort_options,
    nvtx_option,
    overlap_option,
    run_options,
    show_result,
    verbose_option,
    workload_options,
    write_json,
)
from xbench.commands.themes import ThemedCommand, examples

if TYPE_CHECKING:
    from xbench.runtime.prepare import RunRequest

DEFAULT_MODES = "compute,ddp,single,wfbp,mgwfbp,optimal,auto"


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
@click.argument("workloads", nargs=-1, metavar="[WORKLOAD]...", shell_complete=complete_workload)
@click.option(
    "--modes",
    default=DEFAULT_MODES,
    show_default=True,
    metavar="A,B,...",
    shell_complete=complete_modes,
    help="Schedules and paired modes; xbench modes lists them. MODE@NAME names a second copy.",
)
@click.option(
    "--reference",
    metavar="MODE",
    shell_complete=complete_mode,
    help="What the others are compared with; two jobs, with sequential.  [default: ddp, else the first]",
)
@overlap_option
@workload_options
@effort_options
@run_options
@verbose_option
@nvtx_option
@carry_options
def compare(
    workloads: tuple[str, ...],
    modes: str,
    reference: str | None,
    overlap: str,
    batch_size: int | None,
    image_size: int | None,
    seq_len: int | None,
    dtype: str,
    optimizer: str,
    seed: int,
    launches: int | None,
    rounds: int | None,
    steps: int | None,
    quick: bool,
    rigorous: bool,
    fabric: str,
    device: str,
    json_to: str | None,
    timeout_s: float,
    output: Path,
    verbose: bool,
    nvtx: bool,
    copies: str | None,
    compress: str | None,
    collectives: str,
) -> int:
    """Run schedules side by side on real links and say which is fastest.

    WORKLOAD is a name from `xbench workloads` or path/to/train.py:make [default: resnet50]. Name two, or none or one
    with a paired mode such as crossover, and two jobs share the devices. Before timing, every schedule must train the
    network that DDP trains; a schedule that does not is shown as failed.
    """
    values: dict[str, Any] = {"batch_size": batch_size, "image_size": image_size, "seq_len": seq_len}
    values |= {"dtype": dtype, "optimizer": optimizer, "seed": seed}
    check_json(json_to)
    effort = effort_from(launches=launches, rounds=rounds, steps=steps, quick=quick, rigorous=rigorous)

    from xbench.fabrics import parse_fabric
    from xbench.runtime.prepare import RunRequest
    from xbench.schedules import parse_modes
    from xbench.workloads import parse_workload

    request = RunRequest(
        kind="comparison",
        workloads=[parse_workload(name, **values) for name in workloads or ("resnet50",)],
        modes=parse_modes(modes),
        reference=reference,
        fabric=parse_fabric(fabric),
        effort=effort,
        device=device,
        timeout_s=timeout_s,
        output=output,
        nvtx=nvtx,
        copies=copies,  # type: ignore[arg-type]
        compress=compress,  # type: ignore[arg-type]
        overlap=overlap,  # type: ignore[arg-type]
        collectives=collectives,  # type: ignore[arg-type]
    )
    return run_and_render(request, json_to, verbose=verbose)


def run_and_render(request: RunRequest, json_to: str | None, *, verbose: bool, all_layers: bool = False) -> int:
    """Execute a request, show its record, write JSON where asked: exit code, or the run's XbenchError."""
    from xbench.report.drawing import make_console
    from xbench.runtime.run import execute

    console = make_console()
    result = execute(request, console)
    if result.speaks:
        console.print()
        show_result(result.record, json_to, verbose=verbose, all_layers=all_layers, place=str(result.path))
        console.print(f"\nrecord: {result.path}", highlight=False, soft_wrap=True)
        write_json(result.record, json_to)
    else:  # rank 0 shows it, and has the samples
        return result.error.exit_code if result.error is not None else 0
    if result.error is not None:
        raise result.error
    failed = getattr(result.record, "modes", {})
    return 1 if any(mode.status == "failed" for mode in failed.values()) else 0
