"""An order carried out by this tree's own xbench: what it resolves, what it plans, and one launch of its ranks.

Nothing here imports torch: the ranks do, and they are all that a launch waits for.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from xbench import environment
from xbench.errors import Interrupted, SpecError, XbenchError
from xbench.fabrics import open_fabric, parse_fabric, rootless
from xbench.fabrics.fabric import Fabric
from xbench.planning.partial import backward_s_of
from xbench.planning.plans import NEED_COST
from xbench.planning.what_if import Change, Scenario, read, what_if
from xbench.runtime.collect import Collector
from xbench.runtime.job_plans import job_plan
from xbench.runtime.launch import launch
from xbench.runtime.prepare import RunRequest, prepare
from xbench.runtime.program import JobPlan, Phase
from xbench.runtime.regress.protocol import Answer, Block, Counts, Order, PlannedFigures
from xbench.schedules import cycle_of, parse_modes
from xbench.spec import Effort, ModeSpec, RunSpec
from xbench.stats.order import balanced_orders
from xbench.workloads import parse_workload

RANK = "xbench.runtime.regress.rank"
EXACT = "optimal"
"""Whose buckets `spb` cuts."""


def answer(order: Order) -> Answer:
    """Carry out an order. What goes wrong is in the answer; only an interruption is raised."""
    try:
        return _looked(order) if order.kind == "look" else _timed(order)
    except Interrupted:
        raise
    except XbenchError as error:
        return Answer(xbench=version(), error=str(error), hint=error.hint)


def version() -> str:
    """Of this tree's xbench."""
    return metadata.version("xbench")


def _looked(order: Order) -> Answer:
    modes = _modes(order)
    paired = next((mode.text for mode in modes if mode.paired), None)
    if paired is not None:
        raise SpecError(f"mode {paired!r} is of two jobs, and regress times one", hint="xbench compare times it")
    scenario = _scenario(order.plan_from)
    _check_planned(modes, scenario)
    run, found, notes = prepare(
        RunRequest(
            kind="comparison",
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
    made = Answer(
        xbench=version(),
        environment=environment.capture(found.environment_facts()),
        workload=record,
        resolved=resolved,
        planned=planned if order.planned else {},
        failed={mode.text: "not possible on one rank" for mode in modes if mode not in run.modes},
        warnings=notes,
    )
    return _launched(made, order, run, plan, record.batch_size) if order.counted else made


def _timed(order: Order) -> Answer:
    if order.resolved is None:
        raise SpecError("an order to time carries what the look before it has resolved")
    run = RunSpec.model_validate(order.resolved["run"])
    run = run.model_copy(update={"modes": tuple(mode for mode in run.modes if mode.text in order.modes)})
    plan = JobPlan.model_validate(order.resolved["plan"])
    if rootless.reexec_needed(run.fabric):
        rootless.reexec(sys.argv)
    return _launched(Answer(xbench=version()), order, run, plan, int(order.resolved["batch"]))


def _launched(made: Answer, order: Order, run: RunSpec, plan: JobPlan, batch: int) -> Answer:
    """One start of the ranks, with what they found added to the answer."""
    effort = Effort(launches=1, rounds=order.rounds, steps=order.steps, warmup_steps=order.warmup_steps)
    run = run.model_copy(update={"effort": effort, "timeout_s": order.timeout_s})
    found = Collector(run, [batch])
    counted: dict[str, Counts] = {}

    def take(job: int, rank: int, event: Mapping[str, Any]) -> None:
        if event["event"] == "counts":
            counted[event["mode"]] = Counts.model_validate(event)
        else:
            found.take(job, rank, event)

    began_s = time.monotonic()
    with open_fabric(run.fabric, device=run.device) as fabric, tempfile.TemporaryDirectory(prefix="xb-regress-") as at:
        error = _ranks(order, run, plan, fabric, Path(at), take)
        label = fabric.label
    cycles = {mode.text: cycle_of(mode) for mode in run.modes}
    blocks = [
        Block(mode=s.mode, round=s.round, steps_s=s.steps_s, warmup_s=s.warmup_s, cycle=cycles[s.mode])
        for s in sorted(found.samples(), key=lambda sample: sample.started_s)
    ]
    return made.model_copy(
        update={
            "error": str(error) if error is not None else None,
            "hint": error.hint if error is not None else None,
            "label": label,
            "counted": counted,
            "blocks": blocks,
            "samples_per_step": batch * run.fabric.world_size,
            "failed": {**made.failed, **found.failed},
            "warnings": [*made.warnings, *found.warnings],
            "launched_s": time.monotonic() - began_s,
        }
    )


def _ranks(order: Order, run: RunSpec, plan: JobPlan, fabric: Fabric, folder: Path, take: Any) -> XbenchError | None:
    """Start the ranks and wait for their end: the error that ended them early."""
    timed = order.kind == "time"
    program = {
        "run": run.model_dump(mode="json"),
        "launch": 0,
        "phases": [phase.model_dump() for phase in blocks_of(run, order.seed)] if timed else [],
        "plans": [plan.model_dump(mode="json")],
        "emulated": fabric.emulated.model_dump(mode="json") if fabric.emulated is not None else None,
        "counted": [] if timed else [mode.text for mode in run.modes],
        "slow_step": order.slow_step,
    }

    argument = folder / "program.json"
    argument.write_text(json.dumps(program))
    outcome = launch(fabric, 1, RANK, argument, folder, on_event=take, silence_s=run.timeout_s)
    return outcome.error


def _modes(order: Order) -> tuple[ModeSpec, ...]:
    """The modes, called as the order calls them. Raises SpecError."""
    modes = parse_modes(",".join(order.modes))
    return tuple(mode.model_copy(update={"text": text}) for mode, text in zip(modes, order.modes, strict=True))


def blocks_of(run: RunSpec, seed: int) -> tuple[Phase, ...]:
    """The blocks of one launch, each mode once a round, in a balanced order."""
    orders = balanced_orders([mode.text for mode in run.modes], run.effort.rounds, seed)
    blocks = [(turn, mode) for turn, order in enumerate(orders) for mode in order]
    return tuple(Phase(kind="block", mode=mode, round=turn, position=i) for i, (turn, mode) in enumerate(blocks))


def _scenario(plan_from: str | None, change: Change | None = None) -> Scenario | None:
    """What the plans are made from. Raises RecordError for a record without a profile."""
    return what_if(read(Path(plan_from)), change or Change()) if plan_from is not None else None


def _check_planned(modes: Sequence[ModeSpec], scenario: Scenario | None) -> None:
    unplanned = next((mode.text for mode in modes if mode.carrier in NEED_COST), None)
    if scenario is None and unplanned is not None:
        raise SpecError(
            f"mode {unplanned!r} is planned from a measured link, and the check names no record to plan from",
            hint='write plan_from = "results/….json" into the check',
        )


def _planned(
    modes: Sequence[ModeSpec], scenario: Scenario | None, workers: int | None
) -> tuple[JobPlan, dict[str, PlannedFigures]]:
    """What the ranks need to know of the plans, and what they predict. Plans are searched anew, `auto`'s too."""
    if scenario is None:
        return JobPlan(buckets={}, step_s={}, exposed_s={}, link_s={}, compute_s=0.0), {}
    planner = scenario.planner
    wanted = [mode.carrier for mode in modes if mode.carrier in planner.modes]
    plans = planner.plans(list(dict.fromkeys([*wanted, "wfbp", EXACT, "ddp"])))
    plan, _ = job_plan(planner, plans, scenario.times.uninstrumented_step_s, scenario.contention_record)
    plan = plan.model_copy(
        update={
            "backward_s": backward_s_of(list(scenario.layers)),
            "buckets": plan.buckets | {"spb": plans[EXACT].buckets},
        }
    )
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
