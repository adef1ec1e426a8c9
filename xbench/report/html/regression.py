"""The page of a check for regressions: the answer, where every case lies, why, and every launch behind it."""

from __future__ import annotations

from collections.abc import Sequence

from xbench.environment import fingerprint, must_match
from xbench.records import Environment, Judged, Label, Regression, Side
from xbench.report import regression_lines as told
from xbench.report.html.facts import (
    capital,
    command_section,
    environment_section,
    label_badge,
    moment,
    warnings_section,
    workload_pairs,
)
from xbench.report.html.forest import forest, wall_table, walls, word
from xbench.report.html.launches import pairs_over_time
from xbench.report.html.parts import Badge, Block, Cell, Column, Facts, Page, Section, Sentences, Table
from xbench.text import counted


def regression_page(record: Regression) -> Page:
    """Every section that the record has something for."""
    base = record.base.source if record.base is not None else "nothing to compare with"
    labels: list[Label] = sorted({case.label for case in record.cases if case.label is not None})
    on_purpose = told.injected(record)
    return Page(
        kind="Regression check",
        warnings=len(record.warnings),
        title=f"{record.head.source} against {base}",
        subtitle=f"{moment(record.created)} · {record.head.environment.hostname} · "
        f"{counted(len(record.cases), 'case')}",
        labels=labels,
        answer=[*told.answer(record), *([on_purpose] if on_purpose is not None else [])],
        incomplete=told.incomplete(record),
        failures=[told.failure_line(failure) for failure in record.failures],
        sections=[section for section in _sections(record) if section.blocks],
    )


def counted_table(cases: Sequence[Judged]) -> Table:
    """Deterministic cases: one look a side decides."""
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
    columns = [Column("case", figures=False), Column("verdict", figures=False), Column("base"), Column("head"),
               Column("threshold", figures=False), Column("label", figures=False)]  # fmt: skip
    note = "The same code gives the same figure, so one look at each side decides."
    return Table("Deterministic cases, base and head", columns, rows, note, opened=True)


def _sections(record: Regression) -> list[Section]:
    timed = walls(record)
    counted = [case for case in told.worst_first(record.cases) if not case.wall_clock]
    said = "Above 1 head is slower. Wall-clock verdicts rest on these pairs"
    apart = [word for word in ("not comparable", "expected") if any(case.verdict == word for case in timed)]
    said += f", but for cases that are {' or '.join(apart)}." if apart else "."
    pairs = pairs_over_time("Every launch pair over time", said, record.pairs, record.confirmation)
    how = told.method_line(record)
    return [
        Section("clock", "Wall clock", [forest(timed) or wall_table(timed)] if timed else []),
        Section("deterministic", "Deterministic", [counted_table(counted)] if counted else []),
        Section("reasons", "Why", _reasons(told.worst_first(record.cases))),
        Section("launches", "Every launch", [pairs] if pairs is not None else []),
        Section("method", "How it was measured", [Facts([*([("method", how)] if how else []), *_workloads(record)])]),
        _environments(record),
        *warnings_section(record.warnings),
        command_section(record.command),
    ]


def _reasons(cases: Sequence[Judged]) -> list[Block]:
    """A sentence for all cases that share a verdict and its reason."""
    said = []
    for reason, alike in told.reasons(cases):
        found = [(case, one) for case in alike if (one := told.confirmation(case)) is not None]
        fresh = [capital(f"{one}." if len(alike) == 1 else f"{told.name(case)}, {one}.") for case, one in found]
        said.append(" ".join([told.reason_line(reason, alike), *fresh]))
    return [Sentences(said)] if said else []


def _workloads(record: Regression) -> list[tuple[str, str]]:
    """What both sides trained; base's own where it is another."""
    found = workload_pairs(record.head.workloads)
    if record.base is None:
        return found
    other = {name: one for name, one in record.base.workloads.items() if record.head.workloads.get(name) != one}
    return [*found, *workload_pairs(other, "of base")]


def _environments(record: Regression) -> Section:
    """One machine's facts, or what differs between the two sides and what does not."""
    named = told.sides(record)
    if record.base is None or record.base.environment == record.head.environment:
        return environment_section(record.head.environment, *named[:2])
    base, head = _facts(record.base), _facts(record.head)
    parts = [part for side in (record.base, record.head) for part in must_match(side.environment)]
    matters = {"fingerprint", *(name for part in parts for name in part)}
    names = sorted(dict.fromkeys([*base, *head]), key=lambda name: name not in matters)
    different: list[list[Cell]] = [
        [name, base.get(name, "–"), head.get(name, "–"), _effect(name in matters)]
        for name in names
        if base.get(name) != head.get(name)
    ]
    same: list[list[Cell]] = [[name, base[name]] for name in names if base.get(name) == head.get(name)]
    columns = [Column(name, figures=False) for name in ("what", "base", "head", "for wall-clock figures")]
    tables = [
        Table("What differs between base and head", columns, different, opened=True),
        Table("What is the same", columns[:2], same, bulk=True),
    ]
    return Section("environment", "Environment", [Facts(named), *(table for table in tables if table.rows)])


def _facts(side: Side) -> dict[str, str]:
    """All that is known of where a side was measured."""
    environment: Environment = side.environment
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


def _effect(matters: bool) -> Cell:
    return Badge("must be the same", "failed") if matters else "may differ"
