"""Plans of a measured or what-if scenario, and their record: a profile, which `xbench.attach` can read.

All plans are made again with the model of the record's own plans. Without a change, the predictions are therefore those
of the record. `auto` then keeps the record's own buckets: a run may have chosen them in a trial on the real links,
which a search in the simulator cannot repeat.

The record of a what-if has the changed layers, cost model and contention, and its fabric is labelled simulated. It has
no raw samples, because nothing was run. Its warnings name the changes and the source record. Planning from this record
gives the same plans again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from xbench.modes import TUNED_DDP
from xbench.planning.auto import Candidate
from xbench.planning.bounds import bounds
from xbench.planning.contention import link_pace
from xbench.planning.cost import CostCurve
from xbench.planning.merge import ddp_assignment
from xbench.planning.plans import Planner, bucket_caps_mib
from xbench.planning.simulate import Buckets
from xbench.planning.what_if import Scenario
from xbench.records import Bounds, Plan, Profile, of_kind
from xbench.spec import Overlap
from xbench.units import format_bytes

FAR = 1.1
"""Sizes this many times the largest measured one are reported as extrapolated."""

AUTO = "auto"
SEARCHED = "found by search in the simulator, not tried on real links"
KEPT = "as the record has it, not searched again"


@dataclass(frozen=True)
class Planned:
    """A scenario with the plan of each mode; every number in it is simulated."""

    scenario: Scenario
    plans: dict[str, Plan]
    bounds: Bounds
    overlap: Overlap = "backward"
    """Overlap that the recommended mode may use."""

    @property
    def cautions(self) -> list[str]:
        """Cautions about the numbers: the scenario's, and sizes beyond the measured ones."""
        return [*self.scenario.cautions, *self._beyond()]

    def _beyond(self) -> list[str]:
        """Cautions about sizes that were not measured. A ring of more workers cuts the same bytes into smaller
        messages.
        """
        was = self.scenario.measured.cost
        if not was.points:
            return []
        wider = self.scenario.cost.world_size / was.world_size
        smallest, largest = (end(point.nbytes for point in was.points) for end in (min, max))
        sent = max((nbytes for plan in self.plans.values() for nbytes in plan.bucket_bytes), default=0)
        found = []
        if FAR * largest * wider < sent:
            found.append(
                f"All-reduces were measured up to {format_bytes(largest)}{_of(was.world_size, wider)}, and the largest "
                f"bucket here has {format_bytes(sent)}: its time is extrapolated."
            )
        if 0 < sent * FAR < smallest * wider:
            found.append(
                f"All-reduces were measured from {format_bytes(smallest)}{_of(was.world_size, wider)}, and the largest "
                f"bucket here has {format_bytes(sent)}: its messages are taken to need as long as the smallest did."
            )
        return found

    def formed_by_ddp(self, mode: str) -> bool:
        """True if DistributedDataParallel forms this plan's buckets from their caps, by torch's rule."""
        gradients, plan = self.scenario.step.gradients, self.plans[mode]
        caps_mib = bucket_caps_mib(plan, {gradient.name: gradient.dtype for gradient in gradients})
        if not caps_mib:
            return False
        formed = ddp_assignment(gradients, [int(cap * 2**20) for cap in caps_mib])
        names = [sorted(gradients[index].name for index in bucket) for bucket in formed]
        return sorted(names) == sorted(map(sorted, plan.buckets))

    def in_ddp(self, mode: str) -> Plan:
        """The plan of `mode` as DistributedDataParallel runs it: the same buckets on its own reducer."""
        plan = self.plans[mode]
        buckets = _indices(plan, self.scenario)
        if buckets is None:  # never, for a plan of these gradients
            raise ValueError(f"the plan of {mode!r} is not of the gradients of {self.scenario.measured.name!r}")
        return self.scenario.planner.plan(TUNED_DDP, buckets).model_copy(update={"mode": mode})


def replan(scenario: Scenario, modes: Sequence[str] | None = None, *, overlap: Overlap = "backward") -> Planned:
    """Plan each of `modes`; None means all. `overlap` as in `Planner`. Raises SpecError for an unknown mode."""
    step, planner = scenario.step, replace(scenario.planner, overlap=overlap)
    wanted = planner.modes if modes is None else modes
    plans = {mode: _auto(scenario, planner) if mode == AUTO else planner.plan(mode) for mode in wanted}
    lower = bounds(
        step.gradients,
        CostCurve.of(scenario.cost),
        compute_s=scenario.times.uninstrumented_step_s,
        **link_pace(scenario.contention_record),
        **step.parts,
    )
    return Planned(scenario, plans, lower, overlap)


def _auto(scenario: Scenario, planner: Planner) -> Plan:
    """The plan of `auto`: the record's own without a change, else the best of a new search.

    The record's own plan holds for the overlap that its run allowed. For another overlap it is searched again.
    """
    own = None if scenario.changes else scenario.measured.plans.get(AUTO)
    if own is not None and scenario.measured.record.spec.overlap != planner.overlap:
        own = None
    buckets = _indices(own, scenario) if own is not None else None
    told = own.note if own is not None and buckets is not None else None
    if own is None or buckets is None:
        plan = planner.plan(AUTO)
        told = plan.note if plan.carrier is not None else None
        return plan.model_copy(update={"note": f"{SEARCHED}; {told}" if told else SEARCHED})
    note = told or SEARCHED
    if not note.startswith((SEARCHED, KEPT)):
        note = f"{KEPT}: {note}"
    kept = planner.carried(Candidate(AUTO, buckets, 0.0, own.carrier, own.parts))
    return kept.model_copy(update={"note": note})


def _indices(plan: Plan, scenario: Scenario) -> Buckets | None:
    """A plan's buckets as positions in the gradients; None where the plan has other gradients."""
    place = {gradient.name: index for index, gradient in enumerate(scenario.step.gradients)}
    if sorted(name for bucket in plan.buckets for name in bucket) != sorted(place) or not all(plan.buckets):
        return None
    return [[place[name] for name in bucket] for bucket in plan.buckets]


def _of(workers: int, wider: float) -> str:
    """Phrase with the number of workers that a size was measured on, where the plan has another number."""
    return "" if wider == 1 else f" on {workers} workers"


def to_profile(planned: Planned, command: str) -> Profile:
    """A profile record: the measurement with the changes applied, and these plans.

    `command` is the command line. The predictions are of the whole step, as in any profile.
    """
    scenario = planned.scenario
    measured = scenario.measured
    record = measured.record
    changed, profile = bool(scenario.changes), of_kind(record, Profile)
    told = [f"what if: {change}" for change in scenario.changes]
    origin = [f"nothing in this record was measured: it was planned from {measured.name}"] if changed else []
    return Profile(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command,
        spec=record.spec.model_copy(
            update={
                "kind": "profile",
                "workloads": (measured.workload.spec,),
                "modes": (),
                "reference": None,
                "overlap": planned.overlap,
            }
        ),
        environment=record.environment,
        fabric=scenario.fabric,
        complete=record.complete,
        error=record.error,
        warnings=[*record.warnings, *origin, *told, *(planned.cautions if changed else [])],
        workload=measured.workload,
        layers=list(scenario.layers),
        step=scenario.times,
        cost_model=scenario.cost,
        contention=scenario.contention_record,
        bounds=planned.bounds,
        plans=planned.plans,
        samples={} if changed or profile is None else profile.samples,
    )
