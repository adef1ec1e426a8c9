"""A comparison in the terminal: the answer, the figures it rests on, what bounds them and how they were made.

A mode that failed, or that trained another network than DDP, shows why and never a time.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from xbench.records import Comparison, Estimate, ModeResult
from xbench.report import lines
from xbench.report.answer import answer, trusted
from xbench.report.bars import LEGEND, bar
from xbench.report.cells import parity_cell, ratio_cell, signed_percent, verdict, whole_percent
from xbench.report.drawing import NARROW_COLUMNS, WIDE_COLUMNS, fact, indented, say, titled_table
from xbench.report.frame import bottom, top
from xbench.report.gpu import render_gpu
from xbench.report.timelines import render_timelines
from xbench.units import format_seconds

VERDICT_STYLES = {"faster": "bold green", "slower": "red", "FAILED": "bold red", "inconclusive": "yellow"}
_STACKED_BAR_COLUMNS = 40


def render_comparison(record: Comparison, console: Console, said: Sequence[str] | None = None) -> None:
    """The answer (or what a command has to say in its place), one row a mode, and everything needed to judge it."""
    top(record, console)
    for position, sentence in enumerate(answer(record) if said is None else said):
        say(console, sentence, "bold" if position == 0 else "")
    console.print()
    longest = max(
        (max(r.seconds_per_sample.ci95[1], r.seconds_per_sample.median)
         for r in record.modes.values() if trusted(r) and r.seconds_per_sample), default=0.0
    )  # fmt: skip
    if console.width < NARROW_COLUMNS:
        for result in record.modes.values():
            _stacked(record, result, longest, console)
    else:
        console.print(_time_table(record, longest, console.width))
        console.print(_step_table(record, console.width))
    say(console, f"{LEGEND}; {lines.columns_line(record)}", "dim")
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
    bottom(record, console, effort=lines.effort_line(record))


def _styled(verdict: str) -> Text:
    return Text(verdict, style=VERDICT_STYLES.get(verdict, ""))


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
            _bar(estimate, longest_s, bar_columns) if estimate else "",
            ratio_cell(result),
            _styled(verdict(record, result)),
        )
    return table


def _bar(estimate: Estimate, longest_s: float, columns: int) -> Text:
    return Text(bar(estimate.median, estimate.ci95, longest_s, columns) if longest_s > 0 else "", no_wrap=True)


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
            whole_percent(result.removed_share) if fine else "–",
            format_seconds(result.predicted_step_s),
            signed_percent(result.prediction_error) if fine else "–",
            str(len(result.plan.buckets)) if result.plan else "–",
            parity_cell(result),
            *([result.label if fine else "–"] if wide else []),
        )
    return table


def _stacked(record: Comparison, result: ModeResult, longest_s: float, console: Console) -> None:
    """One mode as a block, for narrow terminals."""
    judged = verdict(record, result)
    console.print(Text.assemble((result.mode, "bold"), " ", _styled(judged)))
    if not trusted(result) or result.seconds_per_sample is None:
        return
    if longest_s > 0:
        indented(
            console, _bar(result.seconds_per_sample, longest_s, min(_STACKED_BAR_COLUMNS, console.width - 4)).plain
        )
    buckets = len(result.plan.buckets) if result.plan else "–"
    facts = [
        f"{format_seconds(result.seconds_per_sample.median)} a sample, ratio to {record.reference} "
        f"{ratio_cell(result)}",
        f"step {format_seconds(result.step_s.median if result.step_s else None)}, "
        f"exposed {format_seconds(result.exposed_s)}, removed {whole_percent(result.removed_share)}",
        f"predicted {format_seconds(result.predicted_step_s)}, error {signed_percent(result.prediction_error)}",
        f"{buckets} buckets, same network: {parity_cell(result)}, {result.label}",
    ]
    for line in facts:
        indented(console, line)
