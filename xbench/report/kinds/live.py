"""`xbench cluster run` in the terminal, as Markdown and as tidy tables: the answer, a row a job, what it rests on.

Live times are real. Simulated ones are of the same jobs: a forecast, and what the run's own measurements give.
"""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from xbench.records import LiveResult, LiveRun
from xbench.report import sentences
from xbench.report.console import fact, indented, say, spare_columns, titled_table
from xbench.report.markup import code, details, facts, plain, table
from xbench.units import format_duration, format_seconds, format_signed_percent

Row = dict[str, Any]

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


def render_live(record: LiveRun, console: Console) -> None:
    """The findings, a row a job, and what it rests on."""
    for position, sentence in enumerate(record.findings):
        say(console, sentence, "bold" if position == 0 else "")
    early = incomplete(record)
    if early is not None:
        say(console, early, "bold yellow")
    console.print()
    shown = titled_table(title(record), *((name, "left" if name == "job" else "right") for name in HEADINGS))
    for job in record.jobs:
        shown.add_row(*row(job))
    if spare_columns(console, shown) >= 0:
        console.print(shown)
    else:
        _stacked(record, console)
    for sentence in failures(record):
        say(console, sentence, "bold red")
    console.print()
    say(console, NOTE, "dim")
    console.print()
    for name, sentence in basis(record):
        fact(console, name, sentence)
    for warning in record.warnings:
        fact(console, "warning", warning, "yellow")


def title(record: LiveRun) -> str:
    """What the table is of."""
    slots = "1 slot" if record.slots == 1 else f"{record.slots} slots"
    return f"{record.policy} on {slots}, engine {record.engine}"


def incomplete(record: LiveRun) -> str | None:
    """That the run ended early; None for a whole one."""
    if record.complete:
        return None
    return f"INCOMPLETE: {record.error or 'it ended before every job did'}."


def failures(record: LiveRun) -> list[str]:
    """A sentence a job that was given up."""
    return [f"{job.name} failed: {job.reason}" for job in record.jobs if job.status == "failed"]


def row(job: LiveResult) -> list[str]:
    """The cells of a job, as in `HEADINGS`."""
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


def _stacked(record: LiveRun, console: Console) -> None:
    say(console, title(record), "italic")
    for job in record.jobs:
        name, *cells = row(job)
        console.print(Text(f"  {name}", style="bold"))
        told = [f"{heading} {cell}" for heading, cell in zip(HEADINGS[1:], cells, strict=True)]
        indented(console, f"  {', '.join(told)}")


def basis(record: LiveRun) -> list[tuple[str, str]]:
    """What was run and measured, as names and sentences."""
    believed = format_duration(record.believed_restart_s)
    measured = "not measured" if record.overhead_s is None else f"{format_seconds(record.overhead_s)} (real)"
    incarnations = len(record.spans)
    return [
        ("overhead", f"{measured} an incarnation, of {incarnations}; the policy was told {believed}"),
        ("crashes", f"{sum(job.crashes for job in record.jobs)}, with up to {record.retries} retries a job"),
        ("machine", sentences.environment_line(record.environment)),
        ("made by", f"xbench {record.xbench}: {record.command}"),
    ]


def markdown(record: LiveRun) -> list[str]:
    """The parts of a Markdown summary, but for warnings and the command."""
    first, *others = record.findings or ["Nothing was found."]
    early = incomplete(record)
    cells = [[code(name), *rest] for name, *rest in map(row, record.jobs)]
    return [
        f"### {plain(title(record))} (real)",
        f"**{plain(early)}**" if early else "",
        f"**{plain(first)}** {' '.join(map(plain, others))}".rstrip(),
        table(list(HEADINGS), cells),
        "\n".join(f"- **{plain(sentence)}**" for sentence in failures(record)),
        NOTE,
        details("What it rests on", facts(basis(record))),
    ]


def live_tables(record: LiveRun) -> dict[str, list[Row]]:
    """The tables by name, the main one first."""
    of = {"label": record.label, "policy": record.policy, "engine": record.engine, "slots": record.slots}
    return {
        "jobs": [{**of, **job.model_dump(exclude={"speeds"})} for job in record.jobs],
        "speeds": [
            {**of, "name": job.name, "workers": workers, "steps_per_s": speed}
            for job in record.jobs
            for workers, speed in job.speeds.items()
        ],
        "spans": [{**of, **span.model_dump(exclude={"slots"}), "workers": len(span.slots)} for span in record.spans],
    }
