"""The page of a profile: the step, its layers, what the link costs, and the plans that follow from them."""

from __future__ import annotations

from collections.abc import Sequence

from xbench.records import Bounds, Label, Plan, Profile, StepTimes
from xbench.report import lines
from xbench.report.advice import advice
from xbench.report.answer import is_control
from xbench.report.html.axes import BELOW, marks, named, plain, time_axis, time_unit
from xbench.report.html.facts import (
    capital,
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
from xbench.report.html.parts import Block, Cell, Column, Facts, Figure, Layout, Page, Section, Sentences, Table, Trace
from xbench.report.html.steps import profile_steps
from xbench.units import format_bytes, format_percent, format_seconds


def profile_page(record: Profile) -> Page:
    """Every section that the record has something for."""
    labels: list[Label] = [record.fabric.label, "simulated"] if record.plans else [record.fabric.label]
    return Page(
        kind="Profile",
        warnings=len(record.warnings),
        title=f"{record.workload.title} on {record.fabric.spec}",
        subtitle=f"{moment(record.created)} · {record.environment.hostname}",
        labels=labels,
        answer=_answer(record),
        incomplete=lines.incomplete_line(record),
        paste=following([one for one in advice(record) if one.command is not None]),
        sections=[section for section in _sections(record) if section.blocks],
    )


def _answer(record: Profile) -> list[str]:
    """What to use, if there are plans; then the step."""
    step = [lines.step_line(record.step, record.fabric.label)] if record.step is not None else []
    found = [one.told for one in advice(record) if one.command is None]
    return [*found, *step] or ["Nothing was measured."]


def step_table(step: StepTimes, label: Label) -> Table:
    """The step and its parts, as instrumented, beside the bare loop."""

    def interval(ci95: tuple[float, float]) -> str:
        return f"{format_seconds(ci95[0])} – {format_seconds(ci95[1])}"

    rows: list[list[Cell]] = [
        ["forward", format_seconds(step.forward_s), "–"],
        ["backward", format_seconds(step.backward_s), "–"],
        ["optimizer", format_seconds(step.optimizer_s), "–"],
        ["step, instrumented", format_seconds(step.step_s), interval(step.step_ci95)],
        ["step, bare", format_seconds(step.uninstrumented_step_s), interval(step.uninstrumented_ci95)],
    ]
    columns = [Column("part", figures=False), Column("time"), Column("95 % CI")]
    note = (
        f"Medians of {step.steps} steps, after {step.warmup_steps} of warm-up that are kept apart. "
        f"{lines.instruments_line(step)}"
    )
    return Table(f"Where a step without communication goes ({label})", columns, rows, note, opened=True)


def _sections(record: Profile) -> list[Section]:
    plans = plans_figure(list(record.plans.values()), record.bounds)
    notes = [f"{plan.mode}: {plan.note}" for plan in record.plans.values() if plan.note]
    found: list[Block | None] = [
        step_table(record.step, record.fabric.label) if record.step is not None else None,
        waterfall(record.layers, record.cost_model, record.fabric.label),
        link_cost(record.cost_model, record.fabric.label),
    ]
    pairs = [workload_pair(record.workload)]
    pairs += [("bounds", lines.bounds_line(record.bounds))] if record.bounds is not None else []
    pairs += fabric_pairs(record.fabric, record.cost_model, record.emulated, lines.tuning_line(record.spec))
    contention = lines.contention_line(record.contention)
    if contention is not None:
        pairs.append(("contention", contention))
    gpus: list[Block] = [*gpu_table([("profile", record.gpu)], record.fabric.label)]
    if record.gpu_missing is not None:
        gpus.append(Sentences([f"GPU counters: not available: {record.gpu_missing}."], mark="warning"))
    series = series_figure(record)
    return [
        Section("plans", "Plans", [*([plans] if plans else []), *([Sentences(notes)] if notes else [])]),
        Section("step", "One step on a timeline", profile_steps(record)),
        Section("layers", "Layers and the link", [block for block in found if block is not None]),
        Section("samples", "Every sample", [series] if series else []),
        Section("basis", "What it rests on", [Facts(pairs), *gpus]),
        environment_section(record.environment),
        *warnings_section(record.warnings),
        command_section(record.command),
    ]


def plans_figure(plans: Sequence[Plan], bounds: Bounds | None) -> Figure | None:
    """A bar a plan, shortest first: what is hidden or computed, and what stays exposed. None without plans."""
    order = sorted(plans, key=lambda plan: plan.predicted_step_s)
    if not order:
        return None
    longest_s = max(plan.predicted_step_s for plan in order)
    unit = time_unit(longest_s)
    names = [named(plan.mode) for plan in order]
    said = [
        f"<b>{plain(plan.mode)}</b> (simulated)<br>{format_seconds(plan.predicted_step_s)} a step, of which "
        f"{format_seconds(plan.predicted_exposed_s)} exposed<br>{len(plan.buckets)} buckets"
        for plan in order
    ]
    common: Trace = {"type": "bar", "orientation": "h", "y": names, "customdata": said,
                     "hovertemplate": "%{customdata}<extra></extra>"}  # fmt: skip
    shapes: list[Layout] = []
    if bounds is not None:
        at = unit.of(bounds.backward_overlap_bound_s)
        shapes = [{"type": "line", "x0": at, "x1": at, "yref": "paper", "y0": 0, "y1": 1, "showlegend": True,
                   "name": "bound, next forward waits (simulated)",
                   "line": {"color": "--c2", "width": 2, "dash": "dash"}}]  # fmt: skip
    return Figure(
        key="predicted-steps",
        title="Predicted steps",
        labels=["simulated"],
        told="What each schedule is predicted to take, from the profile and the cost model alone; shorter is better.",
        traces=[
            {**common, "name": "compute, with what is hidden behind it", "marker": {"color": "--c1"},
             "x": unit.all(max(0.0, plan.predicted_step_s - plan.predicted_exposed_s) for plan in order),
             "text": [format_seconds(plan.predicted_step_s) for plan in order], "textposition": "inside",
             "insidetextanchor": "start", "insidetextfont": {"color": "--on-bar"}, "constraintext": "none"},
            {**common, "name": "exposed communication", "x": unit.all(plan.predicted_exposed_s for plan in order),
             "marker": {"color": "--wait", "line": {"color": "--bad", "width": 1},
                        "pattern": {"shape": "/", "fgcolor": "--bad", "fillmode": "overlay", "size": 6}}},
        ],
        layout={
            "barmode": "stack",
            "bargap": 0.28,
            "xaxis": time_axis("predicted step", unit),
            "yaxis": {"categoryorder": "array", "categoryarray": names, "range": [len(names) - 0.5, -0.5]},
            "shapes": shapes,
            "legend": BELOW,
            "margin": {"t": 8},
        },
        height=128 + 34 * len(names),
        table=_plan_table(order),
    )  # fmt: skip


def _plan_table(plans: Sequence[Plan]) -> Table:
    best_s = min((plan.predicted_step_s for plan in plans if not is_control(plan.mode)), default=0.0)
    rows: list[list[Cell]] = [
        [
            plan.mode,
            str(len(plan.buckets)),
            format_seconds(plan.predicted_step_s),
            format_seconds(plan.predicted_exposed_s),
            format_percent(plan.predicted_step_s / best_s - 1) if best_s > 0 and not is_control(plan.mode) else "–",
            format_bytes(max(plan.bucket_bytes, default=0)),
        ]
        for plan in plans
    ]
    columns = [Column("mode", figures=False), *map(Column, ("buckets", "step", "exposed", "gap", "largest bucket"))]
    return Table("Plans in figures (simulated)", columns, rows, capital(lines.PLAN_COLUMNS), opened=True)


def series_figure(record: Profile) -> Figure | None:
    """Every measured step of every series, in order. None where none was kept."""
    series = {name: values for name, values in record.samples.items() if values}
    if not series:
        return None
    unit = time_unit(max(max(values) for values in series.values()))
    look = marks(series)
    traces: list[Trace] = [
        {
            "type": "scatter", "mode": "lines+markers", "name": plain(name), "x": list(range(1, len(values) + 1)),
            "y": unit.all(values), "marker": {"color": look[name].colour, "symbol": look[name].symbol, "size": 7},
            "line": {"color": look[name].colour, "dash": look[name].dash, "width": 1},
            "hovertemplate": f"step %{{x}}: %{{y:.4~g}} {unit.name}<extra>%{{fullData.name}}</extra>",
        }
        for name, values in series.items()
    ]  # fmt: skip
    rows: list[list[Cell]] = [
        [name, str(place), format_seconds(value)] for name, values in series.items()
        for place, value in enumerate(values, start=1)
    ]  # fmt: skip
    return Figure(
        key="every-step",
        title="Every measured step",
        labels=[record.fabric.label],
        told="By series, in the order in which they were measured, warm-up included.",
        traces=traces,
        layout={
            "xaxis": {"title": {"text": "step"}, "rangemode": "tozero"},
            "yaxis": {"title": {"text": f"time [{unit.name}]"}, "rangemode": "tozero"},
            "legend": BELOW,
            "margin": {"t": 8},
        },
        height=400,
        table=Table(
            "Every step in figures",
            [Column("series", figures=False), Column("step"), Column("time")],
            rows,
            bulk=True,
        ),
    )
