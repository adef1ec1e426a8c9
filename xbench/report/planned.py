"""What `xbench plan` shows: every mode's buckets and predicted step, what bounds them, and what to use.

Everything predicted is simulated. Where the record holds real steps of the same scenario they stand beside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from xbench.modes import TUNED_DDP, mode_info, next_forward_modes, planned_modes
from xbench.planning.next_forward_search import best_next_forward
from xbench.planning.replan import Planned
from xbench.planning.what_if import Scenario
from xbench.records import Plan
from xbench.report import lines
from xbench.report.advice import (
    AS_GOOD,
    PROVE,
    Advice,
    above,
    ahead,
    bound_of,
    compare_command,
    fastest,
    matters,
    recommendation,
    told_ahead,
)
from xbench.report.answer import is_control
from xbench.report.drawing import NARROW_COLUMNS, fact, say, say_next, titled_table
from xbench.units import format_bytes, format_percent, format_seconds

FOR_DDP = (TUNED_DDP, "auto")
"""Modes that a list of caps for DDP is taken from, unless one is named."""

_SIZES = 3


def show_planned(
    planned: Planned, console: Console, *, chosen: str | None = None, table: bool = True, in_ddp: bool = False
) -> None:
    """Draw what was measured and changed; then the table, what to use, and what that rests on.

    Without `table`, what the mode `chosen` for a snippet is predicted to take comes in its place: under a schedule of
    its own, or `in_ddp`.
    """
    scenario = planned.scenario
    fact(console, "workload", lines.workload_line(scenario.measured.workload))
    for label, sentence in basis(planned):
        fact(console, label, sentence)
    if table:
        console.print()
        console.print(_table(planned, {} if scenario.changes else scenario.measured.measured_step_s, console.width))
        ahead = [mode for mode, plan in planned.plans.items() if mode_info(plan.carrier or mode).puts_off]
        if ahead:
            say(
                console,
                f"The bound of {lines.and_of(ahead)} is max(C, ΣT); of the others, that of waiting for all gradients.",
                "dim",
            )
        say(console, recommendation(planned), "bold")
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
        fact(console, "bounds", lines.bounds_line(planned.bounds))
        fact(console, "forward", next_forward_line(planned))
        fact(console, "cost model", lines.cost_line(scenario.cost))
        fact(console, "contention", contention_line(scenario))
    elif chosen is not None:
        say(console, prediction(planned, chosen, in_ddp=in_ddp), "bold")
    for caution in planned.cautions:
        fact(console, "caution", caution, "yellow")


def basis(planned: Planned) -> list[tuple[str, str]]:
    """(label, sentence): what was measured, and what was changed."""
    scenario = planned.scenario
    was = scenario.measured
    place = f"{was.fabric.spec} ({was.fabric.label}), {was.cost.world_size} workers over {was.fabric.backend}"
    compute = f"compute {format_seconds(was.step.compute_s)} a step"
    told = [("measured", f"{compute}, {was.cost.collective} on {place}; from {was.name}")]
    return told + [("what if", change) for change in scenario.changes]


def contention_line(scenario: Scenario) -> str:
    """What collectives and computation cost each other here, over the sizes that were measured; or that none were."""
    known = scenario.contention_record if scenario.contention is not None else None
    line = lines.contention_line(known, simulated=scenario.fabric.label == "simulated")
    if line is None:
        but = ", but for ready times, which were measured under traffic" if scenario.step.loaded else ""
        return f"not measured: communication is taken as free for compute{but}"
    return line


def next_forward_line(planned: Planned) -> str:
    """What schedules that let layers of the next forward pass start before all gradients have arrived could bring."""
    scenario = planned.scenario
    steps_s = {mode: plan.predicted_step_s for mode, plan in planned.plans.items() if mode_info(mode).puts_off}
    if len(steps_s) < len(next_forward_modes()):
        found = best_next_forward(scenario.layers, scenario.step, scenario.cost, contention=scenario.contention)
        steps_s |= {one.mode: one.step.step_s for one in found if one.mode not in steps_s}
    steps = ", ".join(f"{mode} {format_seconds(steps_s[mode])}" for mode in sorted(steps_s, key=steps_s.__getitem__))
    allowed = "" if planned.overlap == "forward" else " (--overlap forward lets auto do so)"
    return (
        f"were layers of the next forward pass to wait for their own gradients alone{allowed}, at best {steps} "
        "(simulated)"
    )


def further(planned: Planned) -> list[Advice]:
    """What updates in the next forward pass could gain, and the command that proves what is predicted as measured."""
    choice = fastest(planned)
    if choice is None:
        return []
    others = ahead(planned, choice)
    found = told_ahead(planned, choice, others)
    if planned.scenario.changes:
        return found
    modes = dict.fromkeys(["ddp", choice if choice != "ddp" else "auto", *others])
    return [*found, Advice(PROVE, compare_command(planned.scenario.measured.record.spec, list(modes)))]


def what_to_paste(planned: Planned) -> str | None:
    """One sentence: how to get what is recommended into a training script; None where nothing is to be changed."""
    choice = fastest(planned)
    if choice is None or choice == "ddp" or not matters(planned, choice):
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
    """One sentence: what this mode is predicted to take, beside DDP and beside the fastest.

    `in_ddp`: what DistributedDataParallel is predicted to take with the mode's buckets.
    """
    plan, who = planned.plans[mode], mode
    if in_ddp:
        plan, who = planned.in_ddp(mode), f"DistributedDataParallel with the buckets of {mode}"
    told = f"{who} is predicted to take {format_seconds(plan.predicted_step_s)} a step"
    for other in dict.fromkeys(("ddp", fastest(planned))):
        if other in planned.plans and other != mode:
            told += f", {other} {format_seconds(planned.plans[other].predicted_step_s)}"
    if in_ddp and mode_info(mode).reducer != "ddp":
        told += f", {mode} under xbench.attach {format_seconds(planned.plans[mode].predicted_step_s)}"
    return f"{told} (simulated)."


def fastest_in_ddp(planned: Planned) -> str | None:
    """The mode whose buckets DistributedDataParallel is predicted to be fastest with; None where none was planned.

    `ddp-tuned`, unless those of `auto`, which knows what communication costs computation, are better and DDP can form
    them.
    """
    lists = [
        mode
        for mode in FOR_DDP
        if mode in planned.plans
        and (mode == FOR_DDP[0] or (planned.plans[mode].carrier is None and planned.formed_by_ddp(mode)))
    ]
    steps_s = {mode: planned.in_ddp(mode).predicted_step_s for mode in lists}
    limit_s = min(steps_s.values(), default=0.0) * (1 + AS_GOOD)
    return next((mode for mode in lists if steps_s[mode] <= limit_s), None)


def _table(planned: Planned, measured_s: Mapping[str, float], width: int) -> Table:
    """One row a mode; `of ddp` is its predicted step over DDP's, `bound` how far it is above its own bound."""
    wide = width >= NARROW_COLUMNS
    ddp = planned.plans.get("ddp")
    table = titled_table("Plans and their predicted steps (simulated)",
                         ("mode", "left"), ("buckets", "right"), *([("bytes of each", "left")] if wide else []),
                         ("step", "right"), ("exposed", "right"), ("over bound", "right"),
                         *([("of ddp", "right")] if ddp else []), *([("real step", "right")] if measured_s else []),
                         )  # fmt: skip
    for mode, plan in planned.plans.items():
        control = is_control(mode)
        share = plan.predicted_step_s / ddp.predicted_step_s if ddp and ddp.predicted_step_s > 0 else None
        table.add_row(
            Text(mode),
            str(len(plan.buckets)),
            *([_sizes(plan)] if wide else []),
            format_seconds(plan.predicted_step_s),
            format_seconds(plan.predicted_exposed_s),
            "control" if control else format_percent(above(plan.predicted_step_s, bound_of(planned, mode) or 0.0)),
            *([f"{share:.3f}" if share is not None else "–"] if ddp else []),
            *([format_seconds(measured_s.get(mode))] if measured_s else []),
        )
    return table


def _sizes(plan: Plan) -> str:
    """'3.91 MiB, 7.20 MiB, …, 1.10 MiB': the first ones and the last."""
    sizes: Sequence[str] = [format_bytes(nbytes) for nbytes in plan.bucket_bytes]
    if len(sizes) > _SIZES:
        sizes = [*sizes[: _SIZES - 2], "…", sizes[-1]]
    return ", ".join(sizes) or "–"
