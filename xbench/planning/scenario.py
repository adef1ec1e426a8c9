"""Scenarios: plans of what was measured, or of another rate, latency, number of workers or device (docs/plan.md).

A plan has three measured inputs: the compute part (`StepModel`), the time T(M) of one all-reduce of M bytes
(`CostModel`), and the slow-down of computation and communication by each other (`Contention`). A what-if rewrites them
and changes nothing else. All plans are made again with the model of the record's own plans, so without a change the
predictions are those of the record. `auto` then keeps the record's own buckets: a run may have chosen them in a trial
on the real links, which a search in the simulator cannot repeat.

The record of a what-if is a profile with the changed layers, cost model and contention, and a fabric that is labelled
simulated. It has no raw samples, because nothing was run. Planning from it gives the same plans again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from xbench import records
from xbench.errors import SpecError
from xbench.field_types import MIN_S
from xbench.modes import TUNED_DDP, mode_info
from xbench.planning import conversion
from xbench.planning.auto import Candidate
from xbench.planning.bounds import bounds
from xbench.planning.contention import Contention
from xbench.planning.cost import MAX_WORKERS, CostCurve, ring
from xbench.planning.measured import (
    Link,
    Measured,
    Rewrite,
    check_ring,
    planned_contention,
)
from xbench.planning.merge import ddp_assignment
from xbench.planning.plans import Planner, bucket_caps_mib
from xbench.planning.simulate import Buckets
from xbench.planning.step import StepModel
from xbench.planning.topology import Topology
from xbench.record_files import now
from xbench.records import Bounds, CostModel, FabricRecord, Layer, Plan, Profile, StepTimes, of_kind
from xbench.spec import FabricSpec
from xbench.units import format_bytes, format_rate, format_seconds, parse_rate

FAR_RATE = 10.0
"""A rate above this multiple of the measured rate, or below this fraction of it, is far from the measurement."""

FAR_SIZE = 1.1
"""A size above this multiple of the largest measured one, or below this fraction of the least, is reported."""

SEARCHED = "found by search in the simulator, not tried on real links"
KEPT = "as the record has it, not searched again"


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


@dataclass(frozen=True)
class Scenario:
    """Inputs of plans: the measurements with these changes. `cautions` state the limits of the changes.

    `layers`, `times`, `cost` and `contention_record` have the form of a record, and the rest is derived from them. So a
    record that holds them gives the same scenario again.
    """

    measured: Measured
    layers: tuple[Layer, ...]
    times: StepTimes
    step: StepModel
    cost: CostModel
    contention_record: records.Contention | None
    fabric: FabricRecord
    compute_scale: float = 1.0
    given_cost: CostModel | None = None
    """T(M) of a file in place of the measured one."""
    changes: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()

    @cached_property
    def contention(self) -> Contention | None:
        """Contention of communication and computation in this scenario; None where it was not measured."""
        return planned_contention(self.contention_record, self.cost)

    @property
    def basis(self) -> CostModel:
        """T(M) before a change of rate, latency or workers: the measured one, or that of a file."""
        return self.given_cost or self.measured.cost

    @property
    def planner(self) -> Planner:
        """Planner of this scenario."""
        return Planner(self.step, self.cost, self.contention, tuple(self.measured.workload.buffer_bytes), self.layers)


def what_if(measured: Measured, change: Change) -> Scenario:
    """The scenario of a change. A value equal to the measured one changes nothing, to the last digit.

    Raises SpecError for a measurement on another topology than a ring.
    """
    was = Scenario(
        measured, measured.layers, measured.times, measured.step, measured.cost, measured.contention_record,
        measured.fabric,
    )  # fmt: skip
    given = _on_the_link_of_a_file(was, change)
    found = _in_another_ring(_on_another_link(given, change), change)
    if found.cost is not given.cost:
        try:
            check_ring(was.fabric)
        except ValueError as error:
            raise SpecError(
                f"no what-if from {measured.name!r}: {error}",
                hint="emulate what you ask about: --fabric emulated:workers=…,topology=…",
            ) from None
    found = _on_another_device(found, change)
    return replace(found, fabric=_fabric(was.fabric, change, found.cost.world_size)) if found.changes else was


def _on_the_link_of_a_file(was: Scenario, change: Change) -> Scenario:
    """The scenario with the T(M) of a file, which is of as many workers as the file says."""
    if change.link is None:
        return was
    both = was.contention_record
    told = f"T(M) of {change.link_name} ({change.link.world_size} workers) in place of the measured one"
    caution = "What traffic costs computation was measured on another link, and is taken as nothing on this one."
    return replace(
        was,
        cost=change.link,
        given_cost=change.link,
        contention_record=None if both is None or both.points else both,  # a host's launches are not of a link
        changes=(told,),
        cautions=(caution,) if both is not None and both.points else (),
    )


def _on_another_link(was: Scenario, change: Change) -> Scenario:
    """The scenario with another rate and latency."""
    cost, both = was.cost, was.contention_record
    link = Link.of(was.fabric, cost)
    messages = 2 * (cost.world_size - 1)
    alpha_s = cost.alpha_s if change.latency_s is None else change.latency_s * messages
    slower = 1.0 if change.rate_bps is None else link.asked_bps / change.rate_bps
    if slower == 1.0 and alpha_s == cost.alpha_s:
        return was
    told: list[str] = []
    cautions: list[str] = []
    if change.rate_bps is not None and slower != 1.0:
        told.append(
            f"links of {format_rate(change.rate_bps)} in place of {format_rate(link.asked_bps)}: what the link took of "
            f"each all-reduce, at {format_rate(link.achieved_bps)} as measured, × {slower:.4g}"
        )
        if was.fabric.rate_bps is None and was.fabric.measured_bps is None:
            cautions.append("No link's rate was measured: the bus bandwidth of the largest all-reduce stands for it.")
        if slower < 1:
            cautions.append("What hosts need for each byte hid behind the slower link: a faster one may help less.")
        if not 1 / FAR_RATE <= slower <= FAR_RATE:
            cautions.append(f"{format_rate(change.rate_bps)} is far from the {format_rate(link.asked_bps)} measured.")
    if change.latency_s is not None and alpha_s != cost.alpha_s:
        told.append(
            f"{format_seconds(change.latency_s)} a message in place of {format_seconds(cost.alpha_s / messages)}, with "
            f"{messages} messages an all-reduce of the {cost.world_size} workers measured"
        )
    rewrite = Rewrite(link.wire_s_per_byte, slower, cost.alpha_s, alpha_s)
    if both is not None and both.points:
        cautions.append("An all-reduce is taken to need as much of the host as it did when it was measured.")
        if rewrite.host_bound(both):
            cautions.append(
                "Beside computation the host then sets the pace of an all-reduce, and not the link: it is taken to "
                "divide its time evenly."
            )
    return replace(
        was,
        cost=rewrite.model(cost),
        contention_record=both and rewrite.contention(both),
        changes=tuple(told),
        cautions=tuple(cautions),
    )


def _in_another_ring(was: Scenario, change: Change) -> Scenario:
    """The scenario with another number of workers."""
    before, workers, both = was.cost.world_size, change.workers, was.contention_record
    if workers is None or workers == before:
        return was
    messages, nbytes = (new / old for new, old in zip(ring(1, 1, workers), ring(1, 1, before), strict=True))
    told = (
        f"{workers} workers in place of {before}, in a ring: messages × {messages:.4g}, bytes on each link × "
        f"{nbytes:.4g}"
    )
    cautions = ["More workers wait for the slowest of more; this takes all to be as fast as those measured."]
    flat = conversion.flat_ring_caution(was.measured.fabric) if change.link is None else None
    cautions += [flat] if flat is not None else []
    return replace(
        was,
        cost=conversion.carried_over(was.cost, Topology("ring"), workers),
        contention_record=both and conversion.carried_to(both, was.cost, workers),
        changes=(*was.changes, told),
        cautions=(*was.cautions, *cautions),
    )


def _on_another_device(was: Scenario, change: Change) -> Scenario:
    """The scenario with another time of computation."""
    scale, both = change.compute_scale, was.contention_record
    if scale is None or scale == 1.0:
        return was
    layers, times = (
        tuple(conversion.scaled_layer(layer, scale) for layer in was.layers),
        conversion.scaled_times(was.times, scale),
    )
    step = StepModel.of(layers, times)
    told = (
        f"compute × {scale:g}: {format_seconds(step.compute_s)} a step in place of "
        f"{format_seconds(was.step.compute_s)}, every layer alike"
    )
    caution = "Communication may slow another device down by more or less: here by the ratio measured on this one."
    return replace(
        was,
        layers=layers,
        times=times,
        step=step,
        contention_record=both and conversion.scaled_contention(both, scale),
        compute_scale=scale,
        changes=(*was.changes, told),
        cautions=(*was.cautions, caution) if both is not None and both.points else was.cautions,
    )


def _fabric(was: FabricRecord, change: Change, workers: int) -> FabricRecord:
    """The fabric record of a what-if: simulated, without measured values."""
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
            "rate_bps": change.rate_bps or (was.rate_bps if change.link is None else None),
            "measured_bps": None,
            "allreduce_bps": None,
            "cores_per_rank": [],
        }
    )


@dataclass(frozen=True)
class Planned:
    """A scenario with the plan of each mode; every number in it is simulated."""

    scenario: Scenario
    plans: dict[str, Plan]
    bounds: Bounds

    @property
    def cautions(self) -> list[str]:
        """Cautions about the numbers: the scenario's, and sizes beyond the measured ones.

        A ring of more workers cuts the same bytes into smaller messages.
        """
        found, was = list(self.scenario.cautions), self.scenario.basis
        if not was.points:
            return found
        wider = self.scenario.cost.world_size / was.world_size
        smallest, largest = (end(point.nbytes for point in was.points) for end in (min, max))
        sent = max((nbytes for plan in self.plans.values() for nbytes in plan.bucket_bytes), default=0)
        of = "" if wider == 1 else f" on {was.world_size} workers"
        whole = f"{of}, and the largest bucket here has {format_bytes(sent)}: its"
        if FAR_SIZE * largest * wider < sent:
            found.append(f"All-reduces were measured up to {format_bytes(largest)}{whole} time is extrapolated.")
        if 0 < sent * FAR_SIZE < smallest * wider:
            found.append(
                f"All-reduces were measured from {format_bytes(smallest)}{whole} messages are taken to need as long as "
                "the smallest did."
            )
        return found

    def formed_by_ddp(self, mode: str) -> bool:
        """True if DistributedDataParallel forms this plan's buckets from their caps, by torch's rule."""
        gradients, plan = self.scenario.step.gradients, self.plans[mode]
        caps_mib = bucket_caps_mib(plan, {gradient.name: gradient.dtype for gradient in gradients})
        formed = ddp_assignment(gradients, [int(cap * 2**20) for cap in caps_mib]) if caps_mib else []
        names = [sorted(gradients[index].name for index in bucket) for bucket in formed]
        return bool(caps_mib) and sorted(names) == sorted(map(sorted, plan.buckets))

    def in_ddp(self, mode: str) -> Plan:
        """The plan of `mode` as DistributedDataParallel runs it: the same buckets on its own reducer."""
        planner = self.scenario.planner
        return planner.plan(TUNED_DDP, planner.indices(self.plans[mode])).model_copy(update={"mode": mode})


def replan(scenario: Scenario, modes: Sequence[str] | None = None) -> Planned:
    """Plan each of `modes`; None means `Planner.modes`. Raises SpecError for an unknown mode."""
    step, planner = scenario.step, scenario.planner
    wanted = planner.modes if modes is None else modes
    searched = [mode for mode in wanted if mode_info(mode).searches != "none"]
    plans = {mode: _searched(scenario, mode) if mode in searched else planner.plan(mode) for mode in wanted}
    curve, compute_s = CostCurve.of(scenario.cost), scenario.times.uninstrumented_step_s
    lower = bounds(step.gradients, curve, compute_s=compute_s, contention=scenario.contention, **step.parts)
    return Planned(scenario, plans, lower)


def _searched(scenario: Scenario, mode: str) -> Plan:
    """The plan of a search: the record's own without a change of the scenario, else that of a new search."""
    own, planner = scenario.measured.plans.get(mode), scenario.planner
    buckets = _indices(own, scenario) if own is not None else None
    if own is None or buckets is None or scenario.changes:
        plan = planner.plan(mode)
        return plan.model_copy(update={"note": f"{SEARCHED}; {plan.note}" if plan.carrier else SEARCHED})
    note = own.note or SEARCHED
    if not note.startswith((SEARCHED, KEPT)):
        note = f"{KEPT}: {note}"
    kept = planner.carried(Candidate(mode, buckets, 0.0, own.carrier, own.parts), mode)
    return kept.model_copy(update={"note": note})


def _indices(plan: Plan, scenario: Scenario) -> Buckets | None:
    """A plan's buckets as positions in the gradients; None where the plan has other gradients."""
    known = sorted(gradient.name for gradient in scenario.step.gradients)
    if sorted(name for bucket in plan.buckets for name in bucket) != known or not all(plan.buckets):
        return None
    return scenario.planner.indices(plan)


def to_profile(planned: Planned, command: str) -> Profile:
    """A profile record of the `command` line: the measurement with the changes applied, and these plans."""
    scenario, measured = planned.scenario, planned.scenario.measured
    record, profile = measured.record, of_kind(measured.record, Profile)
    told = [f"what if: {change}" for change in scenario.changes]
    if told:
        origin = f"nothing in this record was measured: it was planned from {measured.name}"
        told = [origin, *told, *planned.cautions]
    return Profile(
        created=now(),
        command=command,
        spec=record.spec.model_copy(
            update={
                "kind": "profile",
                "workloads": (measured.workload.spec,),
                "modes": (),
                "reference": None,
            }
        ),
        environment=record.environment,
        fabric=scenario.fabric,
        complete=record.complete,
        error=record.error,
        warnings=[*record.warnings, *told],
        workload=measured.workload,
        layers=list(scenario.layers),
        step=scenario.times,
        cost_model=scenario.cost,
        contention=scenario.contention_record,
        bounds=planned.bounds,
        plans=planned.plans,
        samples={} if scenario.changes or profile is None else profile.samples,
        traced=None if scenario.changes or profile is None else profile.traced,
    )
