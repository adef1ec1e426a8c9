"""Page of several comparisons side by side: times and ratios as tables, and their differences as a list.

A time is comparable only with one from the same kind of machine, workload and fabric. A ratio to the same reference is
more widely comparable. The page shows both and names every difference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from xbench.environment import must_match
from xbench.errors import UsageError
from xbench.records import AnyRecord, Comparison, Label, ModeResult
from xbench.report import sentences
from xbench.report.answer import answer, is_fastest, rankings, ratio_cell, references, span_cell
from xbench.report.charts.bars import verdict_badge
from xbench.report.page.model import Badge, Cell, Facts, Page, Section, Sentences, Table, columns
from xbench.report.view import command_section
from xbench.stats.steps import short_step_caution
from xbench.text import and_of
from xbench.units import format_seconds


def comparable(records: Sequence[AnyRecord]) -> list[Comparison]:
    """Return the records if they can be compared. Raises UsageError if one is no comparison or they share no mode."""
    comparisons = []
    for place, record in enumerate(records, start=1):
        if not isinstance(record, Comparison):
            raise UsageError(
                f"several results stand beside each other only where all are comparisons, and number {place} is a "
                f"{record.kind}",
                hint="give it a report of its own",
            )
        comparisons.append(record)
    if not set.intersection(*(set(record.modes) for record in comparisons)):
        raise UsageError(
            f"these {len(comparisons)} results have no mode in common, so nothing in them compares",
            hint="give each a report of its own",
        )
    return comparisons


def several_page(records: Sequence[AnyRecord]) -> Page:
    """Return a page of times, ratios, differences, and each record's answer. Raises UsageError as `comparable` does."""
    shown = comparable(records)
    labels: list[Label] = sorted({result.label for record in shown for result in record.modes.values()})
    cautions = _cautions(shown)
    doubts = [(f"result {number}", line) for number, record in enumerate(shown, start=1) for line in _doubts(record)]
    answers = [(f"result {number}", " ".join(answer(record))) for number, record in enumerate(shown, start=1)]
    titles = list(dict.fromkeys(job.workload.title for record in shown for job in record.jobs))
    sections = [
        Section("which", "The results", [_which(shown), *([Sentences(cautions, mark="warning")] if cautions else [])]),
        Section("times", "Time per sample", [_times(shown)]),
        Section("ratios", "Ratio to the reference", [_ratios(shown)]),
        Section("differences", "What differs", [_differences(shown)]),
        Section("answers", "Each one's own answer", [Facts(answers)]),
        Section("warnings", "What each one warns of", [Facts(doubts)] if doubts else []),
        command_section(*dict.fromkeys(record.command for record in shown)),
    ]
    return Page(
        kind="Comparisons",
        title=f"{len(shown)} results: {and_of(titles) if titles else 'nothing'}",
        subtitle=" to ".join(sentences.made_at(end(r.created for r in shown)) for end in (min, max)),
        labels=labels,
        answer=_answer(shown),
        incomplete=_incomplete(shown),
        failures=[f"Result {number}: {line}" for number, record in enumerate(shown, start=1)
                  for line in sentences.failure_lines(record)],
        sections=[section for section in sections if section.blocks],
    )  # fmt: skip


def _answer(records: Sequence[Comparison]) -> list[str]:
    """Say how often each mode was fastest or faster, over all questions of one job and of two."""
    orders = [(record, order) for record in records for order in rankings(record) or [[]]]
    found: Counter[str] = Counter()
    for record, order in orders:
        best = order[0] if len(order) > 1 else None
        if best is not None and is_fastest(record, order):
            found[f"{best.mode} is fastest"] += 1
        elif best is not None and best.ratio is not None and best.ratio.verdict == "faster":
            found[f"{best.mode} is faster than its reference"] += 1
    parts = [f"{told} in {count} of {len(orders)}" for told, count in found.most_common()]
    undecided = len(orders) - found.total()
    if undecided:
        parts.append(f"{undecided} of {len(orders)} named no mode that is faster")
    return [f"{'; '.join(parts)}.", "Ratios decide: they are taken block beside block inside one run. Predictions and "
            "bounds are simulated."]  # fmt: skip


def _incomplete(records: Sequence[Comparison]) -> str | None:
    cut = [str(number) for number, record in enumerate(records, start=1) if not record.complete]
    if not cut:
        return None
    return f"INCOMPLETE: result {and_of(cut)} ended early. What follows is what had been measured by then."


def _cautions(records: Sequence[Comparison]) -> list[str]:
    """Return warnings about times, or ratios, that are hard to compare."""
    cautions: dict[str, Callable[[Comparison], str]] = {
        "Machines or software differ: compare ratios rather than times.": lambda r: str(must_match(r.environment)),
        "Workloads differ: their times do not compare, and ratios say which schedule suits which.": _workloads,
        "Fabrics differ: what communication costs is not the same in all of them.": lambda r: r.fabric.spec,
        "Some results are emulated and some real: an emulated time is not a measured one.": lambda r: r.fabric.label,
        "References differ: a ratio is to its own result's reference.": references,
    }
    return [caution for caution, fact in cautions.items() if len({fact(record) for record in records}) > 1]


def _doubts(record: Comparison) -> list[str]:
    """Return who held the others back, what was not shown to train the same network, and the warnings."""
    short = short_step_caution(result.predicted_step_s for result in record.modes.values())
    slow = dict.fromkeys(line for job in record.jobs for line in sentences.straggler_lines(job.stragglers))
    return [*slow, *sentences.not_shown_lines(record), *short, *record.warnings]


def _workloads(record: Comparison) -> str:
    return " and ".join(sentences.workload_line(job.workload) for job in record.jobs)


def _which(records: Sequence[Comparison]) -> Table:
    rows: list[list[Cell]] = [
        [
            str(number),
            sentences.made_at(record.created),
            record.environment.hostname,
            (record.environment.commit or "–")[:10],
            " and ".join(dict.fromkeys(job.workload.title for job in record.jobs)),
            record.fabric.spec,
            Badge.of(record.fabric.label),
            "complete" if record.complete else Badge("INCOMPLETE", "inconclusive"),
        ]
        for number, record in enumerate(records, start=1)
    ]
    text = ("made", "machine", "commit", "workload", "fabric", "label", "")
    return Table("In the order in which they were given", columns(("#", *text), text), rows, opened=True)


def _times(records: Sequence[Comparison]) -> Table:
    def cell(result: ModeResult) -> str | None:
        one = result.seconds_per_sample
        return (
            f"{format_seconds(one.median)} [{span_cell(one, ', ')}]" if one is not None and result.is_trusted else None
        )

    return _matrix("Median, with its 95 % confidence interval. Shorter is better.", records, cell)


def _ratios(records: Sequence[Comparison]) -> Table:
    def cell(result: ModeResult) -> str | None:
        return ratio_cell(result) if result.ratio is not None and result.is_trusted else None

    title = f"Time per sample over that of {and_of(list(dict.fromkeys(map(references, records))))}. Below 1 is faster."
    return _matrix(title, records, cell)


def _matrix(title: str, records: Sequence[Comparison], told: Callable[[ModeResult], str | None]) -> Table:
    """Return one row per mode with one figure per record, or the verdict of a mode that has none."""

    def cell(record: Comparison, mode: str) -> Cell:
        result = record.modes.get(mode)
        return "–" if result is None else told(result) or verdict_badge(record, result)

    modes = dict.fromkeys(mode for record in records for mode in record.modes)
    rows = [[mode, *(cell(record, mode) for record in records)] for mode in modes]
    return Table(title, columns(["mode", *map(str, range(1, len(records) + 1))], ("mode",)), rows, opened=True)


def _differences(records: Sequence[Comparison]) -> Facts:
    """Return what differs between the records, with each one's value in their order."""
    every = [_comparable_facts(record) for record in records]
    names = dict.fromkeys(name for facts in every for name in facts)
    values = {name: [facts.get(name, "–") for facts in every] for name in names}
    different = [(name, " · ".join(each)) for name, each in values.items() if len(set(each)) > 1]
    return Facts(different or [("nothing", "machine, software, workload and fabric are the same in all")])


def _comparable_facts(record: Comparison) -> Mapping[str, str]:
    machine, software = must_match(record.environment)
    facts = {
        "host": record.environment.hostname,
        **machine,
        **software,
        "xbench": record.environment.xbench,
        "commit": (record.environment.commit or "unknown")[:10],
        "fabric": f"{record.fabric.spec} ({record.fabric.label})",
        "backend": record.fabric.backend,
        "workers": str(record.fabric.world_size),
        "reference": references(record),
        "host tuning": {None: "not said", True: "on", False: "off"}[record.spec.host_tuning],
        "compression": record.spec.compress or "none",
    }
    for number, job in enumerate(record.jobs, start=1):
        facts[f"workload {number}" if len(record.jobs) > 1 else "workload"] = sentences.workload_line(job.workload)
    return facts
