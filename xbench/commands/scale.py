"""`xbench scale`: predict steps on thousands of workers from a saved profile, by formula."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from xbench.commands.completing import complete_result
from xbench.commands.options import (
    check_json_and_csv,
    json_option,
    show_result,
    takes,
    verbose_option,
    write_csv,
    write_json,
)
from xbench.commands.results import ResultPath
from xbench.commands.themes import ThemedCommand, examples
from xbench.plan_config import ScaleConfig


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
@takes(
    ScaleConfig,
    "workers",
    "topology",
    "modes",
    "rate_bps",
    "latency_s",
    "compute_scale",
    "error_band",
    "job",
    click.option(
        "--csv",
        "csv_to",
        metavar="FILE|-",
        help="Write a CSV with one row per mode and size; with - it goes to stdout.",
    ),
    json_option,
    verbose_option,
)
def scale(config: ScaleConfig, profile: Path, csv_to: str | None, json_to: str | None, verbose: bool) -> None:
    """Predict every schedule on 2 to 2048 workers from a saved profile; needs no torch.

    PROFILE is a record of `xbench profile` or `xbench compare`, the folder of its run, or latest. Every number is
    simulated: the measured all-reduce is carried over by the formulas of a topology, and every schedule is planned anew
    for each number of workers.
    """
    from xbench.planning.measured import read
    from xbench.planning.scale import Request, parse_scaled_modes, parse_workers, to_record
    from xbench.planning.scenario import Change, what_if
    from xbench.planning.topology import parse_topology

    check_json_and_csv(json_to, csv_to)
    topology, workers = parse_topology(config.topology), parse_workers(config.workers)
    request = Request(topology, workers, parse_scaled_modes(config.modes), config.error_band)
    change = Change(rate_bps=config.rate_bps, latency_s=config.latency_s, compute_scale=config.compute_scale)
    scenario = what_if(read(profile, config.job), change)
    record = to_record(scenario, request, shlex.join(["xbench", *sys.argv[1:]]))
    show_result(record, json_to, csv_to, verbose=verbose)
    write_json(record, json_to)
    write_csv(record, csv_to)
