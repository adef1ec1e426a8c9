"""Resolution of a job by this tree: the workload with every default, the plans of its modes, and their predictions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from xbench import environment
from xbench.config import RunConfig
from xbench.errors import SpecError
from xbench.fabrics import parse_fabric
from xbench.modes import EXACT, UNMERGED, mode_info
from xbench.planning.measured import read
from xbench.planning.partial import backward_s_of
from xbench.planning.scenario import Change, Scenario, what_if
from xbench.rank.job_plans import job_plan
from xbench.rank.program import JobPlan
from xbench.regress.protocol import JobRequest, JobResult, PlannedFigures, version
from xbench.runs.prepare import prepare
from xbench.schedules import parse_modes
from xbench.spec import Effort, ModeSpec, RunSpec
from xbench.workloads import parse_workload


def look(order: JobRequest) -> tuple[JobResult, RunSpec, JobPlan]:
    """Return the result without the ranks' counts, and the ranks' input for counting. Raises UsageError."""
    modes = _modes(order)
    paired = next((mode.text for mode in modes if mode.paired), None)
    if paired is not None:
        raise SpecError(f"mode {paired!r} is of two jobs, and regress times one", hint="xbench compare times it")
    scenario = _scenario(order.plan_from)
    _check_planned(modes, scenario)
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
    resolved = {"run": run.model_dump(mode="json"), "plan": plan.model_dump(mode="json"), "batch": record.batch_size}
    made = JobResult(
        xbench=version(),
        environment=environment.capture(found.environment_facts()),
        workload=record,
        resolved=resolved,
        takes_turns=True,
        planned=planned if order.planned else {},
        samples_per_step=record.batch_size * run.fabric.world_size,
        failed={mode.text: "not possible on one rank" for mode in modes if mode not in run.modes},
        warnings=notes,
    )
    return made, run, plan


def _modes(order: JobRequest) -> tuple[ModeSpec, ...]:
    """Return the modes, named as in the job. Raises SpecError."""
    modes = parse_modes(",".join(order.modes))
    return tuple(mode.model_copy(update={"text": text}) for mode, text in zip(modes, order.modes, strict=True))


def _scenario(plan_from: str | None, change: Change | None = None) -> Scenario | None:
    """Return the input of the plans. Raises RecordError for a record without a profile."""
    return what_if(read(Path(plan_from)), change or Change()) if plan_from is not None else None


def _check_planned(modes: Sequence[ModeSpec], scenario: Scenario | None) -> None:
    unplanned = next((mode.text for mode in modes if mode_info(mode.carrier).needs_link), None)
    if scenario is None and unplanned is not None:
        raise SpecError(
            f"mode {unplanned!r} is planned from a measured link, and the check names no record to plan from",
            hint='write plan_from = "results/….json" into the check',
        )


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
    plan = plan.model_copy(update={"backward_s": backward_s_of(list(scenario.layers))})
    wider = scenario
    if workers is not None:
        wider = what_if(scenario.measured, Change(workers=workers))
    figures = {}
    for mode in modes:
        if mode.carrier in wanted:
            made = plans[mode.carrier]
            figures[mode.text] = PlannedFigures(
                buckets=len(made.buckets),
                planned_step_s=made.predicted_step_s,
                simulated_step_s=wider.planner.plan(mode.carrier).predicted_step_s,
            )
    return plan, figures
