"""The page of a live run: completion times beside the simulated ones, and who ran when on how many slots."""

from __future__ import annotations

from xbench.records import LiveRun
from xbench.report.charts.axes import BELOW, COLOURS, long_unit, plain, rounded
from xbench.report.kinds import live as told
from xbench.report.page.common_sections import command_section, environment_section, moment, warnings_section
from xbench.report.page.model import Cell, Column, Facts, Figure, Page, Section, Table, Trace
from xbench.units import format_duration


def live_page(record: LiveRun) -> Page:
    """Live times are real, and those beside them simulated."""
    return Page(
        kind="Cluster run",
        warnings=len(record.warnings),
        title=told.title(record),
        subtitle=moment(record.created),
        labels=["real", "simulated"],
        answer=list(record.findings or ["Nothing was found."]),
        incomplete=told.incomplete(record),
        failures=told.failures(record),
        sections=[
            Section("times", "Job completion time", [_times(record)]),
            *([Section("jobs", "Who ran when", [_gantt(record)])] if record.spans else []),
            Section("basis", "What it rests on", [Facts(told.basis(record))]),
            *warnings_section(record.warnings),
            environment_section(record.environment),
            command_section(record.command),
        ],
    )


def _times(record: LiveRun) -> Figure:
    """Three bars a job."""
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
    columns = [Column(name, figures=name != "job") for name in told.HEADINGS]
    rows: list[list[Cell]] = [list(told.row(job)) for job in record.jobs]
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
        table=Table("Every job in figures", columns, rows, told.NOTE, opened=True),
    )


def _gantt(record: LiveRun) -> Figure:
    """A line a job, a bar an incarnation."""
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
