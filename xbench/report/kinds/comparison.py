"""View of a comparison: the answer, the figures behind it, their bounds and how they were made.

A mode that failed, or that trained another network than DDP, shows the reason and never a time. In JUnit, a mode that
failed its parity check is a failure, and one that crashed is an error. A mode that this machine cannot run is skipped.
The time of a case is the mode's median step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median

from rich.console import Console
from rich.table import Table
from rich.text import Text

from xbench.modes import mode_info
from xbench.records import Comparison, Estimate, Job, Label, ModeResult
from xbench.report import answer, markup, sentences, view
from xbench.report.advice import Advice, of_comparison, what_to_paste
from xbench.report.charts import bars
from xbench.report.charts.launches import over_time
from xbench.report.charts.layers import link_cost, waterfall
from xbench.report.charts.steps import comparison_steps, comparison_turns
from xbench.report.charts.text import LEGEND, bar, draw_mode_gpus, gpu_blocks, render_timelines
from xbench.report.charts.trace import comparison_trace
from xbench.report.console import fact, filled_table, fitting_table, headline, indented, say, say_next, spare_columns
from xbench.report.page.model import Block, Code, Facts, Section, Sentences
from xbench.stats.blocks import twins
from xbench.stats.steps import short_step_caution
from xbench.text import and_of
from xbench.units import format_seconds, format_signed_percent

VERDICT_STYLES = {"faster": "bold green", "slower": "red", "FAILED": "bold red", "inconclusive": "yellow"}
_STACKED_BAR_COLUMNS = 40
_MIN_BAR_COLUMNS, _MAX_BAR_COLUMNS = 6, 30
MEMORY_PARTS = ("parameter_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes")
_DISPENSABLE = ("buckets", "removed", "memory")
"""Columns omitted one by one on a narrow terminal.

A label that all rows share is omitted first, because the answer states it.
"""

Setting = Callable[[Label], view.Row]
"""Columns at the start of every tidy table, for a row's label."""


class ComparisonView(view.MeasuredView[Comparison]):
    """Modes side by side."""

    name = "Comparison"

    def title(self) -> str:
        return f"{self.titles()} on {self.record.fabric.spec}"

    def titles(self) -> str:
        return " and ".join(dict.fromkeys(job.workload.title for job in self.record.jobs)) or "nothing"

    def subtitle(self) -> str:
        return f"{super().subtitle()} · reference {self.record.reference}"

    def headline(self) -> list[str]:
        return answer.answer(self.record)

    def labels(self) -> list[Label]:
        return sorted({result.label for result in self.record.modes.values()})

    def incomplete(self) -> str | None:
        return super().incomplete() or sentences.failures_line(self.record)

    def failures(self) -> list[str]:
        return sentences.failure_lines(self.record)

    def twins(self) -> bool:
        """True if there are several jobs and all are alike."""
        jobs = self.record.jobs
        return len(jobs) > 1 and all(job.workload == jobs[0].workload for job in jobs)

    def different_jobs(self) -> list[Job]:
        return self.record.jobs[:1] if self.twins() else self.record.jobs

    def link_facts(self) -> list[tuple[str, str]]:
        """Add T(M) of the collectives beside the all-reduce, and the host's time for units of sharded modes."""
        record, found = self.record, super().link_facts()
        for name, cost in record.other_costs.items():
            awaited = "; each is awaited before the next" if name == "all_reduce" else ""
            found.append(("cost model", f"{sentences.cost_line(cost)}{awaited}"))
        for name, units in record.unit_costs.items():
            modes = [mode.text for mode in record.spec.modes if mode_info(mode.carrier).units_of == name]
            times = (
                f"a unit takes the host {format_seconds(units.unit_s)} and a tensor {format_seconds(units.tensor_s)}"
            )
            found.append(("units", f"under {and_of(modes or [name])} {times}, besides collectives"))
        return found

    def effort(self) -> str:
        return sentences.effort_line(self.record)

    def advice(self) -> list[Advice]:
        return of_comparison(self.record, self.place)

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
        detail: view.Detail,
        said: Sequence[str] | None = None,
        follows: Sequence[Advice] | None = None,
    ) -> None:
        """Draw the record. A command may pass `said` in place of the answer, and `follows` in place of the advice."""
        record = self.record
        self.draw_top(console)
        headline(console, self.headline() if said is None else said)
        say_next(console, self.advice() if follows is None else follows)
        for line in self.stragglers():
            say(console, line, "yellow")
        console.print()
        if answer.was_reached(record):
            draw_modes(record, console)
            memory = answer.memory_rows(record)
            cells = [list(row.values()) for row in memory]
            parts = filled_table(sentences.MEMORY, list(memory[0]), cells, ("mode",)) if memory else None
            if parts is not None and spare_columns(console, parts) >= 0:
                console.print()
                console.print(parts)
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
            fact(console, *sentences.workload_pair(job.workload, self.times()))
            for pair in input_pairs(job):
                fact(console, *pair)
            if record.bounds is None and record.cost_model is not None and job.bounds is not None:
                fact(console, "bounds", sentences.bounds_line(job.bounds))
        if record.bounds is not None:
            fact(console, "bounds", sentences.bounds_line(record.bounds, record.modes))
        self.draw_bottom(console, verbose=detail.verbose)

    def times(self) -> str:
        """Say how many jobs of one workload there are."""
        return f" ({len(self.record.jobs)} jobs of it where a mode is paired)" if self.twins() else ""

    def markdown(self) -> list[str]:
        record = self.record
        ratio = markup.Markup(f"ratio to {markup.code(answer.references(record))} [95 % CI]")
        jobs = ["jobs"] if answer.paired_modes(record) else []
        headings = ["mode", *jobs, "time per sample [95 % CI]", ratio, "verdict", "step", "exposed",
                    "predicted step (simulated)", "error", "same network", "label"]  # fmt: skip
        reached, memory = answer.was_reached(record), answer.memory_rows(record)
        modes = [_mode_row(record, result) for result in record.modes.values()] if reached else []
        parts = [[markup.code(row["mode"]), *list(row.values())[1:]] for row in memory]
        return [
            self.markdown_title(self.titles()),
            markup.quoted(self.incomplete()),
            markup.lead(self.headline()),
            markup.advice(self.advice()),
            markup.bullets(self.stragglers(), bold=True),
            markup.table(headings, modes) if reached else "",
            f"{sentences.MEMORY}.\n\n{markup.table(list(memory[0]), parts)}" if memory else "",
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
        return [Sentences([found.told]), *code, *view.following(self.advice()[1:])]  # the first advice is these lines

    def sections(self) -> list[Section]:
        record = self.record
        times, predicted, samples = bars.time_per_sample(record), bars.predicted_and_measured(record), over_time(record)
        reached = answer.was_reached(record)
        modes: list[Block] = [times or bars.comparison_table(record, bars.fastest_first(record))] if reached else []
        memory = bars.memory_table(record)
        modes += [memory] if memory is not None and reached else []
        forecast = [predicted or bars.step_table(record), *view.caution_blocks(self.cautions())]
        uses = [(mode, result.gpu) for mode, result in record.modes.items()]
        gpus = gpu_blocks(uses, record.gpu_missing, record.fabric.label)
        notes = [*sentences.not_shown_lines(record), *self.notes()]
        basis = [Facts(self.basis()), *gpus, *([Sentences(notes)] if notes else [])]
        return [
            Section("times", "Modes side by side", [*view.caution_blocks(self.stragglers()), *modes]),
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
        pairs = [sentences.workload_pair(job.workload, self.times()) for job in self.different_jobs()]
        pairs += [pair for job in self.different_jobs() for pair in input_pairs(job)]
        if record.bounds is not None:
            pairs.append(("bounds", sentences.bounds_line(record.bounds, record.modes)))
        elif record.cost_model is not None:
            pairs += [("bounds", sentences.bounds_line(job.bounds)) for job in record.jobs if job.bounds is not None]
        return [*pairs, *self.link_facts(), ("effort", self.effort())]

    def tables(self) -> dict[str, list[view.Row]]:
        record = self.record
        return {
            "samples": list(sample_rows(record, self.setting)),
            "steps": list(step_rows(record, self.setting)),
            "modes": list(mode_rows(record, self.setting)),
            "layers": self.layer_rows(),
        }

    def cases(self, strict: bool) -> list[view.Case]:
        record = self.record
        titles = " + ".join(job.workload.title for job in record.jobs) or "nothing"
        group = f"{titles} on {record.fabric.spec} ({record.fabric.label})"
        return [_case(group, record, result) for result in record.modes.values()]

    def trace(self) -> view.StepTrace:
        return self.trace_of(*comparison_trace(self.record))


def input_pairs(job: Job) -> list[tuple[str, str]]:
    """Return the wait for the batches of a job's loader, as pairs of a name and a sentence."""
    return [("input", sentences.input_line(job.step))] if job.step is not None and job.step.input_s else []


def _case(group: str, record: Comparison, result: ModeResult) -> view.Case:
    if result.is_trusted and result.step_s is not None:
        return view.Case(group, result.mode, result.step_s.median, message=_told(record, result))
    why = sentences.failure_line(result) or "not measured"
    if result.parity is not None and not result.parity.ok:
        return view.Case(group, result.mode, None, "failed", why)
    remedy = mode_info(result.mode.partition("@")[0].partition(":")[0]).remedy
    is_missing = remedy is not None and f"{remedy} builds it" in (result.error or "")  # its software is not there
    status: view.Status = "skipped" if result.status == "not measured" or is_missing else "error"
    return view.Case(group, result.mode, None, status, why)


def _told(record: Comparison, result: ModeResult) -> str:
    assert result.step_s is not None
    assert result.seconds_per_sample is not None
    parts = [
        *([f"{answer.jobs_of(record, result.mode)} jobs"] if result.mode in answer.paired_modes(record) else []),
        f"step {format_seconds(result.step_s.median)} [{answer.span_cell(result.step_s, ', ')}] ({result.label})",
        f"{format_seconds(result.seconds_per_sample.median)} a sample",
    ]
    if result.ratio is not None:
        ratio = f"{answer.ratio_cell(result)}: {answer.verdict(record, result)}"
        parts.append(f"ratio to {answer.reference_of(record, result)} {ratio}")
    if result.predicted_step_s is not None:
        error = format_signed_percent(result.prediction_error)
        error = f", error {error}" if result.prediction_error is not None else ""
        parts.append(f"predicted {format_seconds(result.predicted_step_s)} (simulated){error}")
    if result.parity is not None:
        why = f" ({result.parity.message})" if not result.parity.shown else ""
        parts.append(f"same network: {answer.parity_cell(result)}{why}")
    return "; ".join(parts)


def own_steps(record: Comparison) -> list[str]:
    """Describe each job's own step under modes that run jobs at once; the step shown elsewhere is the device's."""
    said = []
    for mode in record.spec.modes:
        result = record.modes.get(mode.text)
        if not mode_info(mode.name).together or result is None or not result.is_trusted or result.step_s is None:
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


# --- tables: on a terminal, in Markdown, and tidy ones with a row per mode, block or step -----------------------------


def draw_modes(record: Comparison, console: Console) -> None:
    """Draw both tables and their legend, or one block per mode if the terminal is too narrow for tables."""
    longest_s = max(
        (max(r.seconds_per_sample.ci95[1], r.seconds_per_sample.median)
         for r in record.modes.values() if r.is_trusted and r.seconds_per_sample), default=0.0
    )  # fmt: skip
    tables = _tables(record, longest_s, console)
    if tables is None:
        for result in record.modes.values():
            _stacked(record, result, longest_s, console)
    else:
        console.print(*tables, sep="")
    say(console, f"{LEGEND}; {sentences.columns_line(record)}", "dim")


def _styled(verdict: str) -> Text:
    return Text(verdict, style=VERDICT_STYLES.get(verdict, ""))


def _tables(record: Comparison, longest_s: float, console: Console) -> tuple[Table, Table] | None:
    """Return both tables with as many columns as fit on the terminal; None if not even the fewest fit."""
    for spread in (True, False):
        spare = spare_columns(console, _time_table(record, spread, longest_s, 0))
        if spare >= _MIN_BAR_COLUMNS:
            break
    else:
        return None
    steps = [
        {"mode": answer.with_turns(result), **answer.shown_cells(record, result)} for result in record.modes.values()
    ]
    one_label = len({result.label for result in record.modes.values()}) == 1
    dispensable = (*(("label",) if one_label else ()), *_DISPENSABLE)
    step_table = fitting_table(console, "Where the step goes", list(steps[0]), [list(row.values()) for row in steps],
                               ("mode", "same network", "label"), dispensable)  # fmt: skip
    if spare_columns(console, step_table) < 0:
        return None
    return _time_table(record, spread, longest_s, min(_MAX_BAR_COLUMNS, spare)), step_table


def _time_table(record: Comparison, spread: bool, longest_s: float, bar_columns: int) -> Table:
    """Return seconds per sample, ratios and verdicts: the figures behind the answer. `spread` adds interval columns."""
    title = f"Time per sample, all jobs and ranks together; ratio to the reference, {answer.references(record)}"
    hidden = {*(() if answer.paired_modes(record) else ("jobs",)), *(() if spread else ("95 % CI",))}
    rows = []
    for result in record.modes.values():
        estimate = result.seconds_per_sample if result.is_trusted else None
        cells: dict[str, str | Text] = {
            "mode": result.mode,
            "jobs": str(answer.jobs_of(record, result.mode)),
            "per sample": format_seconds(estimate.median) if estimate else "–",
            "95 % CI": answer.span_cell(estimate),
            "": _bar(estimate, longest_s, bar_columns) if estimate else "",
            "ratio [95 % CI]": answer.ratio_cell(result),
            "verdict": _styled(answer.verdict(record, result)),
        }
        rows.append({name: cell for name, cell in cells.items() if name not in hidden})
    return filled_table(title, list(rows[0]), [list(row.values()) for row in rows], ("mode", "", "verdict"))


def _bar(estimate: Estimate, longest_s: float, columns: int) -> Text:
    drawn = bar(estimate.median, estimate.ci95, longest_s, columns) if longest_s > 0 and columns > 0 else ""
    return Text(drawn, no_wrap=True)


def _stacked(record: Comparison, result: ModeResult, longest_s: float, console: Console) -> None:
    """Draw one mode as a block, for narrow terminals."""
    judged = answer.verdict(record, result)
    jobs = f" of {answer.jobs_of(record, result.mode)} jobs" if result.mode in answer.paired_modes(record) else ""
    console.print(Text.assemble((result.mode, "bold"), jobs, " ", _styled(judged)))
    if not result.is_trusted or result.seconds_per_sample is None:
        return
    if longest_s > 0:
        columns = min(_STACKED_BAR_COLUMNS, console.width - 4)
        indented(console, _bar(result.seconds_per_sample, longest_s, columns).plain)
    cells = answer.step_cells(result)
    ratio = f"ratio to {answer.reference_of(record, result)} {answer.ratio_cell(result)}"
    buckets = f"{cells['buckets']} bucket{'' if cells['buckets'] == '1' else 's'}"
    memory = f", memory {cells['memory']}" if result.memory is not None else ""
    for line in (
        f"{format_seconds(result.seconds_per_sample.median)} a sample, {ratio}",
        f"step {cells['step']}, exposed {cells['exposed']}, removed {cells['removed']}",
        f"predicted {cells['predicted']}, error {cells['error']}",
        f"{buckets}, same network: {cells['same network']}, {result.label}{memory}",
    ):
        indented(console, line)


def _mode_row(record: Comparison, result: ModeResult) -> list[str]:
    judged, cells = answer.verdict(record, result), answer.step_cells(result)
    sample = result.seconds_per_sample if result.is_trusted else None
    return [
        markup.code(result.mode),
        *([str(answer.jobs_of(record, result.mode))] if answer.paired_modes(record) else []),
        f"{format_seconds(sample.median)} [{answer.span_cell(sample, ', ')}]" if sample else "–",
        answer.ratio_cell(result),
        markup.strong(judged) if judged in ("faster", "FAILED") else judged,
        *(cells[heading] for heading in ("step", "exposed", "predicted", "error", "same network")),
        result.label,
    ]


def sample_rows(record: Comparison, of: Setting) -> Iterator[view.Row]:
    """Return one row per block, with the mode's status. A mode without blocks has one row without figures."""
    seen: set[str] = set()
    for sample in record.samples:
        seen.add(sample.mode)
        yield {
            **_block(record, of, record.modes.get(sample.mode), sample.mode, sample.job),
            **view.fields(sample, "launch", "round", "position", "started_s"),
            "steps": len(sample.steps_s),
            "warmup_steps": len(sample.warmup_s),
            "step_s": sample.step_s,
            "samples_per_step": sample.samples_per_step,
            "s_per_sample": sample.step_s / sample.samples_per_step if sample.samples_per_step else None,
            "outlier": sample.outlier,
        }
    empty = dict.fromkeys(("launch", "round", "position", "started_s", "steps", "warmup_steps", "step_s",
                           "samples_per_step", "s_per_sample", "outlier"))  # fmt: skip
    for name, result in record.modes.items():
        if name not in seen:
            yield {**_block(record, of, result, name, None), **empty}


def step_rows(record: Comparison, of: Setting) -> Iterator[view.Row]:
    """Return every step of every block, with warm-up steps marked."""
    for sample in record.samples:
        timed = [("warm-up", took_s) for took_s in sample.warmup_s] + [("timed", took_s) for took_s in sample.steps_s]
        for number, (phase, took_s) in enumerate(timed):
            yield {
                **_block(record, of, record.modes.get(sample.mode), sample.mode, sample.job),
                **view.fields(sample, "launch", "round", "position"),
                "step": number,
                "phase": phase,
                "step_s": took_s,
                "outlier": sample.outlier,
            }


def _block(record: Comparison, of: Setting, result: ModeResult | None, mode: str, job: int | None) -> view.Row:
    label = result.label if result is not None else record.fabric.label
    return {**of(label), "mode": mode, "status": _status(result), "job": job, "workload": _title(record, job)}


def _title(record: Comparison, job: int | None) -> str:
    if job is not None and job < len(record.jobs):
        return record.jobs[job].workload.title
    return " + ".join(dict.fromkeys(one.workload.title for one in record.jobs))


def mode_rows(record: Comparison, of: Setting) -> Iterator[view.Row]:
    """Return the results of each mode. A failed mode has its error, and no time."""
    for name, result in record.modes.items():
        fine = result.is_trusted
        step = result.step_s if fine else None
        sample = result.seconds_per_sample if fine else None
        ratio, memory = result.ratio if fine else None, result.memory
        yield {
            **of(result.label),
            "workload": _title(record, None),
            "jobs": answer.jobs_of(record, name),
            "mode": name,
            "status": _status(result),
            "verdict": answer.verdict(record, result),
            **view.fields(result, "error", "blocks"),
            "step_s": step.median if step else None,
            **view.ends("step", step.interval if step else None, "_s"),
            "s_per_sample": sample.median if sample else None,
            **view.ends("s_per_sample", sample.interval if sample else None),
            "reference": answer.reference_of(record, result),
            "ratio": ratio.value if ratio else None,
            **view.ends("ratio", ratio.interval if ratio else None),
            "exposed_s": result.exposed_s if fine else None,
            "removed_share": result.removed_share if fine else None,
            "removed_low": result.removed_ci95[0] if fine and result.removed_ci95 else None,
            "removed_high": result.removed_ci95[1] if fine and result.removed_ci95 else None,
            "predicted_step_s_simulated": result.predicted_step_s,
            "prediction_error": result.prediction_error if fine else None,
            "buckets": len(result.plan.buckets) if result.plan else None,
            "units": len(result.units) or None,
            "largest_bucket_bytes": max(result.plan.bucket_bytes, default=None) if result.plan else None,
            # yes, not shown, FAILED, or 'no (ranks agree)' for modes that train another network on purpose
            "same_network": answer.parity_cell(result).partition(" (±")[0] if result.parity else None,
            "same_network_why": result.parity.message if result.parity else None,
            "pattern": result.pattern,
            "memory_peak_bytes": memory.peak_bytes if memory else None,
            "memory_by": memory.by if memory else None,
            **(view.fields(memory, *MEMORY_PARTS) if memory else dict.fromkeys(MEMORY_PARTS)),
        }


def _status(result: ModeResult | None) -> str:
    """Return ok, failed (also after a failed parity check), or not measured."""
    if result is not None and result.is_trusted:
        return "ok"
    return "not measured" if result is not None and result.status == "not measured" else "failed"
