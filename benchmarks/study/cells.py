"""A cell of a study: the predictions of a comparison beside its measured steps.

Predictions were made from the comparison's profile, before anything was timed. Two errors are given: of the prediction
as made, and at the speed that the computation had while the modes were timed, which the control mode `compute` shows.
With a source, the cell is of a held-out size: its schedules are predicted from that comparison on fewer workers.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

from xbench.modes import mode_info
from xbench.planning.auto import Candidate
from xbench.planning.contention import Contention
from xbench.planning.conversion import carried_contention, carried_over, scaled_contention, scaled_layer
from xbench.planning.cost import CostCurve
from xbench.planning.plans import Planner
from xbench.planning.step import StepModel
from xbench.planning.topology import Topology
from xbench.records import Comparison, Plan
from xbench.stats.blocks import mode_values
from xbench.stats.compare import paired_ratio


def cell_of(comparison: Comparison, source: Comparison | None = None) -> dict[str, Any]:
    """Return the comparison of one job as a cell. Raises ValueError if it, or the source, holds no profile."""
    base, workers = source or comparison, comparison.fabric.world_size
    job = base.jobs[0]
    if job.step is None or base.cost_model is None or not job.layers:
        raise ValueError("the comparison holds no profile: nothing was predicted")
    compute_s = StepModel.of(job.layers, job.step).compute_s
    control = comparison.modes.get("compute")
    blocks_s = control.step_s.median if control is not None and control.step_s is not None else None
    planner = planner_of(base, workers)
    at_speed = planner_of(base, workers, blocks_s / compute_s) if blocks_s is not None else None
    points = []
    for name, mode in comparison.modes.items():
        plan = comparison.jobs[0].plans.get(name)
        predicted_s = mode.predicted_step_s if source is None else plan and step_s(planner, plan)
        if mode.step_s is None or predicted_s is None:
            continue
        again_s = step_s(at_speed, plan) if at_speed is not None and plan is not None else None
        measured_s = mode.step_s.median
        points.append({
            "mode": name, "predicted_step_s": predicted_s, "measured_step_s": mode.step_s.model_dump(mode="json"),
            "error": predicted_s / measured_s - 1,
            "error_at_speed": again_s / measured_s - 1 if again_s is not None else None,
        })  # fmt: skip
    return {
        "workload": comparison.jobs[0].workload.model_dump(mode="json"),
        "fabric": comparison.fabric.model_dump(mode="json"),
        "predicted_on": base.fabric.world_size,
        "compute_s": compute_s,
        "compute_blocks_s": blocks_s,
        "communication_s": job.bounds.communication_s if job.bounds is not None else None,
        "points": points,
        "pairs": pairs_of(comparison),
        "error": None,
    }


def pairs_of(comparison: Comparison) -> list[dict[str, Any]]:
    """Compare every two modes that train, in pairs of blocks."""
    run = comparison.spec
    values = {
        mode.text: mode_values(run, mode, comparison.samples)
        for mode in run.modes
        if mode_info(mode.name).trains and comparison.modes[mode.text].status == "ok"
    }
    found = []
    for mode, other in combinations((name for name, blocks in values.items() if blocks), 2):
        ratio = paired_ratio(values[mode], values[other])
        found.append({"mode": mode, "other": other, "ratio": ratio.value, "ci95": ratio.ci95})
    return found


def planner_of(base: Comparison, workers: int, factor: float = 1.0) -> Planner:
    """Return the planner of a profiled comparison on `workers` workers, with computation scaled by `factor`."""
    job, contention = base.jobs[0], None
    assert base.cost_model is not None
    assert job.step is not None
    cost = carried_over(base.cost_model, Topology("ring"), workers)
    if job.contention is not None and job.contention.points:
        here = Contention.of(scaled_contention(job.contention, factor), CostCurve.of(base.cost_model))
        contention = carried_contention(here, base.cost_model, Topology("ring"), workers)
    layers = tuple(scaled_layer(layer, factor) for layer in job.layers)
    step = StepModel.of(job.layers, job.step).scaled(factor)
    return Planner(step, cost, contention, tuple(job.workload.buffer_bytes), layers)


def step_s(planner: Planner, plan: Plan) -> float:
    """Return the step [s] of this plan's buckets under this planner's model."""
    buckets = planner.indices(plan)
    carrier = plan.mode if mode_info(plan.mode).puts_off else plan.carrier
    if carrier is None:
        return planner.with_input_s(planner.simulate(plan.mode, buckets).step_s)
    return planner.with_input_s(planner.step_of(Candidate(plan.mode, buckets, 0.0, carrier, plan.parts)).step_s)
