"""A profile in the terminal: the step, its layers, what communication costs, and the plans that follow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from xbench.records import Label, Layer, Plan, Profile, StepTimes
from xbench.report import sentences
from xbench.report.advice import advice
from xbench.report.answer import is_control
from xbench.report.cell_format import whole_percent
from xbench.report.charts.text_gpu import render_gpu
from xbench.report.console import NARROW_COLUMNS, fact, indented, say, say_next, spare_columns, titled_table
from xbench.report.kinds.measured import bottom, top
from xbench.units import format_bytes, format_count, format_percent, format_seconds, format_signed_percent

TOP_LAYERS = 10
OVERHEAD_GOAL = 0.02
PLAN_HEADINGS = ("mode", "buckets", "step", "exposed", "gap", "largest")
COST_HEADINGS = ("size", "transfer", "95 % CI", "wait", "fit", "times")


def render_profile(record: Profile, console: Console, *, verbose: bool = False, all_layers: bool = False) -> None:
    """What to use and to type next; then the step, its layers, the cost of communication, and the plans."""
    top(record, console)
    found = advice(record)
    if found:
        say(console, found[0].told, "bold")
        say_next(console, found[1:])
        console.print()
    say(console, sentences.workload_line(record.workload), "" if found else "bold")
    console.print()
    if record.step is not None:
        for sentence in _step_lines(record.step, record.fabric.label):
            say(console, sentence)
        console.print()
    if record.layers:
        shown = _top_layers(record.layers, all_layers)
        if console.width < NARROW_COLUMNS:
            for number, layer in shown:
                _stacked_layer(number, layer, console)
        else:
            console.print(_layer_table(shown))
        if len(shown) < len(record.layers):
            rest = sum(layer.share for layer in record.layers) - sum(layer.share for _, layer in shown)
            hidden = len(record.layers) - len(shown)
            say(console, f"{hidden} more layers take {format_percent(rest)} of the step: --all shows them.")
        console.print()
    if record.plans:
        console.print(_plan_table(list(record.plans.values()), console))
        say(console, sentences.PLAN_COLUMNS, "dim")
        for plan in record.plans.values():
            if plan.note:
                say(console, f"{plan.mode}: {plan.note}")
    if verbose and record.cost_model is not None and record.cost_model.points:
        console.print()
        console.print(_cost_table(record, console))
        say(console, sentences.COST_COLUMNS, "dim")
        say(console, sentences.waits_line(record.cost_model))
    render_gpu(record, console)
    console.print()
    if record.bounds is not None:
        fact(console, "bounds", sentences.bounds_line(record.bounds))
    bottom(record, console, verbose=verbose)


def _step_lines(step: StepTimes, label: Label) -> list[str]:
    """The bare step, the instrumented one with its parts, and what the instruments cost."""
    above = f"That is more than the goal of {whole_percent(OVERHEAD_GOAL)}, so read the parts as shares."
    return [
        sentences.step_line(step, label),
        sentences.parts_line(step),
        sentences.instruments_line(step),
        *([above] if step.overhead_ratio > OVERHEAD_GOAL else []),
        f"Medians and 95 % intervals of {step.steps} steps, after {step.warmup_steps} of warm-up that are kept apart.",
    ]


def _top_layers(layers: Sequence[Layer], all_layers: bool) -> list[tuple[int, Layer]]:
    """(Place in ready order, layer) of the layers to show, in ready order; 1 is nearest the loss."""
    numbered = list(enumerate(layers, start=1))
    if all_layers or len(layers) <= TOP_LAYERS:
        return numbered
    largest = sorted(numbered, key=lambda pair: -pair[1].share)[:TOP_LAYERS]
    return sorted(largest, key=lambda pair: pair[0])


def _layer_table(shown: Iterable[tuple[int, Layer]]) -> Table:
    table = titled_table("Layers in gradient-ready order",
                   ("#", "right"), ("layer", "left"), ("kind", "left"), ("parameters", "right"), ("gradient", "right"),
                   ("forward", "right"), ("backward", "right"), ("ready", "right"), ("share", "right"))  # fmt: skip
    for number, layer in shown:
        table.add_row(
            str(number),
            Text(layer.name),
            Text(layer.kind),
            format_count(layer.parameters),
            format_bytes(layer.grad_bytes),
            format_seconds(layer.forward_s),
            format_seconds(layer.backward_s),
            format_seconds(layer.ready_s),
            format_percent(layer.share),
        )
    return table


def _stacked_layer(number: int, layer: Layer, console: Console) -> None:
    console.print(Text.assemble(f"{number} ", (layer.name, "bold"), f" {layer.kind} {format_percent(layer.share)}"))
    indented(console, f"{format_count(layer.parameters)} parameters, {format_bytes(layer.grad_bytes)} of gradients")
    indented(console, f"forward {format_seconds(layer.forward_s)}, backward {format_seconds(layer.backward_s)}, "
                       f"ready {format_seconds(layer.ready_s)}")  # fmt: skip


def _cost_table(record: Profile, console: Console) -> Table:
    """The measured points of the cost model; the wait for late ranks is not part of the transfer."""
    model = record.cost_model
    assert model is not None  # render_profile asked
    rows = []
    for point in model.points:
        fitted_s = model.alpha_s + model.beta_s_per_byte * point.nbytes
        rows.append([
            format_bytes(point.nbytes),
            format_seconds(point.transfer_s),
            f"{format_seconds(point.ci95[0])} – {format_seconds(point.ci95[1])}",
            format_seconds(point.wait_s),
            format_signed_percent(fitted_s / point.transfer_s - 1 if point.transfer_s > 0 else None),
            str(point.repetitions),
        ])  # fmt: skip
    title = f"Cost of one {model.collective} ({record.fabric.label})"
    return _fitting(console, title, COST_HEADINGS, rows, ("times", "wait", "95 % CI"))


def _plan_table(plans: Sequence[Plan], console: Console) -> Table:
    """What each schedule would do with this profile; the gap is to the best schedule here, which no control is."""
    best_s = min((plan.predicted_step_s for plan in plans if not is_control(plan.mode)), default=0.0)
    rows = []
    for plan in plans:
        behind = best_s > 0 and not is_control(plan.mode)
        rows.append([
            plan.mode,
            str(len(plan.buckets)),
            format_seconds(plan.predicted_step_s),
            format_seconds(plan.predicted_exposed_s),
            format_signed_percent(plan.predicted_step_s / best_s - 1 if behind else None),
            format_bytes(max(plan.bucket_bytes, default=0)),
        ])  # fmt: skip
    return _fitting(console, "Plans and their predicted steps (simulated)", PLAN_HEADINGS, rows, ("largest", "exposed"))


def _fitting(
    console: Console, title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], dispensable: Sequence[str]
) -> Table:
    """A table of these rows, without as many dispensable columns, in their order, as the terminal has no room for."""
    for count in range(len(dispensable) + 1):
        kept = [at for at, heading in enumerate(headings) if heading not in dispensable[:count]]
        table = titled_table(title, *((headings[at], "left" if headings[at] == "mode" else "right") for at in kept))
        for row in rows:
            table.add_row(*(Text(row[at]) for at in kept))
        if spare_columns(console, table) >= 0:
            break
    return table
