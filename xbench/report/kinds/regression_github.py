"""Markdown of a check for regressions, for `$GITHUB_STEP_SUMMARY` and pull requests: answer, one table, details.

GitHub rejects a step's summary above 1 MiB. Rows are therefore omitted from the end, where the least severe cases are,
until the text fits. A line says how many are missing.
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
"""Bytes kept free for the line on omitted rows."""

HEAD = (
    "| case | verdict | head over base [95 % CI] | p (Holm) | threshold | pairs | label |\n"
    "| --- | --- | ---: | ---: | --- | ---: | --- |\n"
)
MARKS = {"regressed": "❌", "changed": "❌", "improved": "✅", "equivalent": "✅"}
UNJUDGED = "⚠️"


def regression_markdown(record: Regression, limit_bytes: int = LIMIT_BYTES) -> str:
    """Return the text, at most `limit_bytes` long as UTF-8; below `MIN_BYTES` only the answer, or nothing.

    A step that has already written a part of its summary passes the rest of the limit.
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
    """Return as many whole parts from the front as fit, and their number."""
    taken = 0
    for number, part in enumerate(parts):
        taken += len(part.encode())
        if taken > room_bytes:
            return "".join(parts[:number]), number
    return "".join(parts), len(parts)


def _cut(text: str, most_bytes: int) -> str:
    """Return whole lines from the front, and a note if some are missing."""
    rows, shown = _fitting(text.splitlines(keepends=True), most_bytes)
    return rows if shown == len(text.splitlines()) else f"{rows}\nMore was left out.\n\n"


MOST = 10
"""Most annotations of each kind that GitHub shows for a step."""

Level = Literal["error", "warning"]


def workflow_commands(record: Regression) -> list[str]:
    """Return one line per case that fails or could not be judged, worst first; empty if there is none."""
    cases = told.worst_first(record.cases)
    errors = [case for case in cases if case.fails]
    warnings = [case for case in cases if case.verdict in ("missing", "not comparable", "inconclusive")]
    return [*_lines("error", errors), *_lines("warning", warnings)]


def command(level: Level, title: str, message: str) -> str:
    """Return an escaped workflow command: '::error title=…::…'."""
    return f"::{level} title={_property(title)}::{_data(message)}"


def _lines(level: Level, cases: Sequence[Judged]) -> list[str]:
    shown = cases if len(cases) <= MOST else cases[: MOST - 1]
    found = [command(level, f"{case.verdict}: {told.name(case)}", _message(case)) for case in shown]
    if len(shown) < len(cases):
        rest = counted(len(cases) - len(shown), "more case")
        found.append(command(level, f"xbench regress: {rest}", "The job summary and the JUnit file name them."))
    return found


def _message(case: Judged) -> str:
    figures = f"{told.ratio(case.found)} of base's time" if case.found is not None else told.both(case)
    measured = case.found is not None or case.base is not None
    figures = f"{figures}, threshold {told.threshold(case.threshold)}: " if measured else ""
    return f"{figures}{case.reason}" + (f" ({case.label})" if case.label is not None else "")


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
