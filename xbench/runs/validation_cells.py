"""Cell of a validation, built from a comparison and its predictions."""

from __future__ import annotations

from itertools import combinations

from xbench.errors import SpecError
from xbench.modes import mode_info
from xbench.planning.auto import Candidate
from xbench.planning.bounds import bounds
from xbench.planning.contention import Contention
from xbench.planning.conversion import carried_contention, carried_over, scaled_contention, scaled_layer
from xbench.planning.cost import CostCurve
from xbench.planning.plans import Planner
from xbench.planning.sharded_step import Sharded
from xbench.planning.step import StepModel
from xbench.planning.topology import Topology
from xbench.records import (
    AutoAgainst,
    Bounds,
    Comparison,
    FabricRecord,
    ModePair,
    ModeResult,
    Plan,
    UnitCost,
    ValidationCell,
    ValidationPoint,
    WorkloadRecord,
)
from xbench.runs.mode_memory import sharded_step_s, unit_cost_of
from xbench.spec import FabricSpec, ModeSpec
from xbench.stats.blocks import mode_values
from xbench.stats.compare import BlockValue, paired_ratio
from xbench.stats.non_inferiority import one_sided_p
from xbench.units import parse_rate

STATIONARY = 0.10
"""Share by which the computation of blocks and profile must differ for a second measurement of a cell."""

FELT = 0.05
"""Share of the shortest step that the difference must also exceed."""


def cell_of(comparison: Comparison, path: str, source: Comparison | None = None) -> ValidationCell:
    """Return a comparison as a cell. With `source`, predictions come from that measurement on fewer workers.

    Modes that torch brings are left out then: their collectives were not measured on so many.
    Raises SpecError if the comparison holds no profile.
    """
    base = source or comparison
    control = comparison.modes.get("compute")
    blocks_s = control.step_s.median if control is not None and control.step_s is not None else None
    step = _step_of(base, path)
    planner = _planner(base, step, comparison.fabric.world_size)
    at_speed = planner
    if blocks_s is not None:
        at_speed = _planner(base, step, comparison.fabric.world_size, blocks_s / step.compute_s)
    points = []
    specs = {spec.text: spec for spec in comparison.spec.modes}
    for name, mode in comparison.modes.items():
        plan = comparison.jobs[0].plans.get(name)
        if mode.step_s is not None and plan is not None and mode_info(name).planner is not None:
            predicted_s = plan.predicted_step_s if source is None else _predict(planner, plan)
            again_s = _predict(at_speed, plan) if blocks_s is not None else None
            points.append(_point(mode, predicted_s, again_s, comparison.reference))
        elif mode.step_s is not None and mode.predicted_step_s is not None and _is_torchs(specs.get(name), source):
            again_s = None
            if blocks_s is not None:
                again_s = _sharded_s(comparison, specs[name], at_speed, blocks_s / step.compute_s)
            points.append(_point(mode, mode.predicted_step_s, again_s, comparison.reference))
    bound = _bounds_of(at_speed)
    return ValidationCell(
        workload=comparison.jobs[0].workload,
        fabric=comparison.fabric,
        predicted_on=base.fabric.world_size,
        compute_s=step.compute_s,
        compute_blocks_s=blocks_s,
        backward_overlap_bound_s=bound.backward_overlap_bound_s,
        overlap_bound_s=bound.overlap_bound_s,
        communication_s=_bounds_of(planner).communication_s,
        points=points,
        auto_against=_against(comparison),
        pairs=_pairs(comparison),
        auto_not_slower_p=_not_slower_p(comparison),
        blocks=max((mode.blocks for mode in comparison.modes.values()), default=0),
        record=path,
    )


def _step_of(base: Comparison, path: str) -> StepModel:
    """Return the profiled step. Raises SpecError if there is none."""
    job = base.jobs[0]
    if job.step is None or base.cost_model is None or not job.layers:
        raise SpecError(f"{path!r} holds no profile: nothing was predicted")
    return StepModel.of(job.layers, job.step)


def _planner(base: Comparison, step: StepModel, workers: int, factor: float = 1.0) -> Planner:
    """Return the planner of a profiled comparison on `workers` workers, with computation scaled by `factor`."""
    job, contention = base.jobs[0], None
    assert base.cost_model is not None  # `_step_of` checked it
    cost = carried_over(base.cost_model, Topology("ring"), workers)
    if job.contention is not None and job.contention.points:
        here = Contention.of(scaled_contention(job.contention, factor), CostCurve.of(base.cost_model))
        contention = carried_contention(here, base.cost_model, Topology("ring"), workers)
    layers = tuple(scaled_layer(layer, factor) for layer in job.layers)
    return Planner(step.scaled(factor), cost, contention, tuple(job.workload.buffer_bytes), layers)


def _bounds_of(planner: Planner) -> Bounds:
    """Return the lower bounds of a step under this planner's model."""
    assert planner.cost is not None
    step, curve = planner.step, CostCurve.of(planner.cost)
    return bounds(step.gradients, curve, compute_s=step.compute_s, contention=planner.contention, **step.parts)


def unsteady(cell: ValidationCell) -> bool:
    """True if the machine's speed changed between profile and blocks by enough to matter in the steps."""
    moved_s = abs((cell.compute_blocks_s or cell.compute_s) - cell.compute_s)
    shortest_s = min(
        (point.measured_step_s.median for point in cell.points if mode_info(point.mode).trains), default=cell.compute_s
    )
    return moved_s > STATIONARY * cell.compute_s and moved_s > FELT * shortest_s


def failed_cell(workload: WorkloadRecord, fabric: FabricSpec, why: str) -> ValidationCell:
    """Return a cell that was not measured, with the reason."""
    return ValidationCell(
        workload=workload,
        fabric=FabricRecord(
            name=fabric.name,
            spec=str(fabric),
            label="emulated" if fabric.name == "emulated" else "real",
            backend="",
            hosts=fabric.hosts,
            ranks_per_host=fabric.ranks,
            world_size=fabric.world_size,
            rate_bps=parse_rate(fabric.rate) if fabric.rate is not None else None,
        ),
        predicted_on=fabric.world_size,
        compute_s=0.0,
        backward_overlap_bound_s=None,
        points=[],
        blocks=0,
        record="",
        error=why,
    )


def _predict(planner: Planner, plan: Plan) -> float:
    """Return the step [s] of this plan's buckets under this planner's model."""
    place = {gradient.name: index for index, gradient in enumerate(planner.step.gradients)}
    buckets = [[place[name] for name in names] for names in plan.buckets]
    carrier = plan.mode if mode_info(plan.mode).puts_off else plan.carrier
    if carrier is None:
        return planner.with_input_s(planner.simulate(plan.mode, buckets).step_s)
    return planner.with_input_s(planner.step_of(Candidate(plan.mode, buckets, 0.0, carrier, plan.parts)).step_s)


def _is_torchs(mode: ModeSpec | None, source: Comparison | None) -> bool:
    """True for a mode that torch itself brings, if it is predicted from its own measurement."""
    return source is None and mode is not None and mode_info(mode.carrier).forecast is not None


def _sharded_s(comparison: Comparison, mode: ModeSpec, planner: Planner, factor: float) -> float | None:
    """Return the step [s] of a mode that torch itself brings, with the host's time for units scaled by `factor`."""
    fabric, units = comparison.fabric, comparison.modes[mode.text].units
    unit = unit_cost_of(mode, comparison.unit_costs)
    inputs = Sharded(
        planner,
        planner.layers or (),
        {one.name: one.parameters for one in units},
        comparison.other_costs,
        fabric.world_size,
        waits=fabric.backend == "gloo",
        unit=unit and UnitCost(unit_s=unit.unit_s * factor, tensor_s=unit.tensor_s * factor),
    )
    return sharded_step_s(mode, inputs, fabric.ranks_per_host)


def _point(mode: ModeResult, predicted_s: float, again_s: float | None, reference: str | None) -> ValidationPoint:
    """Return a mode's prediction beside its measurement. Ratios to another reference than ddp are left out."""
    assert mode.step_s is not None
    ratio = mode.ratio if reference == "ddp" else None
    measured_s = mode.step_s.median
    return ValidationPoint(
        mode=mode.mode,
        predicted_step_s=predicted_s,
        measured_step_s=mode.step_s,
        error=predicted_s / measured_s - 1,
        error_at_speed=again_s / measured_s - 1 if again_s is not None else None,
        ratio_to_ddp=ratio.value if ratio is not None else None,
        against_ddp=ratio.ci95 if ratio is not None else None,
        verdict=ratio.verdict if ratio is not None else None,
    )


def _against(comparison: Comparison) -> list[AutoAgainst]:
    """Compare `auto` with every other mode that trains, in pairs of blocks."""
    values = _values(comparison)
    found = []
    for name, blocks in values.items():
        if name != "auto" and blocks and values.get("auto"):
            ratio = paired_ratio(values["auto"], blocks)
            found.append(AutoAgainst(mode=name, ratio=ratio.value, ci95=ratio.ci95, verdict=ratio.verdict))
    return found


def _pairs(comparison: Comparison) -> list[ModePair]:
    """Compare every two modes that train, in pairs of blocks."""
    values = _values(comparison)
    found = []
    for mode, other in combinations((name for name, blocks in values.items() if blocks), 2):
        ratio = paired_ratio(values[mode], values[other])
        found.append(ModePair(mode=mode, other=other, ratio=ratio.value, ci95=ratio.ci95))
    return found


def _not_slower_p(comparison: Comparison) -> float | None:
    """Return the p of `auto` against `ddp`. None if one of them was not measured."""
    values = _values(comparison)
    return one_sided_p(values["auto"], values["ddp"]) if values.get("auto") and values.get("ddp") else None


def _values(comparison: Comparison) -> dict[str, list[BlockValue]]:
    """Return the blocks of every mode that trains and ended well."""
    run = comparison.spec
    return {
        mode.text: mode_values(run, mode, comparison.samples)
        for mode in run.modes
        if mode_info(mode.name).trains and comparison.modes[mode.text].status == "ok"
    }
