"""Conversion of a planner's plans to the `JobPlan` that ranks time, for every trainable parameter.

Nothing here imports torch, because plans may come from a record as well as from a new profile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xbench.modes import MODES, mode_info
from xbench.planning.bounds import bounds
from xbench.planning.cost import CostCurve
from xbench.planning.plans import Planner
from xbench.rank.events import SchedulesPlanned
from xbench.rank.program import JobPlan
from xbench.records import Contention as ContentionRecord
from xbench.records import Plan


def job_plan(
    planner: Planner, plans: Mapping[str, Plan], compute_s: float, contention: ContentionRecord | None
) -> tuple[JobPlan, SchedulesPlanned]:
    """Return the `JobPlan` of these plans, and the journal's event. Every rank gets the same."""
    step, cost = planner.step, planner.cost
    curve = CostCurve.of(cost) if cost is not None else CostCurve.line(0.0, 0.0)
    lower = bounds(step.gradients, curve, compute_s=compute_s, contention=planner.contention, **step.parts)
    paced = {info.name: plans[info.paced_by] for info in MODES if info.paced_by is not None and info.paced_by in plans}
    event = SchedulesPlanned(cost_model=cost, contention=contention, plans=dict(plans), bounds=lower)
    buckets = {name: p.buckets if mode_info(name).takes_plan else None for name, p in plans.items()}
    for info in MODES:
        taken = next((plans[other].buckets for other in info.buckets_of if other in plans), None)
        if taken is not None:
            buckets[info.name] = taken
    plans = {**plans, **paced}
    plan = JobPlan(
        buckets={**buckets, **dict.fromkeys(paced)},
        step_s={name: p.predicted_step_s for name, p in plans.items()},
        exposed_s={name: p.predicted_exposed_s for name, p in plans.items()},
        link_s={name: float(sum(curve(float(nbytes)) for nbytes in p.bucket_bytes)) for name, p in plans.items()},
        compute_s=compute_s,
        parts={name: p.parts for name, p in plans.items() if p.parts is not None},
        carriers={name: p.carrier for name, p in plans.items() if p.carrier is not None},
    )
    return plan, event


def with_missing(buckets: list[list[str]], missing: Sequence[str]) -> list[list[str]]:
    """Return the buckets, and one at the end for each parameter that got no gradient during profiling.

    It may get one later, on some ranks or all. Every trainable parameter must be in exactly one bucket.
    """
    return [*buckets, *([name] for name in missing)]


def complete(plan: JobPlan, missing: Mapping[str, int], *, sometimes_missing: bool = False) -> JobPlan:
    """Add the parameters (name: bytes) that got no gradient during profiling to each plan, as `with_missing` does.

    The parts of their buckets are sent after all others, because planned parameters are needed more often.
    `sometimes_missing`: whether a parameter got no gradient in some step of some rank. DDP must search for that as
    well.
    """
    if not missing:
        return plan.model_copy(update={"unused_parameters": True}) if sometimes_missing else plan
    buckets = {name: with_missing(b, list(missing)) if b is not None else None for name, b in plan.buckets.items()}
    parts = {name: p.followed_by(list(missing.values())) for name, p in plan.parts.items()}
    return plan.model_copy(update={"buckets": buckets, "parts": parts, "unused_parameters": True})
