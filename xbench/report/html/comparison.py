"""The page of a comparison: the answer, what to paste, and everything that it rests on."""

from __future__ import annotations

from xbench.records import Comparison, Label
from xbench.report import lines
from xbench.report.advice import advice
from xbench.report.answer import answer, was_reached
from xbench.report.cells import own_steps
from xbench.report.html.bars import comparison_table, fastest_first, predicted_and_measured, step_table, time_per_sample
from xbench.report.html.facts import (
    command_section,
    environment_section,
    fabric_pairs,
    following,
    gpu_table,
    moment,
    warnings_section,
    workload_pair,
)
from xbench.report.html.layers import link_cost, waterfall
from xbench.report.html.parts import Block, Code, Facts, Page, Section, Sentences, Table
from xbench.report.html.samples import over_time
from xbench.report.html.steps import comparison_steps
from xbench.report.html.turns import comparison_turns
from xbench.report.paste import what_to_paste


def comparison_page(record: Comparison) -> Page:
    """Every section that the record has something for."""
    titles = " and ".join(dict.fromkeys(job.workload.title for job in record.jobs)) or "nothing"
    labels: list[Label] = sorted({result.label for result in record.modes.values()})
    return Page(
        kind="Comparison",
        warnings=len(record.warnings),
        title=f"{titles} on {record.fabric.spec}",
        subtitle=f"{moment(record.created)} · {record.environment.hostname} · reference {record.reference}",
        labels=labels,
        answer=answer(record),
        incomplete=lines.incomplete_line(record),
        failures=[line for line in map(lines.failure_line, record.modes.values()) if line is not None],
        paste=_paste(record),
        sections=[section for section in _sections(record) if section.blocks],
    )


def _sections(record: Comparison) -> list[Section]:
    times, predicted = time_per_sample(record), predicted_and_measured(record)
    reached = was_reached(record)
    modes: list[Block] = [times or comparison_table(record, fastest_first(record))] if reached else []
    return [
        Section("times", "Modes side by side", modes),
        Section("step", "One step on a timeline", [*comparison_turns(record), *comparison_steps(record)]),
        Section("layers", "Layers and the link", _layers(record)),
        Section("predictions", "What was predicted", [predicted or step_table(record)] if reached else []),
        Section("samples", "Every sample", _samples(record)),
        Section("basis", "What it rests on", [Facts(_basis(record)), *_gpus(record), *_notes(record)]),
        environment_section(record.environment),
        *warnings_section(record.warnings),
        command_section(record.command),
    ]


def _paste(record: Comparison) -> list[Block]:
    found = what_to_paste(record)
    if found is None:
        return []
    blocks: list[Block] = [Sentences([found.told]), *([Code(found.code, "the lines to paste")] if found.code else [])]
    return [*blocks, *following(advice(record)[1:])]  # the first of them is those lines


def _layers(record: Comparison) -> list[Block]:
    jobs, label = record.jobs[:1] if _twins(record) else record.jobs, record.fabric.label
    figures = [
        waterfall(job.layers, record.cost_model, label, f" of {job.workload.title}" if len(jobs) > 1 else "", number)
        for number, job in enumerate(jobs, start=1)
    ]
    return [figure for figure in (*figures, link_cost(record.cost_model, label)) if figure is not None]


def _samples(record: Comparison) -> list[Block]:
    figure = over_time(record)
    return [figure, Sentences([lines.effort_line(record) + "."])] if figure is not None else []


def _basis(record: Comparison) -> list[tuple[str, str]]:
    twins = _twins(record)
    times = f" ({len(record.jobs)} jobs of it where a mode is paired)" if twins else ""
    pairs = [workload_pair(job.workload, times) for job in (record.jobs[:1] if twins else record.jobs)]
    bounds = [record.bounds] if record.bounds is not None else [job.bounds for job in record.jobs]
    pairs += [("bounds", lines.bounds_line(bound)) for bound in bounds if bound is not None]
    pairs += fabric_pairs(record.fabric, record.cost_model, record.emulated, lines.tuning_line(record.spec))
    contention = lines.contention_line(record.jobs[0].contention if record.jobs else None)
    if contention is not None:
        pairs.append(("contention", contention))
    return [*pairs, ("effort", lines.effort_line(record))]


def _twins(record: Comparison) -> bool:
    return len(record.jobs) > 1 and all(job.workload == record.jobs[0].workload for job in record.jobs)


def _gpus(record: Comparison) -> list[Block]:
    uses = [(mode, result.gpu) for mode, result in record.modes.items()]
    tables: list[Table] = gpu_table(uses, record.fabric.label)
    missing = [Sentences([f"GPU counters: not available: {record.gpu_missing}."], mark="warning")]
    return [*tables, *(missing if record.gpu_missing is not None else [])]


def _notes(record: Comparison) -> list[Block]:
    notes = [f"{result.mode}: {result.note}" for result in record.modes.values() if result.note]
    notes = [*lines.not_shown_lines(record), *notes, *own_steps(record)]
    return [Sentences(notes)] if notes else []
