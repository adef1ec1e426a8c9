"""Memory and units of a mode in the record, from the ranks' events, and the step that is predicted from the units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from xbench.modes import mode_info
from xbench.planning.measured import planned_contention
from xbench.planning.plans import Planner
from xbench.planning.sharded_step import Sharded
from xbench.planning.step import StepModel
from xbench.rank.events import MemoryMeasured
from xbench.records import Memory, Unit, UnitCost
from xbench.registry import imported
from xbench.runs.event_collector import Collector
from xbench.spec import ModeSpec, RunSpec

PARTS = ("parameter_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes")


def memory_of(ranks: Mapping[int, MemoryMeasured]) -> Memory | None:
    """Return a mode's memory: that of the rank with the largest peak. None if no rank measured it."""
    found = [
        Memory(
            peak_bytes=sum(getattr(one, part) for part in PARTS) if one.peak_bytes is None else one.peak_bytes,
            by="counted" if one.peak_bytes is None else "allocator",
            **{part: getattr(one, part) for part in PARTS},
        )
        for _, one in sorted(ranks.items())
    ]
    return max(found, key=lambda one: one.peak_bytes, default=None)


def units_of(units: Mapping[str, list[str]]) -> list[Unit]:
    """Return the units that a mode wraps, in their order."""
    return [Unit(name=name, parameters=names) for name, names in units.items()]


def forecast_s(run: RunSpec, mode: ModeSpec, found: Collector) -> float | None:
    """Return the predicted step [s] of a mode that torch itself brings; None if something it needs was not measured."""
    job = found.jobs[0]
    if job.step is None or job.cost_model is None:
        return None
    contention = planned_contention(job.contention, job.cost_model)
    buffers = tuple(job.workload.buffer_bytes) if job.workload is not None else ()
    inputs = Sharded(
        Planner(StepModel.of(job.layers, job.step), job.cost_model, contention, buffers),
        job.layers,
        found.units.get(mode.text, {}),
        job.other_costs,
        run.fabric.world_size,
        waits=run.backend == "gloo",
        unit=unit_cost_of(mode, job.unit_costs),
    )
    return sharded_step_s(mode, inputs, run.fabric.ranks)


def unit_cost_of(mode: ModeSpec, unit_costs: Mapping[str, UnitCost]) -> UnitCost | None:
    """Return the host's time for a unit in a mode, among those measured."""
    return unit_costs.get(mode_info(mode.carrier).units_of or "")


def sharded_step_s(mode: ModeSpec, inputs: Sharded, ranks_per_host: int) -> float | None:
    """Return the step [s] of a mode that torch itself brings. `inputs` are those of one group of all ranks.

    None if the mode is another one, or a collective was not measured.
    """
    info = mode_info(mode.carrier)
    if info.forecast is None:
        return None
    if info.ranks is not None:
        ranks = imported(info.ranks)(mode.text, dict(mode.options), inputs.workers, ranks_per_host)
        inputs = replace(inputs, workers=ranks, in_groups=True)
    try:
        step_s: float = imported(info.forecast)(inputs)
    except KeyError:
        return None
    return inputs.planner.with_input_s(step_s)
