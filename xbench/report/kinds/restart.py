"""View of `xbench cluster restart`: the times of a restart's parts, and the loss curves with and without stops."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from xbench.records import Estimate, Label, LossCheck, Restart, RestartPart
from xbench.report import console as terminal
from xbench.report import markup
from xbench.report.charts.axes import BELOW, COLOURS, rounded, time_unit, vertical_line
from xbench.report.page.model import Badge, Cell, Facts, Figure, Section, Table, Trace, columns
from xbench.report.sentences import environment_line, seconds_text
from xbench.report.view import Case, Detail, Row, Status, View, fields
from xbench.text import and_of, counted
from xbench.units import format_bytes, format_count, format_seconds

Way = tuple[int, int] | None


PARTS: dict[RestartPart, str] = {
    "last step": "the step under way when the stop was asked for",
    "checkpoint": "model, optimizer and step, on disk",
    "tear-down": "until no process is left",
    "launch": "processes, imports, connections, the model, the checkpoint",
    "first step": "the first step of the next attempt",
    "total": "from the stop being asked for to the first step applied",
    "lost": "of that, what was no training: less the step under way and an ordinary step",
}
NOTE = (
    "Medians with their 95 % intervals. Launch: processes, imports, connections, the model, the checkpoint. Lost: the "
    "total less the step under way and an ordinary step; it is what xbench cluster compare --restart-cost FILE charges."
)
DRAWN: tuple[RestartPart, ...] = ("last step", "checkpoint", "tear-down", "launch", "first step")


class RestartView(View[Restart]):
    """Study of the cost of a restart. Everything in it was measured."""

    name = "Restart"
    cut_short = "it ended early"

    def title(self) -> str:
        return f"{self.record.workload.title}, stopped and started anew"

    def headline(self) -> list[str]:
        return self.record.findings

    def labels(self) -> list[Label]:
        return [self.record.label]

    def failures(self) -> list[str]:
        return [self.record.findings[-1]] if self.fails() else []

    def fails(self) -> bool:
        """True if the loss curve was compared and does not go on."""
        return self.record.check is not None and not self.record.check.held

    def draw(self, console: Console, detail: Detail) -> None:
        record = self.record
        self.draw_incomplete(console)
        for position, sentence in enumerate(record.findings):
            terminal.say(console, sentence, "bold" if position == 0 else "red" if self.fails() else "")
        console.print()
        terminal.say(console, heading(record), "italic")
        terminal.table_or_blocks(console, "", headings(record), rows(record), ("part",))
        terminal.basis(console, NOTE, basis(record), record.warnings)

    def markdown(self) -> list[str]:
        record, cut = self.record, self.incomplete()
        shown = [[markup.code(row[0]), *row[1:]] for row in rows(record)]
        return [
            f"### {markup.plain(heading(record))}",
            markup.strong(cut) if cut is not None else "",
            markup.lead(record.findings or ["Nothing was found."]),
            markup.table(headings(record), shown),
            NOTE,
            markup.details("What it rests on", markup.facts(basis(record))),
            markup.warning_list(record.warnings),
        ]

    def sections(self) -> list[Section]:
        record = self.record
        return [
            Section("parts", "What a restart takes", [_parts(record)]),
            Section("loss", "The loss curve", [_losses(record, record.check)] if record.check is not None else []),
            Section("basis", "What it rests on", [Facts(basis(record))]),
        ]

    def cases(self, strict: bool) -> list[Case]:
        record = self.record
        found = []
        for part, said in PARTS.items():
            seconds = seconds_of(record, part, None)
            if seconds is not None:
                told = f"{said}: {format_seconds(seconds.median)} ({record.label})"
                found.append(Case(heading(record), part, seconds.median, message=told))
        if record.check is not None:
            held: Status = "failed" if self.fails() else "passed"
            found.append(Case(heading(record), "loss curve", status=held, message=(record.findings or [""])[-1]))
        return found

    def tables(self) -> dict[str, list[Row]]:
        record = self.record
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
                    **fields(one, "part", "from_workers", "to_workers"),
                    "seconds": one.seconds.median,
                    "low_s": one.seconds.interval[0] if one.seconds.interval else None,
                    "high_s": one.seconds.interval[1] if one.seconds.interval else None,
                }
                for one in record.results
            ],
            "losses": [
                {**of, "step": step, "loss": cut, "uncut_loss": uncut}
                for step, (cut, uncut) in enumerate(curves, start=1)
            ],
        }


def heading(record: Restart) -> str:
    """Return the title of the table."""
    return f"{record.workload.title}, {counted(len(record.restarts), 'restart')} ({record.label})"


def resizes(record: Restart) -> list[Way]:
    """Return None for all restarts, and each pair of worker counts."""
    return [None, *dict.fromkeys((one.from_workers, one.to_workers) for one in record.restarts)]


def headings(record: Restart) -> list[str]:
    """Return the headings of the columns of `rows`: 'part', 'all', '1 to 2 workers'."""
    return ["part", *("all" if way is None else f"{way[0]} to {counted(way[1], 'worker')}" for way in resizes(record))]


def seconds_of(record: Restart, part: RestartPart, way: Way) -> Estimate | None:
    """Return the time [s] of a part, over all restarts or one way; None if the record lacks it."""
    wanted = (part, *(way or (None, None)))
    found = (one.seconds for one in record.results if (one.part, one.from_workers, one.to_workers) == wanted)
    return next(found, None)


def rows(record: Restart) -> list[list[str]]:
    """Return one row per part: its name, and its time over all restarts and for each way."""
    return [[part, *(_cell(seconds_of(record, part, way)) for way in resizes(record))] for part in PARTS]


def _cell(seconds: Estimate | None) -> str:
    """Format a time. One restart, or several that took the same time, have no interval."""
    return "–" if seconds is None else seconds_text(seconds.median, seconds.interval)


def launches(record: Restart) -> str:
    """Describe the average times of the parts of a launch."""
    count = len(record.restarts)
    parts = (("processes", "start_s"), ("imports", "imports_s"), ("connections", "join_s"), ("the model", "build_s"),
             ("the checkpoint", "load_s"))  # fmt: skip
    return ", ".join(
        f"{name} {format_seconds(sum(getattr(one, field) for one in record.restarts) / count)}" for name, field in parts
    )


def _in_turn(workers: Sequence[int]) -> str:
    """Format '1 and 2 workers in turn' or '1 worker each'."""
    numbers = [str(one) for one in dict.fromkeys(workers)]
    return f"{and_of(numbers)} worker{'' if numbers == ['1'] else 's'} {'each' if len(numbers) == 1 else 'in turn'}"


def basis(record: Restart) -> list[tuple[str, str]]:
    """Return the setup of the study, as pairs of a name and a sentence."""
    check, workload = record.check, record.workload
    tensors = counted(workload.tensors, "tensor")
    job = (
        f"{workload.title}: batch {record.batch_size} over all workers, of {workload.input}, {workload.dtype}, "
        f"{workload.spec.optimizer}; {format_count(workload.parameters)} parameters in {tensors}"
    )
    found = [("workload", job), ("launches", f"{launches(record)} (means)")]
    if record.checkpoint_bytes is not None:
        found.append(("checkpoint", format_bytes(record.checkpoint_bytes)))
    if check is not None:
        found.append((
            "loss curve",
            f"{check.steps} steps in {len(check.workers)} attempts of {_in_turn(check.workers)}, held to a run on "
            f"{record.from_workers} without a stop",
        ))  # fmt: skip
    if check is not None and check.depends:
        others = "so other numbers of workers have other losses by right, and one number throughout was held to it"
        found.append(("but", f"{'; '.join(check.depends)}; {others}"))
    found.append(("machine", environment_line(record.environment)))
    found.append(("made by", f"xbench {record.xbench}: {record.command}"))
    return found


def _parts(record: Restart) -> Figure:
    """Draw one bar per restart, with its parts in sequence."""
    unit = time_unit(max(one.total_s for one in record.restarts))
    names = [f"{number}: {one.from_workers} to {one.to_workers}" for number, one in enumerate(record.restarts, start=1)]
    traces: list[Trace] = [
        {
            "type": "bar", "orientation": "h", "name": part, "y": names,
            "x": [unit.of(one.part_s(part)) for one in record.restarts],
            "marker": {"color": COLOURS[place]},
            "customdata": [f"{part}: {format_seconds(one.part_s(part))}" for one in record.restarts],
            "hovertemplate": "%{y}, %{customdata}<extra></extra>",
        }
        for place, part in enumerate(DRAWN)
    ]  # fmt: skip
    return Figure(
        key="restart-parts",
        title="From the stop being asked for to the first step applied",
        labels=[record.label],
        told="A bar a restart, in their order; numbers are workers before and after.",
        traces=traces,
        layout={
            "barmode": "stack",
            "xaxis": {"title": {"text": f"time [{unit.name}]"}, "rangemode": "tozero"},
            "yaxis": {"type": "category", "autorange": "reversed"},
            "legend": BELOW,
        },
        height=140 + 28 * len(names),
        table=Table("The parts in figures", columns(headings(record), ("part",)), rows(record), NOTE, opened=True),
    )


def _losses(record: Restart, check: LossCheck) -> Figure:
    """Draw both loss curves by step, with a line at each stop."""
    traces: list[Trace] = [
        {
            "type": "scatter", "mode": "lines", "name": name, "x": list(range(1, len(values) + 1)),
            "y": [None if value is None else rounded(value) for value in values],
            "line": {"color": colour, "width": width, "dash": dash},
            "hovertemplate": f"{name}, step %{{x}}: %{{y}}<extra></extra>",
        }
        for name, values, colour, width, dash in (
            ("without a stop", record.uncut_losses, "--c2", 4, "solid"),
            ("stopped and started", record.losses, "--c1", 2, "dot"),
        )
    ]  # fmt: skip
    cells: list[Cell] = [
        Badge("held", "faster") if check.held else Badge("NOT held", "failed"),
        str(check.steps),
        "no number" if check.worst is None else f"{check.worst:.1e}",
        str(check.worst_step),
        f"{check.tolerance:g}",
    ]
    return Figure(
        key="losses",
        title="Loss by step",
        labels=[record.label],
        told="Both from one seed. Dotted lines: where it was stopped and started anew.",
        traces=traces,
        layout={
            "xaxis": {"title": {"text": "step"}, "rangemode": "tozero"},
            "yaxis": {"title": {"text": "loss, mean over the batch"}},
            "legend": BELOW,
            "shapes": [vertical_line(stop + 0.5, color="--ink", dash="dot", width=1) for stop in check.stops],
        },
        height=360,
        table=Table(
            "The check in figures",
            columns(("it goes on", "steps", "worst", "at step", "allowed"), ("it goes on",)),
            [cells],
            opened=True,
        ),
    )
