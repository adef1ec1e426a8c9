"""A check's verdicts as JUnit cases (`cases` makes XML of them): a group for each check of xbench.toml.

A regression is a failure, and so is a changed workload. What was not judged is skipped, with the reason, or an error
where head failed; under `strict` everything that is not judged is a failure, as the exit code is then.
"""

from __future__ import annotations

from xbench.records import Baseline, Judged, Noise, Regression
from xbench.report.formats.junit import Case, Status
from xbench.report.kinds import regression_sentences as told


def regression_cases(record: Regression, strict: bool = False) -> list[Case]:
    """One case a verdict, in the order of the suite."""
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


def stored_cases(record: Baseline | Noise) -> list[Case]:
    """One case for each that was measured, all passed, for nothing was judged; and each launch that failed."""
    if isinstance(record, Baseline):
        told_of = [
            (row.name, f"{told.value(row.median, row.unit)} ({row.label})") for row in told.baseline_rows(record)
        ]
    else:
        told_of = [(name, f"noise floor {floor}") for name, floor, _ in told.noise_rows(record)]
    group = f"{record.kind} of {record.machine}"
    failed = [
        Case(
            group=group,
            name=f"{failure.check}/{failure.mode or 'all modes'}",
            status="error",
            message=told.failure_line(failure, sides=False),
        )
        for failure in record.failures
    ]
    return [*(Case(group=group, name=name, message=text) for name, text in told_of), *failed]


def _status(case: Judged, record: Regression, strict: bool) -> Status:
    if case.fails:
        return "failed"
    if case.verdict in ("equivalent", "improved", "expected"):
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
