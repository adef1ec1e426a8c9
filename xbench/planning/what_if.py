"""What-if scenarios: another rate, latency, number of workers or device.

A plan has three measured inputs: the compute part (`StepModel`), the time T(M) of one all-reduce of M bytes
(`CostModel`), and the slow-down of computation and communication by each other (`Contention`). A what-if rewrites them
as stated here and changes nothing else. Every number that follows is simulated.

| change | T(M) | contention | | --- | --- | --- | | rate, latency | parts of each time (`what_if_link`) | a
collective's host time is kept (`what_if_link`) | | workers | another ring, by messages (`topology`) | by size of
message (`topology.carried_contention`) | | compute | unchanged | slow-down ratios are kept, hooks and copies scale with
compute (`what_if_compute`) |

For a point of M bytes, two times are kept when a rate or a latency changes. One is the host time taken from
computation, d(M) = (1 − 1/σ) · loaded_s. The other is the time that computation adds to a collective, loaded_s −
alone_s. alone_s is rewritten in the same way as T.

A value equal to the measured one changes nothing, to the last digit. A record without contention is planned as if
communication did not slow computation, except for ready times that were measured under traffic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from xbench import records
from xbench.errors import RecordError, SpecError
from xbench.field_types import MIN_S
from xbench.planning.contention import Contention
from xbench.planning.cost import CostCurve, ring
from xbench.planning.plans import Planner
from xbench.planning.step import StepModel
from xbench.planning.topology import Topology, carried_over
from xbench.planning.what_if_checks import (
    check_contention,
    check_curve,
    check_origin,
    check_ring,
    check_sizes,
    check_step,
    check_times,
)
from xbench.planning.what_if_compute import scaled_contention, scaled_layer, scaled_times
from xbench.planning.what_if_link import Link, Rewrite, carried_to
from xbench.records import (
    Comparison,
    CostModel,
    FabricRecord,
    Job,
    Layer,
    Plan,
    Profile,
    StepTimes,
    WorkloadRecord,
    load_measured,
)
from xbench.spec import FabricSpec
from xbench.text import counted
from xbench.units import format_rate, format_seconds, parse_rate

MAX_WORKERS = 1_000_000
FAR = 10.0
"""A rate above this multiple of the measured rate, or below this fraction of it, is far from the measurement."""


@dataclass(frozen=True)
class Measured:
    """One job of a record, with all inputs of a plan. `name` stands for the record in errors and notes."""

    name: str
    record: Profile | Comparison
    workload: WorkloadRecord
    layers: tuple[Layer, ...]
    times: StepTimes
    step: StepModel
    cost: CostModel
    contention_record: records.Contention | None = None
    plans: Mapping[str, Plan] = field(default_factory=dict)
    """The record's own plans."""

    @cached_property
    def contention(self) -> Contention | None:
        """Contention of communication and computation; None where it was not measured."""
        return _contention(self.contention_record, self.cost)

    @property
    def buffer_bytes(self) -> tuple[int, ...]:
        """Buffers that DDP broadcasts before each forward pass, one entry per dtype [B]."""
        return tuple(self.workload.buffer_bytes)

    @property
    def fabric(self) -> FabricRecord:
        """The fabric of the cost model's measurement."""
        return self.record.fabric

    @property
    def measured_step_s(self) -> dict[str, float]:
        """Measured step of each single-job mode that ran and passed its parity check; empty for a profile.

        It is also empty for a comparison of several jobs.
        """
        if len(self.record.profiled) > 1:
            return {}
        return {
            name: mode.step_s.median
            for name, mode in self.record.modes.items()
            if mode.step_s is not None and mode.status == "ok" and (mode.parity is None or mode.parity.ok)
        }


def read(path: Path, job: int | None = None) -> Measured:
    """The measurements in a record, or in a run's folder. Raises RecordError and SpecError as `measured` does."""
    return measured(load_measured(path), str(path), job)


def measured(record: Profile | Comparison, name: str, job: int | None = None) -> Measured:
    """The inputs of a plan from `record`; `job` counts from 1 and chooses among those of a comparison.

    Raises RecordError for a record that cannot be planned (no cost model, no step, no gradients, invalid times). Raises
    SpecError for a job that the record does not have, for different jobs when none was chosen, and for a record with
    compressed gradients.
    """
    if record.spec.compress is not None:
        raise SpecError(
            f"{name!r} was measured with gradients compressed to {record.spec.compress}, and plans are of what was not",
            hint="profile it again without --compress",
        )
    found: list[Profile | Job] = list(record.profiled)
    if job is not None and not 1 <= job <= len(found):
        raise SpecError(f"--job {job}: {name!r} holds {counted(len(found), 'job')}", hint="they count from 1")
    twins = all(other.workload == found[0].workload for other in found)
    if job is None and not twins:
        titles = " and ".join(f"{place} ({one.workload.title})" for place, one in enumerate(found, start=1))
        raise SpecError(f"{name!r} holds the jobs {titles}, and a plan is of one", hint="add --job 1")
    if not found:
        raise RecordError(f"{name!r} holds no job: nothing to plan")
    chosen = found[(job or 1) - 1]
    if not chosen.layers:
        raise RecordError(f"{name!r} has no layers with gradients: nothing to plan", hint=_ended(record))
    if chosen.step is None:
        raise RecordError(f"{name!r} says nothing of how long a step takes", hint=_ended(record))
    cost = record.cost_model
    if cost is None:
        where = "one rank" if record.fabric.world_size == 1 else record.fabric.spec
        raise RecordError(
            f"{name!r} has no cost model: it was measured on {where}, where no all-reduce was timed",
            hint=f"xbench profile {chosen.workload.spec.name} --fabric shaped:hosts=2,rate=1gbit times them",
        )
    both = chosen.contention and chosen.contention.model_copy(update={"stalls": []})
    try:
        check_times(chosen.layers, chosen.step, cost)
        check_sizes(chosen.layers, chosen.workload.buffer_bytes)
        check_origin(cost, record.fabric)
        check_curve(cost)
        step = StepModel.of(chosen.layers, chosen.step)
        check_step(step)
    except (ValueError, OverflowError) as error:
        raise RecordError(f"{name!r} cannot be planned: {error}") from None
    try:
        check_contention(both)
        _contention(both, cost)
    except ValueError as error:
        raise RecordError(f"{name!r}: its contention is not valid: {error}") from None
    return Measured(name, record, chosen.workload, tuple(chosen.layers), chosen.step, step, cost, both, chosen.plans)


@dataclass(frozen=True)
class Change:
    """Values that replace measured ones; None: as measured. Raises SpecError for an impossible value.

    `rate_bps` is of one link in one direction, and `latency_s` of one message. `workers` is the total, with
    `ranks_per_host` of them on each host (for the record only). `compute_scale` multiplies the measured compute time
    (0.25: a GPU four times as fast).
    """

    rate_bps: float | None = None
    latency_s: float | None = None
    workers: int | None = None
    compute_scale: float | None = None
    ranks_per_host: int | None = None

    def __post_init__(self) -> None:
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
            near = min(max(self.workers, 2), MAX_WORKERS)
            raise SpecError(
                f"--workers: {self.workers} is out of range 2 to {MAX_WORKERS}: an all-reduce is of 2 at least",
                hint=f"try --workers {near}",
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


@dataclass(frozen=True)
class Scenario:
    """Inputs of plans: the measurements with these changes. `cautions` state the limits of the changes.

    `layers`, `times`, `cost` and `contention_record` have the form of a record, and the rest is derived from them. So a
    record that holds them gives the same scenario again. Without a change, all values are the measured ones, to the
    last digit.
    """

    measured: Measured
    layers: tuple[Layer, ...]
    times: StepTimes
    step: StepModel
    cost: CostModel
    contention_record: records.Contention | None
    fabric: FabricRecord
    compute_scale: float = 1.0
    changes: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()

    @cached_property
    def contention(self) -> Contention | None:
        """Contention of communication and computation in this scenario; None where it was not measured."""
        return _contention(self.contention_record, self.cost)

    @property
    def planner(self) -> Planner:
        """Planner of this scenario."""
        return Planner(self.step, self.cost, self.contention, self.measured.buffer_bytes, self.layers)


def what_if(measured: Measured, change: Change) -> Scenario:
    """The scenario of a change. A value equal to the measured one changes nothing. Raises SpecError."""
    was = measured.cost
    cost, both = was, measured.contention_record
    layers, times, step = measured.layers, measured.times, measured.step
    told: list[str] = []
    cautions: list[str] = []
    link = Link.of(measured.fabric, was)
    alpha_s = was.alpha_s if change.latency_s is None else ring(change.latency_s, 0.0, 0.0, was.world_size)[0]
    slower = 1.0 if change.rate_bps is None else link.asked_bps / change.rate_bps
    if slower != 1.0 or alpha_s != was.alpha_s:
        rewrite = Rewrite(link.wire_s_per_byte, slower, was.alpha_s, alpha_s)
        told, cautions = _told_of_the_link(measured, change, link, alpha_s, slower)
        cost = rewrite.model(was)
        if both is not None and both.points:
            cautions += _told_of_the_host(rewrite, both)
        both = rewrite.contention(both) if both is not None else None
    workers = change.workers if change.workers is not None else was.world_size
    if cost is not was or workers != was.world_size:
        try:
            check_ring(measured.fabric)
        except ValueError as error:
            raise SpecError(
                f"no what-if from {measured.name!r}: {error}",
                hint="emulate what you ask about: --fabric emulated:workers=…,topology=…",
            ) from None
    if workers != was.world_size:
        both = carried_to(both, cost, workers) if both is not None else None
        cost = carried_over(cost, Topology("ring"), workers)
        told.append(f"{workers} workers in place of {was.world_size}, in a ring: {_ring(was.world_size, workers)}")
        cautions.append("More workers wait for the slowest of more; this takes all to be as fast as those measured.")
    scale = change.compute_scale if change.compute_scale is not None else 1.0
    if scale != 1.0:
        layers, times = tuple(scaled_layer(layer, scale) for layer in layers), scaled_times(times, scale)
        step = StepModel.of(layers, times)
        both = scaled_contention(both, scale) if both is not None else None
        told.append(
            f"compute × {scale:g}: {format_seconds(step.compute_s)} a step in place of "
            f"{format_seconds(measured.step.compute_s)}, every layer alike"
        )
        if both is not None and both.points:
            cautions.append(
                "Communication may slow another device down by more or less: here by the ratio measured on this one."
            )
    return Scenario(
        measured=measured,
        layers=layers,
        times=times,
        step=step,
        cost=cost,
        contention_record=both,
        fabric=measured.fabric if not told else _fabric(measured.fabric, change, cost),
        compute_scale=scale,
        changes=tuple(told),
        cautions=tuple(cautions),
    )


def _told_of_the_link(
    measured: Measured, change: Change, link: Link, alpha_s: float, slower: float
) -> tuple[list[str], list[str]]:
    """Sentences on the changes of rate and latency, and cautions about them."""
    was = measured.cost
    told: list[str] = []
    cautions: list[str] = []
    if change.rate_bps is not None and slower != 1.0:
        told.append(
            f"links of {format_rate(change.rate_bps)} in place of {format_rate(link.asked_bps)}: what the link took of "
            f"each all-reduce, at {format_rate(link.achieved_bps)} as measured, × {slower:.4g}"
        )
        if measured.fabric.rate_bps is None and measured.fabric.measured_bps is None:
            cautions.append("No link's rate was measured: the bus bandwidth of the largest all-reduce stands for it.")
        if slower < 1:
            cautions.append("What hosts need for each byte hid behind the slower link: a faster one may help less.")
        if not 1 / FAR <= slower <= FAR:
            cautions.append(f"{format_rate(change.rate_bps)} is far from the {format_rate(link.asked_bps)} measured.")
    if change.latency_s is not None and alpha_s != was.alpha_s:
        messages = 2 * (was.world_size - 1)
        told.append(
            f"{format_seconds(change.latency_s)} a message in place of {format_seconds(was.alpha_s / messages)}, with "
            f"{messages} messages an all-reduce of the {was.world_size} workers measured"
        )
    return told, cautions


def _told_of_the_host(rewrite: Rewrite, was: records.Contention) -> list[str]:
    """Cautions about the contention on another link, one sentence each."""
    told = ["An all-reduce is taken to need as much of the host as it did when it was measured."]
    if rewrite.host_bound(was):
        told.append(
            "Beside computation the host then sets the pace of an all-reduce, and not the link: it is taken to divide "
            "its time evenly."
        )
    return told


def _ring(was: int, now: int) -> str:
    """Phrase on the all-reduce of another ring."""
    messages, nbytes = (ring(1.0, 0.0, 0.0, now)[0] / ring(1.0, 0.0, 0.0, was)[0],
                        ring(0.0, 1.0, 0.0, now)[1] / ring(0.0, 1.0, 0.0, was)[1])  # fmt: skip
    return f"messages × {messages:.4g}, bytes on each link × {nbytes:.4g}"


def _fabric(was: FabricRecord, change: Change, cost: CostModel) -> FabricRecord:
    """The fabric record of a what-if: simulated, without measured values."""
    workers = cost.world_size
    per_host = change.ranks_per_host or (workers if was.hosts == 1 else was.ranks_per_host)
    if workers % per_host:
        per_host = 1
    return was.model_copy(
        update={
            "label": "simulated",
            "spec": f"what if from {was.spec}",
            "hosts": workers // per_host,
            "ranks_per_host": per_host,
            "world_size": workers,
            "rate_bps": change.rate_bps or was.rate_bps,
            "measured_bps": None,
            "allreduce_bps": None,
            "cores_per_rank": [],
        }
    )


def _contention(both: records.Contention | None, cost: CostModel) -> Contention | None:
    """Contention for plans; None where nothing was measured. Raises ValueError for an invalid point."""
    return Contention.of(both, CostCurve.of(cost)) if both is not None and both.points else None


def _ended(record: Profile | Comparison) -> str:
    why = "its run ended before that was measured; " if not record.complete else ""
    return f"{why}xbench profile WORKLOAD measures it"
