"""Execution of a job by this tree's own xbench: resolution, plans, and one launch of its ranks.

A job to look is resolved first: the workload with every default, the plans of its modes, and their predictions. Nothing
here imports torch. Only the ranks do.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from xbench import __version__, environment
from xbench.config import RunConfig
from xbench.errors import FabricError, Interrupted, SpecError, XbenchError
from xbench.fabrics import open_fabric, parse_fabric, rootless
from xbench.fabrics.fabric import Fabric
from xbench.launch.launcher import launch
from xbench.modes import EXACT, UNMERGED, mode_info
from xbench.planning.measured import read
from xbench.planning.partial import backward_s_of
from xbench.planning.scenario import Change, Scenario, what_if
from xbench.rank.events import Event, StepCounted
from xbench.rank.journal import Take
from xbench.rank.program import JobPlan, balanced_blocks, job_plan
from xbench.regress.protocol import Block, Counts, JobRequest, JobResult, PlannedFigures
from xbench.runs.event_collector import Collector
from xbench.runs.prepare import prepare
from xbench.schedules import cycle_of, parse_modes
from xbench.scratch import Scratch
from xbench.spec import Effort, ModeSpec, RunSpec
from xbench.stats.steps import odd_sample_sentences
from xbench.workloads import parse_workload

RANK = "xbench.regress.rank"


def answer(order: JobRequest) -> JobResult:
    """Carry out a job. Errors are in the result; only an interruption is raised."""
    try:
        if order.resolved is not None:
            return _as_resolved(order, order.resolved)
        if order.kind == "time":
            raise SpecError("an order to time carries what the look before it has resolved")
        made, run, plan = _resolved(order)
        return _launched(made, order, run, plan) if order.counted else made
    except Interrupted:
        raise
    except XbenchError as error:
        return JobResult(xbench=__version__, error=str(error), hint=error.hint)


def _as_resolved(order: JobRequest, resolved: Mapping[str, Any]) -> JobResult:
    run = RunSpec.model_validate(resolved["run"])
    run = run.model_copy(update={"modes": tuple(mode for mode in run.modes if mode.text in order.modes)})
    plan = JobPlan.model_validate(resolved["plan"])
    if rootless.reexec_needed(run.fabric):
        rootless.reexec(sys.argv)
    batch = int(resolved["batch"])
    return _launched(JobResult(xbench=__version__, samples_per_step=batch * run.fabric.world_size), order, run, plan)


# --- resolution ---------------------------------------------------------------------------------------------------


def _resolved(order: JobRequest) -> tuple[JobResult, RunSpec, JobPlan]:
    """Return the result without the ranks' counts, and the ranks' input for counting. Raises UsageError."""
    parsed = zip(parse_modes(",".join(order.modes)), order.modes, strict=True)
    modes = tuple(mode.model_copy(update={"text": text}) for mode, text in parsed)
    paired = next((mode.text for mode in modes if mode.paired), None)
    if paired is not None:
        raise SpecError(f"mode {paired!r} is of two jobs, and regress times one", hint="xbench compare times it")
    scenario = what_if(read(Path(order.plan_from)), Change()) if order.plan_from is not None else None
    unplanned = next((mode.text for mode in modes if mode_info(mode.carrier).needs_link), None)
    if scenario is None and unplanned is not None:
        raise SpecError(
            f"mode {unplanned!r} is planned from a measured link, and the check names no record to plan from",
            hint='write plan_from = "results/….json" into the check',
        )
    run, found, notes = prepare(
        RunConfig(
            workloads=[parse_workload(order.workload)],
            modes=modes,
            fabric=parse_fabric(order.fabric),
            effort=Effort(launches=1, rounds=1, steps=4),
            device=order.device,
            timeout_s=order.timeout_s,
        )
    )
    if run.fabric.name == "cluster":
        raise SpecError("regress starts its ranks itself, and not on fabric 'cluster'", hint="try local:ranks=2")
    plan, planned = _planned(run.modes, scenario, order.workers)
    record = found.workloads[0].record
    made = JobResult(
        xbench=__version__,
        environment=environment.capture(found.environment_facts()),
        workload=record,
        resolved={
            "run": run.model_dump(mode="json"), "plan": plan.model_dump(mode="json"), "batch": record.samples
        },
        takes_turns=True,
        planned=planned if order.planned else {},
        samples_per_step=record.samples * run.fabric.world_size,
        failed={mode.text: "not possible on one rank" for mode in modes if mode not in run.modes},
        warnings=notes,
    )  # fmt: skip
    return made, run, plan


def _planned(
    modes: Sequence[ModeSpec], scenario: Scenario | None, workers: int | None
) -> tuple[JobPlan, dict[str, PlannedFigures]]:
    """Return the ranks' plans, and their predictions. All plans are searched again, `auto`'s included."""
    if scenario is None:
        return JobPlan(buckets={}, step_s={}, exposed_s={}, link_s={}, compute_s=0.0), {}
    planner = scenario.planner
    wanted = [mode.carrier for mode in modes if mode.carrier in planner.modes]
    plans = planner.plans(list(dict.fromkeys([*wanted, UNMERGED, EXACT, "ddp"])))
    plan, _ = job_plan(planner, plans, scenario.times.uninstrumented_step_s, scenario.contention_record)
    wider = what_if(scenario.measured, Change(workers=workers)) if workers is not None else scenario
    figures = {
        mode.text: PlannedFigures(
            buckets=len(plans[mode.carrier].buckets),
            planned_step_s=plans[mode.carrier].predicted_step_s,
            simulated_step_s=wider.planner.plan(mode.carrier).predicted_step_s,
        )
        for mode in modes
        if mode.carrier in wanted
    }
    return plan.model_copy(update={"backward_s": backward_s_of(list(scenario.layers))}), figures


# --- one launch ---------------------------------------------------------------------------------------------------


def _launched(made: JobResult, order: JobRequest, run: RunSpec, plan: JobPlan) -> JobResult:
    """Run one start of the ranks, and add their results to the answer."""
    effort = Effort(launches=1, rounds=order.rounds, steps=order.steps, warmup_steps=order.warmup_steps)
    run = run.model_copy(update={"effort": effort, "timeout_s": order.timeout_s})
    found = Collector(run, [made.samples_per_step // run.fabric.world_size])
    counted: dict[str, Counts] = {}

    def take(job: int, rank: int, event: Event) -> None:
        if isinstance(event, StepCounted):
            counted[event.mode] = Counts.model_validate(event, from_attributes=True)
        else:
            found.take(job, rank, event)

    began_s = time.monotonic()
    error: XbenchError | None = None
    with open_fabric(run.fabric, device=run.device) as fabric:
        for program in _programs(order, run, plan):
            with Scratch("xb-regress-") as folder:
                error = error or _ranks(program, run, fabric, Path(folder), take)
        label = fabric.label
    cycles = {mode.text: cycle_of(mode) for mode in run.modes}
    samples = found.samples()
    blocks = [
        Block(mode=s.mode, round=s.round, steps_s=s.steps_s, warmup_s=s.warmup_s, cycle=cycles[s.mode])
        for s in sorted(samples, key=lambda sample: sample.started_s)
    ]
    return made.model_copy(
        update={
            "error": str(error) if error is not None else None,
            "hint": error.hint if error is not None else None,
            "label": label,
            "counted": counted,
            "blocks": blocks if not isinstance(error, FabricError) else [],  # they are of other links
            "failed": {**made.failed, **found.failed},
            "warnings": [*made.warnings, *found.warnings, *odd_sample_sentences(samples, cycles)],
            "launched_s": time.monotonic() - began_s,
        }
    )


def _programs(order: JobRequest, run: RunSpec, plan: JobPlan) -> list[dict[str, Any]]:
    """Return the program of each start of ranks.

    With `held` each mode has a start of its own, because the memory that one mode leaves would count for the next.
    """
    modes = [mode.text for mode in run.modes]
    blocks = balanced_blocks(modes, run.effort.rounds, order.seed) if order.kind == "time" else ()
    program = {
        "run": run.model_dump(mode="json"),
        "launch": 0,
        "phases": [phase.model_dump() for phase in blocks],
        "plans": [plan.model_dump(mode="json")],
        "turn_folder": order.turn_folder,
        "turns": order.turns,
    }
    if order.kind == "time":
        return [program]
    return [{**program, "counted": part} for part in ([[mode] for mode in modes] if order.held else [modes])]


def _ranks(program: Mapping[str, Any], run: RunSpec, fabric: Fabric, folder: Path, take: Take) -> XbenchError | None:
    """Start the ranks and wait for their end. Return the error that ended them early."""
    emulated = fabric.emulated.model_dump(mode="json") if fabric.emulated is not None else None
    argument = folder / "program.json"
    argument.write_text(json.dumps({**program, "emulated": emulated}), encoding="utf-8")
    outcome = launch(fabric, 1, RANK, argument, folder, on_event=take, silence_s=run.timeout_s)
    return outcome.error
