"""`xbench converge`: what a schedule does to training, on real data."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from xbench.commands.completing import complete_modes, complete_workload
from xbench.commands.options import check_json, run_options, show_result, workload_options, write_json
from xbench.commands.themes import ThemedCommand, examples
from xbench.errors import SpecError

DEFAULT_MODES = "ddp,spb,spb:variant=temporal"


@click.command(
    "converge",
    cls=ThemedCommand,
    short_help="Train on real data under every schedule, and compare loss and accuracy.",
    epilog=examples(
        "xbench converge resnet18 --modes ddp,spb",
        "xbench converge train.py:make --seeds 5 --epochs 8",
    ),
)
@click.argument("workload", shell_complete=complete_workload, default="resnet18")
@click.option("--modes", default=DEFAULT_MODES, show_default=True, metavar="A,B,...", shell_complete=complete_modes,
              help="The schedules, and crossover; xbench modes lists them.")  # fmt: skip
@click.option("--dataset", type=click.Choice(["digits"]), default="digits", show_default=True,
              help="What is learnt: scikit-learn's handwritten digits.")  # fmt: skip
@click.option(
    "--seeds",
    type=click.IntRange(1, 100),
    default=3,
    show_default=True,
    help="Trainings of every mode, each from a seed of its own.",
)
@click.option(
    "--epochs",
    type=click.IntRange(1, 1000),
    default=3,
    show_default=True,
    help="Passes over the data in each training.",
)
@click.option(
    "--samples", type=click.IntRange(1, 1_000_000_000), help="Samples in each training, in place of --epochs."
)
@click.option("--lr", type=float, help="Learning rate at first.  [default: 0.01 for sgd, 0.0001 for adamw]")
@workload_options
@run_options
def converge(
    workload: str,
    modes: str,
    dataset: str,
    seeds: int,
    epochs: int,
    samples: int | None,
    lr: float | None,
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
) -> int:
    """Train on real data under every schedule, and compare loss and accuracy.

    WORKLOAD is an image model from `xbench workloads` or path/to/train.py:make [default: resnet18]. Every mode trains
    the same samples from the same seeds. Shows accuracy and loss with intervals, beside step time, bytes sent, memory
    kept for backward and work done there. An image model gets images of 32 × 32 pixels and a batch of 32 unless options
    say otherwise.
    """
    values: dict[str, Any] = {"batch_size": batch_size, "image_size": image_size, "seq_len": seq_len}
    values |= {"dtype": dtype, "optimizer": optimizer, "seed": seed}
    check_json(json_to)
    if lr is not None and not (math.isfinite(lr) and 0 < lr <= 100):
        raise SpecError(f"--lr: {lr:g} is not above 0 and up to 100", hint="try --lr 0.01")

    from xbench.fabrics import parse_fabric
    from xbench.report.drawing import make_console
    from xbench.runtime.converge import ConvergeRequest, execute
    from xbench.schedules import parse_modes
    from xbench.workloads import parse_workload

    request = ConvergeRequest(
        workload=parse_workload(workload, **values),
        modes=parse_modes(modes),
        fabric=parse_fabric(fabric),
        seeds=seeds,
        epochs=epochs,
        samples=samples,
        lr=lr,
        device=device,
        timeout_s=timeout_s,
        output=output,
    )
    console = make_console()
    record, path, error = execute(request, console)
    console.print()
    show_result(record, json_to)
    console.print(f"\nrecord: {path}", highlight=False, soft_wrap=True)
    write_json(record, json_to)
    if error is not None:
        raise error
    return 1 if any(mode.status == "failed" for mode in record.modes.values()) else 0
