"""View of a check for regressions: the answer, then the worst cases, the reasons, and every launch behind them.

On a narrow terminal, a case is a stacked block. Colour repeats the verdict. In JUnit, a regression is a failure, and so
is a changed workload. A case that was not judged is skipped, with its reason, or an error if head failed. With `strict`
every case that was not judged is a failure, as in the exit code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rich.console import Console
from rich.text import Text

from xbench.environment import fingerprint, must_match
from xbench.records import Judged, Label, Regression, Side
from xbench.report import regression_sentences as told
from xbench.report.charts.forest import forest, wall_table, walls, word
from xbench.report.charts.launches import pairs_over_time
from xbench.report.console import NARROW_COLUMNS, facts, filled_table, indented, say
from xbench.report.kinds.baseline import failure_rows, launch_rows, workload_facts
from xbench.report.kinds.regression_github import regression_markdown
from xbench.report.page.common_sections import capital, environment_section, label_badge, moment
from xbench.report.page.model import Badge, Block, Cell, Facts, Section, Sentences, Table, columns
from xbench.report.view import Case, Detail, Row, Status, View, ends, fields
from xbench.text import counted

STYLES = {
    "regressed": "bold red", "changed": "bold red", "improved": "bold green", "expected": "yellow",
    "inconclusive": "yellow", "not comparable": "yellow", "missing": "yellow",
}  # fmt: skip


class RegressionView(View[Regression]):
    """Head beside base."""

    name = "Regression check"

    def title(self) -> str:
        base = self.record.base.source if self.record.base is not None else "nothing to compare with"
        return f"{self.record.head.source} against {base}"

    def subtitle(self) -> str:
        made = f"{moment(self.record.created)} · {self.record.head.environment.hostname}"
        return f"{made} · {counted(len(self.record.cases), 'case')}"

    def headline(self) -> list[str]:
        return told.answer(self.record)

    def answer(self) -> list[str]:
        on_purpose = told.injected(self.record)
        return [*self.headline(), *([on_purpose] if on_purpose is not None else [])]

    def labels(self) -> list[Label]:
        return sorted({case.label for case in self.record.cases if case.label is not None})

    def incomplete(self) -> str | None:
        return told.incomplete(self.record)

    def failures(self) -> list[str]:
        return [told.failure_line(failure) for failure in self.record.failures]

    def properties(self) -> dict[str, str]:
        return dict(told.sides(self.record))

    def draw(self, console: Console, detail: Detail) -> None:
        record = self.record
        answer, *rest = self.headline()
        say(console, answer, "bold red" if any(case.fails for case in record.cases) else "bold")
        for sentence in (*rest, *told.remarks(record)):
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
        how = told.method_line(record)
        facts(console, [*told.sides(record), *([("method", how)] if how is not None else [])])

    def markdown(self) -> list[str]:
        return [regression_markdown(self.record).rstrip("\n")]

    def markdown_command(self) -> str:
        return ""

    def sections(self) -> list[Section]:
        record, how = self.record, told.method_line(self.record)
        timed = walls(record)
        counted = [case for case in told.worst_first(record.cases) if not case.wall_clock]
        said = "Above 1 head is slower. Wall-clock verdicts rest on these pairs"
        apart = [word for word in ("not comparable", "expected") if any(case.verdict == word for case in timed)]
        said += f", but for cases that are {' or '.join(apart)}." if apart else "."
        pairs = pairs_over_time("Every launch pair over time", said, record.pairs, record.confirmation)
        method = [*([("method", how)] if how else []), *_workloads(record)]
        return [
            Section("clock", "Wall clock", [forest(timed) or wall_table(timed)] if timed else []),
            Section("deterministic", "Deterministic", [counted_table(counted)] if counted else []),
            Section("reasons", "Why", _reasons(told.worst_first(record.cases))),
            Section("launches", "Every launch", [pairs] if pairs is not None else []),
            Section("method", "How it was measured", [Facts(method)]),
        ]

    def environment_sections(self) -> list[Section]:
        return [_environments(self.record)]

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
    if console.width < NARROW_COLUMNS:
        _stacked(title, cases, console)
        return
    rows = [cells_of(case) | ({"label": case.label or "–"} if len(labels) > 1 else {}) for case in cases]
    if len({row.get("pairs") for row in rows} - {"–"}) < 2:
        for row in rows:
            row.pop("pairs", None)
    left = ("case", "verdict", "from", "label", *(("threshold",) if "base" in rows[0] else ()))
    console.print(filled_table(title, list(rows[0]), [list(row.values()) for row in rows], left))


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
            word(case),
            told.value(case.base, case.unit, case.head),
            told.value(case.head, case.unit, case.base),
            told.threshold(case.threshold),
            label_badge(case.label) if case.label is not None else "–",
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
        fresh = [capital(f"{one}." if len(alike) == 1 else f"{told.name(case)}, {one}.") for case, one in found]
        said.append(" ".join([told.reason_line(reason, alike), *fresh]))
    return [Sentences(said)] if said else []


def _workloads(record: Regression) -> list[tuple[str, str]]:
    """Return the workloads of head, and those of base that differ."""
    found = workload_facts(record.head.workloads)
    if record.base is None:
        return found
    other = {name: one for name, one in record.base.workloads.items() if record.head.workloads.get(name) != one}
    return [*found, *workload_facts(other, "of base")]


def _environments(record: Regression) -> Section:
    """Return one machine's facts, or the differences between the two sides and what they share."""
    named = told.sides(record)
    if record.base is None or record.base.environment == record.head.environment:
        return environment_section(record.head.environment, *named[:2])
    base, head = _facts(record.base), _facts(record.head)
    parts = [part for side in (record.base, record.head) for part in must_match(side.environment)]
    matters = {"fingerprint", *(name for part in parts for name in part)}
    names = sorted(dict.fromkeys([*base, *head]), key=lambda name: name not in matters)
    must: Cell = Badge("must be the same", "failed")
    different = [
        [name, base.get(name, "–"), head.get(name, "–"), must if name in matters else "may differ"]
        for name in names
        if base.get(name) != head.get(name)
    ]
    same = [[name, base[name]] for name in names if base.get(name) == head.get(name)]
    headings = ("what", "base", "head", "for wall-clock figures")
    tables = [
        Table("What differs between base and head", columns(headings, headings), different, opened=True),
        Table("What is the same", columns(headings[:2], headings), same, bulk=True),
    ]
    return Section("environment", "Environment", [Facts(named), *(table for table in tables if table.rows)])


def _facts(side: Side) -> dict[str, str]:
    """Return all known facts on where a side was measured."""
    environment = side.environment
    machine, software = must_match(environment)
    more = {
        "host": environment.hostname,
        "Python, all of it": environment.python,
        "torch, all of it": environment.torch or "not installed",
        "xbench": environment.xbench,
        "commit": environment.commit or "unknown",
        "fingerprint": fingerprint(environment),
    }
    return {**machine, **software, **more, **dict(sorted(environment.facts.items()))}


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
    failed = any(
        failure.side == "head" and failure.check == case.check and failure.mode in (None, case.mode)
        for failure in record.failures
    )
    if case.verdict == "missing" and failed:
        return "error"
    return "failed" if strict else "skipped"


def _text(case: Judged, record: Regression) -> str:
    facts = [f"threshold {told.threshold(case.threshold)}"]
    if case.base is not None:
        facts.insert(0, f"base → head {told.both(case)} ({case.label})")
    if case.found is not None:
        facts += [
            f"ratio {told.ratio(case.found)}, p {told.p_holm(case.found)} after Holm",
            f"pairs: {told.pair_ratios(case, record.pairs)}",
        ]
    if case.confirmation is not None:
        facts += [
            f"fresh launches: {told.ratio(case.confirmation)}, p {told.p_holm(case.confirmation)}",
            f"fresh pairs: {told.pair_ratios(case, record.confirmation)}",
        ]
    return "\n".join(facts)
