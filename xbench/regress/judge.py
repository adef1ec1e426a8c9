"""Verdicts: from the raw launches of a `Regression` to one verdict per case, and from those to an exit code.

`judge` reads only the record, so a saved check can be judged again.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from math import exp
from typing import Any, NamedTuple

from xbench import records
from xbench.regress.metrics import METRICS, WorkloadChange, obstacle, wall_clock, workload_change
from xbench.stats.regression import (
    LINE,
    PairsVerdict,
    agrees,
    deciding_pairs,
    log_ratios,
    noise_floor,
    pairs_needed,
    verdicts,
)
from xbench.text import counted
from xbench.units import format_brief_percent, format_percent

FAILED, REGRESSED, INCONCLUSIVE, INCOMPARABLE = 1, 3, 4, 5
"""Exit codes; the last two are used only with `--strict`."""
_EXACT = {
    "baseline": "changed, and it gates exactly: make a new baseline if that was meant",
    "revision": "changed, and it gates exactly: if that is meant, the check passes again once base has it",
}


class CasePairs(NamedTuple):
    """Values of one wall-clock case in all launch pairs that measured it on both sides."""

    base: list[float]
    head: list[float]
    ratios: list[float]
    """Head over base, of each pair; zero if base measured nothing above zero."""
    label: records.Label | None


def judge(regression: records.Regression) -> records.Regression:
    """Return the record with `cases` computed from its measurements, in the order of the suite.

    A wall-clock case is *suspected* if three conditions hold. Its interval's lower end passes the line (half the
    threshold), its upper end does not rule the threshold out, and its Holm-adjusted p is below alpha. With `confirm`
    set it is `regressed` only once `confirmation` by itself `agrees`, and `inconclusive` until then.
    """
    asked = regression.suite.cases()
    walls = wall_clock(asked)
    cases = walls if "wall" in regression.layers else []
    counts = [case for case in asked if case not in walls] if "deterministic" in regression.layers else []
    judged = {case: _refused(case, regression) for case in (*counts, *cases)}
    found = {case: one for case, one in judged.items() if one is not None}
    found |= {case: _counted(case, regression) for case in counts if judged[case] is None}
    left = [case for case in cases if judged[case] is None]
    failed = next((one for one in found.values() if one.fails), None)
    if failed is not None and not regression.pairs:
        reason = f"not timed, because {failed.check}/{failed.mode} {failed.metric} fails already"
        found |= {case: _judged(case, regression, "missing", reason) for case in left}
    else:
        found |= _timed(left, regression)
    return regression.model_copy(update={"cases": [found[case] for case in asked if case in found]})


def worth_timing(regression: records.Regression) -> list[str]:
    """Return checks with a wall-clock case that launches could decide; none if the looks alone fail the check.

    `regression` holds the looks of both sides, and no pairs yet.
    """
    if any(case.fails for case in judge(regression).cases):
        return []
    cases = wall_clock(regression.suite.cases()) if "wall" in regression.layers else []
    return list(dict.fromkeys(case.check for case in cases if _refused(case, regression) is None))


def suspected(regression: records.Regression) -> list[records.Case]:
    """Return the suspected cases of a judged record, which fresh launches must confirm."""
    return [case.case for case in regression.cases if case.suspected]


def floors_of(
    suite: records.Suite, pairs: Sequence[records.LaunchPair], checked_pairs: int
) -> list[records.NoiseFloor]:
    """Return the noise floor of every wall-clock case, from A/A pairs, for checks of `checked_pairs` pairs.

    A case without enough pairs (6 of either), or without a ratio in one of them, has none.
    """
    floors = []
    for case in wall_clock(suite.cases()):
        values = _pairs_of(case, pairs)
        try:
            floor = noise_floor(log_ratios(values.ratios), checked_pairs)
        except ValueError:
            continue
        if floor is not None:
            floors.append(
                records.NoiseFloor(
                    **case._asdict(), floor=floor, measured_pairs=len(values.base), checked_pairs=checked_pairs
                )
            )
    return floors


def threshold_of(case: records.Case, suite: records.Suite, floors: Iterable[records.NoiseFloor]) -> records.Threshold:
    """Return the suite's threshold; else the metric's default, or twice the noise floor if that is larger."""
    floor = next((floor.floor for floor in floors if floor.case == case), None)
    if case.metric in suite.thresholds:
        return records.Threshold(share=suite.thresholds[case.metric], source="suite", floor=floor)
    default = METRICS[case.metric].threshold
    if floor is not None and 2 * floor > default:
        return records.Threshold(share=2 * floor, source="noise floor", floor=floor)
    return records.Threshold(share=default, source="default", floor=floor)


def exit_code(regression: records.Regression, strict: bool) -> int:
    """Return 0 if nothing got worse, 3 for a regression or a changed workload, 1 if head failed in a case.

    A failure of head counts in a case that is missing, not comparable or inconclusive.

    With `strict`, return also 5 for a missing or incomparable case, else 4 for an inconclusive one. A record without
    verdicts is inconclusive. 3 takes precedence over 1, 1 over 5, 5 over 4.
    """
    words = {case.verdict for case in regression.cases}
    if any(case.fails for case in regression.cases):
        return REGRESSED
    not_judged = [case.case for case in regression.cases if case.verdict in ("missing", "not comparable")]
    undecided = [case.case for case in regression.cases if case.verdict == "inconclusive"]
    if any(_failed(case, regression, "head") for case in (*not_judged, *undecided)):
        return FAILED
    if strict and not_judged:
        return INCOMPARABLE
    return INCONCLUSIVE if strict and ("inconclusive" in words or not words or not regression.complete) else 0


def _refused(case: records.Case, regression: records.Regression) -> records.Judged | None:
    """Return the verdict if a side is missing, or the two are not comparable. None if the values decide."""
    base, head = regression.base, regression.head
    if base is None:
        failure = _failed(case, regression, "head")
        if failure is not None:
            return _judged(case, regression, "missing", f"head failed: {failure.reason}")
        why = next((one.reason for one in regression.failures if one.side == "base" and one.check == case.check), None)
        if why is not None and regression.against == "revision":
            return _judged(case, regression, "not comparable", why)
        return _judged(case, regression, "missing", why or "there is no baseline")
    for side in (base, head):
        check = next((check for check in side.checks if check.name == case.check), None)
        if check is None or case not in check.cases():
            what = "check" if check is None else "mode" if case.mode not in check.modes else "metric"
            return _judged(case, regression, "missing", f"{_called(side, regression)} has no such {what}")
    change = workload_change(case.check, base, head)
    if change is not None:
        return _of_another_workload(case, regression, change)
    if regression.against == "baseline" and METRICS[case.metric].layer == "wall":
        return _judged(case, regression, "missing", "a baseline holds no times: check --base REV measures both sides")
    why = obstacle(case, base, head)
    return _judged(case, regression, "not comparable", why) if why is not None else None


def _of_another_workload(case: records.Case, regression: records.Regression, change: WorkloadChange) -> records.Judged:
    """Return the verdict for a changed workload. A count is still judged, if there is one; a time is not."""
    meant = next(check.expect_change for check in regression.suite.checks if check.name == case.check)
    timed = METRICS[case.metric].layer == "wall"
    why = f"not timed, because {change.said}" if timed else change.said
    counted = _judged(case, regression, "changed", why) if timed else _counted(case, regression)
    if counted.verdict == "missing":
        if any(one.check == case.check and one.mode in (None, case.mode) for one in regression.failures):
            return counted
        why = f"not counted, because {change.said}"
        counted = _judged(case, regression, "changed", why)
    if meant == change.exact:
        return counted.model_copy(update={"verdict": "expected", "reason": f"{why}, as the suite expects"})
    reason = f"{why}; make a new baseline if that was meant"
    if regression.against == "revision":
        reason = f'{why}; if that is meant, write expect_change = "{change.exact}" into check {case.check!r}'
    return counted.model_copy(update={"verdict": counted.verdict if counted.fails else "changed", "reason": reason})


def _counted(case: records.Case, regression: records.Regression) -> records.Judged:
    """Judge a deterministic case: the same, within its threshold, or not."""
    assert regression.base is not None  # _refused() checked it
    sides = (regression.base, regression.head)
    one, other = (next((found for found in side.measurements if found.case == case), None) for side in sides)
    if one is None or other is None:
        return _judged(
            case, regression, "missing", _why_missing(case, regression, sides[0] if one is None else sides[1])
        )
    base, head = one.value, other.value
    share = threshold_of(case, regression.suite, ()).share
    word: records.RegressionVerdict = "equivalent"
    reason = "the same" if base == head else f"within {format_brief_percent(share)}"
    if share == 0 and base != head:
        word, reason = "regressed", _EXACT[regression.against]
    elif abs(head - base) > share * base:
        word = "regressed" if head > base else "improved"
        change = format_percent(abs(head / base - 1)) if base > 0 else "from nothing"
        reason = f"{'more' if head > base else 'less'} by {change}"
    return _judged(case, regression, word, reason, label=other.label, base=base, head=head)


def _timed(cases: Sequence[records.Case], regression: records.Regression) -> dict[records.Case, records.Judged]:
    """Judge wall-clock cases as one family. Then judge the suspected ones again, from their confirmation alone."""
    found: dict[records.Case, records.Judged] = {}
    first, without = _family(cases, regression, regression.pairs)
    found |= without
    suspects = [case for case, (_, verdict) in first.items() if verdict.word == "regressed"]
    again, _ = _family(suspects, regression, regression.confirmation)
    for case, (pairs, verdict) in first.items():
        threshold = threshold_of(case, regression.suite, regression.floors)
        confirmation = _found(*again[case]) if case in again else None
        word, reason = verdict.word, _reason(verdict, threshold, regression, len(first))
        if case in suspects and regression.confirm:
            if confirmation is None:
                failure = _failed(case, regression, "head")
                word, reason = "inconclusive", f"suspected, not yet confirmed: {reason}"
                if failure is not None:
                    reason = f"{reason}; head failed: {failure.reason}"
            elif not agrees(again[case][1], threshold.share, regression.suite.alpha):
                word, reason = "inconclusive", f"suspected, but fresh launches do not agree: {reason}"
            else:
                reason = f"{reason}; fresh launches agree"
        found[case] = _judged(
            case,
            regression,
            word,
            reason,
            label=pairs.label,
            base=statistics.median(pairs.base),
            head=statistics.median(pairs.head),
            found=_found(pairs, verdict),
            suspected=case in suspects,
            confirmation=confirmation,
        )
    return found


Family = dict[records.Case, tuple[CasePairs, PairsVerdict]]


def _family(
    cases: Sequence[records.Case], regression: records.Regression, pairs: Sequence[records.LaunchPair]
) -> tuple[Family, dict[records.Case, records.Judged]]:
    """Return the test of every case with pairs, adjusted over all of them, and the verdict on the others."""
    measured: dict[records.Case, CasePairs] = {}
    differences: dict[records.Case, list[float]] = {}
    without: dict[records.Case, records.Judged] = {}
    for case in cases:
        values = _pairs_of(case, pairs)
        if not values.base:
            without[case] = _judged(case, regression, "missing", _why_missing(case, regression))
            continue
        try:
            differences[case] = log_ratios(values.ratios)
        except ValueError:
            reason = "a launch measured none of it above zero, so there is no ratio"
            without[case] = _judged(case, regression, "inconclusive", reason, label=values.label)
            continue
        measured[case] = values
    shares = [threshold_of(case, regression.suite, regression.floors).share for case in measured]
    words = verdicts([differences[case] for case in measured], shares, regression.suite.alpha)
    return {case: (measured[case], word) for case, word in zip(measured, words, strict=True)}, without


def _pairs_of(case: records.Case, pairs: Sequence[records.LaunchPair]) -> CasePairs:
    base, head, ratios, label = [], [], [], None
    for pair in pairs:
        one, other = _of(case, pair.base), _of(case, pair.head)
        if one is not None and other is not None:
            base.append(one.value)
            head.append(other.value)
            ratios.append(pair.ratio(case) or 0.0)
            label = other.label
    return CasePairs(base, head, ratios, label)


def _of(case: records.Case, measurements: Iterable[records.Measurement]) -> records.Measurement | None:
    return next((found for found in measurements if found.case == case), None)


def _found(pairs: CasePairs, verdict: PairsVerdict) -> records.Found:
    test = verdict.test
    return records.Found(
        pairs=test.pairs,
        base=statistics.median(pairs.base),
        head=statistics.median(pairs.head),
        ratio=exp(test.center),
        ci95=None if test.interval is None else (exp(test.interval[0]), exp(test.interval[1])),
        p_slower=test.p_slower,
        p_faster=test.p_faster,
        p_slower_holm=verdict.p_slower_holm,
        p_faster_holm=verdict.p_faster_holm,
    )


def _reason(verdict: PairsVerdict, threshold: records.Threshold, regression: records.Regression, cases: int) -> str:
    """Return the reason for this verdict in one sentence, without the values beside it."""
    alpha = regression.suite.alpha
    line = f"half the threshold of {format_brief_percent(threshold.share)}"
    test = verdict.test
    enough = pairs_needed(alpha, cases)
    if test.interval is None or test.pairs < enough:
        few, all_cases = counted(test.pairs, "pair"), counted(cases, "case")
        return f"{few} cannot decide: {enough} are the least for {all_cases} at alpha {alpha:g} (--pairs {enough})"
    if verdict.word == "equivalent":
        return f"the whole interval lies within {format_brief_percent(threshold.share)}"
    if verdict.word == "regressed":
        return f"the interval's lower end is beyond {line}"
    if verdict.word == "improved":
        return f"the interval's upper end is beyond {line}"
    low, high = exp(test.interval[0]), exp(test.interval[1])
    beyond = 1 + LINE * threshold.share
    if low > beyond or high < 1 / beyond:
        return f"beyond {line}, but p is not below {alpha:g} after Holm: {_more_pairs(2 * test.pairs)}"
    share = format_brief_percent(threshold.share)
    more = _more_pairs(deciding_pairs(test, threshold.share))
    return f"the interval reaches beyond {share}, and back to {line}: {more}"


def _more_pairs(count: int) -> str:
    """Advise a number of pairs that may decide a case."""
    if count > records.MAX_PAIRS:
        return f"a quieter machine may tell, for even --pairs {records.MAX_PAIRS} would not"
    return f"about {count} pairs may tell: --pairs {count}"


def _why_missing(case: records.Case, regression: records.Regression, side: records.Side | None = None) -> str:
    """Return the launches' reason for a missing case, else that it was not measured."""
    failure = _failed(case, regression, "head") or _failed(case, regression, "base")
    if failure is not None:
        return f"{failure.side} failed: {failure.reason}"
    if side is not None:
        return f"{_called(side, regression)} did not measure it"
    return "no launch pair measured it on both sides"


def _called(side: records.Side, regression: records.Regression) -> str:
    """Return a side's name in a sentence. A stored baseline's 'this tree' is not the present one."""
    return "the baseline" if side is regression.base and regression.against == "baseline" else side.source


def _failed(case: records.Case, regression: records.Regression, side: records.SideName) -> records.Failure | None:
    """Return the first failure of that side that concerns the case."""
    return next(
        (
            failure
            for failure in regression.failures
            if failure.side == side and failure.check == case.check and failure.mode in (None, case.mode)
        ),
        None,
    )


def _judged(
    case: records.Case, regression: records.Regression, verdict: records.RegressionVerdict, reason: str, **measured: Any
) -> records.Judged:
    """Return the verdict on a case, with its reason and the fields that hold what was measured."""
    return records.Judged(
        **case._asdict(),
        unit=METRICS[case.metric].unit,
        verdict=verdict,
        reason=reason,
        threshold=threshold_of(case, regression.suite, regression.floors),
        **measured,
    )
