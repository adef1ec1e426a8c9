"""Construction of records from collected events: pure, so that dead runs, live runs and tests give the same records."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from xbench import records
from xbench.modes import ModeInfo, mode_info
from xbench.planning.cost import CostCurve
from xbench.planning.measured import planned_contention
from xbench.planning.plans import Planner
from xbench.planning.sharded_step import Sharded
from xbench.planning.step import StepModel
from xbench.planning.turns import LETTERS, JobTimes, round_s
from xbench.rank.events import MemoryMeasured, StepRecorded
from xbench.registry import imported
from xbench.runs.event_collector import Collector, JobFindings
from xbench.runs.frames import RunFrame
from xbench.schedules import cycle_of
from xbench.spec import ModeSpec, RunSpec
from xbench.stats.blocks import mode_values, twins
from xbench.stats.compare import REFERENCE_RATIO, BlockValue, ratios_to, removed_interval, removed_share
from xbench.stats.steps import odd_sample_sentences
from xbench.stats.summary import flag_outliers, grouped_estimate
from xbench.text import and_of

UNPREDICTED = (
    "no prediction and no times of single layers, because the profile times eager layers and a compiled graph has none"
)
"""Note of a mode under torch.compile."""


def _fields(frame: RunFrame, found: Collector, error: str | None) -> dict[str, Any]:
    """Return the fields that every kind of record has, by name."""
    return {
        "created": frame.created,
        "command": frame.command,
        "spec": frame.run,
        "environment": frame.environment,
        "fabric": _as_measured(frame.fabric, found),
        "emulated": frame.emulated and frame.emulated.model_copy(update={"calibration": found.calibration}),
        "complete": error is None,
        "error": error,
        "warnings": [*frame.warnings, *found.warnings, *found.gpu.warnings()],
    }


def _job_fields(frame: RunFrame, found: Collector, place: int) -> dict[str, Any]:
    """Return the fields that a profile and a job of a comparison share, by name."""
    job = found.jobs[place]
    return {
        "workload": job.workload or frame.workloads[place],
        "layers": job.layers,
        "step": job.step,
        "contention": job.contention,
        "bounds": job.bounds if job.cost_model is not None else None,
        "plans": job.plans,
        "stragglers": job.stragglers,
    }


def profile_record(frame: RunFrame, found: Collector, error: str | None = None) -> records.Profile:
    """Build the record of `xbench profile`. `error` is the reason why the run ended early."""
    job = found.jobs[0]
    return records.Profile(
        **_fields(frame, found, error),
        **_job_fields(frame, found, 0),
        cost_model=job.cost_model,
        samples=job.series,
        gpu=found.gpu.of_profile(),
        gpu_missing=found.gpu.missing,
    )


def comparison_record(frame: RunFrame, found: Collector, error: str | None = None) -> records.Comparison:
    """Build the record of `xbench compare`. `error` is the reason why the run ended early."""
    run = frame.run
    samples = flagged(found.samples())
    reference = run.reference or run.modes[0].text
    values = {mode.text: mode_values(run, mode, samples) for mode in run.modes}
    ratios = ratios_of(run, values)
    sizes = found.batch_sizes[:1] if twins(run) else found.batch_sizes
    batch = sum(sizes) * run.fabric.world_size  # seconds per sample times this are a step of every distinct job
    modes = {
        mode.text: _mode_result(
            run, mode, values[mode.text], ratios.get(mode.text), batch, found, frame.fabric.label, error is None
        )
        for mode in run.modes
    }
    modes = _with_exposed(run, modes, found)
    fields = _fields(frame, found, error)
    fields["warnings"] += odd_sample_sentences(samples, {mode.text: cycle_of(mode) for mode in run.modes})
    return records.Comparison(
        **fields,
        reference=reference,
        modes=modes,
        jobs=[records.Job(**_job_fields(frame, found, place)) for place in range(len(found.jobs))],
        bounds=_total_bounds(run, found),
        cost_model=found.jobs[0].cost_model,
        other_costs=found.jobs[0].other_costs,
        unit_costs=found.jobs[0].unit_costs,
        samples=samples,
        gpu_missing=found.gpu.missing,
    )


def ratios_of(run: RunSpec, values: Mapping[str, list[BlockValue]]) -> dict[str, records.Ratio]:
    """Return every mode's ratio to its reference. Verdicts hold for all modes of one reference that may be advised.

    A control has its ratio too, and a verdict of its own that nobody is advised by.
    """
    references = {mode.text: run.reference_of(mode) for mode in run.modes}
    found = dict.fromkeys(references.values(), REFERENCE_RATIO)
    controls = {mode.text for mode in run.modes if not mode_info(mode.name).equivalent_to_ddp}
    for reference in dict.fromkeys(references.values()):
        for alike in (False, True):
            judged = [m for m, own in references.items() if own == reference != m and (m in controls) == alike]
            found |= ratios_to(values[reference], {mode: values[mode] for mode in judged})
    return found


def flagged(samples: Sequence[records.Sample]) -> list[records.Sample]:
    """Return the samples with outliers marked, within each mode and job."""
    groups: dict[tuple[str, int], list[int]] = {}
    for index, sample in enumerate(samples):
        groups.setdefault((sample.mode, sample.job), []).append(index)
    marks = [False] * len(samples)
    for indices in groups.values():
        for index, mark in zip(indices, flag_outliers([samples[i].step_s for i in indices]), strict=True):
            marks[index] = bool(mark)
    return [s.model_copy(update={"outlier": mark}) if mark else s for s, mark in zip(samples, marks, strict=True)]


def _mode_result(
    run: RunSpec,
    mode: ModeSpec,
    blocks: list[BlockValue],
    ratio: records.Ratio | None,
    batch: int,
    found: Collector,
    label: records.Label,
    complete: bool,
) -> records.ModeResult:
    own = run.reference_of(mode)
    plan = found.jobs[0].plans.get(mode.carrier)
    gates = found.parity.get(mode.text, [])
    gate = next((p for p in gates if not p.ok), gates[0] if gates else None)
    pattern = found.patterns.get(mode.text)
    error = found.failed.get(mode.text)
    if error is None and gate is not None and not gate.ok:
        by = "DDP" if gate.reference == "ddp" else gate.reference
        other = "one network on all ranks" if gate.reference == records.RANKS else f"the network that {by} trains"
        other = "the same network twice" if mode.text == gate.reference else other
        error = f"does not train {other}: {gate.message}"
    ended_early = error is None and not blocks and not complete
    if error is None and not blocks and complete:
        error = "nothing was measured"
    if error is not None or ended_early:
        status: Literal["failed", "not measured"] = "not measured" if ended_early else "failed"
        return records.ModeResult(
            mode=mode.text, status=status, label=label, error=error, parity=gate, plan=plan, pattern=pattern
        )
    launches: dict[int, list[float]] = {}
    for block in blocks:
        launches.setdefault(block.launch, []).append(block.value)
    per_sample = grouped_estimate(list(launches.values()))
    step = records.Estimate(
        median=per_sample.median * batch, ci95=(per_sample.ci95[0] * batch, per_sample.ci95[1] * batch)
    )
    predicted = _predicted_step_s(run, mode, found, pattern)
    recorded = found.timelines.get(mode.text, {})
    return records.ModeResult(
        mode=mode.text,
        status="ok",
        label=label,
        step_s=step,
        seconds_per_sample=per_sample,
        predicted_step_s=predicted,
        prediction_error=predicted / step.median - 1 if predicted is not None else None,
        parity=gate,
        ratio=ratio,
        ratio_to=own if own != (run.reference or run.modes[0].text) else None,
        blocks=len(blocks),
        plan=plan,
        timeline=recorded[0].timeline if 0 in recorded else None,
        other_ranks=_other_ranks(recorded),
        turns=_in_order(itertools.chain(*found.turns.get(mode.text, {}).values())),
        pattern=pattern,
        gpu=found.gpu.of_mode(mode.text, per_sample.median),
        memory=memory_of(found.memory.get(mode.text, {})),
        units=[records.Unit(name=name, parameters=names) for name, names in found.units.get(mode.text, {}).items()],
        note=UNPREDICTED if mode_info(mode.carrier).compiled and mode_info(mode.carrier).trains else None,
    )


def _other_ranks(steps: Mapping[int, StepRecorded]) -> list[records.RankTimeline]:
    """Return the same step on the other ranks that kept it; empty if rank 0 has none. `steps` is by rank."""
    if 0 not in steps:
        return []
    return [
        records.RankTimeline(**dict(step.timeline), rank=rank, starts_s=round(step.began_s - steps[0].began_s, 7))
        for rank, step in sorted(steps.items())
        if rank > 0
    ]


def _in_order(turns: Iterable[records.TurnTaken]) -> list[records.TurnTaken]:
    """Return turns of all jobs by their start, relative to the first one's."""
    taken = sorted(turns, key=lambda turn: turn.start_s)
    if not taken:
        return []
    began_s = taken[0].start_s
    return [
        records.TurnTaken(
            job=turn.job,
            start_s=round(turn.start_s - began_s, 7),
            computed_s=round(turn.computed_s - began_s, 7),
            arrived_s=round(turn.arrived_s - began_s, 7) if turn.arrived_s is not None else None,
        )
        for turn in taken
    ]


def _predicted_step_s(run: RunSpec, mode: ModeSpec, found: Collector, pattern: str | None) -> float | None:
    """Return the predicted step of one job, or the sum over distinct jobs; for crossover of twins, half a round."""
    jobs = found.jobs[:1] if twins(run) else found.jobs
    info, carrier = mode_info(mode.name), mode_info(mode.carrier)
    if carrier.predictor is not None:
        found_s = [_predicted_without_plan_s(run, mode, carrier, job) for job in jobs]
        return None if None in found_s else sum(one for one in found_s if one is not None)
    if carrier.forecast is not None:
        return forecast_s(run, mode, found)
    plans = [job.plans.get(mode.carrier) for job in jobs]
    if any(plan is None for plan in plans):
        return None
    steps = [plan.predicted_step_s for plan in plans if plan is not None]
    if not info.together:
        return sum(steps)
    if info.sharing == "in turns" and pattern is not None:
        return _predicted_crossover_s(run, mode, found, pattern)
    return None


def _predicted_without_plan_s(run: RunSpec, mode: ModeSpec, info: ModeInfo, job: JobFindings) -> float | None:
    """Return the predicted step of a mode that uses another's buckets; None if those were not planned."""
    plan = next((job.plans[name] for name in info.buckets_of if name in job.plans), None)
    if job.step is None or job.cost_model is None or plan is None or info.predictor is None:
        return None
    contention = planned_contention(job.contention, job.cost_model)
    planner = Planner(StepModel.of(job.layers, job.step), job.cost_model, contention)
    predict = imported(info.predictor)
    step_s: float = predict(planner, plan.buckets, job.layers, dict(mode.options), run.fabric.world_size)
    return planner.with_input_s(step_s)


def _predicted_crossover_s(run: RunSpec, mode: ModeSpec, found: Collector, pattern: str) -> float | None:
    jobs = [found.jobs[0]] * len(run.workloads) if twins(run) else found.jobs
    plans = [job.plans.get(mode.carrier) for job in jobs]
    times, alone = [], []
    for job, plan in zip(jobs, plans, strict=True):
        if job.step is None or job.cost_model is None or plan is None:
            return None
        curve = CostCurve.of(job.cost_model)
        link_s = float(sum(curve(nbytes) for nbytes in plan.bucket_bytes))
        times.append(JobTimes(job.step.uninstrumented_step_s, plan.predicted_exposed_s, link_s))
        alone.append(plan.predicted_step_s)
    places = tuple(LETTERS.index(letter) for letter in pattern)
    took_s = round_s(times, places)
    distinct_s = alone[0] if twins(run) else sum(alone)
    progress = sum(places.count(job) * alone[job] for job in range(len(jobs))) / took_s
    return distinct_s / progress


def _with_exposed(
    run: RunSpec, modes: dict[str, records.ModeResult], found: Collector
) -> dict[str, records.ModeResult]:
    """Add exposed communication (step minus compute-only step) and the share of removable time that was removed.

    Removable is the time down to the bound of the mode's kind of overlap (`planning.bounds`). The compute-only step of
    a compiled mode is compiled too; without one in the run its exposed communication is unknown.
    """
    control = next((modes[m.text] for m in run.modes if m.name == "compute"), None)
    compute_s = control.step_s.median if control is not None and control.step_s is not None else None
    jobs = found.jobs[:1] if twins(run) else found.jobs
    if compute_s is None and all(job.step is not None for job in jobs):
        compute_s = sum(job.step.uninstrumented_step_s for job in jobs if job.step is not None)
    if compute_s is None:
        return modes
    total = _total_bounds(run, found)
    silent = [m for m in run.modes if mode_info(m.name).reducer == "none" and mode_info(m.name).compiled]
    compiled = modes[silent[0].text].step_s if silent else None
    ddp = next((modes[m.text] for m in run.modes if m.name == "ddp"), None)
    result = {}
    for mode in run.modes:
        outcome = modes[mode.text]
        if outcome.step_s is not None and mode_info(mode.name).compiled and compiled is not None:
            exposed_s = outcome.step_s.median - compiled.median
            outcome = outcome.model_copy(update={"exposed_s": exposed_s})
        elif outcome.step_s is not None and not mode_info(mode.name).compiled:
            share = ends = None
            rival = mode.name != "ddp" and mode_info(mode.name).is_bounded and not mode.paired
            if rival and total and ddp and ddp.step_s is not None:
                plan = outcome.plan
                ahead = mode_info(plan.carrier if plan is not None and plan.carrier else mode.carrier).puts_off
                bound_s = total.of(ahead=ahead)
                to_ddp = outcome.ratio if run.reference_of(mode) == ddp.mode else None
                step_s = outcome.step_s.median if to_ddp is None else to_ddp.value * ddp.step_s.median
                share = removed_share(step_s, ddp.step_s.median, bound_s, ddp.step_s.ci95[0])
                if share is not None and to_ddp is not None and to_ddp.interval is not None:
                    ends = removed_interval(to_ddp.interval, ddp.step_s.ci95, bound_s)
            exposed_s = outcome.step_s.median - compute_s
            outcome = outcome.model_copy(update={"exposed_s": exposed_s, "removed_share": share, "removed_ci95": ends})
        result[mode.text] = outcome
    return result


def _total_bounds(run: RunSpec, found: Collector) -> records.Bounds | None:
    """Return the bounds of one step of every distinct job, one after the other."""
    jobs = found.jobs[:1] if twins(run) else found.jobs
    parts = [job.bounds for job in jobs if job.bounds is not None and job.cost_model is not None]
    if len(parts) < len(jobs):
        return None
    return records.Bounds(**{name: sum(getattr(part, name) for part in parts) for name in records.Bounds.model_fields})


def sharing_remarks(run: RunSpec) -> list[str]:
    """Return a remark on modes whose two processes share each GPU."""
    apart = [mode.text for mode in run.modes if mode_info(mode.name).sharing == "at once"]
    if run.device != "cuda" or not apart:
        return []
    return [
        f"{and_of(apart)}: two processes share each GPU by time slices unless CUDA's Multi-Process Service joins them, "
        "so a job that communicates takes the GPU's time from the other one, and both at once cannot gain"
    ]


def _as_measured(fabric: records.FabricRecord, found: Collector) -> records.FabricRecord:
    """Add the ranks' remarks, and the bus bandwidth of the largest all-reduce: 2(N-1)/N · bytes over time [bit/s]."""
    fabric = fabric.model_copy(update={"notes": [*fabric.notes, *found.remarks, *sharing_remarks(found.run)]})
    model = found.jobs[0].cost_model
    if model is None or not model.points:
        return fabric
    largest = max(model.points, key=lambda point: point.nbytes)
    share = 2 * (model.world_size - 1) / model.world_size
    if found.run.compress is not None:  # sizes are those before compression, and half of it is sent
        share /= 2
    return fabric.model_copy(update={"allreduce_bps": 8 * share * largest.nbytes / largest.transfer_s})


# --- torch's own modes: memory, and the step that is predicted from their units ------------------------------------

PARTS = ("parameter_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes")


def memory_of(ranks: Mapping[int, MemoryMeasured]) -> records.Memory | None:
    """Return a mode's memory: that of the rank with the largest peak. None if no rank measured it."""
    found = [
        records.Memory(
            peak_bytes=sum(getattr(one, part) for part in PARTS) if one.peak_bytes is None else one.peak_bytes,
            by="counted" if one.peak_bytes is None else "allocator",
            **{part: getattr(one, part) for part in PARTS},
        )
        for _, one in sorted(ranks.items())
    ]
    return max(found, key=lambda one: one.peak_bytes, default=None)


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
        unit=job.unit_costs.get(mode_info(mode.carrier).units_of or ""),
    )
    return sharded_step_s(mode, inputs, run.fabric.ranks)


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
