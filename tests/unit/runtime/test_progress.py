"""What is said before and while modes are timed."""

from __future__ import annotations

import io

from rich.console import Console

from xbench.runtime.program import phases
from xbench.runtime.progress import Progress, predicted_slower
from xbench.schedules import parse_modes
from xbench.spec import FabricSpec, RunSpec, WorkloadSpec

STEPS_S = {"compute": 0.3, "ddp": 0.0202, "optimal": 0.0255, "single": 0.0204, "auto": 0.018, "wfbp": 0.0303}


def run(modes: str, reference: str = "ddp", jobs: int = 1) -> RunSpec:
    return RunSpec(kind="comparison", workloads=(WorkloadSpec(name="mlp"),) * jobs, modes=parse_modes(modes),
                   reference=reference, fabric=FabricSpec(name="local", ranks=2))  # fmt: skip


def test_modes_predicted_slower_are_marked_with_the_amount() -> None:
    assert predicted_slower(run("ddp,auto,single,optimal,wfbp"), STEPS_S) == [
        "predicted slower than ddp (simulated): optimal by 26.2 %, wfbp by 50.0 %"
    ]
    assert predicted_slower(run("ddp,auto,single"), STEPS_S) == []
    assert predicted_slower(run("horovod,optimal", "horovod"), STEPS_S) == []  # nobody knows horovod's step
    two = run("sequential,crossover,ddp,optimal", "sequential", jobs=2)
    assert predicted_slower(two, STEPS_S) == ["predicted slower than ddp (simulated): optimal by 26.2 %"]


def said(console_run: RunSpec, events: list[dict[str, object]]) -> list[str]:
    told = io.StringIO()
    with Progress(Console(file=told, width=200), launches=1, run=console_run) as progress:
        progress.begin_launch(0, phases(console_run, 0))
        for event in events:
            progress.take(0, event)
    return told.getvalue().splitlines()


def test_the_mark_comes_with_the_plans_before_anything_is_timed() -> None:
    plans = {mode: {"predicted_step_s": step_s} for mode, step_s in STEPS_S.items()}
    assert said(run("ddp,optimal"), [{"event": "plans", "plans": plans}]) == [
        "launch 1 of 1: starting the ranks",
        "predicted slower than ddp (simulated): optimal by 26.2 %",
    ]


def test_the_live_step_of_two_jobs_at_once_is_said_to_be_one_job_s() -> None:
    asked = run("sequential,crossover", "sequential", jobs=2)
    places = {phase.mode: number for number, phase in enumerate(phases(asked, 0)) if phase.kind == "block"}
    block = {"event": "block", "stamps": [0.0, 2.0, 4.0, 6.0], "warmup": 0}
    events = [
        event
        for mode, number in places.items()
        for event in (
            {**block, "mode": mode}, {"event": "phase", "number": number, "name": f"block {mode}", "t": 1.0}
        )
    ]  # fmt: skip
    lines = said(asked, events)
    assert "launch 1 of 1: block crossover, median step of one of the jobs so far 2.00 s" in "\n".join(lines)
    assert "launch 1 of 1: block sequential, median step so far 2.00 s" in "\n".join(lines)
