"""Options of the commands that plan from a record, one field an option. `xbench.config` has those that measure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from xbench.config import overlap_option, read_fabric
from xbench.errors import SpecError
from xbench.option_fields import option, parsed
from xbench.units import parse_rate, parse_seconds

if TYPE_CHECKING:
    from xbench.spec import FabricSpec, Overlap


def _error_band(value: float) -> float:
    if math.isfinite(value) and 0 <= value <= 0.95:
        return value
    raise SpecError(f"--error-band: {value:g} is not a share from 0 to 0.95", hint="write --error-band 0.1")


@dataclass(frozen=True, kw_only=True)
class WhatIfConfig:
    """Changes to a record before plans are made from it. `xbench plan` and `xbench scale` share them."""

    modes: str | None = None
    rate_bps: float | None = option(
        "--rate",
        read=lambda text: parsed("--rate", parse_rate, text),
        metavar="RATE",
        help="What if links had this rate: 10gbit.",
    )
    latency_s: float | None = option(
        "--latency",
        read=lambda text: parsed("--latency", parse_seconds, text),
        metavar="DURATION",
        help="What if a message took this long to arrive: 50us.",
    )
    compute_scale: float | None = option(
        "--compute-scale", type=float, metavar="X", help="What if computing took X times as long: 0.25."
    )
    job: int | None = option(
        "--job", type=int, metavar="N", help="Job to plan for, counted from 1, where a comparison has two."
    )


@dataclass(frozen=True, kw_only=True)
class PlanConfig(WhatIfConfig):
    """Options of `xbench plan`."""

    fabric: FabricSpec | None = option(
        "--fabric",
        read=read_fabric,
        metavar="SPEC",
        complete="fabric",
        help="Plan for shaped:hosts=H,rate=R[,ranks=K] in place of what was measured.",
    )
    modes: str | None = option("--modes", metavar="A,B,...", complete="modes", help="Modes to plan.  [default: all]")
    emit: str = option(
        "--emit",
        type=click.Choice(["table", "json", "ddp", "python"]),
        default="table",
        help="What goes to stdout: the table, the record, or a snippet to paste.",
    )
    mode: str | None = option(
        "--mode",
        metavar="MODE",
        complete="mode",
        help="Mode of a snippet's plan.  [default: the fastest; for ddp, of ddp-tuned and auto]",
    )
    workers: int | None = option("--workers", type=int, metavar="N", help="What if there were N workers in a ring.")
    overlap: Overlap = overlap_option()


@dataclass(frozen=True, kw_only=True)
class ScaleConfig(WhatIfConfig):
    """Options of `xbench scale`."""

    workers: str = option(
        "--workers", default="2..2048", metavar="SIZES", help="Numbers of workers: 2..2048 doubles, 2,4,8 lists."
    )
    topology: str = option(
        "--topology",
        default="ring",
        metavar="NAME",
        help="All-reduce algorithm: ring, tree (double binary trees), halving-doubling, doubling, or "
        "hierarchical:gpus=G[,rate=R][,latency=L] with a fast ring inside each host.",
    )
    modes: str | None = option(
        "--modes", metavar="A,B,...", complete="modes", help="Modes to predict.  [default: all but compute]"
    )
    error_band: float | None = option(
        "--error-band",
        type=float,
        read=_error_band,
        metavar="SHARE",
        help="Relative error of predictions.  [default: the record's own worst error, else 0.1]",
    )
