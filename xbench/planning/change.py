"""What is to be different from the measurement: a rate, a latency, a link, a number of workers, or the device."""

from __future__ import annotations

from dataclasses import dataclass

from xbench.errors import SpecError
from xbench.field_types import MIN_S
from xbench.planning.cost import MAX_WORKERS
from xbench.records import CostModel, FabricRecord
from xbench.spec import FabricSpec
from xbench.units import parse_rate


@dataclass(frozen=True)
class Change:
    """Values that replace measured ones; None: as measured. Raises SpecError for an impossible value.

    `rate_bps` is of one link in one direction, and `latency_s` of one message. `workers` is the total, with
    `ranks_per_host` of them on each host (for the record only). `compute_scale` multiplies the measured compute time
    (0.25: a GPU four times as fast). `link` is the T(M) of a file, which `link_name` names; a rate or latency does not
    go with it.
    """

    rate_bps: float | None = None
    latency_s: float | None = None
    workers: int | None = None
    compute_scale: float | None = None
    ranks_per_host: int | None = None
    link: CostModel | None = None
    link_name: str = ""

    def __post_init__(self) -> None:
        for option, given in (("--rate", self.rate_bps), ("--latency", self.latency_s)):
            if self.link is not None and given is not None:
                raise SpecError(
                    f"--link says how fast the link is, so {option} has no place", hint=f"leave out {option}"
                )
        for option, value, unit, (low, high), example in (
            ("rate", self.rate_bps, " bit/s", (1e3, 1e15), "10gbit"),
            ("latency", self.latency_s, " s", (0.0, 1e3), "50us"),
            ("compute-scale", self.compute_scale, "", (1e-6, 1e6), "0.25"),
        ):
            if value is not None and not low <= value <= high:  # also refuses NaN
                raise SpecError(
                    f"--{option}: {value:g}{unit} is out of range {low:g} to {high:g}",
                    hint=f"as in --{option} {example}",
                )
        if self.latency_s is not None and 0 < self.latency_s < MIN_S:
            raise SpecError(
                f"--latency: {self.latency_s:g} s is below {MIN_S:g} s, which no clock can tell",
                hint="as in --latency 50us, or --latency 0",
            )
        if self.workers is not None and not 2 <= self.workers <= MAX_WORKERS:
            raise SpecError(
                f"--workers: {self.workers} is out of range 2 to {MAX_WORKERS}: an all-reduce is of 2 at least",
                hint=f"try --workers {min(max(self.workers, 2), MAX_WORKERS)}",
            )


def change_to(fabric: FabricSpec, was: FabricRecord) -> Change:
    """The change from the fabric of a record to another. Raises SpecError when there is none."""
    if fabric.name in ("auto", "cluster"):
        raise SpecError(
            f"--fabric {fabric}: it names neither a rate nor a number of workers to plan for",
            hint="write --fabric shaped:hosts=4,rate=10gbit, or --rate and --workers",
        )
    linked = was.rate_bps is not None or was.measured_bps is not None
    if (fabric.name == "shaped") != linked:
        kinds = ("links of a known rate", "no link of a known rate")
        raise SpecError(
            f"the cost model was measured on {was.spec!r} over {was.backend}, which has {kinds[not linked]}, and "
            f"{str(fabric)!r} has {kinds[linked]}: no what-if leads there",
            hint=f"profile it: xbench profile WORKLOAD --fabric {fabric}",
        )
    return Change(
        rate_bps=parse_rate(fabric.rate) if fabric.rate is not None else None,
        workers=fabric.world_size,
        ranks_per_host=fabric.ranks,
    )
