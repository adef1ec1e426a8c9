"""Views of `xbench cluster compare` and `xbench cluster run`.

A comparison of policies has a table for each restart cost, and every number in it is simulated. The times of a run are
real. They stand beside simulated ones of the same jobs: a forecast, and a simulation with the run's own measurements.
"""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from xbench.records import ClusterComparison, ClusterResult, Label, LiveResult, LiveRun
from xbench.report import cluster_sentences as told
from xbench.report import console as terminal
from xbench.report import markup, sentences, view
from xbench.report.charts import cluster as charts
from xbench.report.charts.axes import BELOW, COLOURS, long_unit, plain
from xbench.report.page.model import Facts, Figure, Section, Table, Trace, columns
from xbench.text import counted
from xbench.units import format_duration, format_seconds, format_signed_percent

LIVE_HEADINGS = (
    "job", "live JCT", "forecast JCT", "its error", "fitted JCT", "its error", "restarts", "fitted restarts",
    "lost steps", "steps/s by workers",
)  # fmt: skip
LIVE_NOTE = (
    "JCT: job completion time, from arrival to end. Live ones are real. Forecast: simulated with the declared speeds "
    "and the cost of a start that the policy was told, as before the run. Fitted: simulated with the speeds and the "
    "overhead that this run measured, so its error is the simulator's alone and foretells nothing. Error: over live, "
    "minus one. Restarts: attempts after the first. Lost steps: done again after a crash."
)


class ClusterView(view.View[ClusterComparison]):
    """Policies of a cluster side by side."""

    name = "Cluster"
    keeps_empty_sections = True

    def title(self) -> str:
        return f"{self.record.trace.name} on {told.cluster_of(self.record)}"

    def headline(self) -> list[str]:
        return self.record.findings or ["Nothing was found."]

    def answer(self) -> list[str]:
        return [*self.headline(), "Everything here is simulated."]

    def labels(self) -> list[Label]:
        return ["simulated"]

    def draw(self, console: Console, detail: view.Detail) -> None:
        record = self.record
        terminal.headline(console, record.findings)
        left = ("policy", "placement")
        for cost_s in record.restart_costs_s:
            console.print()
            terminal.say(console, told.heading(record, cost_s), "italic")
            shown = terminal.filled_table("", told.headings(record), told.rows(record, cost_s), left)
            if terminal.spare_columns(console, shown) >= 0:
                console.print(shown)
            else:
                _stacked(record, cost_s, console)
        terminal.basis(console, told.note(record), told.basis(record), record.warnings)

    def markdown(self) -> list[str]:
        record = self.record
        title = f"### {markup.plain(record.trace.name)} on {told.cluster_of(record)} (simulated)"
        parts = [title, markup.lead(self.headline())]
        for cost_s in record.restart_costs_s:
            shown = [[markup.code(row[0]), *row[1:]] for row in told.rows(record, cost_s)]
            parts += [f"{told.costing(cost_s).capitalize()}:", markup.table(told.headings(record), shown)]
        basis = markup.details("What it rests on", markup.facts(told.basis(record)))
        return [*parts, told.note(record), basis, markup.warning_list(record.warnings)]

    def sections(self) -> list[Section]:
        record = self.record
        return [
            Section("times", "Job completion time", [charts.mean_times(record), *charts.distributions(record)]),
            Section("time", "Over time", charts.over_time(record)),
            Section("jobs", "Who ran when", charts.gantt(record)),
            Section("basis", "What it rests on", [Facts(told.basis(record))]),
        ]

    def tables(self) -> dict[str, list[view.Row]]:
        record = self.record
        of = {"label": record.label, "trace": record.trace.name, **view.fields(record, "gpus", "gpus_per_host")}
        setting = ("policy", "restart_s", "placement")
        return {
            "runs": [
                {**of, **run.model_dump(), "gap": run.jct_mean_s / run.bound_s - 1 if run.bound_s else None}
                for run in record.runs
            ],
            "results": [{**of, **_result(one)} for one in record.results],
            "curves": [
                {**of, **view.fields(curve, *setting), "percentile": percentile, "jct_s": jct_s}
                for curve in record.curves
                for percentile, jct_s in enumerate(curve.jct_s)
            ],
        }

    def cases(self, strict: bool) -> list[view.Case]:
        group = f"{self.record.trace.name} on {counted(self.record.gpus, 'GPU')} (simulated)"
        found = []
        for result in self.record.results:
            placed = f", {result.placement}" if result.placement else ""
            name = f"{result.policy}, {told.costing(result.restart_s)}{placed}"
            said = f"mean job completion time {format_duration(result.jct_mean_s)} (simulated)"
            found.append(view.Case(group, name, result.jct_mean_s, message=said))
        return found


def _result(one: ClusterResult) -> view.Row:
    return {
        **view.fields(one, "policy", "restart_s", "placement", "jct_mean_s"),
        **view.ends("jct_mean", one.jct_mean_ci95, "_s"),
        "ratio": one.ratio,
        **view.ends("ratio", one.ratio_ci95),
        "gap": one.gap,
        **view.ends("gap", one.gap_ci95),
        **view.fields(one, "placed_ratio"),
        **view.ends("placed_ratio", one.placed_ratio_ci95),
        "growing": one.growing,
    }


def _stacked(record: ClusterComparison, cost_s: float, console: Console) -> None:
    shown = told.columns(record)
    for result, row in zip(told.results_at(record, cost_s), told.rows(record, cost_s), strict=True):
        judged = [told.ratio_of(result)] if told.is_compared(record) else []
        judged += [f"gap {told.gap_of(result)}"] if result.gap is not None else []
        placed = f", {result.placement}" if result.placement else ""
        console.print(Text(f"  {result.policy}{placed}", style="bold"))
        terminal.indented(console, f"  {', '.join([f'mean JCT {told.jct_of(result)}', *judged])}")
        figures = zip(shown, row[-len(shown) :], strict=True)
        terminal.indented(console, f"  {', '.join(f'{heading} {figure}' for heading, figure in figures)}")


class LiveView(view.View[LiveRun]):
    """Run of jobs on this machine's or a cluster's slots."""

    name = "Cluster run"
    cut_short = "it ended before every job did"
    aftermath = ""

    def title(self) -> str:
        return f"{self.record.policy} on {counted(self.record.slots, 'slot')}, engine {self.record.engine}"

    def subtitle(self) -> str:
        return sentences.made_at(self.record.created)

    def headline(self) -> list[str]:
        return list(self.record.findings or ["Nothing was found."])

    def labels(self) -> list[Label]:
        return ["real", "simulated"]

    def failures(self) -> list[str]:
        """Return one sentence for each job that was given up."""
        return [f"{job.name} failed: {job.reason}" for job in self.record.jobs if job.status == "failed"]

    def draw(self, console: Console, detail: view.Detail) -> None:
        record = self.record
        terminal.headline(console, record.findings)
        self.draw_incomplete(console)
        console.print()
        terminal.table_or_blocks(console, self.title(), LIVE_HEADINGS, map(_live_row, record.jobs), ("job",))
        for sentence in self.failures():
            terminal.say(console, sentence, "bold red")
        terminal.basis(console, LIVE_NOTE, _live_basis(record), record.warnings)

    def markdown(self) -> list[str]:
        early = self.incomplete()
        rows = [[markup.code(name), *rest] for name, *rest in map(_live_row, self.record.jobs)]
        return [
            f"### {markup.plain(self.title())} (real)",
            markup.strong(early) if early else "",
            markup.lead(self.headline()),
            markup.table(LIVE_HEADINGS, rows),
            markup.bullets(self.failures(), bold=True),
            LIVE_NOTE,
            markup.details("What it rests on", markup.facts(_live_basis(self.record))),
            markup.warning_list(self.record.warnings),
        ]

    def sections(self) -> list[Section]:
        return [
            Section("times", "Job completion time", [_times(self.record)]),
            Section("jobs", "Who ran when", [_gantt(self.record)] if self.record.spans else []),
            Section("basis", "What it rests on", [Facts(_live_basis(self.record))]),
        ]

    def ending(self) -> list[Section]:
        record = self.record
        environment = view.environment_section(record.environment)
        return [view.warnings_section(record.warnings), environment, view.command_section(record.command)]

    def tables(self) -> dict[str, list[view.Row]]:
        record = self.record
        of = view.fields(record, "label", "policy", "engine", "slots")
        return {
            "jobs": [{**of, **job.model_dump(exclude={"speeds"})} for job in record.jobs],
            "speeds": [
                {**of, "name": job.name, "workers": workers, "steps_per_s": speed}
                for job in record.jobs
                for workers, speed in job.speeds.items()
            ],
            "spans": [
                {**of, **span.model_dump(exclude={"slots"}), "workers": len(span.slots)} for span in record.spans
            ],
        }

    def cases(self, strict: bool) -> list[view.Case]:
        group = f"{self.record.policy} on {counted(self.record.slots, 'slot')} (real)"
        return [_live_case(group, job) for job in self.record.jobs]


def _live_case(group: str, job: LiveResult) -> view.Case:
    if job.jct_s is None:
        return view.Case(group, job.name, None, "error", job.reason or "it had not finished when the run ended")
    told = f"job completion time {format_duration(job.jct_s)} (real)"
    if job.forecast_jct_s is not None:
        told += f", {format_duration(job.forecast_jct_s)} (forecast): {format_signed_percent(job.forecast_error)}"
    if job.simulated_jct_s is not None:
        told += f", {format_duration(job.simulated_jct_s)} (fitted): {format_signed_percent(job.error)}"
    return view.Case(group, job.name, job.jct_s, message=told)


def _live_row(job: LiveResult) -> list[str]:
    return [
        job.name,
        format_duration(job.jct_s) if job.jct_s is not None else job.status,
        format_duration(job.forecast_jct_s),
        format_signed_percent(job.forecast_error),
        format_duration(job.simulated_jct_s),
        format_signed_percent(job.error),
        str(job.restarts),
        "–" if job.simulated_restarts is None else str(job.simulated_restarts),
        f"{job.lost_steps:g}",
        ", ".join(f"{workers}: {speed:.3g}" for workers, speed in job.speeds.items()) or "–",
    ]


def _live_basis(record: LiveRun) -> list[tuple[str, str]]:
    believed = format_duration(record.believed_restart_s)
    measured = "not measured" if record.overhead_s is None else f"{format_seconds(record.overhead_s)} (real)"
    return [
        ("overhead", f"{measured} an attempt that stopped or finished; the policy was told {believed}"),
        ("crashes", f"{sum(job.crashes for job in record.jobs)}, with up to {record.retries} retries a job"),
        ("machine", sentences.environment_line(record.environment)),
        ("made by", f"xbench {record.xbench}: {record.command}"),
    ]


def _times(record: LiveRun) -> Figure:
    """Draw three bars per job."""
    bars = (("live", "jct_s"), ("forecast", "forecast_jct_s"), ("fitted", "simulated_jct_s"))
    times = [time_s for job in record.jobs for _, key in bars if (time_s := getattr(job, key)) is not None]
    unit = long_unit(max(times, default=0.0))
    traces: list[Trace] = []
    for place, (name, key) in enumerate(bars):
        timed = [(plain(job.name), getattr(job, key)) for job in record.jobs if getattr(job, key) is not None]
        if timed:
            traces.append({
                "type": "bar", "name": name, "x": [job for job, _ in timed], "marker": {"color": COLOURS[place]},
                "y": [unit.of(time_s) for _, time_s in timed],
                "customdata": [f"<b>{job}</b><br>{name} {format_duration(time_s)}" for job, time_s in timed],
                "hovertemplate": "%{customdata}<extra></extra>",
            })  # fmt: skip
    shown = columns(LIVE_HEADINGS, ("job",))
    return Figure(
        key="completion-times",
        title="Job completion time, live and simulated",
        labels=["real", "simulated"],
        told="From a job's arrival to its end.",
        traces=traces,
        layout={
            "barmode": "group",
            "yaxis": {"title": {"text": f"JCT [{unit.name}]"}, "rangemode": "tozero"},
            "xaxis": {"type": "category"},
            "legend": BELOW,
        },
        height=400,
        table=Table("Every job in figures", shown, [_live_row(job) for job in record.jobs], LIVE_NOTE, opened=True),
    )


def _gantt(record: LiveRun) -> Figure:
    """Draw one line per job, with a bar for each attempt."""
    end_s = max(span.from_s if span.to_s is None else span.to_s for span in record.spans)
    unit = long_unit(end_s)
    traces: list[Trace] = []
    for place, workers in enumerate(sorted({len(span.slots) for span in record.spans})):
        own = [
            (span.job, span.from_s, end_s if span.to_s is None else span.to_s, f": {span.how}")
            for span in record.spans
            if len(span.slots) == workers
        ]
        traces.append(charts.held_bars(own, workers, "worker", place, unit))
    shown = columns(("job", "slots", "from", "trains from", "to", "steps", "ended"), ("job", "ended"))
    rows = [
        [span.job, ", ".join(map(str, span.slots)), format_duration(span.from_s), format_duration(span.trained_s),
         format_duration(span.to_s), f"{span.from_steps:g} to {span.to_steps:g}", span.how]
        for span in record.spans
    ]  # fmt: skip
    return Figure(
        key="gantt",
        title="Every attempt",
        labels=["real"],
        told="A line a job; a bar from the launch of an attempt until its slots were free.",
        traces=traces,
        layout=charts.lines_of_jobs([job.name for job in record.jobs], f"since the run began [{unit.name}]"),
        height=120 + min(900, 24 * len(record.jobs)),
        table=Table("Every attempt in figures", shown, rows, bulk=True),
    )
