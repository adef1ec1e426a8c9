"""Plans of a scenario, measured or what-if, and the record of them: a profile, so that `xbench.attach` reads it.

A what-if's record has the layers and the cost model as changed, its fabric is labelled simulated, it has no raw samples
(nothing was run), and its warnings say what was changed and from which record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from xbench.errors import UsageError
from xbench.planning.bounds import bounds
from xbench.planning.cost import Curve
from xbench.planning.plans import make_plans
from xbench.planning.what_if import Scenario
from xbench.records import Bounds, Layer, Plan, Profile, StepTimes
from xbench.spec import RunSpec
from xbench.units import format_bytes

FAR = 1.1
"""Sizes this many times the largest measured are said to be extrapolated."""


@dataclass(frozen=True)
class Planned:
    """A scenario with the plan of each mode; every number in it is simulated."""

    scenario: Scenario
    plans: dict[str, Plan]
    bounds: Bounds

    @property
    def cautions(self) -> list[str]:
        """What a reader must know of the numbers: the scenario's, and sizes beyond those measured."""
        largest = max((point.nbytes for point in self.scenario.measured.cost.points), default=0)
        sent = max((nbytes for plan in self.plans.values() for nbytes in plan.bucket_bytes), default=0)
        beyond = []
        if 0 < FAR * largest < sent:
            beyond = [
                f"All-reduces were measured up to {format_bytes(largest)}, and the largest bucket here has "
                f"{format_bytes(sent)}: its time is extrapolated."
            ]
        return [*self.scenario.cautions, *beyond]


def replan(scenario: Scenario, modes: Sequence[str] | None = None) -> Planned:
    """Plan each of `modes`, None being all. Raises SpecError for an unknown mode, UsageError for an invalid curve."""
    step, cost = scenario.step, scenario.cost
    try:
        curve = Curve.of(cost)
    except ValueError as error:
        raise UsageError(f"{scenario.measured.name!r} cannot be planned: its cost model: {error}") from None
    plans = make_plans(step.gradients, cost, modes, **step.parts)
    lower = bounds(step.gradients, curve, compute_s=step.compute_s, **step.parts)
    return Planned(scenario, plans, lower)


def to_profile(planned: Planned, command: str) -> Profile:
    """The record: that of the measurement, with what was changed in its place, and these plans.

    `command` is what was typed. The plans' predictions are of the whole step, as in any profile.
    """
    scenario = planned.scenario
    measured = scenario.measured
    record = measured.record
    spec = record.spec
    changed = bool(scenario.changes)
    told = [f"what if: {change}" for change in scenario.changes]
    origin = [f"nothing in this record was measured: it was planned from {measured.name}"] if changed else []
    return Profile(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command,
        spec=RunSpec(
            kind="profile",
            workloads=(measured.workload.spec,),
            fabric=spec.fabric,
            effort=spec.effort,
            device=spec.device,
            timeout_s=spec.timeout_s,
        ),
        environment=record.environment,
        fabric=scenario.fabric,
        complete=record.complete,
        error=record.error,
        warnings=[*record.warnings, *origin, *told, *(planned.cautions if changed else [])],
        workload=measured.workload,
        layers=[_layer(layer, scenario.compute_scale) for layer in measured.layers],
        step=_times(measured.times, scenario.compute_scale),
        cost_model=scenario.cost,
        bounds=planned.bounds,
        plans=planned.plans,
        samples={} if changed or not isinstance(record, Profile) else record.samples,
    )


def _layer(layer: Layer, scale: float) -> Layer:
    if scale == 1.0:
        return layer
    tensors = [
        tensor.model_copy(
            update={
                "ready_s": tensor.ready_s * scale,
                "ready_loaded_s": None if tensor.ready_loaded_s is None else tensor.ready_loaded_s * scale,
            }
        )
        for tensor in layer.tensors
    ]
    times = {name: getattr(layer, name) * scale for name in ("forward_s", "backward_s", "ready_s")}
    return layer.model_copy(update={**times, "tensors": tensors})


def _times(times: StepTimes, scale: float) -> StepTimes:
    if scale == 1.0:
        return times
    names = ("forward_s", "backward_s", "optimizer_s", "step_s", "uninstrumented_step_s")
    update: dict[str, object] = {name: getattr(times, name) * scale for name in names}
    for name in ("step_ci95", "uninstrumented_ci95"):
        low, high = getattr(times, name)
        update[name] = (low * scale, high * scale)
    return times.model_copy(update=update)
