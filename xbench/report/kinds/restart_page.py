"""The page of what a restart costs: its parts one after the other, and the loss curve with and without stops."""

from __future__ import annotations

from xbench.records import LossCheck, Restart, RestartPart
from xbench.report.charts.axes import BELOW, COLOURS, rounded, time_unit
from xbench.report.kinds import restart as told
from xbench.report.page.common_sections import command_section, environment_section, moment, warnings_section
from xbench.report.page.model import Badge, Cell, Column, Facts, Figure, Page, Section, Table, Trace
from xbench.units import format_seconds

DRAWN: tuple[RestartPart, ...] = ("last step", "checkpoint", "tear-down", "launch", "first step")


def restart_page(record: Restart) -> Page:
    """Everything here was measured."""
    return Page(
        kind="Restart",
        warnings=len(record.warnings),
        title=f"{record.workload.title}, stopped and started anew",
        subtitle=f"{moment(record.created)} · {record.environment.hostname}",
        labels=[record.label],
        answer=record.findings,
        incomplete=told.incomplete(record),
        failures=[record.findings[-1]] if told.fails(record) else [],
        sections=[
            Section("parts", "What a restart takes", [_parts(record)]),
            *([Section("loss", "The loss curve", [_losses(record, record.check)])] if record.check is not None else []),
            Section("basis", "What it rests on", [Facts(told.basis(record))]),
            environment_section(record.environment),
            *warnings_section(record.warnings),
            command_section(record.command),
        ],
    )


def _parts(record: Restart) -> Figure:
    """A bar a restart, of its parts one after the other."""
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
    rows: list[list[Cell]] = [[*row] for row in told.rows(record)]
    columns = [Column("part", figures=False), *(Column(told.way_of(way)) for way in told.ways(record))]
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
        table=Table("The parts in figures", columns, rows, told.NOTE, opened=True),
    )


def _losses(record: Restart, check: LossCheck) -> Figure:
    """Both curves by step, with a line where it was stopped."""
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
    verdict: Cell = Badge("held", "faster") if check.held else Badge("NOT held", "failed")
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
            "shapes": [
                {"type": "line", "x0": stop + 0.5, "x1": stop + 0.5, "yref": "paper", "y0": 0, "y1": 1,
                 "line": {"color": "--ink", "dash": "dot", "width": 1}}
                for stop in check.stops
            ],
        },
        height=360,
        table=Table(
            "The check in figures",
            [Column("it goes on", figures=False), Column("steps"), Column("worst"), Column("at step"),
             Column("allowed")],
            [[
                verdict, str(check.steps),
                "no number" if check.worst is None else f"{check.worst:.1e}",
                str(check.worst_step), f"{check.tolerance:g}",
            ]],
            opened=True,
        ),
    )  # fmt: skip
