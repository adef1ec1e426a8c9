"""Text of `xbench plan`: every mode's buckets and predicted step, its bounds, and the mode to use.

All predictions are simulated. If the record holds real steps of the same scenario, the table shows them too.
"""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from xbench.modes import TUNED_DDP, mode_info, next_forward_modes, planned_modes
from xbench.planning.next_forward_search import NextForwardSearch
from xbench.planning.scenario import Planned, Scenario
from xbench.records import Plan
from xbench.report import advice, sentences
from xbench.report.answer import is_control
from xbench.report.console import NARROW_COLUMNS, fact, filled_table, say, say_next
from xbench.stats.steps import short_step_caution
from xbench.text import and_of
from xbench.units import format_bytes, format_percent, format_seconds

FOR_DDP = (TUNED_DDP, "auto")
"""Modes whose buckets give DDP's list of caps, unless a mode is named."""


def show_planned(
    planned: Planned, console: Console, *, chosen: str | None = None, table: bool = True, in_ddp: bool = False
) -> None:
    """Print the measurements and changes; then the table, the recommendation, and its basis.

    Without `table`, a prediction for the snippet's mode `chosen` replaces them: under its own schedule, or with
    `in_ddp` under DistributedDataParallel.
    """
    scenario = planned.scenario
    fact(console, "workload", sentences.workload_line(scenario.measured.workload))
    for label, sentence in basis(planned):
        fact(console, label, sentence)
    if table:
        console.print()
        console.print(_table(planned, {} if scenario.changes else scenario.measured.measured_step_s, console.width))
        ahead = [mode for mode, plan in planned.plans.items() if mode_info(plan.carrier or mode).puts_off]
        if ahead:
            own = f"The bound of {and_of(ahead)} is the longer of computation and the link's least time"
            say(console, f"{own}; of the others, that of waiting for all gradients.", "dim")
        say(console, advice.recommendation(planned), "bold")
        paste = what_to_paste(planned)
        if paste:
            say(console, paste)
        say_next(console, further(planned))
        for mode in planned_modes():
            told = mode_info(mode).needs_link and mode_info(mode).reducer != "ddp" and mode in planned.plans
            note = planned.plans[mode].note if told else None
            if note:
                say(console, f"{mode}: {note}")
        console.print()
        fact(console, "bounds", sentences.bounds_line(planned.bounds))
        if not scenario.step.updates_together:
            fact(console, "forward", next_forward_line(planned))
        fact(console, "cost model", sentences.cost_line(scenario.cost))
        fact(console, "contention", contention_line(scenario))
        launches = sentences.launches_line(scenario.contention_record)
        if launches is not None:
            fact(console, "launches", launches)
    elif chosen is not None:
        say(console, prediction(planned, chosen, in_ddp=in_ddp), "bold")
    short = short_step_caution(plan.predicted_step_s for plan in planned.plans.values())
    for caution in [*short, *planned.cautions]:
        fact(console, "caution", caution, "yellow")


def basis(planned: Planned) -> list[tuple[str, str]]:
    """Return (label, sentence) pairs on the measurements and the changes to them."""
    scenario = planned.scenario
    was = scenario.measured
    place = f"{was.fabric.spec} ({was.fabric.label}), {was.cost.world_size} workers over {was.fabric.backend}"
    compute = f"compute {format_seconds(was.step.compute_s)} a step"
    told = [("measured", f"{compute}, {was.cost.collective} on {place}; from {was.name}")]
    return told + [("what if", change) for change in scenario.changes]


def contention_line(scenario: Scenario) -> str:
    """Describe how collectives and computation slow each other, over the measured sizes, or say that none was."""
    known = scenario.contention_record if scenario.contention is not None else None
    line = sentences.contention_line(known, simulated=scenario.fabric.label == "simulated")
    if line is None:
        loaded = scenario.contention is None and scenario.step.loaded is not None
        but = ", but for ready times, which were measured under traffic" if loaded else ""
        return f"not measured: communication is taken as free for compute{but}"
    return line


def next_forward_line(planned: Planned) -> str:
    """Describe the predicted steps of schedules whose next forward pass waits only for each layer's own gradients."""
    scenario = planned.scenario
    steps_s = {mode: plan.predicted_step_s for mode, plan in planned.plans.items() if mode_info(mode).puts_off}
    if len(steps_s) < len(next_forward_modes()):
        search = NextForwardSearch(scenario.layers, scenario.step, scenario.cost, contention=scenario.contention)
        for one in (search.dear(), search.priority()):
            steps_s.setdefault(str(one.carrier), one.step_s)
    steps = ", ".join(f"{mode} {format_seconds(steps_s[mode])}" for mode in sorted(steps_s, key=steps_s.__getitem__))
    allowed = "" if advice.searches_ahead(planned) else " (auto:forward may do so)"
    return (
        f"were layers of the next forward pass to wait for their own gradients alone{allowed}, at best {steps} "
        "(simulated)"
    )


def further(planned: Planned) -> list[advice.Advice]:
    """Return advice on the gain of next-forward updates, and the command that proves the predictions.

    Predictions of a changed scenario have no such command.
    """
    found = advice.following_modes(planned, planned.scenario.measured.record)
    return [one for one in found if one.command is None] if planned.scenario.changes else found


def what_to_paste(planned: Planned) -> str | None:
    """Say in one sentence how to use the recommended mode in a training script; None if no change is needed."""
    choice = advice.fastest(planned)
    if choice is None or choice == "ddp" or not advice.changes_enough(planned, choice):
        return None
    attach = "--emit python prints the lines to paste"
    if choice == TUNED_DDP:
        return "--emit ddp prints the argument to paste."
    if mode_info(planned.plans[choice].carrier or choice).puts_off or not planned.formed_by_ddp(choice):
        return f"{attach}, for xbench.attach."
    step_s = planned.in_ddp(choice).predicted_step_s
    return (
        f"{attach}, for xbench.attach; --emit ddp --mode {choice} the same buckets for DistributedDataParallel itself, "
        f"with which a step is predicted to take {format_seconds(step_s)} (simulated)."
    )


def prediction(planned: Planned, mode: str, *, in_ddp: bool = False) -> str:
    """Say in one sentence a mode's predicted step, beside those of DDP and of the fastest mode.

    With `in_ddp`, the prediction is for DistributedDataParallel with the mode's buckets.
    """
    plan, who = planned.plans[mode], mode
    if in_ddp:
        plan, who = planned.in_ddp(mode), f"DistributedDataParallel with the buckets of {mode}"
    told = f"{who} is predicted to take {format_seconds(plan.predicted_step_s)} a step"
    for other in dict.fromkeys(("ddp", advice.fastest(planned))):
        if other in planned.plans and other != mode:
            told += f", {other} {format_seconds(planned.plans[other].predicted_step_s)}"
    if in_ddp and mode_info(mode).reducer != "ddp":
        told += f", {mode} under xbench.attach {format_seconds(planned.plans[mode].predicted_step_s)}"
    return f"{told} (simulated)."


def fastest_in_ddp(planned: Planned) -> str | None:
    """Return the mode whose buckets give DistributedDataParallel its shortest predicted step; None if none was planned.

    It prefers `ddp-tuned`, unless the buckets of `auto` are better and DDP can form them. Only `auto` counts the cost
    of communication for computation.
    """
    lists = [
        mode
        for mode in FOR_DDP
        if mode in planned.plans
        and (mode == FOR_DDP[0] or (planned.plans[mode].carrier is None and planned.formed_by_ddp(mode)))
    ]
    steps_s = {mode: planned.in_ddp(mode).predicted_step_s for mode in lists}
    limit_s = min(steps_s.values(), default=0.0) * (1 + advice.AS_GOOD)
    return next((mode for mode in lists if steps_s[mode] <= limit_s), None)


def _table(planned: Planned, measured_s: Mapping[str, float], width: int) -> Table:
    """Return one row per mode. `of ddp` is its step over DDP's, `over bound` the distance to its own bound."""
    ddp = planned.plans.get("ddp")
    measured = f"{planned.scenario.fabric.label} step"
    hidden = {
        *(() if width >= NARROW_COLUMNS else ("bytes of each",)),
        *(() if ddp else ("of ddp",)),
        *(() if measured_s else (measured,)),
    }
    rows = []
    for mode, plan in planned.plans.items():
        over = format_percent(advice.above(plan.predicted_step_s, advice.bound_of(planned, mode) or 0.0))
        share = plan.predicted_step_s / ddp.predicted_step_s if ddp and ddp.predicted_step_s > 0 else None
        cells = {
            "mode": mode,
            "buckets": str(len(plan.buckets)),
            "bytes of each": _sizes(plan),
            "step": format_seconds(plan.predicted_step_s),
            "exposed": format_seconds(plan.predicted_exposed_s),
            "over bound": "control" if is_control(mode) else over,
            "of ddp": f"{share:.3f}" if share is not None else "–",
            measured: format_seconds(measured_s.get(mode)),
        }
        rows.append({heading: cell for heading, cell in cells.items() if heading not in hidden})
    title = "Plans and their predicted steps (simulated)"
    return filled_table(title, list(rows[0]), [list(row.values()) for row in rows], ("mode", "bytes of each"))


def _sizes(plan: Plan) -> str:
    """Format sizes as '3.91 MiB, …, 1.10 MiB': the first and the last of many."""
    sizes = [format_bytes(nbytes) for nbytes in plan.bucket_bytes]
    if len(sizes) > 3:
        sizes = [sizes[0], "…", sizes[-1]]
    return ", ".join(sizes) or "–"
