"""Text of a check for regressions: the answer, one case's figures, and the order of cases.

Ratios are head over base: above 1, head is slower or takes more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from xbench import records
from xbench.environment import differences
from xbench.regress.metrics import METRICS, wall_clock, workload_change
from xbench.report import sentences
from xbench.text import and_of, counted
from xbench.units import format_bytes, format_percent, format_seconds

COLUMNS = (
    "ratio: head over base, above 1 is slower; threshold: the slow-down that is to be found; floor: what unchanged "
    "code may look like here. A case fails where the interval's lower end is beyond half the threshold and p below "
    "alpha."
)
FLOORS = "In 95 of 100 checks of unchanged code the whole interval lies within the floor"
FLOOR_COLUMNS = ("case", "noise floor", "least threshold", "label")
WORST_FIRST = (
    "regressed", "changed", "missing", "not comparable", "inconclusive", "expected", "improved", "equivalent"
)  # fmt: skip
PASSED = ("equivalent", "improved", "expected")
SOURCES = {"default": "default", "suite": "xbench.toml"}


def answer(record: records.Regression) -> list[str]:
    """Return one sentence on the result, and one on the kind of figures behind it."""
    if not record.cases:
        return ["Nothing was judged: no case was measured."]
    words: Counter[str] = Counter(case.verdict for case in record.cases)
    total = counted(len(record.cases), "case")
    worst = worst_first(record.cases)[0]
    passed = sum(words[word] for word in PASSED)
    first = _changed(record)
    if words["regressed"]:
        others = "; the worst" if words["regressed"] > 1 else ""
        first.append(f"Regression in {words['regressed']} of {total}{others}: {name(worst)} {change(worst)}.")
    elif not first:
        some = f"No regression found, but not all of {total} could be judged" if passed else f"No answer on {total}"
        found = f"No regression in {total}" if passed == len(record.cases) else some
        each = and_of([f"{words[word]} {word}" for word in reversed(WORST_FIRST) if words[word]])
        first = [f"{found}: {each}."]
    return [*first, *filter(None, (_kinds(record.cases),))]


def worst_first(cases: Iterable[records.Judged]) -> list[records.Judged]:
    """Sort by verdict, then by how much worse head is. Cases that are alike stay in the order of the suite."""
    return sorted(cases, key=lambda case: (WORST_FIRST.index(case.verdict), -_worse(case)))


def name(case: records.Judged) -> str:
    """Return the name of a judged case, as `name_of` does."""
    return name_of(case.case)


def name_of(case: records.Case) -> str:
    """Return a case's name, 'resnet18/optimal step_time'. A narrow column breaks it at the space."""
    return f"{case.check}/{case.mode} {case.metric}"


def change(case: records.Judged) -> str:
    """Describe the change of a case that was measured on both sides, as part of a sentence."""
    if case.found is not None and case.found.ratio is not None:
        return f"takes {ratio(case.found)} of base's time ({case.label})"
    return f"went from {both(case, ' to ')} ({case.label})"


def ratio(found: records.Found | None) -> str:
    """Format a ratio as '1.098 [1.071, 1.124]'."""
    if found is None or found.ratio is None:
        return "–"
    few = " (too few pairs)" if found.ci95 is None else ""
    return sentences.ratio_text(found.ratio, found.ci95) + few


def p_holm(found: records.Found | None) -> str:
    """Format p for the side of the estimate, adjusted over the suite: '0.0039'."""
    if found is None or found.ratio is None or found.p_slower_holm is None or found.p_faster_holm is None:
        return "–"
    p = found.p_slower_holm if found.ratio >= 1 else found.p_faster_holm
    return "<0.0001" if p < 1e-4 else f"{p:.2g}"


def threshold(of: records.Threshold) -> str:
    """Format a threshold and its source: '8.4 % (twice the noise floor of 4.2 %)'."""
    if of.share == 0:
        return "exact"
    if of.source == "noise floor":
        return f"{percent(of.share)} (twice the noise floor of {percent(of.floor or 0.0)})"
    known = f", floor {percent(of.floor)}" if of.floor is not None else ""
    return f"{percent(of.share)} ({SOURCES[of.source]}{known})"


def threshold_parts(of: records.Threshold) -> tuple[str, str, str]:
    """Format the same for three columns: threshold, source, and noise floor."""
    source = "2 × floor" if of.source == "noise floor" else SOURCES[of.source]
    return percent(of.share), source, percent(of.floor) if of.floor is not None else "–"


def value(number: float | None, unit: records.MetricUnit, beside: float | None = None) -> str:
    """Format a figure in its unit. It is exact if rounding would make it look like the figure `beside` it."""
    shown = _rounded(number, unit)
    if number is None or beside is None or number == beside or shown != _rounded(beside, unit):
        return shown
    return f"{number:.0f} B" if unit == "B" else f"{number:.9g}{' s' if unit == 's' else ''}"


def both(case: records.Judged, between: str = " → ") -> str:
    """Format the figures of base and head: '7 → 8'."""
    return value(case.base, case.unit, case.head) + between + value(case.head, case.unit, case.base)


def percent(share: float) -> str:
    """Format a share without trailing zeros: '5 %', '8.4 %', '0.25 %'."""
    digits = 2 if 0 < share < 0.01 else 1
    number, unit = format_percent(share, digits).split(" ")
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}"


def side_line(side: records.Side) -> str:
    """Describe a side and its machine."""
    return f"{source(side)}; {sentences.environment_line(side.environment)}"


def source(side: records.Side) -> str:
    """Name a side, with its revision if the name does not hold it."""
    revision = side.revision
    if revision is None or revision[:7] in side.source:
        return side.source
    return f"{side.source} ({revision[:10]}{'+' if revision.endswith('+') else ''})"


def sides(record: records.Regression) -> list[tuple[str, str]]:
    """Return base and head with labels; one line for the machine if both were measured on the same."""
    base, head = record.base, ("head", side_line(record.head))
    if base is None:
        return [("base", "missing"), head]
    if record.against == "baseline":
        return [("base", f"stored earlier, of {side_line(base)}"), head]
    if differences(base.environment, record.head.environment):
        return [("base", side_line(base)), head]
    machine = ("machine", sentences.environment_line(record.head.environment))
    return [("base", source(base)), ("head", source(record.head)), machine]


def method(record: records.Regression) -> list[tuple[str, str]]:
    """Describe how wall-clock cases were measured and judged, with a label; empty if there are none."""
    walls = [case for case in record.cases if case.found is not None]
    if not walls:
        return []
    fresh = f", {counted(len(record.confirmation), 'pair')} more to confirm" if record.confirmation else ""
    said = (
        f"{counted(len(record.pairs), 'launch pair')}{fresh}; base and head launched by turns (A-B-B-A) on this "
        f"machine; exact signed-rank tests, Holm over "
        f"{counted(len(walls), 'case')} at alpha {record.suite.alpha:g}"
    )
    return [("method", said)]


def failure_line(failure: records.Failure, *, sides: bool = True) -> str:
    """Say why a launch has no measurement; `sides` says whether to name the side and the pair."""
    mode = f"/{failure.mode}" if failure.mode is not None else ""
    pair = f" in pair {failure.pair + 1}" if failure.pair is not None else ""
    return f"FAILED: {failure.check}{mode}{f' on {failure.side}{pair}' if sides else ''}: {failure.reason}"


def reasons(cases: Iterable[records.Judged]) -> list[tuple[str, list[records.Judged]]]:
    """Return every verdict but `equivalent` with its reason, and the cases that share both, in the order given."""
    shared: dict[str, list[records.Judged]] = {}
    for case in cases:
        if case.verdict != "equivalent":
            shared.setdefault(f"{case.verdict}: {case.reason}", []).append(case)
    return list(shared.items())


def reason_line(reason: str, alike: Iterable[records.Judged]) -> str:
    """Name the cases that share a verdict and a reason, and both."""
    return f"{', '.join(map(name, alike))}: {reason}."


def confirmation(case: records.Judged) -> str | None:
    """Describe the result of the confirming launches; None if there were none."""
    found = case.confirmation
    if found is None:
        return None
    return f"fresh launches: {ratio(found)}, p {p_holm(found)}, {counted(found.pairs, 'pair')}"


def pair_ratios(case: records.Judged, pairs: Iterable[records.LaunchPair]) -> str:
    """Format the raw ratio of every pair in the order of time: '1.09 1.11 1.10'."""
    ratios = (pair.ratio(case.case) for pair in pairs)
    return " ".join(f"{one:.3f}" for one in ratios if one is not None)


def count_rows(record: records.Baseline) -> list[tuple[str, str, records.Label]]:
    """Return every case that was measured once, its figure, and its label."""
    return [(name_of(one.case), value(one.value, one.unit), one.label) for one in record.side.measurements]


def noise_rows(record: records.Baseline) -> list[tuple[str, str, str, str]]:
    """Return every wall-clock case, its floor, the lowest threshold that follows, and its label; none without pairs."""
    labels = {one.case: str(one.label) for pair in record.pairs for one in pair.base}
    floors = {floor.case: floor for floor in record.floors}
    rows = []
    for case in wall_clock(record.suite.cases()) if record.pairs else []:
        floor = floors.get(case)
        found = "unknown: too few pairs" if floor is None else floor_text(floor)
        least = "–" if floor is None else percent(max(METRICS[case.metric].threshold, 2 * floor.floor))
        rows.append((name_of(case), found, least, labels.get(case, "–")))
    return rows


def floor_text(floor: records.NoiseFloor) -> str:
    """Format a floor as '1.8 % in checks of 10 pairs'."""
    return f"{percent(floor.floor)} in checks of {counted(floor.checked_pairs, 'pair')}"


def _changed(record: records.Regression) -> list[str]:
    """Return one sentence for each check that fails because its workload changed."""
    if record.base is None:
        return []
    told = []
    for check in record.suite.checks:
        cases = [case for case in record.cases if case.check == check.name]
        found = workload_change(check.name, record.base, record.head)
        failed = sum(case.fails for case in cases)
        if found is not None and failed:
            told.append(f"In {check.name} {found.said}; {failed} of {counted(len(cases), 'case')} fail.")
    return told


def _worse(case: records.Judged) -> float:
    if case.found is not None and case.found.ratio is not None:
        return case.found.ratio
    return case.head / case.base if case.base and case.head is not None else 0.0


def _kinds(cases: Iterable[records.Judged]) -> str | None:
    """Say which labels the figures have: 'Wall-clock figures are real; deterministic figures are simulated.'"""
    parts = []
    for wall, what in ((True, "wall-clock figures"), (False, "deterministic figures")):
        labels = sorted({case.label for case in cases if case.wall_clock == wall and case.label is not None})
        if labels:
            parts.append(f"{what} are {and_of(labels)}")
    told = "; ".join(parts)
    return f"{told[0].upper()}{told[1:]}." if told else None


def _rounded(number: float | None, unit: records.MetricUnit) -> str:
    if number is None:
        return "–"
    if unit == "count":
        return f"{number:g}"
    return format_bytes(number) if unit == "B" else format_seconds(number)
