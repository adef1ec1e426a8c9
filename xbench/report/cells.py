"""What stands in the cells of tables, in every format: verdict, ratio, parity, percentages. Plain text."""

from __future__ import annotations

from statistics import median

from xbench.modes import mode_info
from xbench.records import RANKS, Comparison, Estimate, ModeResult
from xbench.report.answer import controls, partial, reference_of, trusted
from xbench.stats.blocks import twins
from xbench.units import format_percent, format_seconds


def verdict(record: Comparison, result: ModeResult) -> str:
    """The verdict in one word: colour only repeats it."""
    if result.status == "failed" or (result.parity is not None and not result.parity.ok):
        return "FAILED"
    if result.status == "not measured":
        return "not measured"
    if result.mode == reference_of(record, result):
        return "reference"
    if result.mode in partial(record):
        return "partial"
    if result.mode in controls(record):
        return "control"
    return result.ratio.verdict if result.ratio is not None else "not measured" if not trusted(result) else "no ratio"


def own_steps(record: Comparison) -> list[str]:
    """What a job's own step takes under each mode in which jobs run at once: the step shown is the device's."""
    said = []
    for mode in record.spec.modes:
        result = record.modes.get(mode.text)
        if not mode_info(mode.name).together or result is None or not trusted(result) or result.step_s is None:
            continue
        steps_s = [
            median(sample.step_s for sample in record.samples if sample.mode == mode.text and sample.job == job)
            for job in sorted({sample.job for sample in record.samples if sample.mode == mode.text})
        ]
        if len(steps_s) < 2:
            continue
        if twins(record.spec):
            own = f"each of the {len(steps_s)} jobs makes a step every {format_seconds(median(steps_s))}"
        else:
            own = f"the jobs make a step every {' and every '.join(map(format_seconds, steps_s))}"
        each = "one" if twins(record.spec) else "one of each job"
        said.append(
            f"{mode.text}: {own}; its step of {format_seconds(result.step_s.median)} is the device's, for {each}."
        )
    return said


def ratio_cell(result: ModeResult) -> str:
    """'0.891 [0.872, 0.910]'; the reference's own is 1 without an interval."""
    if not trusted(result) or result.ratio is None:
        return "–"
    if result.ratio.verdict == "reference":
        return f"{result.ratio.value:.3f}"
    if result.ratio.interval is None:
        return f"{result.ratio.value:.3f} (1 pair)"
    low, high = result.ratio.interval
    return f"{result.ratio.value:.3f} [{low:.3f}, {high:.3f}]"


def span_cell(estimate: Estimate | None, between: str = " – ") -> str:
    """'1.23 s – 1.25 s'; 'one sample' where a single value has shown no spread; '–' for None."""
    if estimate is None:
        return "–"
    return between.join(map(format_seconds, estimate.interval)) if estimate.interval is not None else "one sample"


def parity_cell(result: ModeResult) -> str:
    """'yes', with the difference from DDP where there is one; 'not shown'; 'FAILED'; '–' where no gate applies."""
    parity = result.parity
    if parity is None:
        return "–"
    if not parity.ok:
        return "FAILED"
    if not parity.shown:
        return "not shown"
    if parity.reference == RANKS:
        return "no (ranks agree)"
    return f"yes (±{parity.max_relative_difference:.0e})" if parity.max_relative_difference else "yes"


def whole_percent(share: float | None) -> str:
    """'12 %' from 0.123; '–' for None."""
    return format_percent(share, 0)


def removed_cell(share: float | None) -> str:
    """'62 %' of what could be removed; beyond 0 and 100 % no share of it: '< 0 %', '> 100 %'. '–' for None."""
    if share is None:
        return "–"
    return "< 0 %" if share < 0 else "> 100 %" if share > 1 else whole_percent(share)
