"""Emulated cluster: real computation here, and collectives that take the time of a cost model.

    emulated:workers=64,rate=25gbit,latency=20us,topology=ring      from a link's figures, by the formulas of `scale`
    emulated:from=RECORD                                            as a profile or comparison measured it
    emulated:from=RECORD,workers=64                                 the same, extrapolated to more workers
    emulated:link=FILE                                              as nccl-tests, NCCL Inspector or a CSV tells

One process runs, as a worker that stands for all. `ranks=2` runs two, whose gradients are really averaged, so that the
emulation can be checked. The cost of collectives to the computation is taken from the record (`contention=off` leaves
it out), or is `contention=1.2`: a computation during a collective takes 1.2 times as long. With a record every process
has as many cores as its ranks had, because work that shared a core there must share one here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from xbench.errors import RecordError, SpecError
from xbench.fabrics.fabric import MAX_RANKS, Fabric, this_machine
from xbench.planning.conversion import carried_over, carried_to
from xbench.planning.measured import check_contention, check_curve, check_ring
from xbench.planning.topology import parse_topology
from xbench.record_files import is_record
from xbench.records import Comparison, Contention, CostModel, EmulatedLink, FabricRecord, Label, Profile, load_measured
from xbench.spec import DeviceType, FabricSpec, known_options, parse_int
from xbench.traces.link import link_cost
from xbench.units import format_seconds, parse_rate, parse_seconds

WORKERS, RATE, LATENCY, TOPOLOGY = 64, "25gbit", "20us", "ring"
MAX_WORKERS = 1_000_000
MIN_RATE_BPS, MAX_RATE_BPS = 1e6, 1e13
MAX_LATENCY_S = 10.0
MAX_SLOWDOWN = 10.0
OPTIONS = ("workers", "rate", "latency", "topology", "from", "link", "contention", "ranks")


class EmulatedFabric(Fabric):
    """This machine, its loopback device, and an emulated link. Raises SpecError as `link_of` does."""

    label: ClassVar[Label] = "emulated"

    def __init__(self, spec: FabricSpec, run_id: str, device: DeviceType = "cpu") -> None:
        super().__init__(spec, run_id, device)
        self.emulated = link_of(spec)
        if device == "cuda" and self.emulated.contention is not None:
            self.emulated = self.emulated.model_copy(update={"contention": None})
            self.notes.append("the record's contention is of processors, and a GPU's is not emulated from it")
        measured = cores_measured(spec) if device == "cpu" else None
        (cores,) = self._cores_by_host()
        self.hosts = [this_machine(tuple(rank[:measured] for rank in cores))]
        model = self.emulated.model
        self.notes.append(
            f"a link that is not there: collectives of {model.world_size} workers take "
            f"{format_seconds(model.alpha_s)} + {model.beta_s_per_byte * 1e9:.3g} s/GB, "
            + ("as measured" if spec.source is not None else "by the formula")
        )

    def describe(self, backend: str = "emulated") -> FabricRecord:
        """See `Fabric.describe`. Collectives count as emulated, whatever backend carries the ranks' data."""
        return super().describe("emulated")

    @classmethod
    def parse(cls, text: str, options: dict[str, str]) -> FabricSpec:
        """`emulated` (64 workers, 25gbit, 20us, ring), or with any of the options. Raises SpecError, RecordError."""
        known_options(text, options, OPTIONS)
        ranks = parse_int(text, "ranks", options.get("ranks", "1"), 1, MAX_RANKS)
        workers = parse_int(text, "workers", options.get("workers", str(WORKERS)), 2, MAX_WORKERS)
        topology = str(parse_topology(options.get("topology", TOPOLOGY)))
        contention = _contention(text, options)
        given = next((key for key in ("from", "link") if key in options), None)
        if given is not None:
            for key in ("rate", "latency", *(["link"] if given == "from" else [])):
                if key in options:
                    raise SpecError(
                        f"{text!r}: {given}= says how fast the link is, so {key}= has no place",
                        hint=f"leave out {key}=",
                    )
            if "topology" in options and "workers" not in options:
                raise SpecError(f"{text!r}: topology= is for another number of workers", hint="add workers=64")
            asked = workers if "workers" in options else None
            if given == "from":
                load_measured(Path(options["from"]))
            measured = _measured(options[given], asked)[1].world_size
            workers = asked or measured
            link: dict[str, Any] = {
                "source": options[given],
                "topology": topology if "topology" in options or workers != measured else None,
            }
        else:
            rate, latency = options.get("rate", RATE).lower(), options.get("latency", LATENCY).lower()
            if not MIN_RATE_BPS <= parse_rate(rate) <= MAX_RATE_BPS:
                near = "1mbit" if parse_rate(rate) < MIN_RATE_BPS else "10tbit"
                raise SpecError(f"{text!r}: rate={rate} is out of range 1mbit to 10tbit", hint=f"try rate={near}")
            if parse_seconds(latency) > MAX_LATENCY_S:
                raise SpecError(f"{text!r}: latency={latency} is longer than {MAX_LATENCY_S:g} s", hint="try 20us")
            link = {"rate": rate, "latency": latency, "topology": topology}
        spec = FabricSpec(name="emulated", workers=workers, contention=contention, ranks=ranks, **link)
        if ranks > workers:
            raise SpecError(f"{text!r}: {ranks} ranks are more than its {workers} workers", hint=f"try ranks={workers}")
        link_of(spec)
        return spec


def _contention(text: str, options: dict[str, str]) -> str | None:
    text_value = options.get("contention")
    if text_value is None or text_value == "off" or (text_value == "on" and "from" in options):
        return text_value
    if text_value == "on":
        raise SpecError(
            f"{text!r}: contention=on is the record's, and no record is named",
            hint="try contention=1.2, or from=RECORD",
        )
    try:
        slowdown = float(text_value)
    except ValueError:
        slowdown = 0.0
    if not 1.0 <= slowdown <= MAX_SLOWDOWN:
        raise SpecError(
            f"{text!r}: contention={text_value} is not on, off or a slow-down of 1 to {MAX_SLOWDOWN:g}",
            hint="try contention=1.2",
        )
    return text_value


def _measured(source: str, workers: int | None) -> tuple[Profile | Comparison | None, CostModel]:
    """The record and its cost model; no record for a file of another tool, whose T(M) may be of `workers`.

    Raises RecordError for a record without a cost model or with an invalid one, and UsageError as `link_cost` does.
    """
    if not is_record(Path(source)):
        return None, link_cost([Path(source)], world_size=workers)
    record = load_measured(Path(source))
    if record.cost_model is None:
        raise RecordError(
            f"{source!r} has no cost model, so no link can be emulated from it", hint="profile on two ranks or more"
        )
    if record.spec.compress is not None:
        raise RecordError(
            f"{source!r} was measured with gradients compressed to {record.spec.compress}, so its times are of fewer "
            "bytes than it says",
            hint="profile it again without --compress",
        )
    try:
        check_curve(record.cost_model)
        check_contention(_contention_of(record))
    except ValueError as error:
        raise RecordError(f"{source!r}: {error}") from None
    return record, record.cost_model


def _contention_of(record: Profile | Comparison) -> Contention | None:
    found = record.profiled[0].contention
    return found if found is not None and found.points else None


def cores_measured(spec: FabricSpec) -> int | None:
    """Cores per rank on the measured link; None without a measurement, or without pinned ranks."""
    record = _measured(spec.source, spec.workers)[0] if spec.source is not None else None
    return min(map(len, record.fabric.cores_per_rank), default=None) if record is not None else None


def link_of(spec: FabricSpec) -> EmulatedLink:
    """The link of an emulated fabric's spec. Raises RecordError for an unusable source."""
    slowdown = float(spec.contention) if spec.contention not in (None, "on", "off") else None
    if spec.source is None:
        workers = spec.workers or WORKERS
        topology = parse_topology(spec.topology or TOPOLOGY)
        alpha_s, beta_s_per_byte = topology.line(
            parse_seconds(spec.latency or LATENCY), 8 / parse_rate(spec.rate or RATE), workers
        )
        model = CostModel(
            backend="formula",
            world_size=workers,
            alpha_s=alpha_s,
            beta_s_per_byte=beta_s_per_byte,
            alpha_ci95=(alpha_s, alpha_s),
            beta_ci95=(beta_s_per_byte, beta_s_per_byte),
            max_relative_residual=0.0,
            points=[],
        )
        return EmulatedLink(model=model, slowdown=slowdown)
    record, model = _measured(spec.source, spec.workers)
    contention = _contention_of(record) if record is not None and spec.contention in (None, "on") else None
    if spec.contention == "on" and contention is None:
        raise RecordError(f"{spec.source!r} did not measure contention", hint="leave out contention=on")
    workers = spec.workers or model.world_size
    if workers != model.world_size or spec.topology is not None:
        topology = parse_topology(spec.topology or TOPOLOGY)
        try:
            if record is not None:
                check_ring(record.fabric)
        except ValueError as error:
            raise RecordError(
                f"{spec.source!r}: {error}", hint="leave out workers and topology, for the link as it was"
            ) from None
        contention = carried_to(contention, model, workers) if contention is not None else None
        model = carried_over(model, topology, workers)
    return EmulatedLink(model=model, contention=contention, slowdown=slowdown, source=spec.source)
