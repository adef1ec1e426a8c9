"""A rank's profile phase: layers, collectives, plans. Every rank of the job calls `profile_job` together.

Gradients become ready later while others travel, where one processor computes and sends: on one core at 1 Gbit/s the
backward pass takes half as long again. A plan made from the quiet profile then launches its last bucket too late. So
the exact plan is run, the ready times are measured again under its traffic, and it is made anew from those, twice;
every schedule that overlaps backward is planned and predicted from these loaded ready times.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from xbench.planning import Gradient, bounds, from_layers, make_plans
from xbench.planning.cost import Curve, fit
from xbench.profilers.collectives import measure_all_reduce, sizes
from xbench.profilers.layers import LayerProfiler, profile_step
from xbench.profilers.summary import cost_points, left_out, samples, summarise
from xbench.records import CostModel, Layer, Plan, StepTimes
from xbench.runtime.program import JobPlan
from xbench.schedules.engine import Engine

if TYPE_CHECKING:
    from xbench.runtime.worker import Rank

COLLECTIVES_S = 6.0
UNDER_LOAD_ROUNDS = 2
UNDER_LOAD_STEPS = 5
#: Modes whose gradients travel during backward; the others are planned from the quiet profile.
OVERLAPPED = ("ddp", "ddp-tuned", "wfbp", "mgwfbp", "optimal")
QUIET = ("compute", "single")
ORDER = ("compute", "ddp", "ddp-tuned", "single", "wfbp", "mgwfbp", "optimal")


def profile_job(rank: Rank) -> JobPlan:
    """Measure the step and the link, plan every schedule, write it all to the journal of rank 0."""
    effort = rank.run.effort
    raw = profile_step(
        rank.workload, rank.clock, steps=effort.profile_steps, warmup=effort.warmup_steps, note=rank.note
    )
    raws = gathered(raw.raw())
    layers, step = summarise(raws)
    unused = left_out(raws)["unused"]
    world_size = dist.get_world_size()

    def keep_profile() -> None:
        if rank.rank == 0:
            rank.journal.write(
                "profile",
                workload=rank.workload.describe().model_dump(),
                layers=[layer.model_dump() for layer in layers],
                step=step.model_dump(),
                series=samples(raws),
            )

    keep_profile()
    cost = None
    if world_size > 1:
        rank.note("measuring collectives")
        measured = measure_all_reduce(
            sizes(sum(layer.grad_bytes for layer in layers)),
            rank.device,
            rank.group,
            seconds_budget=COLLECTIVES_S,
            clock=rank.clock,
            note=rank.note,
        )
        cost = fit(cost_points(gathered(measured)), backend=dist.get_backend(), world_size=world_size)
        for _ in range(UNDER_LOAD_ROUNDS):
            plan, _ = plan_job(layers, step, cost)
            buckets = complete(plan, unused).buckets["optimal"]
            assert buckets is not None
            layers = with_loaded(layers, ready_under_load(rank, buckets))
        keep_profile()
    plan, event = plan_job(layers, step, cost)
    if rank.rank == 0:
        rank.journal.write("plans", **event)
    return complete(plan, unused)


def ready_under_load(rank: Rank, buckets: list[list[str]]) -> dict[str, float]:
    """Ready time [s since the start of backward] of each tensor while these buckets travel, of the slowest rank."""
    rank.note("measuring ready times under load")
    engine = Engine(rank.workload.model, None, buckets, group=rank.group)
    with LayerProfiler(rank.workload.model, rank.clock) as profiler:
        steps = []
        for number in range(UNDER_LOAD_STEPS + 1):
            rank.note(f"ready times under load, step {number + 1}")
            steps.append(profiler.run_step(rank.workload))
        rank.clock.flush()
        times = [profiler.layer_times(step).ready_s for step in steps[1:]]
    rank.clock.reset()
    engine.detach()
    rank.workload.optimizer.zero_grad(set_to_none=True)
    seen = [[value for value in column if value is not None] for column in zip(*times, strict=True)]
    medians = torch.tensor([statistics.median(values) if values else -1.0 for values in seen], dtype=torch.float64)
    everyone = medians.to(rank.device)
    dist.all_reduce(everyone, op=dist.ReduceOp.MAX)
    slowest = everyone.tolist()
    names = [tensor.name for tensor in profiler.tensors]
    return {name: ready_s for name, ready_s in zip(names, slowest, strict=True) if ready_s >= 0}


def with_loaded(layers: list[Layer], ready_s: Mapping[str, float]) -> list[Layer]:
    """The layers with these loaded ready times."""
    return [
        layer.model_copy(
            update={
                "tensors": [
                    t.model_copy(update={"ready_loaded_s": ready_s.get(t.name, t.ready_s)}) for t in layer.tensors
                ]
            }
        )
        for layer in layers
    ]


def plan_job(layers: list[Layer], step: StepTimes, cost: CostModel | None) -> tuple[JobPlan, dict[str, Any]]:
    """Plans, bounds and what the blocks need to know, from the measurements. Deterministic: every rank gets the same.

    The parts of the step are instrumented and the step that users run is not, so all parts are scaled to make up the
    bare step: predictions and bounds are then of the loop that `compare` times.
    """
    bare = step.uninstrumented_step_s / (step.forward_s + step.backward_s + step.optimizer_s)
    quiet = [replace(gradient, ready_s=gradient.ready_s * bare) for gradient in from_layers(layers)]
    loaded = under_load(layers, quiet, bare)
    forward_s, backward_s, optimizer_s = (bare * part for part in (step.forward_s, step.backward_s, step.optimizer_s))
    stretched_s = max(backward_s, loaded[-1].ready_s)
    curve = Curve.of(cost) if cost is not None else Curve.line(0.0, 0.0)
    modes = [mode for mode in ORDER if cost is not None or mode in ("compute", "ddp", "single", "wfbp")]
    plans: dict[str, Plan] = {}
    for names, gradients, length_s in ((QUIET, quiet, backward_s), (OVERLAPPED, loaded, stretched_s)):
        chosen = [mode for mode in names if mode in modes]
        plans |= make_plans(gradients, cost, chosen, forward_s=forward_s, backward_s=length_s, optimizer_s=optimizer_s)
    compute_s = step.uninstrumented_step_s
    plans = {
        mode: plans[mode].model_copy(update={"predicted_exposed_s": max(0.0, plans[mode].predicted_step_s - compute_s)})
        for mode in modes
    }
    lower = bounds(
        quiet, curve, forward_s=forward_s, backward_s=backward_s, optimizer_s=optimizer_s, compute_s=compute_s
    )
    plan = JobPlan(
        buckets={name: None if name in ("ddp", "compute") else p.buckets for name, p in plans.items()},
        step_s={name: p.predicted_step_s for name, p in plans.items()},
        exposed_s={name: p.predicted_exposed_s for name, p in plans.items()},
        link_s={name: float(sum(curve(nbytes) for nbytes in p.bucket_bytes)) for name, p in plans.items()},
        compute_s=compute_s,
    )
    event = {
        "cost_model": cost.model_dump() if cost is not None else None,
        "plans": {name: p.model_dump() for name, p in plans.items()},
        "bounds": lower.model_dump(),
    }
    return plan, event


def under_load(layers: list[Layer], quiet: list[Gradient], bare: float) -> list[Gradient]:
    """The gradients with their loaded ready times, in that order; the quiet ones where nothing was measured."""
    ready_s = {t.name: t.ready_loaded_s for layer in layers for t in layer.tensors}
    found = [
        replace(g, ready_s=loaded_s * bare if (loaded_s := ready_s[g.name]) is not None else g.ready_s) for g in quiet
    ]
    return sorted(found, key=lambda gradient: gradient.ready_s)


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
