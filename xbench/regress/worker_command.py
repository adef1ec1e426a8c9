"""Execution of a job by this tree's own xbench: resolution, plans, and one launch of its ranks.

Nothing here imports torch. Only the ranks do, and a launch waits for nothing else.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xbench.errors import FabricError, Interrupted, SpecError, XbenchError
from xbench.fabrics import open_fabric, rootless
from xbench.fabrics.fabric import Fabric
from xbench.launch.launcher import launch
from xbench.rank.events import Event, StepCounted
from xbench.rank.journal import Take
from xbench.rank.program import JobPlan, Phase
from xbench.regress.protocol import Block, Counts, JobRequest, JobResult, version
from xbench.runs.event_collector import Collector
from xbench.schedules import cycle_of
from xbench.scratch import Scratch
from xbench.spec import Effort, RunSpec
from xbench.stats import odd_steps
from xbench.stats.order import balanced_orders

RANK = "xbench.regress.rank"


def answer(order: JobRequest) -> JobResult:
    """Carry out a job. Errors are in the result; only an interruption is raised."""
    try:
        return _looked(order) if order.kind == "look" else _timed(order)
    except Interrupted:
        raise
    except XbenchError as error:
        return JobResult(xbench=version(), error=str(error), hint=error.hint)


def _looked(order: JobRequest) -> JobResult:
    if order.resolved is not None:
        return _as_resolved(order, order.resolved)
    from xbench.regress.resolve import look  # it imports all of planning, which a timed launch does not need

    made, run, plan = look(order)
    return _launched(made, order, run, plan) if order.counted else made


def _timed(order: JobRequest) -> JobResult:
    if order.resolved is None:
        raise SpecError("an order to time carries what the look before it has resolved")
    return _as_resolved(order, order.resolved)


def _as_resolved(order: JobRequest, resolved: Mapping[str, Any]) -> JobResult:
    run = RunSpec.model_validate(resolved["run"])
    run = run.model_copy(update={"modes": tuple(mode for mode in run.modes if mode.text in order.modes)})
    plan = JobPlan.model_validate(resolved["plan"])
    if rootless.reexec_needed(run.fabric):
        rootless.reexec(sys.argv)
    batch = int(resolved["batch"])
    return _launched(JobResult(xbench=version(), samples_per_step=batch * run.fabric.world_size), order, run, plan)


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
            "warnings": [*made.warnings, *found.warnings, *odd_steps.sentences_of(samples, cycles)],
            "launched_s": time.monotonic() - began_s,
        }
    )


def _programs(order: JobRequest, run: RunSpec, plan: JobPlan) -> list[dict[str, Any]]:
    """Return the program of each start of ranks.

    With `held` each mode has a start of its own, because the memory that one mode leaves would count for the next.
    """
    program = {
        "run": run.model_dump(mode="json"),
        "launch": 0,
        "phases": [phase.model_dump() for phase in blocks_of(run, order.seed)] if order.kind == "time" else [],
        "plans": [plan.model_dump(mode="json")],
        "slow_step": order.slow_step,
        "turn_folder": order.turn_folder,
        "turns": order.turns,
    }
    if order.kind == "time":
        return [program]
    modes = [mode.text for mode in run.modes]
    return [{**program, "counted": part} for part in ([[mode] for mode in modes] if order.held else [modes])]


def _ranks(program: Mapping[str, Any], run: RunSpec, fabric: Fabric, folder: Path, take: Take) -> XbenchError | None:
    """Start the ranks and wait for their end. Return the error that ended them early."""
    emulated = fabric.emulated.model_dump(mode="json") if fabric.emulated is not None else None
    argument = folder / "program.json"
    argument.write_text(json.dumps({**program, "emulated": emulated}))
    outcome = launch(fabric, 1, RANK, argument, folder, on_event=take, silence_s=run.timeout_s)
    return outcome.error


def blocks_of(run: RunSpec, seed: int) -> tuple[Phase, ...]:
    """Return the blocks of one launch, each mode once a round, in a balanced order."""
    orders = balanced_orders([mode.text for mode in run.modes], run.effort.rounds, seed)
    blocks = [(turn, mode) for turn, order in enumerate(orders) for mode in order]
    return tuple(Phase(kind="block", mode=mode, round=turn, position=i) for i, (turn, mode) in enumerate(blocks))
