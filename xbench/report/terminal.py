"""Tables for people, in a terminal or a log.

The answer comes first, in words; then the figures it rests on; then what bounds them, how they were made, and what went
wrong. Colour repeats what words already say. Below 84 columns tables become stacked blocks. A mode that failed, or
that trained another network than DDP, shows why and never a time.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

from rich.bar import Bar
from rich.console import Console
from rich.table import Table
from rich.text import Text

from xbench.records import (
    RANKS,
    AnyRecord,
    Baseline,
    Comparison,
    Contention,
    Convergence,
    Label,
    Layer,
    ModeResult,
    Noise,
    Plan,
    Profile,
    Regression,
    Scaling,
    StepTimes,
    Tuned,
    Validation,
)
from xbench.report import lines
from xbench.report.answer import answer, controls, is_control, partial, trusted
from xbench.report.convergence import render_convergence
from xbench.report.drawing import (
    NARROW_COLUMNS,
    OFF_TTY_COLUMNS,
    WIDE_COLUMNS,
    fact,
    indented,
    make_console,
    say,
    titled_table,
)
from xbench.report.gpu import render_gpu
from xbench.report.regression import render_baseline, render_noise, render_regression
from xbench.report.scaling import render_scaling
from xbench.report.timelines import render_timelines
from xbench.report.tuned import render_tuned
from xbench.report.validation import render_validation
from xbench.units import format_bytes, format_count, format_percent, format_seconds

__all__ = ["make_console", "render", "render_comparison", "render_profile", "show"]

TOP_LAYERS = 10
OVERHEAD_GOAL = 0.02
VERDICT_STYLES = {"faster": "bold green", "slower": "red", "FAILED": "bold red", "inconclusive": "yellow"}


def show(record: AnyRecord, console: Console, *, all_layers: bool = False) -> None:
    """Draw any kind of record."""
    if isinstance(record, Comparison):
        render_comparison(record, console)
    elif isinstance(record, Scaling):
        render_scaling(record, console)
    elif isinstance(record, Validation):
        render_validation(record, console)
    elif isinstance(record, Convergence):
        render_convergence(record, console)
    elif isinstance(record, Tuned):
        render_tuned(record, console)
    elif isinstance(record, Regression):
        render_regression(record, console)
    elif isinstance(record, Baseline):
        render_baseline(record, console)
    elif isinstance(record, Noise):
        render_noise(record, console)
    else:
        render_profile(record, console, all_layers=all_layers)


def render(record: AnyRecord, *, width: int = OFF_TTY_COLUMNS, all_layers: bool = False) -> str:
    """What `show` draws, as plain text of `width` columns."""
    console = Console(file=io.StringIO(), width=width, no_color=True, force_terminal=False, highlight=False,
                      markup=False, emoji=False, _environ={})  # fmt: skip
    show(record, console, all_layers=all_layers)
    text = console.file.getvalue() if isinstance(console.file, io.StringIO) else ""
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def render_comparison(record: Comparison, console: Console, said: Sequence[str] | None = None) -> None:
    """The answer (or what a command has to say in its place), one row a mode, and everything needed to judge it."""
    _top(record, console)
    for position, sentence in enumerate(answer(record) if said is None else said):
        say(console, sentence, "bold" if position == 0 else "")
    console.print()
    longest = max(
        (r.seconds_per_sample.median for r in record.modes.values() if trusted(r) and r.seconds_per_sample), default=0.0
    )
    if console.width < NARROW_COLUMNS:
        for result in record.modes.values():
            _stacked(record, result, longest, console)
    else:
        console.print(_time_table(record, longest, console.width))
        console.print(_step_table(record, console.width))
    say(console, lines.columns_line(record), "dim")
    for failure in filter(None, map(lines.failure_line, record.modes.values())):
        say(console, failure, "bold red")
    for result in record.modes.values():
        if result.note:
            say(console, f"{result.mode}: {result.note}")
    render_timelines(record, console)
    render_gpu(record, console)
    console.print()
    twins = len(record.jobs) > 1 and all(job.workload == record.jobs[0].workload for job in record.jobs)
    for job in record.jobs[:1] if twins else record.jobs:
        times = f" ({len(record.jobs)} jobs of it where a mode is paired)" if twins else ""
        fact(console, "workload", lines.workload_line(job.workload) + times)
        if record.bounds is None and job.bounds is not None:
            fact(console, "bounds", lines.bounds_line(job.bounds))
    if record.bounds is not None:
        fact(console, "bounds", lines.bounds_line(record.bounds))
    _bottom(record, console, effort=lines.effort_line(record))


def render_profile(record: Profile, console: Console, all_layers: bool = False) -> None:
    """The step, its layers in gradient-ready order, the cost of communication, and the plans that follow."""
    _top(record, console)
    say(console, lines.workload_line(record.workload), "bold")
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
        console.print(_plan_table(list(record.plans.values()), console.width))
        say(console, lines.PLAN_COLUMNS, "dim")
        for plan in record.plans.values():
            if plan.note:
                say(console, f"{plan.mode}: {plan.note}")
        console.print()
    if record.cost_model is not None and record.cost_model.points:
        console.print(_cost_table(record, console.width))
        say(console, lines.COST_COLUMNS, "dim")
        say(console, lines.waits_line(record.cost_model))
    render_gpu(record, console)
    console.print()
    if record.bounds is not None:
        fact(console, "bounds", lines.bounds_line(record.bounds))
    _bottom(record, console)


def _top(record: Profile | Comparison, console: Console) -> None:
    note = lines.incomplete_line(record)
    if note:
        say(console, note, "bold yellow")
        console.print()


def _bottom(record: Profile | Comparison, console: Console, effort: str | None = None) -> None:
    fact(console, "fabric", lines.fabric_line(record.fabric))
    for note in record.fabric.notes:
        fact(console, "", note)
    if record.emulated is not None:
        fact(console, "emulated", lines.emulated_line(record.emulated))
    if record.cost_model is not None:
        fact(console, "cost model", lines.cost_line(record.cost_model))
        contention = _contention(record)
        if contention is not None and all(point.alone_s > 0 for point in contention.points) and contention.points:
            fact(console, "contention", lines.contention_line(contention))
    if effort:
        fact(console, "effort", effort)
    fact(console, "machine", lines.environment_line(record.environment))
    for warning in record.warnings:
        fact(console, "warning", warning, "yellow")


def _contention(record: Profile | Comparison) -> Contention | None:
    if isinstance(record, Profile):
        return record.contention
    return record.jobs[0].contention if record.jobs else None


def _verdict(record: Comparison, result: ModeResult) -> str:
    """The verdict in one word: colour only repeats it."""
    if result.status == "failed" or (result.parity is not None and not result.parity.ok):
        return "FAILED"
    if result.mode == record.reference:
        return "reference"
    if result.mode in partial(record):
        return "partial"
    if result.mode in controls(record):
        return "control"
    return result.ratio.verdict if result.ratio is not None else "not measured" if not trusted(result) else "no ratio"


def _styled(verdict: str) -> Text:
    return Text(verdict, style=VERDICT_STYLES.get(verdict, ""))


def _ratio(result: ModeResult) -> str:
    """'0.891 [0.872, 0.910]'; the reference's own is 1 without an interval."""
    if not trusted(result) or result.ratio is None:
        return "–"
    if result.ratio.verdict == "reference":
        return f"{result.ratio.value:.3f}"
    low, high = result.ratio.ci95
    return f"{result.ratio.value:.3f} [{low:.3f}, {high:.3f}]"


def _time_table(record: Comparison, longest_s: float, width: int) -> Table:
    """Seconds per sample and how they compare: the figures behind the answer."""
    wide = width >= WIDE_COLUMNS
    table = titled_table(f"Time per sample, all jobs and ranks together; ratio to the reference, {record.reference}",
                   ("mode", "left"), ("per sample", "right"), *([("95 % CI", "right")] if wide else []), ("", "left"),
                   ("ratio [95 % CI]", "right"), ("verdict", "left"))  # fmt: skip
    names = max((len(mode) for mode in record.modes), default=0)
    bar_columns = max(6, min(30, width - (69 if wide else 48) - names))
    for result in record.modes.values():
        estimate = result.seconds_per_sample if trusted(result) else None
        interval = f"{format_seconds(estimate.ci95[0])} – {format_seconds(estimate.ci95[1])}" if estimate else "–"
        table.add_row(
            Text(result.mode),
            format_seconds(estimate.median) if estimate else "–",
            *([interval] if wide else []),
            _bar(estimate.median, longest_s, bar_columns) if estimate and longest_s > 0 else "",
            _ratio(result),
            _styled(_verdict(record, result)),
        )
    return table


def _bar(time_s: float, longest_s: float, columns: int) -> Bar:
    """A bar as long as the time's share of the longest, which has all columns."""
    return Bar(size=1.0, begin=0.0, end=time_s / longest_s, width=columns)


def _step_table(record: Comparison, width: int) -> Table:
    """Where the step goes: what was measured, what the model said, what is left."""
    wide = width >= WIDE_COLUMNS
    table = titled_table("Where the step goes",
                   ("mode", "left"), ("step", "right"), ("exposed", "right"), ("removed", "right"),
                   ("predicted", "right"), ("error", "right"), ("buckets", "right"), ("same network", "left"),
                   *([("label", "left")] if wide else []))  # fmt: skip
    for result in record.modes.values():
        fine = trusted(result)
        table.add_row(
            Text(result.mode + (f" (turns {result.pattern})" if result.pattern else "")),
            format_seconds(result.step_s.median) if fine and result.step_s else "–",
            format_seconds(result.exposed_s) if fine else "–",
            _whole_percent(result.removed_share) if fine else "–",
            format_seconds(result.predicted_step_s),
            _signed_percent(result.prediction_error) if fine else "–",
            str(len(result.plan.buckets)) if result.plan else "–",
            _parity(result),
            *([result.label if fine else "–"] if wide else []),
        )
    return table


def _stacked(record: Comparison, result: ModeResult, longest_s: float, console: Console) -> None:
    """One mode as a block, for narrow terminals."""
    verdict = _verdict(record, result)
    console.print(Text.assemble((result.mode, "bold"), " ", _styled(verdict)))
    if not trusted(result) or result.seconds_per_sample is None:
        return
    if longest_s > 0:
        console.print("  ", _bar(result.seconds_per_sample.median, longest_s, 40), sep="", end="")
    facts = [
        f"{format_seconds(result.seconds_per_sample.median)} a sample, ratio to {record.reference} {_ratio(result)}",
        f"step {format_seconds(result.step_s.median if result.step_s else None)}, "
        f"exposed {format_seconds(result.exposed_s)}, removed {_whole_percent(result.removed_share)}",
        f"predicted {format_seconds(result.predicted_step_s)}, error {_signed_percent(result.prediction_error)}",
        f"{len(result.plan.buckets) if result.plan else '–'} buckets, same network: {_parity(result)}, {result.label}",
    ]
    for line in facts:
        indented(console, line)


def _parity(result: ModeResult) -> str:
    """'yes', with the difference from DDP where it is not nothing; 'NO'; '–' where the gate does not apply."""
    parity = result.parity
    if parity is None:
        return "–"
    if not parity.ok:
        return "NO"
    if parity.reference == RANKS:
        return "no (ranks agree)"
    return f"yes (±{parity.max_relative_difference:.0e})" if parity.max_relative_difference else "yes"


def _whole_percent(share: float | None) -> str:
    return format_percent(share, 0)


def _signed_percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:+.1f} %"


def _step_lines(step: StepTimes, label: Label) -> list[str]:
    """The step and its parts, beside the bare loop, and what the instruments cost."""
    low, high = step.step_ci95
    bare_low, bare_high = step.uninstrumented_ci95
    overhead = (
        f"Instruments cost {_signed_percent(step.overhead_ratio)} "
        f"[{_signed_percent(step.overhead_ci95[0])}, {_signed_percent(step.overhead_ci95[1])}]"
    )
    if step.overhead_ratio > OVERHEAD_GOAL:
        overhead += f": more than the goal of {_whole_percent(OVERHEAD_GOAL)}, so read the parts as shares"
    return [
        f"A step takes {format_seconds(step.step_s)} [{format_seconds(low)}, {format_seconds(high)}]: forward "
        f"{format_seconds(step.forward_s)}, backward {format_seconds(step.backward_s)}, optimizer "
        f"{format_seconds(step.optimizer_s)} ({label}, without communication).",
        f"Uninstrumented it takes {format_seconds(step.uninstrumented_step_s)} "
        f"[{format_seconds(bare_low)}, {format_seconds(bare_high)}]. {overhead}.",
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


def _cost_table(record: Profile, width: int) -> Table:
    """The measured points of the cost model; the wait for late ranks is not part of the transfer."""
    model = record.cost_model
    assert model is not None  # render_profile asked
    columns = [("size", "right"), ("transfer", "right"), ("95 % CI", "right"), ("wait", "right"), ("fit", "right")]
    wide = width >= NARROW_COLUMNS
    table = titled_table(
        f"Cost of one {model.collective} ({record.fabric.label})", *columns, *([("times", "right")] if wide else [])
    )
    for point in model.points:
        fitted_s = model.alpha_s + model.beta_s_per_byte * point.nbytes
        row = [
            format_bytes(point.nbytes),
            format_seconds(point.transfer_s),
            f"{format_seconds(point.ci95[0])} – {format_seconds(point.ci95[1])}",
            format_seconds(point.wait_s),
            _signed_percent(fitted_s / point.transfer_s - 1 if point.transfer_s > 0 else None),
        ]
        table.add_row(*row, *([str(point.repetitions)] if wide else []))
    return table


def _plan_table(plans: Sequence[Plan], width: int) -> Table:
    """What each schedule would do with this profile; the gap is to the best schedule here, which no control is."""
    best_s = min((plan.predicted_step_s for plan in plans if not is_control(plan.mode)), default=0.0)
    columns = [("mode", "left"), ("buckets", "right"), ("step", "right"), ("exposed", "right"), ("gap", "right")]
    wide = width >= NARROW_COLUMNS
    table = titled_table(
        "Plans and their predicted steps (simulated)", *columns, *([("largest", "right")] if wide else [])
    )
    for plan in plans:
        behind = best_s > 0 and not is_control(plan.mode)
        row = [
            str(len(plan.buckets)),
            format_seconds(plan.predicted_step_s),
            format_seconds(plan.predicted_exposed_s),
            _signed_percent(plan.predicted_step_s / best_s - 1 if behind else None),
        ]
        table.add_row(Text(plan.mode), *row, *([format_bytes(max(plan.bucket_bytes, default=0))] if wide else []))
    return table
