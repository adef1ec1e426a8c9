"""`xbench profile`: time every layer of a training step, fit the network, plan schedules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from xbench.commands.compare import run_and_render
from xbench.commands.completing import complete_workload
from xbench.commands.options import (
    carry_options,
    check_json,
    nvtx_option,
    run_options,
    verbose_option,
    workload_options,
)
from xbench.commands.themes import ThemedCommand, examples


@click.command(
    "profile",
    cls=ThemedCommand,
    short_help="Time every layer of a training step, fit the network, plan schedules.",
    epilog=examples(
        "xbench profile resnet50",
        "xbench profile train.py:make --fabric local:ranks=2 -v > profile.txt",
    ),
)
@click.argument("workload", shell_complete=complete_workload, default="resnet50")
@click.option("--all", "all_layers", is_flag=True, help="Every layer, not only the ten that take longest.")
@click.option("--steps", type=click.IntRange(3, 1000), default=16, show_default=True, help="Instrumented steps.")
@workload_options
@run_options
@verbose_option
@nvtx_option
@carry_options
def profile(
    workload: str,
    all_layers: bool,
    steps: int,
    batch_size: int | None,
    image_size: int | None,
    seq_len: int | None,
    dtype: str,
    optimizer: str,
    seed: int,
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
    """Time every layer of a training step, fit the network, plan schedules.

    WORKLOAD is a name from `xbench workloads` or path/to/train.py:make. With a fabric of more than one rank the
    all-reduce is measured from 1 KiB to the whole gradient (or 4 s), and every schedule is planned from that.
    """
    values: dict[str, Any] = {"batch_size": batch_size, "image_size": image_size, "seq_len": seq_len}
    values |= {"dtype": dtype, "optimizer": optimizer, "seed": seed}
    check_json(json_to)

    from xbench.fabrics import parse_fabric
    from xbench.runtime.prepare import RunRequest
    from xbench.spec import Effort
    from xbench.workloads import parse_workload

    request = RunRequest(
        kind="profile",
        workloads=[parse_workload(workload, **values)],
        fabric=parse_fabric(fabric),
        effort=Effort(profile_steps=steps, launches=1),
        device=device,
        timeout_s=timeout_s,
        output=output,
        nvtx=nvtx,
        copies=copies,  # type: ignore[arg-type]
        compress=compress,  # type: ignore[arg-type]
        collectives=collectives,  # type: ignore[arg-type]
    )
    return run_and_render(request, json_to, verbose=verbose, all_layers=all_layers)
