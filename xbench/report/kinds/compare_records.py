"""Page of several comparisons side by side, over time or over machines, with their differences.

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
from xbench.report.answer import answer, is_fastest, rankings, ratio_cell, references, trusted
from xbench.report.charts.axes import BELOW, Mark, Unit, marks, named, plain, rounded, time_unit
from xbench.report.charts.bars import verdict_badge
from xbench.report.page.common_sections import command_section, label_badge, made_at
from xbench.report.page.model import Badge, Cell, Facts, Figure, Layout, Page, Section, Sentences, Table, Trace, columns
from xbench.report.stragglers import straggler_lines
from xbench.stats.steps import short_step_caution
from xbench.text import and_of
from xbench.units import format_seconds

FEW, FEW_NARROW = 8, 3
"""Most records that have room for dates and names below them, on a wide page and on a narrow one."""

Interval = tuple[float, float, float]
"""Figure with the ends of its interval."""

Point = tuple[int, ModeResult, Interval]
"""Number of a result, its mode's result, and a figure of it."""

BESIDE = 0.4
"""Width of the marks of one record, all modes together; records are 1 apart."""


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
        Section("times", "Time per sample", _times(shown)),
        Section("ratios", "Ratio to the reference", _ratios(shown)),
        Section("differences", "What differs", [_differences(shown)]),
        Section("answers", "Each one's own answer", [Facts(answers)]),
        Section("warnings", "What each one warns of", [Facts(doubts)] if doubts else []),
        command_section(*dict.fromkeys(record.command for record in shown)),
    ]
    return Page(
        kind="Comparisons",
        title=f"{len(shown)} results: {and_of(titles) if titles else 'nothing'}",
        subtitle=f"{made_at(min(r.created for r in shown))} to {made_at(max(r.created for r in shown))}",
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
    slow = dict.fromkeys(line for job in record.jobs for line in straggler_lines(job.stragglers))
    return [*slow, *sentences.not_shown_lines(record), *short, *record.warnings]


def _workloads(record: Comparison) -> str:
    return " and ".join(sentences.workload_line(job.workload) for job in record.jobs)


def _numbers(records: Sequence[Comparison]) -> list[str]:
    return [str(number) for number in range(1, len(records) + 1)]


def _modes(records: Sequence[Comparison]) -> list[str]:
    return list(dict.fromkeys(mode for record in records for mode in record.modes))


def _which(records: Sequence[Comparison]) -> Table:
    rows: list[list[Cell]] = [
        [
            str(number),
            made_at(record.created),
            record.environment.hostname,
            (record.environment.commit or "–")[:10],
            " and ".join(dict.fromkeys(job.workload.title for job in record.jobs)),
            record.fabric.spec,
            label_badge(record.fabric.label),
            "complete" if record.complete else Badge("INCOMPLETE", "inconclusive"),
        ]
        for number, record in enumerate(records, start=1)
    ]
    text = ("made", "machine", "commit", "workload", "fabric", "label", "")
    return Table("In the order in which they were given", columns(("#", *text), text), rows, opened=True)


def _times(records: Sequence[Comparison]) -> list[Figure]:
    def estimate(result: ModeResult) -> Interval | None:
        one = result.seconds_per_sample
        if one is None or not trusted(result):
            return None
        return (one.median, *(one.interval or (one.median, one.median)))

    def sample(result: ModeResult) -> str:
        return format_seconds(result.seconds_per_sample.median if result.seconds_per_sample is not None else None)

    every = [found for record in records for found in map(estimate, record.modes.values()) if found is not None]
    unit = time_unit(max((high for _, _, high in every), default=0.0))
    layout = _over(records, {"title": {"text": f"time per sample [{unit.name}]"}, "rangemode": "tozero"})
    told = (
        "Shorter is better; a line joins results of one workload and fabric. Whiskers are 95 % confidence intervals of "
        "the median."
    )
    table = _matrix("Time per sample in figures", records, estimate, sample)
    traces = _lines(records, unit, estimate, lambda result: f"{sample(result)} a sample ({result.label})")
    return _figure(records, "times-over", "Time per sample of each mode", told, traces, layout, table)


def _ratios(records: Sequence[Comparison]) -> list[Figure]:
    def estimate(result: ModeResult) -> Interval | None:
        ratio = result.ratio
        if ratio is None or not trusted(result):
            return None
        return (ratio.value, *(ratio.interval or (ratio.value, ratio.value)))

    look = {"color": "--ink", "dash": "dot", "width": 1.5}
    line = {"type": "line", "x0": 0, "x1": 1, "xref": "paper", "y0": 1, "y1": 1, "line": look}
    title = f"Time per sample over that of {and_of(list(dict.fromkeys(map(references, records))))}"
    told = "Below 1 is faster than the reference. Whiskers are 95 % confidence intervals."
    layout = {**_over(records, {"title": {"text": "ratio to the reference"}}), "shapes": [line]}
    table = _matrix("Ratios in figures", records, estimate, ratio_cell)
    traces = _lines(records, Unit("", 1.0), estimate, ratio_cell)
    return _figure(records, "ratios-over", title, told, traces, layout, table)


def _figure(
    records: Sequence[Comparison], key: str, title: str, told: str, traces: list[Trace], layout: Layout, table: Table
) -> list[Figure]:
    if not traces:
        return []
    labels = sorted({result.label for record in records for result in record.modes.values()})
    narrow = {"xaxis.ticktext": _names(records, FEW_NARROW)}
    return [Figure(key, title, labels, told, traces, layout, height=460, narrow=narrow, table=table)]


def _lines(
    records: Sequence[Comparison],
    unit: Unit,
    estimate: Callable[[ModeResult], Interval | None],
    said: Callable[[ModeResult], str],
) -> list[Trace]:
    """Return one line with whiskers per mode, through the records that hold it."""
    modes = _modes(records)
    traces = []
    for place, (mode, mark) in enumerate(marks(modes).items()):
        aside = BESIDE * ((place + 0.5) / len(modes) - 0.5)
        points = [
            (number, record.modes[mode], found)
            for number, record in enumerate(records, start=1)
            if mode in record.modes and (found := estimate(record.modes[mode])) is not None
        ]
        if points:
            traces.append(_line(mode, mark, unit, aside, _parted(points, records), said))
    return traces


def _parted(points: Sequence[Point], records: Sequence[Comparison]) -> list[Point | None]:
    """Return the points, with None where a line would join results of different workloads or fabrics."""
    found: list[Point | None] = []
    settings = [(_workloads(records[number - 1]), records[number - 1].fabric.spec) for number, _, _ in points]
    for place, point in enumerate(points):
        if place and settings[place] != settings[place - 1]:
            found.append(None)
        found.append(point)
    return found


def _line(
    mode: str, mark: Mark, unit: Unit, aside: float, points: Sequence[Point | None], said: Callable[[ModeResult], str]
) -> Trace:
    values = [point[2] if point is not None else None for point in points]
    return {
        "type": "scatter", "mode": "lines+markers", "name": named(mode).replace("<br>", ""),
        "x": [rounded(point[0] + aside) if point is not None else None for point in points],
        "y": [unit.of(value[0]) if value is not None else None for value in values],
        "error_y": {
            "type": "data", "symmetric": False, "color": mark.colour, "thickness": 1.2, "width": 3,
            "array": [unit.of(max(0.0, value[2] - value[0])) if value is not None else None for value in values],
            "arrayminus": [unit.of(max(0.0, value[0] - value[1])) if value is not None else None for value in values],
        },
        "line": {"color": mark.colour, "dash": mark.dash, "width": 1.5},
        "marker": {"color": mark.colour, "symbol": mark.symbol, "size": 9},
        "customdata": [
            f"<b>{plain(mode)}</b>, result {point[0]}<br>{said(point[1])}" if point is not None else ""
            for point in points
        ],
        "hovertemplate": "%{customdata}<extra></extra>",
    }  # fmt: skip


def _over(records: Sequence[Comparison], upright: Layout) -> Layout:
    return {
        "xaxis": {
            "tickvals": list(range(1, len(records) + 1)),
            "ticktext": _names(records, FEW),
            "range": [0.5, len(records) + 0.5],
            "showgrid": False,
            "zeroline": False,
        },
        "yaxis": upright,
        "legend": BELOW,
        "hovermode": "closest",
        "margin": {"t": 8},
    }


def _names(records: Sequence[Comparison], few: int) -> list[str]:
    """Return the number of each record; for up to `few` records also its date, host and commit."""
    if len(records) > few:
        return _numbers(records)
    return [
        "<br>".join([str(number), plain(made_at(record.created)[:10]), plain(record.environment.hostname)[:16],
                     plain((record.environment.commit or "")[:7])])
        for number, record in enumerate(records, start=1)
    ]  # fmt: skip


def _matrix(
    title: str,
    records: Sequence[Comparison],
    estimate: Callable[[ModeResult], Interval | None],
    said: Callable[[ModeResult], str],
) -> Table:
    """Return one row per mode with one figure per record, or the verdict of a mode that has none."""

    def cell(record: Comparison, mode: str) -> Cell:
        result = record.modes.get(mode)
        if result is None:
            return "–"
        return said(result) if estimate(result) is not None else verdict_badge(record, result)

    rows = [[mode, *(cell(record, mode) for record in records)] for mode in _modes(records)]
    return Table(title, columns(["mode", *_numbers(records)], ("mode",)), rows, opened=len(records) <= 6)


def _differences(records: Sequence[Comparison]) -> Table:
    """Return what differs between the records; the note lists what does not."""
    every = [_comparable_facts(record) for record in records]
    names = list(dict.fromkeys(name for facts in every for name in facts))
    different = [name for name in names if len({facts.get(name, "–") for facts in every}) > 1]
    same = [name for name in names if name not in different]
    rows = [[name, *(facts.get(name, "–") for facts in every)] for name in different]
    headings = ["what", *_numbers(records)]
    note = f"The same in all: {and_of(same)}." if same else ""
    title = "Machine, software, workload and fabric" if rows else "Nothing differs"
    return Table(title, columns(headings, headings), rows, note, opened=True)


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
        "host tuning": sentences.on_or_off(record.spec.host_tuning),
        "compression": record.spec.compress or "none",
        "collectives": record.spec.collectives,
    }
    for number, job in enumerate(record.jobs, start=1):
        facts[f"workload {number}" if len(record.jobs) > 1 else "workload"] = sentences.workload_line(job.workload)
    return facts
