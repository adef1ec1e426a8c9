"""A check for regressions, a baseline and a noise floor in the terminal: the answer first, then the worst cases.

Below 84 columns a case is a stacked block. Colour repeats what the verdict says.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.text import Text

from xbench.records import Baseline, Judged, Noise, Regression
from xbench.report import lines
from xbench.report import regression_lines as told
from xbench.report.drawing import NARROW_COLUMNS, fact, indented, say, titled_table
from xbench.text import counted

STYLES = {
    "regressed": "bold red", "changed": "bold red", "improved": "bold green", "expected": "yellow",
    "inconclusive": "yellow", "not comparable": "yellow", "missing": "yellow",
}  # fmt: skip


def render_regression(record: Regression, console: Console) -> None:
    """The answer, wall-clock cases, deterministic ones, why, and what it rests on."""
    answer, *rest = told.answer(record)
    say(console, answer, "bold red" if any(case.fails for case in record.cases) else "bold")
    for sentence in (*rest, *told.remarks(record)):
        say(console, sentence)
    console.print()
    cases = told.worst_first(record.cases)
    timed = [case for case in cases if case.wall_clock]
    counted = [case for case in cases if not case.wall_clock]
    if timed:
        _timed(timed, console)
        if any(case.found is not None for case in timed):
            say(console, told.COLUMNS, "dim")
            console.print()
    if counted:
        _counted(counted, console)
    reasons = told.reasons(cases)
    for reason, alike in reasons:
        say(console, told.reason_line(reason, alike))
        for fresh in filter(None, map(told.confirmation, alike)):
            indented(console, f"{fresh}.")
    if reasons:
        console.print()
    for label, text in told.sides(record):
        fact(console, label, text)
    how = told.method_line(record)
    if how is not None:
        fact(console, "method", how)


def render_baseline(record: Baseline, console: Console) -> None:
    """What later checks are held against: every case with its figure, and the noise floor where one is known."""
    _top(record, told.baseline_answer(record), console)
    table = titled_table("Measured", ("case", "left"), ("median", "right"), ("launches", "right"), ("label", "left"),
                         ("noise floor", "left"))  # fmt: skip
    for row in told.baseline_rows(record):
        table.add_row(Text(row.name), told.value(row.median, row.unit), row.launches, row.label, row.floor)
    console.print(table)
    _bottom(record, console)


def render_noise(record: Noise, console: Console) -> None:
    """How far apart unchanged code looks here, by case, and the thresholds that follow."""
    _top(record, told.noise_answer(record), console)
    table = titled_table(told.FLOORS, ("case", "left"), ("noise floor", "left"), ("least threshold", "right"))
    for name, floor, least in told.noise_rows(record):
        table.add_row(Text(name), floor, least)
    console.print(table)
    _bottom(record, console)


def _top(record: Baseline | Noise, sentence: str, console: Console) -> None:
    say(console, sentence, "bold")
    early = told.incomplete(record)
    if early is not None:
        say(console, early, "bold yellow")
    for failure in record.failures:
        say(console, told.failure_line(failure, sides=False), "bold red")
    console.print()


def _bottom(record: Baseline | Noise, console: Console) -> None:
    for name, workload in record.side.workloads.items():
        fact(console, "workload", f"{name}: {lines.workload_line(workload)}")
    fact(console, "measured", told.side_line(record.side))
    fact(console, "made by", f"xbench {record.xbench}: {record.command}")
    for warning in record.warnings:
        fact(console, "warning", warning, "yellow")


def _timed(cases: Sequence[Judged], console: Console) -> None:
    title, columns = _titled("Wall clock", cases)
    if console.width < NARROW_COLUMNS:
        _stacked(title, cases, console)
        return
    pairs = {case.found.pairs for case in cases if case.found is not None}
    told_apart = [("pairs", "right")] if len(pairs) > 1 else []
    table = titled_table(title, ("case", "left"), ("verdict", "left"), ("ratio [95 % CI]", "right"),
                         ("p (Holm)", "right"), *told_apart, ("threshold", "right"), ("from", "left"),
                         ("floor", "right"), *columns)  # fmt: skip
    for case in cases:
        share, source, floor = told.threshold_parts(case.threshold)
        table.add_row(
            Text(told.name(case)), _verdict(case), told.ratio(case.found), told.p_holm(case.found),
            *[str(case.found.pairs) if case.found is not None else "–" for _ in told_apart],
            share, source, floor, *[case.label or "–" for _ in columns],
        )  # fmt: skip
    console.print(table)


def _counted(cases: Sequence[Judged], console: Console) -> None:
    title, columns = _titled("Deterministic", cases)
    if console.width < NARROW_COLUMNS:
        _stacked(title, cases, console)
        return
    table = titled_table(title, ("case", "left"), ("verdict", "left"), ("base", "right"), ("head", "right"),
                         ("threshold", "left"), *columns)  # fmt: skip
    for case in cases:
        base, head = told.value(case.base, case.unit, case.head), told.value(case.head, case.unit, case.base)
        labels = [case.label or "–" for _ in columns]
        table.add_row(Text(told.name(case)), _verdict(case), base, head, told.threshold(case.threshold), *labels)
    console.print(table)


def _titled(title: str, cases: Iterable[Judged]) -> tuple[str, list[tuple[str, str]]]:
    """The title with the label that all figures share; else a column for the labels."""
    labels = {case.label for case in cases if case.label is not None}
    return (f"{title} ({labels.pop()})", []) if len(labels) == 1 else (title, [("label", "left")] if labels else [])


def _stacked(title: str, cases: Iterable[Judged], console: Console) -> None:
    say(console, title, "italic")
    for case in cases:
        console.print(Text.assemble(f"{told.name(case)}: ", _verdict(case)))
        if case.found is not None:
            indented(console, f"ratio {told.ratio(case.found)}, p {told.p_holm(case.found)}")
            indented(console, f"{counted(case.found.pairs, 'pair')}, {told.both(case)} ({case.label})")
        elif case.base is not None:
            indented(console, f"{told.both(case)} ({case.label})")
        indented(console, f"threshold {told.threshold(case.threshold)}")
    console.print()


def _verdict(case: Judged) -> Text:
    return Text(case.verdict, style=STYLES.get(case.verdict, ""))
