"""`xbench scale`: from a saved profile to thousands of workers, by formula."""

from __future__ import annotations

import math
import shlex
import sys
from pathlib import Path

import click

from xbench.commands.completing import complete_modes, complete_result
from xbench.commands.options import (
    check_json_and_csv,
    json_option,
    parsed,
    show_result,
    verbose_option,
    write_csv,
    write_json,
)
from xbench.commands.results import ResultPath
from xbench.commands.themes import ThemedCommand, examples
from xbench.errors import SpecError


@click.command(
    "scale",
    cls=ThemedCommand,
    short_help="Predict every schedule on 2 to 2048 workers from a saved profile; needs no torch.",
    epilog=examples(
        "xbench scale latest",
        "xbench scale latest --workers 8..64 --topology hierarchical:gpus=8",
    ),
)
@click.argument("profile", type=ResultPath(), shell_complete=complete_result)
@click.option(
    "--workers",
    default="2..2048",
    show_default=True,
    metavar="SIZES",
    help="Numbers of workers: 2..2048 doubles, 2,4,8 lists.",
)
@click.option("--topology", default="ring", show_default=True, metavar="NAME",
              help="How all-reduces go: ring, tree (double binary trees), halving-doubling, doubling, or "
                   "hierarchical:gpus=G[,rate=R][,latency=L] with a fast ring inside each host.")  # fmt: skip
@click.option(
    "--modes",
    metavar="A,B,...",
    shell_complete=complete_modes,
    help="Which modes to predict.  [default: all but compute]",
)
@click.option("--rate", metavar="RATE", help="What if links had this rate: 10gbit.")
@click.option("--latency", metavar="DURATION", help="What if a message took this long to arrive: 50us.")
@click.option("--compute-scale", type=float, metavar="X", help="What if computing took X times as long: 0.25.")
@click.option("--error-band", type=float, metavar="SHARE",
              help="How far predictions may be off.  [default: the record's own worst error, else 0.1]")  # fmt: skip
@click.option("--job", type=int, metavar="N", help="Which job of a comparison of two, counted from 1.")
@click.option(
    "--csv", "csv_to", metavar="FILE|-", help="Write a CSV with one row a mode and size; with - it goes to stdout."
)
@json_option
@verbose_option
def scale(
    profile: Path,
    workers: str,
    topology: str,
    modes: str | None,
    rate: str | None,
    latency: str | None,
    compute_scale: float | None,
    error_band: float | None,
    job: int | None,
    csv_to: str | None,
    json_to: str | None,
    verbose: bool,
) -> None:
    """Predict every schedule on 2 to 2048 workers from a saved profile; needs no torch.

    PROFILE is a record of `xbench profile` or `xbench compare`, the folder of its run, or latest. Every number is
    simulated: the measured all-reduce is carried over by the formulas of a topology, and every schedule is planned anew
    for each number of workers.
    """
    from xbench.planning.scale import Request, parse_scaled_modes, parse_workers, to_record
    from xbench.planning.topology import parse_topology
    from xbench.planning.what_if import Change, read, what_if
    from xbench.units import parse_rate, parse_seconds

    check_json_and_csv(json_to, csv_to)
    if error_band is not None and not (math.isfinite(error_band) and 0 <= error_band <= 0.95):
        raise SpecError(f"--error-band: {error_band:g} is not a share from 0 to 0.95", hint="write --error-band 0.1")
    request = Request(parse_topology(topology), parse_workers(workers), parse_scaled_modes(modes), error_band)
    change = Change(
        rate_bps=parsed("--rate", parse_rate, rate) if rate is not None else None,
        latency_s=parsed("--latency", parse_seconds, latency) if latency is not None else None,
        compute_scale=compute_scale,
    )
    scenario = what_if(read(profile, job), change)
    record = to_record(scenario, request, shlex.join(["xbench", *sys.argv[1:]]))
    show_result(record, json_to, csv_to, verbose=verbose)
    write_json(record, json_to)
    write_csv(record, csv_to)
