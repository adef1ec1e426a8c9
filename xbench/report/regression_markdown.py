"""A check for regressions as Markdown, for `$GITHUB_STEP_SUMMARY` and pull requests: the answer, one table, details.

GitHub refuses a step's summary above 1 MiB as a whole, so rows are left out from the end, where the least bad ones are,
until it fits, and a line says how many.
"""

from __future__ import annotations

from collections.abc import Sequence

from xbench.records import Baseline, Judged, Noise, Regression
from xbench.report import lines
from xbench.report import regression_lines as told
from xbench.report.markdown_parts import code, details, facts, plain, table
from xbench.text import counted

LIMIT_BYTES = 1024**2
LEAST_BYTES = 8 * 1024
ROOM_BYTES = 1024
"""Kept free for the line about what was left out."""

HEAD = (
    "| case | verdict | head over base [95 % CI] | p (Holm) | threshold | pairs | label |\n"
    "| --- | --- | ---: | ---: | --- | ---: | --- |\n"
)
MARKS = {"regressed": "❌", "changed": "❌", "improved": "✅", "equivalent": "✅"}
UNJUDGED = "⚠️"


def regression_markdown(record: Regression, limit_bytes: int = LIMIT_BYTES) -> str:
    """The text, at most `limit_bytes` long as UTF-8; below `LEAST_BYTES` the answer alone, or nothing.

    A step that has written a part of its summary already passes what is left of the limit.
    """
    if limit_bytes < LEAST_BYTES:
        answer = f"{plain(told.answer(record)[0])}\n"
        return answer if len(answer.encode()) <= limit_bytes else ""
    first, *others = told.answer(record)
    said = [f"**{plain(first)}**", *map(plain, (*others, *told.remarks(record)))]
    top = _cut("### xbench regress\n\n" + "".join(f"{sentence}\n\n" for sentence in said), limit_bytes // 3)
    bottom = _how(record, limit_bytes // 3)
    left = limit_bytes - sum(len(part.encode()) for part in (top, bottom, HEAD)) - ROOM_BYTES
    cases = told.worst_first(record.cases)
    rows, shown = _fitting([_row(case) for case in cases], left)
    listed = f"{HEAD}{rows}" if cases else ""
    omitted = f"\n{counted(len(cases) - shown, 'row')} left out.\n" if shown < len(cases) else ""
    left -= len(rows.encode())
    reasons, explained = _fitting([_reason(*shared) for shared in told.reasons(cases[:shown])], left - ROOM_BYTES)
    why = f"\n{details('Why', reasons.rstrip())}\n" if explained else ""
    return f"{top}{listed}{omitted}{why}{bottom}"


def baseline_markdown(record: Baseline) -> str:
    """Every case with its figure."""
    rows = [
        [row.name, told.value(row.median, row.unit), row.launches, row.label, row.floor]
        for row in told.baseline_rows(record)
    ]
    title = f"### Baseline of {code(record.machine)}"
    return _stored(record, title, table(["case", "median", "launches", "label", "noise floor"], rows))


def noise_markdown(record: Noise) -> str:
    """Every wall-clock case with its noise floor, and the least threshold that follows."""
    title = f"### Noise floor of {code(record.machine)}, from {counted(len(record.pairs), 'A/A pair')}"
    return _stored(record, title, table(["case", "noise floor", "least threshold"], told.noise_rows(record)))


def _stored(record: Baseline | Noise, title: str, listed: str) -> str:
    early = told.incomplete(record)
    failed = "\n".join(f"- **{plain(told.failure_line(failure, sides=False))}**" for failure in record.failures)
    workloads = [("workload", f"{name}: {lines.workload_line(w)}") for name, w in record.side.workloads.items()]
    made = [*workloads, ("measured", told.side_line(record.side)), ("command", record.command)]
    warnings = "\n".join(f"- warning: {plain(warning)}" for warning in record.warnings)
    parts = [
        title,
        f"> **{plain(early)}**" if early else None,
        failed,
        listed,
        warnings,
        details("How it was measured", facts(made)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _row(case: Judged) -> str:
    measured = case.found is not None and case.found.ratio is not None
    figure = told.ratio(case.found) if measured else told.both(case) if case.base is not None else "–"
    cells = (
        told.name(case), f"{MARKS.get(case.verdict, UNJUDGED)} {case.verdict}", figure, told.p_holm(case.found),
        told.threshold(case.threshold), str(case.found.pairs) if case.found is not None else "–", case.label or "–",
    )  # fmt: skip
    return f"| {' | '.join(plain(cell) for cell in cells)} |\n"


def _reason(reason: str, alike: Sequence[Judged]) -> str:
    fresh = "".join(f"; {found}" for found in map(told.confirmation, alike) if found is not None)
    return f"- {plain(', '.join(map(told.name, alike)))}: {plain(reason + fresh)}\n"


def _how(record: Regression, most_bytes: int) -> str:
    how = told.method_line(record)
    told_of = [*told.sides(record), *([("method", how)] if how is not None else []), ("command", record.command)]
    return f"\n{details('How it was measured', _cut(facts(told_of), most_bytes))}\n"


def _fitting(parts: Sequence[str], room_bytes: int) -> tuple[str, int]:
    """As many whole parts from the front as fit, and how many those are."""
    taken = 0
    for number, part in enumerate(parts):
        taken += len(part.encode())
        if taken > room_bytes:
            return "".join(parts[:number]), number
    return "".join(parts), len(parts)


def _cut(text: str, most_bytes: int) -> str:
    """Whole lines from the front; one that says so where some are missing."""
    rows, shown = _fitting(text.splitlines(keepends=True), most_bytes)
    return rows if shown == len(text.splitlines()) else f"{rows}\nMore was left out.\n\n"
