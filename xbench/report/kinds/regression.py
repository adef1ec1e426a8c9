"""Views of a baseline and of a check for regressions: the answer, the worst cases, the reasons, and every launch.

On a narrow terminal, a case is a stacked block. Colour repeats the verdict. In JUnit, a regression is a failure, and so
is a changed workload. A case that was not judged is skipped, with its reason, or an error if head failed. With `strict`
every case that was not judged is a failure, as in the exit code.

Markdown is for `$GITHUB_STEP_SUMMARY` and pull requests. GitHub rejects a step's summary above 1 MiB. Rows are omitted
from the end, where the least severe cases are, until the text fits. A line says how many are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal

from rich.console import Console
from rich.text import Text

from xbench.records import Baseline, Environment, Judged, Label, LaunchPair, Measurement, Regression, WorkloadRecord
from xbench.report import markup, sentences
from xbench.report import regression_sentences as told
from xbench.report.charts.forest import (
    floors_figure,
    floors_table,
    forest,
    noise_labels,
    verdict_badge,
    wall_clock_cases,
    wall_table,
)
from xbench.report.charts.launches import pairs_over_time
from xbench.report.console import NARROW_COLUMNS, breaks_words, facts, filled_table, indented, say
from xbench.report.markup import plain
from xbench.report.page.model import Badge, Block, Cell, Facts, Section, Sentences, Table, columns
from xbench.report.view import Case, Detail, Row, Status, View, ends, environment_section, environments_section, fields
from xbench.text import and_of, capitalized, counted

STYLES = {
    "regressed": "bold red", "changed": "bold red", "improved": "bold green", "expected": "yellow",
    "inconclusive": "yellow", "not comparable": "yellow", "missing": "yellow",
}  # fmt: skip
LIMIT_BYTES = 1024**2
MIN_BYTES = 8 * 1024
ROOM_BYTES = 1024
"""Bytes kept free for the line on omitted rows."""

COUNTS = ("case", "value", "label")
HEAD = (
    "| case | verdict | head over base [95 % CI] | p (Holm) | threshold | pairs | label |\n"
    "| --- | --- | ---: | ---: | --- | ---: | --- |\n"
)
MARKS = {"regressed": "❌", "changed": "❌", "improved": "✅", "equivalent": "✅"}
UNJUDGED = "⚠️"
MOST = 10
"""Most annotations of each kind that GitHub shows for a step."""

Level = Literal["error", "warning"]


class RegressionView(View[Regression]):
    """Head beside base."""

    name = "Regression check"
    aftermath = " The verdicts rest on what had been measured by then."

    def title(self) -> str:
        base = self.record.base.source if self.record.base is not None else "nothing to compare with"
        return f"{self.record.head.source} against {base}"

    def subtitle(self) -> str:
        made = f"{sentences.made_at(self.record.created)} · {self.record.head.environment.hostname}"
        return f"{made} · {counted(len(self.record.cases), 'case')}"

    def headline(self) -> list[str]:
        return told.answer(self.record)

    def labels(self) -> list[Label]:
        return sorted({case.label for case in self.record.cases if case.label is not None})

    def failures(self) -> list[str]:
        return [told.failure_line(failure) for failure in self.record.failures]

    def remarks(self) -> list[str]:
        """Return remarks beside the verdicts: an early end, failures and warnings."""
        return [*filter(None, (self.incomplete(),)), *self.failures(), *self.record.warnings]

    def properties(self) -> dict[str, str]:
        return dict(told.sides(self.record))

    def draw(self, console: Console, detail: Detail) -> None:
        record = self.record
        answer, *rest = self.headline()
        say(console, answer, "bold red" if any(case.fails for case in record.cases) else "bold")
        for sentence in (*rest, *self.remarks()):
            say(console, sentence)
        console.print()
        cases = told.worst_first(record.cases)
        timed = [case for case in cases if case.wall_clock]
        _draw_cases("Wall clock", timed, _timed_cells, console)
        if any(case.found is not None for case in timed):
            say(console, told.COLUMNS, "dim")
            console.print()
        _draw_cases("Deterministic", [case for case in cases if not case.wall_clock], _counted_cells, console)
        reasons = told.reasons(cases)
        for reason, alike in reasons:
            say(console, told.reason_line(reason, alike))
            for fresh in filter(None, map(told.confirmation, alike)):
                indented(console, f"{fresh}.")
        if reasons:
            console.print()
        facts(console, [*told.sides(record), *told.method(record)])

    def markdown(self) -> list[str]:
        return [regression_markdown(self.record).rstrip("\n")]

    def markdown_command(self) -> str:
        return ""

    def sections(self) -> list[Section]:
        record = self.record
        timed = wall_clock_cases(record)
        counted = [case for case in told.worst_first(record.cases) if not case.wall_clock]
        said = "Above 1 head is slower. Wall-clock verdicts rest on these pairs"
        apart = [word for word in ("not comparable", "expected") if any(case.verdict == word for case in timed)]
        said += f", but for cases that are {' or '.join(apart)}." if apart else "."
        pairs = pairs_over_time("Every launch pair over time", said, record.pairs, record.confirmation)
        return [
            Section("clock", "Wall clock", [forest(timed) or wall_table(timed)] if timed else []),
            Section("deterministic", "Deterministic", [counted_table(counted)] if counted else []),
            Section("reasons", "Why", _reasons(told.worst_first(record.cases))),
            Section("launches", "Every launch", [pairs] if pairs is not None else []),
            Section("method", "How it was measured", [Facts([*told.method(record), *_workloads(record)])]),
        ]

    def environment_sections(self) -> list[Section]:
        base, head, named = self.record.base, self.record.head, told.sides(self.record)
        if base is None or base.environment == head.environment:
            return [environment_section(head.environment, *named[:2])]
        return [environments_section(base.environment, head.environment, named)]

    def tables(self) -> dict[str, list[Row]]:
        record, of = self.record, fields(self.record, "created", "complete")
        launches = [*launch_rows(record.pairs, of, "first"), *launch_rows(record.confirmation, of, "confirmation")]
        cases = [{**of, **_case(case)} for case in record.cases]
        return {"cases": cases, "launches": launches, "failures": failure_rows(record)}

    def cases(self, strict: bool) -> list[Case]:
        record = self.record
        return [
            Case(
                group=case.check,
                name=f"{case.mode} {case.metric}",
                time_s=case.head if case.wall_clock else None,
                status=_status(case, record, strict),
                message=f"{case.verdict}: {case.reason}",
                text=_text(case, record),
            )
            for case in record.cases
        ]


def _draw_cases(
    title: str, cases: Sequence[Judged], cells_of: Callable[[Judged], dict[str, str | Text]], console: Console
) -> None:
    """Draw the cases as a table, or as blocks on a narrow terminal. The title has the label that all figures share."""
    if not cases:
        return
    labels = sorted({case.label for case in cases if case.label is not None})
    title = f"{title} ({labels[0]})" if len(labels) == 1 else title
    rows = [cells_of(case) | ({"label": case.label or "–"} if len(labels) > 1 else {}) for case in cases]
    if len({row.get("pairs") for row in rows} - {"–"}) < 2:
        for row in rows:
            row.pop("pairs", None)
    left = ("case", "verdict", "from", "label", *(("threshold",) if "base" in rows[0] else ()))
    table = filled_table(title, list(rows[0]), [list(row.values()) for row in rows], left)
    if console.width < NARROW_COLUMNS or breaks_words(console, table):
        _stacked(title, cases, console)
    else:
        console.print(table)


def _timed_cells(case: Judged) -> dict[str, str | Text]:
    share, source, floor = told.threshold_parts(case.threshold)
    return {
        "case": told.name(case),
        "verdict": _verdict(case),
        "ratio [95 % CI]": told.ratio(case.found),
        "p (Holm)": told.p_holm(case.found),
        "pairs": str(case.found.pairs) if case.found is not None else "–",
        "threshold": share,
        "from": source,
        "floor": floor,
    }


def _counted_cells(case: Judged) -> dict[str, str | Text]:
    return {
        "case": told.name(case),
        "verdict": _verdict(case),
        "base": told.value(case.base, case.unit, case.head),
        "head": told.value(case.head, case.unit, case.base),
        "threshold": told.threshold(case.threshold),
    }


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


def counted_table(cases: Sequence[Judged]) -> Table:
    """Return the deterministic cases, which one measurement per side decides."""
    rows: list[list[Cell]] = [
        [
            told.name(case),
            verdict_badge(case),
            told.value(case.base, case.unit, case.head),
            told.value(case.head, case.unit, case.base),
            told.threshold(case.threshold),
            Badge.of(case.label) if case.label is not None else "–",
        ]
        for case in cases
    ]
    headings = ("case", "verdict", "base", "head", "threshold", "label")
    note = "The same code gives the same figure, so one look at each side decides."
    shown = columns(headings, ("case", "verdict", "threshold", "label"))
    return Table("Deterministic cases, base and head", shown, rows, note, opened=True)


def _reasons(cases: Sequence[Judged]) -> list[Block]:
    """Return one sentence for all cases that share a verdict and its reason."""
    said = []
    for reason, alike in told.reasons(cases):
        found = [(case, one) for case in alike if (one := told.confirmation(case)) is not None]
        fresh = [capitalized(f"{one}." if len(alike) == 1 else f"{told.name(case)}, {one}.") for case, one in found]
        said.append(" ".join([told.reason_line(reason, alike), *fresh]))
    return [Sentences(said)] if said else []


def _workloads(record: Regression) -> list[tuple[str, str]]:
    """Return the workloads of head, and those of base that differ."""
    found = workload_facts(record.head.workloads)
    if record.base is None:
        return found
    other = {name: one for name, one in record.base.workloads.items() if record.head.workloads.get(name) != one}
    return [*found, *workload_facts(other, "of base")]


def _case(case: Judged) -> Row:
    """Return one verdict and its basis as a row; shares and ratios are plain numbers."""
    found, fresh = case.found, case.confirmation
    tested = ("p_slower_holm", "p_faster_holm", "pairs")
    return {
        **fields(case, "label", "check", "mode", "metric", "unit", "verdict", "reason", "base", "head"),
        "ratio": found.ratio if found else None,
        **ends("ratio", found.ci95 if found else None),
        **(fields(found, *tested) if found else dict.fromkeys(tested)),
        "threshold_share": case.threshold.share,
        "threshold_from": case.threshold.source,
        "noise_floor_share": case.threshold.floor,
        "confirmation_ratio": fresh.ratio if fresh else None,
        **ends("confirmation_ratio", fresh.ci95 if fresh else None),
    }


def _status(case: Judged, record: Regression, strict: bool) -> Status:
    if case.fails:
        return "failed"
    if case.verdict in told.PASSED:
        return "passed"
    heads = [one for one in record.failures if one.side == "head" and one.check == case.check]
    failed = any(one.mode in (None, case.mode) for one in heads)
    if failed:  # of a case that nothing has decided
        return "error"
    return "failed" if strict else "skipped"


def _text(case: Judged, record: Regression) -> str:
    said = [] if case.base is None else [f"base → head {told.both(case)} ({case.label})"]
    said.append(f"threshold {told.threshold(case.threshold)}")
    if case.found is not None:
        said.append(f"ratio {told.ratio(case.found)}, p {told.p_holm(case.found)} after Holm")
        said.append(f"pairs: {told.pair_ratios(case, record.pairs)}")
    if case.confirmation is not None:
        said.append(f"fresh launches: {told.ratio(case.confirmation)}, p {told.p_holm(case.confirmation)}")
        said.append(f"fresh pairs: {told.pair_ratios(case, record.confirmation)}")
    return "\n".join(said)


class BaselineView(View[Baseline]):
    """Counts that `regress check` without `--base` compares with, and the noise floors of a machine."""

    name = "Baseline"
    cut_short = "it ended early"
    aftermath = ""

    def title(self) -> str:
        return f"{and_of([check.name for check in self.record.suite.checks])}, for later checks"

    def subtitle(self) -> str:
        return f"{sentences.made_at(self.record.created)} · made on {self.record.side.environment.hostname}"

    def headline(self) -> list[str]:
        record = self.record
        machine = "any machine" if record.machine == "any" else record.machine
        counts = [counted(len(record.side.measurements), "case")] if record.side.measurements else []
        floors = [f"noise floors from {counted(len(record.pairs), 'A/A pair')}"] if record.pairs else []
        return [f"Baseline of {machine}: {and_of([*counts, *floors] or ['nothing was measured'])}."]

    def answer(self) -> list[str]:
        labels = list(self.labels())
        return [*self.headline(), *([f"Its figures are {and_of(labels)}."] if labels else [])]

    def labels(self) -> list[Label]:
        return sorted({*(one.label for one in self.record.side.measurements), *noise_labels(self.record)})

    def failures(self) -> list[str]:
        return [told.failure_line(failure, sides=False) for failure in self.record.failures]

    def environment(self) -> Environment:
        return self.record.side.environment

    def environment_sections(self) -> list[Section]:
        side = self.record.side
        source = ("source", told.source(side))
        return [environment_section(side.environment, source, *workload_facts(side.workloads))]

    def draw(self, console: Console, detail: Detail) -> None:
        record = self.record
        say(console, self.headline()[0], "bold")
        self.draw_incomplete(console)
        for failure in self.failures():
            say(console, failure, "bold red")
        console.print()
        for grid in self._grids():
            console.print(filled_table(*grid))
        measured = ("measured", told.side_line(record.side))
        made = ("made by", f"xbench {record.xbench}: {record.command}")
        facts(console, [*workload_facts(record.side.workloads), measured, made], record.warnings)

    def markdown(self) -> list[str]:
        record = self.record
        made = [("measured", told.side_line(record.side)), ("command", record.command)]
        return [
            f"### {markup.plain(self.headline()[0])}",
            markup.quoted(self.incomplete()),
            markup.bullets(self.failures(), bold=True),
            *(markup.table(headings, rows) for _, headings, rows, _ in self._grids()),
            markup.bullets(f"warning: {warning}" for warning in record.warnings),
            markup.details("How it was measured", markup.facts([*workload_facts(record.side.workloads), *made])),
        ]

    def markdown_command(self) -> str:
        return ""

    def _grids(self) -> list[tuple[str, list[str], list[list[str]], tuple[str, ...]]]:
        """Return title, headings and rows of each table with any, and the columns that are aligned left."""
        counts, floors = told.count_rows(self.record), told.noise_rows(self.record)
        found = [
            ("Counts, plans and predictions", list(COUNTS), list(map(list, counts)), ("case", "label")),
            (told.FLOORS, list(told.FLOOR_COLUMNS), list(map(list, floors)), ("case", "noise floor", "label")),
        ]
        return [grid for grid in found if grid[2]]

    def sections(self) -> list[Section]:
        record, counts = self.record, told.count_rows(self.record)
        rows: list[list[Cell]] = [[case, value, Badge.of(label)] for case, value, label in counts]
        table = Table("Counts, plans and predictions", columns(COUNTS, ("case", "label")), rows, opened=True)
        found = Section("counts", "What later checks are held against", [table] if rows else [])
        if not record.pairs:
            return [found]
        pairs = pairs_over_time("Every A/A pair over time", "Both are the same code.", record.pairs)
        return [
            found,
            Section("floors", "Noise floors", [floors_figure(record) or floors_table(record)]),
            Section("pairs", "Every pair", [pairs] if pairs is not None else []),
        ]

    def tables(self) -> dict[str, list[Row]]:
        record, of = self.record, fields(self.record, "created", "complete")
        once = [_measurement(one, of, None, "base", "deterministic") for one in record.side.measurements]
        labels = {one.case: one.label for pair in record.pairs for one in pair.base}
        floors = [
            {
                **of,
                "label": labels.get(floor.case),
                **fields(floor, "check", "mode", "metric"),
                "noise_floor_share": floor.floor,
                **fields(floor, "measured_pairs", "checked_pairs"),
            }
            for floor in record.floors
        ]
        launches = [*once, *launch_rows(record.pairs, of, "A/A")]
        return {"launches": launches, "floors": floors, "failures": failure_rows(record)}

    def cases(self, strict: bool) -> list[Case]:
        group, record = f"baseline of {self.record.machine}", self.record
        counts = [(case, f"{value} ({label})") for case, value, label in told.count_rows(record)]
        floors = [
            (case, f"noise floor {floor}" if label == "–" else f"noise floor {floor} ({label})")
            for case, floor, _, label in told.noise_rows(record)
        ]
        failed = zip(record.failures, self.failures(), strict=True)
        return [
            *(Case(group, name, message=said) for name, said in (*counts, *floors)),
            *(Case(group, f"{failure.check}/{failure.mode or 'all modes'}", status="error", message=said)
              for failure, said in failed),
        ]  # fmt: skip


def workload_facts(workloads: Mapping[str, WorkloadRecord], what: str = "workload") -> list[tuple[str, str]]:
    """Return the workload of each check, by the check's name."""
    return [(what, f"{name}: {sentences.workload_line(one)}") for name, one in workloads.items()]


def failure_rows(record: Baseline | Regression) -> list[Row]:
    """Return the tidy table of failures."""
    of = fields(record, "created", "complete")
    return [{**of, "label": None, **failure.model_dump()} for failure in record.failures]


def launch_rows(pairs: Iterable[LaunchPair], of: Row, phase: str) -> Iterator[Row]:
    """Return one row per case, side and pair, in the order of time."""
    for pair in pairs:
        sides = {"base": pair.base, "head": pair.head}
        for side in sorted(sides, key=lambda side: side != pair.first):
            for one in sides[side]:
                yield _measurement(one, of, pair.number, side, phase)


def _measurement(one: Measurement, of: Row, pair: int | None, side: str, phase: str) -> Row:
    return {
        **of,
        "label": one.label,
        "phase": phase,
        "pair": pair,
        "side": side,
        **fields(one, "check", "mode", "metric", "value", "unit"),
        "samples": len(one.samples),
    }


# --- Markdown and annotations for GitHub ------------------------------------------------------------------------------


def regression_markdown(record: Regression, limit_bytes: int = LIMIT_BYTES) -> str:
    """Return the text, at most `limit_bytes` long as UTF-8; below `MIN_BYTES` only the answer, or nothing.

    A step that has already written a part of its summary passes the rest of the limit.
    """
    if limit_bytes < MIN_BYTES:
        answer = f"{plain(told.answer(record)[0])}\n"
        return answer if len(answer.encode()) <= limit_bytes else ""
    first, *others = told.answer(record)
    said = [f"**{plain(first)}**", *map(plain, (*others, *RegressionView(record).remarks()))]
    top = _cut("### xbench regress\n\n" + "".join(f"{sentence}\n\n" for sentence in said), limit_bytes // 3)
    how = markup.facts([*told.sides(record), *told.method(record), ("command", record.command)])
    bottom = f"\n{markup.details('How it was measured', _cut(how, limit_bytes // 3))}\n"
    left = limit_bytes - sum(len(part.encode()) for part in (top, bottom, HEAD)) - ROOM_BYTES
    cases = told.worst_first(record.cases)
    rows, shown = _fitting([_markdown_row(case) for case in cases], left)
    listed = f"{HEAD}{rows}" if cases else ""
    omitted = f"\n{counted(len(cases) - shown, 'row')} left out.\n" if shown < len(cases) else ""
    left -= len(rows.encode())
    every = []
    for reason, alike in told.reasons(cases[:shown]):
        fresh = "".join(f"; {found}" for found in map(told.confirmation, alike) if found is not None)
        every.append(f"- {plain(', '.join(map(told.name, alike)))}: {plain(reason + fresh)}\n")
    reasons, explained = _fitting(every, left - ROOM_BYTES)
    why = f"\n{markup.details('Why', reasons.rstrip())}\n" if explained else ""
    return f"{top}{listed}{omitted}{why}{bottom}"


def _markdown_row(case: Judged) -> str:
    measured = case.found is not None and case.found.ratio is not None
    figure = told.ratio(case.found) if measured else told.both(case) if case.base is not None else "–"
    cells = (
        told.name(case), f"{MARKS.get(case.verdict, UNJUDGED)} {case.verdict}", figure, told.p_holm(case.found),
        told.threshold(case.threshold), str(case.found.pairs) if case.found is not None else "–", case.label or "–",
    )  # fmt: skip
    return f"| {' | '.join(plain(cell) for cell in cells)} |\n"


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


def workflow_commands(record: Regression) -> list[str]:
    """Return one line per case that fails or could not be judged, worst first; empty if there is none."""
    cases = told.worst_first(record.cases)
    errors = [case for case in cases if case.fails]
    warnings = [case for case in cases if case.verdict in ("missing", "not comparable", "inconclusive")]
    return [*_lines("error", errors), *_lines("warning", warnings)]


def command(level: Level, title: str, message: str) -> str:
    """Return an escaped workflow command: '::error title=…::…'."""
    return f"::{level} title={_data(title).replace(':', '%3A').replace(',', '%2C')}::{_data(message)}"


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
