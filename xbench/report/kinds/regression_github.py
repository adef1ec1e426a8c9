"""A check for regressions as Markdown, for `$GITHUB_STEP_SUMMARY` and pull requests: the answer, one table, details.

GitHub refuses a step's summary above 1 MiB as a whole, so rows are left out from the end, where the least bad ones are,
until it fits, and a line says how many.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from xbench.records import Judged, Regression
from xbench.report import regression_sentences as told
from xbench.report.markup import details, facts, plain
from xbench.text import counted

LIMIT_BYTES = 1024**2
MIN_BYTES = 8 * 1024
ROOM_BYTES = 1024
"""Kept free for the line about what was left out."""

HEAD = (
    "| case | verdict | head over base [95 % CI] | p (Holm) | threshold | pairs | label |\n"
    "| --- | --- | ---: | ---: | --- | ---: | --- |\n"
)
MARKS = {"regressed": "❌", "changed": "❌", "improved": "✅", "equivalent": "✅"}
UNJUDGED = "⚠️"


def regression_markdown(record: Regression, limit_bytes: int = LIMIT_BYTES) -> str:
    """The text, at most `limit_bytes` long as UTF-8; below `MIN_BYTES` the answer alone, or nothing.

    A step that has written a part of its summary already passes what is left of the limit.
    """
    if limit_bytes < MIN_BYTES:
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


MOST = 10
"""Of each kind that GitHub shows for a step."""

Level = Literal["error", "warning"]


def workflow_commands(record: Regression) -> list[str]:
    """One line a case that fails or could not be judged, worst first; nothing where all is well."""
    cases = told.worst_first(record.cases)
    errors = [case for case in cases if case.fails]
    warnings = [case for case in cases if case.verdict in ("missing", "not comparable", "inconclusive")]
    return [*_lines("error", errors), *_lines("warning", warnings)]


def command(level: Level, title: str, message: str) -> str:
    """'::error title=…::…', escaped."""
    return f"::{level} title={_property(title)}::{_data(message)}"


def _lines(level: Level, cases: Sequence[Judged]) -> list[str]:
    shown = cases if len(cases) <= MOST else cases[: MOST - 1]
    found = [command(level, f"{case.verdict}: {told.name(case)}", _message(case)) for case in shown]
    if len(shown) < len(cases):
        rest = counted(len(cases) - len(shown), "more case")
        found.append(command(level, f"xbench regress: {rest}", "The job summary and the JUnit file name them."))
    return found


def _message(case: Judged) -> str:
    if case.found is not None:
        figures = f"{told.ratio(case.found)} of base's time, threshold {told.threshold(case.threshold)}: "
    elif case.base is not None:
        figures = f"{told.both(case)}, threshold {told.threshold(case.threshold)}: "
    else:
        figures = ""
    return f"{figures}{case.reason}" + (f" ({case.label})" if case.label is not None else "")


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
