"""View of `xbench cluster run`: the answer, completion times beside simulated ones, and the spans of every job.

Live times are real. Simulated times are of the same jobs: a forecast, and a simulation with the run's own measurements.
"""

from __future__ import annotations

from rich.console import Console

from xbench.records import Label, LiveResult, LiveRun
from xbench.report import console as terminal
from xbench.report import sentences
from xbench.report.charts.axes import BELOW, COLOURS, long_unit, plain, rounded
from xbench.report.markup import bullets, code, details, facts, lead, strong, table, warning_list
from xbench.report.markup import plain as markdown_plain
from xbench.report.page.common_sections import command_section, environment_section, moment, warnings_section
from xbench.report.page.model import Cell, Column, Facts, Figure, Section, Table, Trace
from xbench.report.view import Case, Detail, Row, View
from xbench.text import counted
from xbench.units import format_duration, format_seconds, format_signed_percent

HEADINGS = (
    "job", "live JCT", "forecast JCT", "its error", "fitted JCT", "its error", "restarts", "fitted restarts",
    "lost steps", "steps/s by workers",
)  # fmt: skip
NOTE = (
    "JCT: job completion time, from arrival to end. Live ones are real. Forecast: simulated with the declared speeds "
    "and the cost of a start that the policy was told, as before the run. Fitted: simulated with the speeds and the "
    "overhead that this run measured, so its error is the simulator's alone and foretells nothing. Error: over live, "
    "minus one. Restarts: incarnations after the first. Lost steps: done again after a crash."
)


class LiveView(View[LiveRun]):
    """Run of jobs on this machine's or a cluster's slots."""

    name = "Cluster run"
    cut_short = "it ended before every job did"
    aftermath = ""

    def title(self) -> str:
        return f"{self.record.policy} on {counted(self.record.slots, 'slot')}, engine {self.record.engine}"

    def subtitle(self) -> str:
        return moment(self.record.created)

    def headline(self) -> list[str]:
        return list(self.record.findings or ["Nothing was found."])

    def labels(self) -> list[Label]:
        return ["real", "simulated"]

    def failures(self) -> list[str]:
        """Return one sentence for each job that was given up."""
        return [f"{job.name} failed: {job.reason}" for job in self.record.jobs if job.status == "failed"]

    def draw(self, console: Console, detail: Detail) -> None:
        record = self.record
        terminal.headline(console, record.findings)
        early = self.incomplete()
        if early is not None:
            terminal.say(console, early, "bold yellow")
        console.print()
        terminal.table_or_blocks(console, self.title(), HEADINGS, map(row, record.jobs), ("job",))
        for sentence in self.failures():
            terminal.say(console, sentence, "bold red")
        terminal.basis(console, NOTE, basis(record), record.warnings)

    def markdown(self) -> list[str]:
        early = self.incomplete()
        return [
            f"### {markdown_plain(self.title())} (real)",
            strong(early) if early else "",
            lead(self.headline()),
            table(list(HEADINGS), [[code(name), *rest] for name, *rest in map(row, self.record.jobs)]),
            bullets(self.failures(), bold=True),
            NOTE,
            details("What it rests on", facts(basis(self.record))),
            warning_list(self.record.warnings),
        ]

    def sections(self) -> list[Section]:
        return [
            Section("times", "Job completion time", [_times(self.record)]),
            *([Section("jobs", "Who ran when", [_gantt(self.record)])] if self.record.spans else []),
            Section("basis", "What it rests on", [Facts(basis(self.record))]),
        ]

    def ending(self) -> list[Section]:
        record = self.record
        environment = environment_section(record.environment)
        return [*warnings_section(record.warnings), environment, command_section(record.command)]

    def tables(self) -> dict[str, list[Row]]:
        record = self.record
        of = {"label": record.label, "policy": record.policy, "engine": record.engine, "slots": record.slots}
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

    def cases(self, strict: bool) -> list[Case]:
        group = f"{self.record.policy} on {self.record.slots} slots (real)"
        return [_case(group, job) for job in self.record.jobs]


def _case(group: str, job: LiveResult) -> Case:
    if job.jct_s is None:
        return Case(group, job.name, None, "error", job.reason or "it had not finished when the run ended")
    told = f"job completion time {format_duration(job.jct_s)} (real)"
    if job.forecast_jct_s is not None:
        told += f", {format_duration(job.forecast_jct_s)} (forecast): {format_signed_percent(job.forecast_error)}"
    if job.simulated_jct_s is not None:
        told += f", {format_duration(job.simulated_jct_s)} (fitted): {format_signed_percent(job.error)}"
    return Case(group, job.name, job.jct_s, message=told)


def row(job: LiveResult) -> list[str]:
    """Return the cells of a job, for the columns in `HEADINGS`."""
    simulated = job.simulated_restarts
    return [
        job.name,
        format_duration(job.jct_s) if job.jct_s is not None else job.status,
        format_duration(job.forecast_jct_s),
        format_signed_percent(job.forecast_error) if job.forecast_error is not None else "–",
        format_duration(job.simulated_jct_s),
        format_signed_percent(job.error) if job.error is not None else "–",
        str(job.restarts),
        "–" if simulated is None else str(simulated),
        f"{job.lost_steps:g}",
        ", ".join(f"{workers}: {speed:.3g}" for workers, speed in job.speeds.items()) or "–",
    ]


def basis(record: LiveRun) -> list[tuple[str, str]]:
    """Return the setup and measurements of the run, as pairs of a name and a sentence."""
    believed = format_duration(record.believed_restart_s)
    measured = "not measured" if record.overhead_s is None else f"{format_seconds(record.overhead_s)} (real)"
    incarnations = len(record.spans)
    return [
        ("overhead", f"{measured} an incarnation, of {incarnations}; the policy was told {believed}"),
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
        shown = [job for job in record.jobs if getattr(job, key) is not None]
        if not shown:
            continue
        traces.append({
            "type": "bar", "name": name, "x": [plain(job.name) for job in shown],
            "y": [unit.of(getattr(job, key)) for job in shown], "marker": {"color": COLOURS[place]},
            "customdata": [f"<b>{plain(job.name)}</b><br>{name} {format_duration(getattr(job, key))}" for job in shown],
            "hovertemplate": "%{customdata}<extra></extra>",
        })  # fmt: skip
    columns = [Column(name, figures=name != "job") for name in HEADINGS]
    rows: list[list[Cell]] = [list(row(job)) for job in record.jobs]
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
        table=Table("Every job in figures", columns, rows, NOTE, opened=True),
    )


def _gantt(record: LiveRun) -> Figure:
    """Draw one line per job, with a bar for each incarnation."""
    end_s = max(span.from_s if span.to_s is None else span.to_s for span in record.spans)
    unit = long_unit(end_s)
    traces: list[Trace] = []
    for place, workers in enumerate(sorted({len(span.slots) for span in record.spans})):
        own = [(span, end_s if span.to_s is None else span.to_s) for span in record.spans if len(span.slots) == workers]
        traces.append({
            "type": "bar", "orientation": "h", "name": f"{workers} workers" if workers > 1 else "1 worker",
            "y": [plain(span.job) for span, _ in own], "base": [rounded(unit.of(span.from_s)) for span, _ in own],
            "x": [rounded(unit.of(to_s - span.from_s)) for span, to_s in own],
            "marker": {"color": COLOURS[place % len(COLOURS)], "line": {"color": "--paper", "width": 0.5}},
            "customdata": [f"<b>{plain(span.job)}</b><br>{workers} workers from {format_duration(span.from_s)} to "
                           f"{format_duration(to_s)}: {span.how}" for span, to_s in own],
            "hovertemplate": "%{customdata}<extra></extra>",
        })  # fmt: skip
    columns = [Column("job", figures=False), Column("slots"), Column("from"), Column("trains from"), Column("to"),
               Column("steps"), Column("ended", figures=False)]  # fmt: skip
    rows: list[list[Cell]] = [
        [span.job, ", ".join(map(str, span.slots)), format_duration(span.from_s), format_duration(span.trained_s),
         format_duration(span.to_s), f"{span.from_steps:g} to {span.to_steps:g}", span.how]
        for span in record.spans
    ]  # fmt: skip
    names = [plain(job.name) for job in record.jobs]
    return Figure(
        key="gantt",
        title="Every incarnation",
        labels=["real"],
        told="A line a job; a bar from the launch of an incarnation until its slots were free.",
        traces=traces,
        layout={
            "barmode": "overlay",
            "bargap": 0.15,
            "xaxis": {"title": {"text": f"since the run began [{unit.name}]"}},
            "yaxis": {
                "type": "category",
                "categoryorder": "array",
                "categoryarray": names[::-1],
                "showticklabels": len(names) <= 40,
            },
            "legend": BELOW,
            "hovermode": "closest",
        },
        height=120 + min(900, 24 * len(names)),
        table=Table("Every incarnation in figures", columns, rows, bulk=True),
    )
