"""A check's verdicts as GitHub workflow commands: `::error` for what fails, `::warning` for what could not be judged.

GitHub reads them from what a step prints and shows ten of each kind, so that the last of more than ten sums up the
rest. In a message `%`, CR and LF are escaped, in a property `:` and `,` as well, as the runner's own toolkit does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from xbench.records import Judged, Regression
from xbench.report import regression_lines as told
from xbench.text import counted

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
