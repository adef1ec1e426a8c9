"""View of a comparison: the answer, the figures behind it, their bounds and how they were made.

A mode that failed, or that trained another network than DDP, shows the reason and never a time. In JUnit, a mode that
failed its parity check is a failure, and one that crashed is an error. A mode that this machine cannot run is skipped.
The time of a case is the mode's median step.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from rich.console import Console

from xbench.modes import mode_info
from xbench.records import Comparison, Contention, Job, Label, ModeResult
from xbench.report import markup, sentences
from xbench.report.advice import Advice, of_comparison, what_to_paste
from xbench.report.answer import (
    answer,
    jobs_of,
    paired_modes,
    parity_cell,
    ratio_cell,
    reference_of,
    span_cell,
    trusted,
    verdict,
    was_reached,
)
from xbench.report.charts.bars import (
    comparison_table,
    fastest_first,
    memory_table,
    predicted_and_measured,
    step_table,
    time_per_sample,
)
from xbench.report.charts.launches import over_time
from xbench.report.charts.layers import link_cost, waterfall
from xbench.report.charts.steps import comparison_steps, comparison_turns
from xbench.report.charts.text import draw_mode_gpus, gpu_blocks, render_timelines
from xbench.report.charts.trace import comparison_trace
from xbench.report.console import fact, headline, say, say_next
from xbench.report.kinds.comparison_tables import (
    draw_memory,
    draw_modes,
    markdown_memory,
    markdown_modes,
    mode_rows,
    sample_rows,
    step_rows,
)
from xbench.report.page.common_sections import caution_blocks, following, workload_pair
from xbench.report.page.model import Block, Code, Facts, Section, Sentences
from xbench.report.view import Case, Detail, MeasuredView, Row, Status, StepTrace
from xbench.stats.blocks import twins
from xbench.stats.steps import short_step_caution
from xbench.text import and_of
from xbench.units import format_seconds, format_signed_percent


class ComparisonView(MeasuredView[Comparison]):
    """Modes side by side."""

    name = "Comparison"

    def title(self) -> str:
        return f"{self.titles()} on {self.record.fabric.spec}"

    def titles(self) -> str:
        return " and ".join(dict.fromkeys(job.workload.title for job in self.record.jobs)) or "nothing"

    def subtitle(self) -> str:
        return f"{super().subtitle()} · reference {self.record.reference}"

    def headline(self) -> list[str]:
        return answer(self.record)

    def labels(self) -> list[Label]:
        return sorted({result.label for result in self.record.modes.values()})

    def incomplete(self) -> str | None:
        return super().incomplete() or sentences.failures_line(self.record)

    def failures(self) -> list[str]:
        return sentences.failure_lines(self.record)

    def jobs(self) -> list[Job]:
        return self.record.jobs

    def twins(self) -> bool:
        """True if there are several jobs and all are alike."""
        jobs = self.record.jobs
        return len(jobs) > 1 and all(job.workload == jobs[0].workload for job in jobs)

    def different_jobs(self) -> list[Job]:
        return self.record.jobs[:1] if self.twins() else self.record.jobs

    def contention(self) -> Contention | None:
        return self.record.jobs[0].contention if self.record.jobs else None

    def link_facts(self) -> list[tuple[str, str]]:
        costs, units = other_cost_lines(self.record), units_lines(self.record)
        return [*super().link_facts(), *(("cost model", line) for line in costs), *(("units", line) for line in units)]

    def effort(self) -> str:
        return sentences.effort_line(self.record)

    def advice(self, path: str | None = None) -> list[Advice]:
        return of_comparison(self.record, path or self.place)

    def properties(self) -> dict[str, str]:
        return {"answer": " ".join(self.headline()), **super().properties()}

    def notes(self) -> list[str]:
        noted = [f"{result.mode}: {result.note}" for result in self.record.modes.values() if result.note]
        return [*noted, *own_steps(self.record)]

    def cautions(self) -> list[str]:
        return short_step_caution(result.predicted_step_s for result in self.record.modes.values())

    def draw(
        self,
        console: Console,
        detail: Detail,
        said: Sequence[str] | None = None,
        follows: Sequence[Advice] | None = None,
    ) -> None:
        """Draw the record. A command may pass `said` in place of the answer, and `follows` in place of the advice."""
        record = self.record
        self.draw_top(console)
        headline(console, self.headline() if said is None else said)
        say_next(console, self.advice(detail.path) if follows is None else follows)
        for line in self.stragglers():
            say(console, line, "yellow")
        console.print()
        if was_reached(record):
            draw_modes(record, console)
            draw_memory(record, console)
        for failure in self.failures():
            say(console, failure, "bold red")
        for doubt in sentences.not_shown_lines(record):
            say(console, doubt, "yellow")
        for note in self.notes():
            say(console, note)
        for caution in self.cautions():
            say(console, caution, "yellow")
        render_timelines(record, console)
        draw_mode_gpus(record.modes, record.gpu_missing, console)
        console.print()
        for job in self.different_jobs():
            fact(console, *workload_pair(job.workload, self.times()))
            for pair in input_pairs(job):
                fact(console, *pair)
            if record.bounds is None and record.cost_model is not None and job.bounds is not None:
                fact(console, "bounds", sentences.bounds_line(job.bounds))
        if record.bounds is not None:
            fact(console, "bounds", sentences.bounds_line(record.bounds, record.modes))
        self.draw_bottom(console, verbose=detail.verbose)

    def timed_modes(self) -> dict[str, ModeResult]:
        return self.record.modes

    def times(self) -> str:
        """Say how many jobs of one workload there are."""
        return f" ({len(self.record.jobs)} jobs of it where a mode is paired)" if self.twins() else ""

    def markdown(self) -> list[str]:
        record = self.record
        return [
            self.markdown_title(self.titles()),
            markup.quoted(self.incomplete()),
            markup.lead(self.headline()),
            markup.advice(self.advice()),
            markup.bullets(self.stragglers(), bold=True),
            markdown_modes(record) if was_reached(record) else "",
            markdown_memory(record),
            markup.bullets(self.failures(), bold=True),
            markup.bullets([*sentences.not_shown_lines(record), *self.notes(), *self.cautions()]),
            markup.warning_list(record.warnings),
            *self.markdown_layers(),
            self.markdown_how(),
        ]

    def paste(self) -> list[Block]:
        found = what_to_paste(self.record)
        if found is None:
            return []
        code = [Code(found.code, "the lines to paste")] if found.code else []
        return [Sentences([found.told]), *code, *following(self.advice()[1:])]  # the first advice is these lines

    def sections(self) -> list[Section]:
        record = self.record
        times, predicted, samples = time_per_sample(record), predicted_and_measured(record), over_time(record)
        reached = was_reached(record)
        modes: list[Block] = [times or comparison_table(record, fastest_first(record))] if reached else []
        memory = memory_table(record)
        modes += [memory] if memory is not None and reached else []
        forecast = [predicted or step_table(record), *caution_blocks(self.cautions())]
        uses = [(mode, result.gpu) for mode, result in record.modes.items()]
        gpus = gpu_blocks(uses, record.gpu_missing, record.fabric.label)
        notes = [*sentences.not_shown_lines(record), *self.notes()]
        basis = [Facts(self.basis()), *gpus, *([Sentences(notes)] if notes else [])]
        return [
            Section("times", "Modes side by side", [*caution_blocks(self.stragglers()), *modes]),
            Section("step", "One step on a timeline", [*comparison_turns(record), *comparison_steps(record)]),
            Section("layers", "Layers and the link", self.layer_charts()),
            Section("predictions", "What was predicted", forecast if reached else []),
            Section("samples", "Every sample", [samples, Sentences([f"{self.effort()}."])] if samples else []),
            Section("basis", "What it rests on", basis),
        ]

    def layer_charts(self) -> list[Block]:
        """Return charts of the layers of each workload, and of the link's cost function."""
        record, label, jobs = self.record, self.record.fabric.label, self.different_jobs()
        charts = []
        for number, job in enumerate(jobs, start=1):
            of = f" of {job.workload.title}" if len(jobs) > 1 else ""
            charts.append(waterfall(job.layers, record.cost_model, label, of, number))
        return [chart for chart in (*charts, link_cost(record.cost_model, label)) if chart is not None]

    def basis(self) -> list[tuple[str, str]]:
        """Return the conditions of the run, as pairs of a name and a sentence."""
        record = self.record
        pairs = [workload_pair(job.workload, self.times()) for job in self.different_jobs()]
        pairs += [pair for job in self.different_jobs() for pair in input_pairs(job)]
        if record.bounds is not None:
            pairs.append(("bounds", sentences.bounds_line(record.bounds, record.modes)))
        elif record.cost_model is not None:
            pairs += [("bounds", sentences.bounds_line(job.bounds)) for job in record.jobs if job.bounds is not None]
        return [*pairs, *self.link_facts(), ("effort", self.effort())]

    def tables(self) -> dict[str, list[Row]]:
        record = self.record
        return {
            "samples": list(sample_rows(record, self.setting)),
            "steps": list(step_rows(record, self.setting)),
            "modes": list(mode_rows(record, self.setting)),
            "layers": self.layer_rows(),
        }

    def cases(self, strict: bool) -> list[Case]:
        record = self.record
        titles = " + ".join(job.workload.title for job in record.jobs) or "nothing"
        group = f"{titles} on {record.fabric.spec} ({record.fabric.label})"
        return [_case(group, record, result) for result in record.modes.values()]

    def trace(self) -> StepTrace:
        return self.trace_of(*comparison_trace(self.record))


def input_pairs(job: Job) -> list[tuple[str, str]]:
    """Return the wait for the batches of a job's loader, as pairs of a name and a sentence."""
    return [("input", sentences.input_line(job.step))] if job.step is not None and job.step.input_s else []


def _case(group: str, record: Comparison, result: ModeResult) -> Case:
    if trusted(result) and result.step_s is not None:
        return Case(group, result.mode, result.step_s.median, message=_told(record, result))
    return Case(group, result.mode, None, _status(result), sentences.failure_line(result) or "not measured")


def _status(result: ModeResult) -> Status:
    if result.parity is not None and not result.parity.ok:
        return "failed"
    return "skipped" if result.status == "not measured" or _is_missing(result) else "error"


def _is_missing(result: ModeResult) -> bool:
    """True if the mode failed because its software is not on that machine; the error then names the remedy."""
    remedy = mode_info(result.mode.partition("@")[0].partition(":")[0]).remedy
    return remedy is not None and f"{remedy} builds it" in (result.error or "")


def _told(record: Comparison, result: ModeResult) -> str:
    assert result.step_s is not None
    assert result.seconds_per_sample is not None
    parts = [
        *([f"{jobs_of(record, result.mode)} jobs"] if result.mode in paired_modes(record) else []),
        f"step {format_seconds(result.step_s.median)} [{span_cell(result.step_s, ', ')}] ({result.label})",
        f"{format_seconds(result.seconds_per_sample.median)} a sample",
    ]
    if result.ratio is not None:
        parts.append(f"ratio to {reference_of(record, result)} {ratio_cell(result)}: {verdict(record, result)}")
    if result.predicted_step_s is not None:
        error = format_signed_percent(result.prediction_error)
        error = f", error {error}" if result.prediction_error is not None else ""
        parts.append(f"predicted {format_seconds(result.predicted_step_s)} (simulated){error}")
    if result.parity is not None:
        why = f" ({result.parity.message})" if not result.parity.shown else ""
        parts.append(f"same network: {parity_cell(result)}{why}")
    return "; ".join(parts)


def own_steps(record: Comparison) -> list[str]:
    """Describe each job's own step under modes that run jobs at once; the step shown elsewhere is the device's."""
    said = []
    for mode in record.spec.modes:
        result = record.modes.get(mode.text)
        if not mode_info(mode.name).together or result is None or not trusted(result) or result.step_s is None:
            continue
        taken = [sample for sample in record.samples if sample.mode == mode.text]
        jobs = sorted({sample.job for sample in taken})
        steps_s = [median(sample.step_s for sample in taken if sample.job == job) for job in jobs]
        if len(steps_s) < 2:
            continue
        own = f"the jobs make a step every {' and every '.join(map(format_seconds, steps_s))}"
        each = "one of each job"
        if twins(record.spec):
            own = f"each of the {len(steps_s)} jobs makes a step every {format_seconds(median(steps_s))}"
            each = "one"
        said.append(
            f"{mode.text}: {own}; its step of {format_seconds(result.step_s.median)} is the device's, for {each}."
        )
    return said


def other_cost_lines(record: Comparison) -> list[str]:
    """Describe T(M) of the collectives beside the all-reduce that most modes send."""
    return [
        sentences.cost_line(cost) + ("; each is awaited before the next" if name == "all_reduce" else "")
        for name, cost in record.other_costs.items()
    ]


def units_lines(record: Comparison) -> list[str]:
    """Describe the host's time for units of sharded modes."""
    lines = []
    for name, cost in record.unit_costs.items():
        modes = [mode.text for mode in record.spec.modes if mode_info(mode.carrier).units_of == name]
        unit, tensor = format_seconds(cost.unit_s), format_seconds(cost.tensor_s)
        lines.append(
            f"under {and_of(modes or [name])} a unit takes the host {unit} and a tensor {tensor}, besides collectives"
        )
    return lines
