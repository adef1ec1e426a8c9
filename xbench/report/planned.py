"""What `xbench plan` shows: every mode's buckets and predicted step, what bounds them, and what to use.

Everything predicted is simulated. Where the record holds real steps of the same scenario they stand beside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from xbench.planning.replan import Planned
from xbench.records import Plan
from xbench.report import lines
from xbench.units import format_bytes, format_percent, format_seconds

EQUIVALENT = 0.02
"""Steps this close are as good as each other, as in a comparison's verdict."""

AS_GOOD = 0.005
"""Of modes whose predictions are this close the one that changes least in a training script is recommended."""

LEAST_CHANGE = ("ddp", "ddp-tuned", "single", "optimal", "mgwfbp", "wfbp")
CONTROLS = frozenset({"compute"})

_NARROW_COLUMNS = 84
_SIZES = 4


def show_planned(planned: Planned, console: Console) -> None:
    """Draw the table, then the recommendation, and what the numbers rest on."""
    measured_s = planned.scenario.measured.measured_step_s if not planned.scenario.changes else {}
    _fact(console, "workload", lines.workload_line(planned.scenario.measured.workload))
    for sentence in basis(planned):
        _fact(console, *sentence)
    console.print()
    console.print(_table(planned, measured_s, console.width))
    console.print(Text(recommendation(planned), style="bold"))
    gap = planned.plans["mgwfbp"].note if "mgwfbp" in planned.plans else None
    if gap:
        console.print(Text(f"mgwfbp: {gap}"))
    console.print()
    _fact(console, "bounds", lines.bounds_line(planned.bounds))
    _fact(console, "cost model", lines.cost_line(planned.scenario.cost))
    for caution in planned.cautions:
        _fact(console, "caution", caution, "yellow")


def basis(planned: Planned) -> list[tuple[str, str]]:
    """(label, sentence): what was measured, and what was changed."""
    scenario = planned.scenario
    was = scenario.measured
    place = f"{was.fabric.spec} ({was.fabric.label}), {was.cost.world_size} workers over {was.fabric.backend}"
    compute = f"compute {format_seconds(was.step.compute_s)} a step"
    told = [("measured", f"{compute}, {was.cost.collective} on {place}; from {was.name}")]
    return told + [("what if", change) for change in scenario.changes]


def recommendation(planned: Planned) -> str:
    """One sentence: which mode to use, and what it is predicted to gain."""
    plans = {mode: plan for mode, plan in planned.plans.items() if mode not in CONTROLS}
    if not plans:
        return "Only the control was planned, so there is nothing to recommend."
    choice = recommended(planned)
    best_s = plans[choice].predicted_step_s
    above = best_s / planned.bounds.backward_overlap_bound_s - 1 if planned.bounds.backward_overlap_bound_s > 0 else 0.0
    bound = f"{format_percent(max(0.0, above))} above the bound"
    if "ddp" not in plans:
        return f"{choice} is predicted fastest: {format_seconds(best_s)} a step, {bound} (simulated)."
    ddp_s = plans["ddp"].predicted_step_s
    fastest_s = min(plan.predicted_step_s for plan in plans.values())
    if choice == "ddp":
        return f"Keep ddp as it comes: no other mode is predicted faster than its {format_seconds(ddp_s)} a step (simulated)."
    gain = 1 - fastest_s / ddp_s
    if gain < EQUIVALENT:
        return (
            f"Keep ddp as it comes: the fastest, {choice}, is predicted to take only {format_percent(gain)} less time a "
            "step (simulated)."
        )
    return (
        f"Use {choice}: predicted {format_seconds(best_s)} a step, {format_percent(1 - best_s / ddp_s)} less than ddp's "
        f"{format_seconds(ddp_s)} and {bound} (simulated)."
    )


def recommended(planned: Planned) -> str:
    """The mode with the least predicted step; of those as good, the one that changes least in a training script.

    Raises KeyError when only controls were planned.
    """
    plans = {mode: plan for mode, plan in planned.plans.items() if mode not in CONTROLS}
    if not plans:
        raise KeyError("no mode but controls was planned")
    limit_s = min(plan.predicted_step_s for plan in plans.values()) * (1 + AS_GOOD)
    good = [mode for mode, plan in plans.items() if plan.predicted_step_s <= limit_s]
    return min(good, key=lambda mode: LEAST_CHANGE.index(mode) if mode in LEAST_CHANGE else len(LEAST_CHANGE))


def _table(planned: Planned, measured_s: Mapping[str, float], width: int) -> Table:
    """One row a mode; `of ddp` is its predicted step over DDP's, `bound` how far it is above the bound."""
    wide = width >= _NARROW_COLUMNS
    ddp = planned.plans.get("ddp")
    headings = ["mode", "buckets", *(["bytes of each"] if wide else []), "step", "exposed", "over bound",
                *(["of ddp"] if ddp else []), *(["measured (real)"] if measured_s else [])]  # fmt: skip
    table = Table(title="Plans and their predicted steps (simulated)", title_justify="left", title_style="italic",
                  box=SIMPLE_HEAD, padding=(0, 1, 0, 0))  # fmt: skip
    for heading in headings:
        left = heading in ("mode", "bytes of each")
        table.add_column(heading, justify="left" if left else "right", no_wrap=not left, overflow="fold")
    bound_s = planned.bounds.backward_overlap_bound_s
    for mode, plan in planned.plans.items():
        control = mode in CONTROLS
        above = plan.predicted_step_s / bound_s - 1 if bound_s > 0 and not control else None
        share = plan.predicted_step_s / ddp.predicted_step_s if ddp and ddp.predicted_step_s > 0 else None
        table.add_row(
            Text(mode),
            str(len(plan.buckets)),
            *([_sizes(plan)] if wide else []),
            format_seconds(plan.predicted_step_s),
            format_seconds(plan.predicted_exposed_s),
            # A bound is of one bucket order and of updates that cost nothing to split: rounding may fall short of it.
            "control" if control else format_percent(max(0.0, above) if above is not None else None),
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


def _fact(console: Console, label: str, sentence: str, style: str = "") -> None:
    """A sentence with what it is about in the margin."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=10, no_wrap=True)
    grid.add_column()
    grid.add_row(Text(label, style=style or "dim"), Text(sentence, style=style))
    console.print(grid)
