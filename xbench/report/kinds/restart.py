"""`xbench cluster restart` in the terminal, as Markdown and as tables: the answer, and what its parts take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Console
from rich.measure import Measurement
from rich.text import Text

from xbench.records import Estimate, Restart, RestartPart
from xbench.report.console import fact, indented, say, titled_table
from xbench.report.kinds.cluster import ANY_COLUMNS
from xbench.report.markup import code, details, facts, plain, table
from xbench.report.sentences import and_of, environment_line
from xbench.units import format_bytes, format_count, format_seconds

Way = tuple[int, int] | None


class Row(NamedTuple):
    """A part as tables show it."""

    part: RestartPart
    told: str


ROWS = (
    Row("last step", "the step under way when the stop was asked for"),
    Row("checkpoint", "model, optimizer and step, on disk"),
    Row("tear-down", "until no process is left"),
    Row("launch", "processes, imports, connections, the model, the checkpoint"),
    Row("first step", "the first step of the next incarnation"),
    Row("total", "from the stop being asked for to the first step applied"),
    Row("lost", "of that, what was no training: less the step under way and an ordinary step"),
)

NOTE = (
    "Medians with their 95 % intervals. Launch: processes, imports, connections, the model, the checkpoint. Lost: the "
    "total less the step under way and an ordinary step; it is what xbench cluster compare --restart-cost FILE charges."
)


def render_restart(record: Restart, console: Console) -> None:
    """The findings, the parts, and what it rests on."""
    if (cut := incomplete(record)) is not None:
        say(console, cut, "bold yellow")
    for position, sentence in enumerate(record.findings):
        say(console, sentence, "bold" if position == 0 else "red" if fails(record) else "")
    console.print()
    say(console, heading(record), "italic")
    shown = titled_table("", ("part", "left"), *((way_of(way), "right") for way in ways(record)))
    for row in rows(record):
        shown.add_row(*row)
    wide = console.options.update(max_width=ANY_COLUMNS)
    if Measurement.get(console, wide, shown).maximum <= console.width:
        console.print(shown)
    else:
        for name, *cells in rows(record):
            console.print(Text(f"  {name}", style="bold"))
            told = [f"{way_of(way)} {cell}" for way, cell in zip(ways(record), cells, strict=True)]
            indented(console, f"  {', '.join(told)}")
    console.print()
    say(console, NOTE, "dim")
    console.print()
    for name, sentence in basis(record):
        fact(console, name, sentence)
    for warning in record.warnings:
        fact(console, "warning", warning, "yellow")


def incomplete(record: Restart) -> str | None:
    """That the study ended early; None for a whole one."""
    if record.complete:
        return None
    return f"INCOMPLETE: {record.error or 'it ended early'}. What follows is what had been measured by then."


def fails(record: Restart) -> bool:
    """True if the loss curve was compared and does not go on."""
    return record.check is not None and not record.check.held


def heading(record: Restart) -> str:
    """What the table is of."""
    return f"{record.workload.title}, {len(record.restarts)} restarts ({record.label})"


def ways(record: Restart) -> list[Way]:
    """All restarts, and each way by itself."""
    each = dict.fromkeys((one.from_workers, one.to_workers) for one in record.restarts)
    return [None, *each]


def way_of(way: Way) -> str:
    """'all', or '1 to 2 workers'."""
    return "all" if way is None else f"{way[0]} to {way[1]} workers" if way[1] != 1 else f"{way[0]} to 1 worker"


def seconds_of(record: Restart, part: RestartPart, way: Way) -> Estimate | None:
    """Time [s] of a part, over all restarts or one way; None where the record does not say."""
    wanted = (part, *(way or (None, None)))
    found = (one.seconds for one in record.results if (one.part, one.from_workers, one.to_workers) == wanted)
    return next(found, None)


def rows(record: Restart) -> list[list[str]]:
    """A row a part: its name, and its time over all restarts and each way."""
    return [[row.part, *(_cell(seconds_of(record, row.part, way)) for way in ways(record))] for row in ROWS]


def _cell(seconds: Estimate | None) -> str:
    if seconds is None:
        return "–"
    if seconds.interval is None:  # of one restart, or of some that took the same time
        return format_seconds(seconds.median)
    low, high = seconds.interval
    return f"{format_seconds(seconds.median)} [{format_seconds(low)}, {format_seconds(high)}]"


def launches(record: Restart) -> str:
    """What a launch is made of, on average."""
    count = len(record.restarts)
    parts = (("processes", "start_s"), ("imports", "imports_s"), ("connections", "join_s"), ("the model", "build_s"),
             ("the checkpoint", "load_s"))  # fmt: skip
    return ", ".join(
        f"{name} {format_seconds(sum(getattr(one, field) for one in record.restarts) / count)}" for name, field in parts
    )


def job_line(record: Restart) -> str:
    """'resnet18: batch 16 over all workers, of 3×128×128 images, fp32, sgd; 11.7 M parameters in 62 tensors'."""
    workload = record.workload
    return (
        f"{workload.title}: batch {record.batch_size} over all workers, of {workload.input}, {workload.dtype}, "
        f"{workload.spec.optimizer}; {format_count(workload.parameters)} parameters in {workload.tensors} tensors"
    )


def _each(workers: Sequence[int]) -> list[str]:
    """Each number once."""
    return [str(one) for one in dict.fromkeys(workers)]


def _in_turn(workers: Sequence[int]) -> str:
    """'1 and 2 workers in turn', '1 worker each'."""
    numbers = _each(workers)
    return f"{and_of(numbers)} worker{'' if numbers == ['1'] else 's'} {'each' if len(numbers) == 1 else 'in turn'}"


def basis(record: Restart) -> list[tuple[str, str]]:
    """What was measured, as names and sentences."""
    check = record.check
    found = [("workload", job_line(record)), ("launches", f"{launches(record)} (means)")]
    if record.checkpoint_bytes is not None:
        found.append(("checkpoint", f"{format_bytes(record.checkpoint_bytes)}"))
    if check is not None:
        found.append((
            "loss curve",
            f"{check.steps} steps in {len(check.workers)} incarnations of {_in_turn(check.workers)}, held to a run on "
            f"{record.from_workers} without a stop",
        ))  # fmt: skip
    if check is not None and check.depends:
        others = "so other numbers of workers have other losses by right, and one number throughout was held to it"
        found.append(("but", f"{'; '.join(check.depends)}; {others}"))
    found.append(("machine", environment_line(record.environment)))
    found.append(("made by", f"xbench {record.xbench}: {record.command}"))
    return found


def markdown(record: Restart) -> list[str]:
    """The parts of a Markdown summary, but for warnings and the command."""
    first, *others = record.findings or ["Nothing was found."]
    shown = [[code(row[0]), *row[1:]] for row in rows(record)]
    cut = incomplete(record)
    return [
        f"### {plain(heading(record))}",
        *([f"**{plain(cut)}**"] if cut is not None else []),
        f"**{plain(first)}** {' '.join(map(plain, others))}".rstrip(),
        table(["part", *(way_of(way) for way in ways(record))], shown),
        NOTE,
        details("What it rests on", facts(basis(record))),
    ]


def restart_tables(record: Restart) -> dict[str, list[dict[str, object]]]:
    """Tidy tables: every restart, the parts, and the two loss curves."""
    of = {"label": record.label, "workload": record.workload.title, "batch_size": record.batch_size}
    curves = zip(record.losses, record.uncut_losses, strict=False)
    return {
        "restarts": [
            {**of, **one.model_dump(), "launch_s": one.launch_s, "total_s": one.total_s, "lost_s": one.lost_s}
            for one in record.restarts
        ],
        "results": [
            {
                **of,
                "part": one.part,
                "from_workers": one.from_workers,
                "to_workers": one.to_workers,
                "seconds": one.seconds.median,
                "low_s": one.seconds.interval[0] if one.seconds.interval else None,
                "high_s": one.seconds.interval[1] if one.seconds.interval else None,
            }
            for one in record.results
        ],
        "losses": [
            {**of, "step": step, "loss": cut, "uncut_loss": uncut} for step, (cut, uncut) in enumerate(curves, start=1)
        ],
    }
