"""A rank's profile phase: layers, collectives, plans. Every rank of the job calls `profile_job` together."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from xbench.planning import bounds, from_layers, make_plans
from xbench.planning.cost import Curve, fit
from xbench.profilers.collectives import measure_all_reduce, sizes
from xbench.profilers.layers import profile_step
from xbench.profilers.summary import cost_points, left_out, samples, summarise
from xbench.records import CostModel, Layer, StepTimes
from xbench.runtime.program import JobPlan

if TYPE_CHECKING:
    from xbench.runtime.worker import Rank

COLLECTIVES_S = 6.0


def profile_job(rank: Rank) -> JobPlan:
    """Measure the step and the link, plan every schedule, write it all to the journal of rank 0."""
    effort = rank.run.effort
    raw = profile_step(
        rank.workload, rank.clock, steps=effort.profile_steps, warmup=effort.warmup_steps, note=rank.note
    )
    raws = gathered(raw.raw())
    layers, step = summarise(raws)
    world_size = dist.get_world_size()
    if rank.rank == 0:
        rank.journal.write(
            "profile",
            workload=rank.workload.describe().model_dump(),
            layers=[layer.model_dump() for layer in layers],
            step=step.model_dump(),
            series=samples(raws),
        )
    cost = None
    if world_size > 1:
        rank.note("measuring collectives")
        grad_bytes = sum(layer.grad_bytes for layer in layers)
        measured = measure_all_reduce(
            sizes(grad_bytes),
            rank.device,
            rank.group,
            seconds_budget=COLLECTIVES_S,
            clock=rank.clock,
            note=rank.note,
        )
        points = cost_points(gathered(measured))
        cost = fit(points, backend=dist.get_backend(), world_size=world_size)
    plan, event = plan_job(layers, step, cost)
    if rank.rank == 0:
        rank.journal.write("plans", **event)
    return complete(plan, left_out(raws)["unused"])


def plan_job(layers: list[Layer], step: StepTimes, cost: CostModel | None) -> tuple[JobPlan, dict[str, Any]]:
    """Plans, bounds and what the blocks need to know, from the measurements. Deterministic: every rank gets the same.

    The parts of the step are instrumented and the step that users run is not, so all parts are scaled to make up the
    bare step: predictions and bounds are then of the loop that `compare` times.
    """
    bare = step.uninstrumented_step_s / (step.forward_s + step.backward_s + step.optimizer_s)
    gradients = [replace(gradient, ready_s=gradient.ready_s * bare) for gradient in from_layers(layers)]
    times = {
        "forward_s": step.forward_s * bare,
        "backward_s": step.backward_s * bare,
        "optimizer_s": step.optimizer_s * bare,
    }
    curve = Curve.of(cost) if cost is not None else Curve.line(0.0, 0.0)
    plans = make_plans(gradients, cost, **times)
    lower = bounds(gradients, curve, **times, compute_s=step.uninstrumented_step_s)
    plan = JobPlan(
        buckets={name: None if name in ("ddp", "compute") else p.buckets for name, p in plans.items()},
        step_s={name: p.predicted_step_s for name, p in plans.items()},
        exposed_s={name: p.predicted_exposed_s for name, p in plans.items()},
        link_s={name: float(sum(curve(nbytes) for nbytes in p.bucket_bytes)) for name, p in plans.items()},
        compute_s=step.uninstrumented_step_s,
    )
    event = {
        "cost_model": cost.model_dump() if cost is not None else None,
        "plans": {name: p.model_dump() for name, p in plans.items()},
        "bounds": lower.model_dump(),
    }
    return plan, event


def complete(plan: JobPlan, missing: list[str]) -> JobPlan:
    """Add parameters that got no gradient while profiling to each plan, a bucket each at the end.

    They may get one later, on some ranks or all, and every trainable parameter must be in exactly one bucket.
    """
    if not missing:
        return plan
    extra = [[name] for name in missing]
    buckets = {name: b + extra if b is not None else None for name, b in plan.buckets.items()}
    return plan.model_copy(update={"buckets": buckets, "unused_parameters": True})


def gathered(value: Any) -> list[Any]:
    """The value of every rank, on every rank."""
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
