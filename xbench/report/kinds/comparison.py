"""A comparison in the terminal: the answer, the figures it rests on, what bounds them and how they were made.

A mode that failed, or that trained another network than DDP, shows why and never a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from xbench.records import Comparison, Estimate, ModeResult
from xbench.report import sentences
from xbench.report.advice import RECORD, Advice, advice
from xbench.report.answer import answer, jobs_of, paired_modes, reference_of, references, trusted, was_reached
from xbench.report.cell_format import own_steps, parity_cell, ratio_cell, removed_cell, span_cell, verdict
from xbench.report.charts.text_bars import LEGEND, bar
from xbench.report.charts.text_gpu import render_gpu
from xbench.report.charts.text_timelines import render_timelines
from xbench.report.console import fact, indented, say, say_next, spare_columns, titled_table
from xbench.report.kinds.measured import bottom, top
from xbench.units import format_seconds, format_signed_percent

VERDICT_STYLES = {"faster": "bold green", "slower": "red", "FAILED": "bold red", "inconclusive": "yellow"}
_STACKED_BAR_COLUMNS = 40
_LEAST_BAR_COLUMNS, _MOST_BAR_COLUMNS = 6, 30
_DISPENSABLE = ("buckets", "removed")
"""Columns that are left out one after the other where the terminal is too narrow; before them a label that all share,
for the answer says it as well."""

_WITHOUT_A_RUN = ("predicted", "buckets", "same network")
"""What is known of a mode that failed."""


def render_comparison(
    record: Comparison,
    console: Console,
    said: Sequence[str] | None = None,
    *,
    place: str = RECORD,
    follows: Sequence[Advice] | None = None,
    verbose: bool = False,
) -> None:
    """The answer and what follows from it (or what a command has to say in their place), a row a mode, and the rest.

    `place` is the record's path, for commands.
    """
    top(record, console)
    for position, sentence in enumerate(answer(record) if said is None else said):
        say(console, sentence, "bold" if position == 0 else "")
    say_next(console, advice(record, place) if follows is None else follows)
    console.print()
    longest = max(
        (max(r.seconds_per_sample.ci95[1], r.seconds_per_sample.median)
         for r in record.modes.values() if trusted(r) and r.seconds_per_sample), default=0.0
    )  # fmt: skip
    if was_reached(record):
        _figures(record, longest, console)
    for failure in filter(None, map(sentences.failure_line, record.modes.values())):
        say(console, failure, "bold red")
    for doubt in sentences.not_shown_lines(record):
        say(console, doubt, "yellow")
    for result in record.modes.values():
        if result.note:
            say(console, f"{result.mode}: {result.note}")
    for sentence in own_steps(record):
        say(console, sentence)
    render_timelines(record, console)
    render_gpu(record, console)
    console.print()
    twins = len(record.jobs) > 1 and all(job.workload == record.jobs[0].workload for job in record.jobs)
    for job in record.jobs[:1] if twins else record.jobs:
        times = f" ({len(record.jobs)} jobs of it where a mode is paired)" if twins else ""
        fact(console, "workload", sentences.workload_line(job.workload) + times)
        if record.bounds is None and job.bounds is not None:
            fact(console, "bounds", sentences.bounds_line(job.bounds))
    if record.bounds is not None:
        fact(console, "bounds", sentences.bounds_line(record.bounds))
    bottom(record, console, effort=sentences.effort_line(record), verbose=verbose)


def _figures(record: Comparison, longest_s: float, console: Console) -> None:
    """Both tables and their legend; a block a mode where the terminal is too narrow for tables."""
    tables = _tables(record, longest_s, console)
    if tables is None:
        for result in record.modes.values():
            _stacked(record, result, longest_s, console)
    else:
        console.print(*tables, sep="")
    say(console, f"{LEGEND}; {sentences.columns_line(record)}", "dim")


def _styled(verdict: str) -> Text:
    return Text(verdict, style=VERDICT_STYLES.get(verdict, ""))


def _tables(record: Comparison, longest_s: float, console: Console) -> tuple[Table, Table] | None:
    """Both tables with as many columns as the terminal has room for; None where it is too narrow for the fewest."""
    times = steps = None
    for spread in (True, False):
        spare = spare_columns(console, _time_table(record, spread, longest_s, 0))
        if spare >= _LEAST_BAR_COLUMNS:
            times = _time_table(record, spread, longest_s, min(_MOST_BAR_COLUMNS, spare))
            break
    one_label = len({result.label for result in record.modes.values()}) == 1
    dispensable = (*(("label",) if one_label else ()), *_DISPENSABLE)
    for left_out in range(len(dispensable) + 1):
        table = _step_table(record, dispensable[:left_out])
        if spare_columns(console, table) >= 0:
            steps = table
            break
    return (times, steps) if times is not None and steps is not None else None


def _time_table(record: Comparison, spread: bool, longest_s: float, bar_columns: int) -> Table:
    """Seconds per sample and how they compare: the figures behind the answer. `spread`: intervals in figures too."""
    table = titled_table(f"Time per sample, all jobs and ranks together; ratio to the reference, {references(record)}",
                   ("mode", "left"), *([("jobs", "right")] if paired_modes(record) else []),
                   ("per sample", "right"), *([("95 % CI", "right")] if spread else []), ("", "left"),
                   ("ratio [95 % CI]", "right"), ("verdict", "left"))  # fmt: skip
    for result in record.modes.values():
        estimate = result.seconds_per_sample if trusted(result) else None
        table.add_row(
            Text(result.mode),
            *([str(jobs_of(record, result.mode))] if paired_modes(record) else []),
            format_seconds(estimate.median) if estimate else "–",
            *([span_cell(estimate)] if spread else []),
            _bar(estimate, longest_s, bar_columns) if estimate else "",
            ratio_cell(result),
            _styled(verdict(record, result)),
        )
    return table


def _bar(estimate: Estimate, longest_s: float, columns: int) -> Text:
    drawn = bar(estimate.median, estimate.ci95, longest_s, columns) if longest_s > 0 and columns > 0 else ""
    return Text(drawn, no_wrap=True)


def _step_table(record: Comparison, left_out: Sequence[str]) -> Table:
    """Where the step goes: what was measured, what the model said, what is left."""
    columns: dict[str, Callable[[ModeResult], str]] = {
        "step": lambda one: format_seconds(one.step_s.median) if one.step_s else "–",
        "exposed": lambda one: format_seconds(one.exposed_s),
        "removed": lambda one: removed_cell(one.removed_share),
        "predicted": lambda one: format_seconds(one.predicted_step_s),
        "error": lambda one: format_signed_percent(one.prediction_error),
        "buckets": lambda one: str(len(one.plan.buckets)) if one.plan else "–",
        "same network": parity_cell,
        "label": lambda one: one.label,
    }
    shown = {heading: cell for heading, cell in columns.items() if heading not in left_out}
    sides = [(heading, "left" if heading in ("same network", "label") else "right") for heading in shown]
    table = titled_table("Where the step goes", ("mode", "left"), *sides)
    for result in record.modes.values():
        fine = trusted(result)
        cells = [cell(result) if fine or heading in _WITHOUT_A_RUN else "–" for heading, cell in shown.items()]
        table.add_row(Text(result.mode + (f" (turns {result.pattern})" if result.pattern else "")), *cells)
    return table


def _stacked(record: Comparison, result: ModeResult, longest_s: float, console: Console) -> None:
    """One mode as a block, for narrow terminals."""
    judged = verdict(record, result)
    jobs = f" of {jobs_of(record, result.mode)} jobs" if result.mode in paired_modes(record) else ""
    console.print(Text.assemble((result.mode, "bold"), jobs, " ", _styled(judged)))
    if not trusted(result) or result.seconds_per_sample is None:
        return
    if longest_s > 0:
        indented(
            console, _bar(result.seconds_per_sample, longest_s, min(_STACKED_BAR_COLUMNS, console.width - 4)).plain
        )
    count = len(result.plan.buckets) if result.plan else None
    buckets = f"{'–' if count is None else count} bucket{'' if count == 1 else 's'}"
    facts = [
        f"{format_seconds(result.seconds_per_sample.median)} a sample, ratio to {reference_of(record, result)} "
        f"{ratio_cell(result)}",
        f"step {format_seconds(result.step_s.median if result.step_s else None)}, "
        f"exposed {format_seconds(result.exposed_s)}, removed {removed_cell(result.removed_share)}",
        f"predicted {format_seconds(result.predicted_step_s)}, error {format_signed_percent(result.prediction_error)}",
        f"{buckets}, same network: {parity_cell(result)}, {result.label}",
    ]
    for line in facts:
        indented(console, line)
