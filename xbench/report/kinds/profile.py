"""View of a profile: the step, its layers, the cost of communication, and the plans."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from xbench.records import Bounds, Contention, Label, Layer, Plan, Profile, StepTimes
from xbench.report import markup, sentences
from xbench.report.advice import RECORD, Advice, of_profile
from xbench.report.answer import is_control, layer_figures
from xbench.report.charts.axes import BELOW, marks, named, plain, time_axis, time_unit
from xbench.report.charts.layers import COST_HEADINGS, cost_rows, link_cost, waterfall
from xbench.report.charts.steps import profile_steps
from xbench.report.charts.text import draw_profile_gpu, gpu_blocks
from xbench.report.charts.trace import profile_trace
from xbench.report.console import NARROW_COLUMNS, fact, indented, say, say_next, spare_columns, titled_table
from xbench.report.kinds.measured import MeasuredView
from xbench.report.page.common_sections import capital, caution_blocks, following, workload_pair
from xbench.report.page.model import Block, Cell, Column, Facts, Figure, Layout, Section, Sentences, Table, Trace
from xbench.report.view import Case, Detail, Row, StepTrace
from xbench.stats.steps import short_step_caution
from xbench.units import format_bytes, format_count, format_percent, format_seconds, format_signed_percent

TOP_LAYERS = 10
OVERHEAD_GOAL = 0.02
PLAN_HEADINGS = ("mode", "buckets", "step", "exposed", "gap", "largest")


class ProfileView(MeasuredView[Profile]):
    """One workload, measured layer by layer."""

    name = "Profile"

    def title(self) -> str:
        return f"{self.record.workload.title} on {self.record.fabric.spec}"

    def headline(self) -> list[str]:
        """Return the recommended mode, if there are plans; then the step."""
        step = [sentences.step_line(self.record.step, self.record.fabric.label)] if self.record.step is not None else []
        found = [one.told for one in self.advice() if one.command is None]
        return [*found, *step] or ["Nothing was measured."]

    def labels(self) -> list[Label]:
        label = self.record.fabric.label
        return [label, "simulated"] if self.record.plans else [label]

    def jobs(self) -> list[Profile]:
        return [self.record]

    def contention(self) -> Contention | None:
        return self.record.contention

    def hidden_tables(self) -> list[str]:
        cost = self.record.cost_model
        return ["the cost of each collective"] if cost is not None and cost.points else []

    def advice(self, path: str = RECORD) -> list[Advice]:
        return of_profile(self.record)

    def paste(self) -> list[Block]:
        return following([one for one in self.advice() if one.command is not None])

    def draw(self, console: Console, detail: Detail) -> None:
        record, found = self.record, self.advice()
        self.draw_top(console)
        if found:
            say(console, found[0].told, "bold")
            say_next(console, found[1:])
            console.print()
        say(console, sentences.workload_line(record.workload), "" if found else "bold")
        console.print()
        if record.step is not None:
            for sentence in _step_lines(record.step, record.fabric.label):
                say(console, sentence)
            console.print()
        if record.layers:
            _draw_layers(record.layers, detail.all_layers, console)
        if record.plans:
            rows = _plan_rows(list(record.plans.values()), format_signed_percent)
            title = "Plans and their predicted steps (simulated)"
            console.print(_fitting(console, title, PLAN_HEADINGS, rows, ("largest", "exposed")))
            say(console, sentences.PLAN_COLUMNS, "dim")
            for note in self.plan_notes():
                say(console, note)
            for caution in self.cautions():
                say(console, caution, "yellow")
        cost = record.cost_model
        if detail.verbose and cost is not None and cost.points:
            console.print()
            title = f"Cost of one {cost.collective} ({record.fabric.label})"
            console.print(_fitting(console, title, COST_HEADINGS, cost_rows(cost), ("times", "wait", "95 % CI")))
            say(console, sentences.COST_COLUMNS, "dim")
            say(console, sentences.waits_line(cost))
        draw_profile_gpu(record.gpu, record.gpu_missing, console)
        console.print()
        if record.bounds is not None:
            fact(console, "bounds", sentences.bounds_line(record.bounds))
        self.draw_bottom(console, verbose=detail.verbose)

    def plan_notes(self) -> list[str]:
        """Return notes on single plans."""
        return [f"{plan.mode}: {plan.note}" for plan in self.record.plans.values() if plan.note]

    def cautions(self) -> list[str]:
        """Warn about predictions of short steps."""
        return short_step_caution(plan.predicted_step_s for plan in self.record.plans.values())

    def markdown(self) -> list[str]:
        record, step = self.record, self.record.step
        told = "**No step was measured.**"
        if step is not None:
            parts = f"{sentences.parts_line(step)} {sentences.instruments_line(step)}"
            told = f"**{sentences.step_line(step, record.fabric.label)}** {parts}"
        plans = [
            [markup.code(mode), str(len(plan.buckets)), format_seconds(plan.predicted_step_s),
             format_seconds(plan.predicted_exposed_s)]
            for mode, plan in record.plans.items()
        ]  # fmt: skip
        return [
            self.markdown_title(record.workload.title),
            markup.quoted(self.incomplete()),
            markup.advice(self.advice()),
            told,
            markup.table(["plan (simulated)", "buckets", "predicted step", "exposed"], plans) if plans else "",
            *self.cautions(),
            markup.warning_list(record.warnings),
            *self.markdown_layers(),
            self.markdown_how(),
        ]

    def sections(self) -> list[Section]:
        record, notes = self.record, self.plan_notes()
        label = record.fabric.label
        plans, series = plans_figure(list(record.plans.values()), record.bounds), series_figure(record)
        found: list[Block | None] = [
            step_table(record.step, label) if record.step is not None else None,
            waterfall(record.layers, record.cost_model, label),
            link_cost(record.cost_model, label),
        ]
        planned = [
            *([plans] if plans else []),
            *caution_blocks(self.cautions()),
            *([Sentences(notes)] if notes else []),
        ]
        bounds = [("bounds", sentences.bounds_line(record.bounds))] if record.bounds is not None else []
        pairs = [workload_pair(record.workload), *bounds, *self.fabric_facts()]
        gpus = gpu_blocks([("profile", record.gpu)], record.gpu_missing, label)
        return [
            Section("plans", "Plans", planned),
            Section("step", "One step on a timeline", profile_steps(record)),
            Section("layers", "Layers and the link", [block for block in found if block is not None]),
            Section("samples", "Every sample", [series] if series else []),
            Section("basis", "What it rests on", [Facts(pairs), *gpus]),
        ]

    def tables(self) -> dict[str, list[Row]]:
        record = self.record
        of = {**self.setting(record.fabric.label), "workload": record.workload.title}
        samples = [
            {**of, "series": name, "step": number, "step_s": took_s}
            for name, series in record.samples.items()
            for number, took_s in enumerate(series)
        ]
        plans = [
            {
                **of,
                "label": "simulated",
                "mode": mode,
                "predicted_step_s": plan.predicted_step_s,
                "predicted_exposed_s": plan.predicted_exposed_s,
                "buckets": len(plan.buckets),
                "largest_bucket_bytes": max(plan.bucket_bytes, default=None),
            }
            for mode, plan in record.plans.items()
        ]
        return {"layers": self.layer_rows(), "samples": samples, "plans": plans}

    def cases(self, strict: bool) -> list[Case]:
        record = self.record
        group = f"{record.workload.title} on {record.fabric.spec} ({record.fabric.label})"
        if record.step is None:
            return [Case(group, "profile", status="error", message=record.error or "no step was measured")]
        told = sentences.step_line(record.step, record.fabric.label)
        step_s = record.step.uninstrumented_step_s
        found = [Case(group, "profile", step_s, message=told[0].lower() + told[1:].rstrip("."))]
        for mode, plan in record.plans.items():
            told = f"predicted step {format_seconds(plan.predicted_step_s)} (simulated)"
            found.append(Case(group, f"plan of {mode}", plan.predicted_step_s, message=told))
        return found

    def trace(self) -> StepTrace:
        return self.trace_of(*profile_trace(self.record))


def _step_lines(step: StepTimes, label: Label) -> list[str]:
    """Describe the bare step, the instrumented one with its parts, and the cost of the instruments."""
    above = f"That is more than the goal of {format_percent(OVERHEAD_GOAL, 0)}, so read the parts as shares."
    return [
        sentences.step_line(step, label),
        sentences.parts_line(step),
        sentences.instruments_line(step),
        *([above] if step.overhead_ratio > OVERHEAD_GOAL else []),
        f"Medians and 95 % intervals of {step.steps} steps, after {step.warmup_steps} of warm-up that are kept apart.",
    ]


def _draw_layers(layers: Sequence[Layer], all_layers: bool, console: Console) -> None:
    shown = _top_layers(layers, all_layers)
    if console.width < NARROW_COLUMNS:
        for number, layer in shown:
            _stacked_layer(number, layer, console)
    else:
        console.print(_layer_table(shown))
    if len(shown) < len(layers):
        rest = sum(layer.share for layer in layers) - sum(layer.share for _, layer in shown)
        hidden = len(layers) - len(shown)
        say(console, f"{hidden} more layers take {format_percent(rest)} of the step: --all shows them.")
    console.print()


def _top_layers(layers: Sequence[Layer], all_layers: bool) -> list[tuple[int, Layer]]:
    """Return the (number, layer) pairs to show, in gradient-ready order; 1 is nearest the loss."""
    numbered = list(enumerate(layers, start=1))
    if all_layers or len(layers) <= TOP_LAYERS:
        return numbered
    largest = sorted(numbered, key=lambda pair: -pair[1].share)[:TOP_LAYERS]
    return sorted(largest, key=lambda pair: pair[0])


def _layer_table(shown: Iterable[tuple[int, Layer]]) -> RichTable:
    table = titled_table("Layers in gradient-ready order",
                   ("#", "right"), ("layer", "left"), ("kind", "left"), ("parameters", "right"), ("gradient", "right"),
                   ("forward", "right"), ("backward", "right"), ("ready", "right"), ("share", "right"))  # fmt: skip
    for number, layer in shown:
        table.add_row(str(number), Text(layer.name), Text(layer.kind), *layer_figures(layer))
    return table


def _stacked_layer(number: int, layer: Layer, console: Console) -> None:
    console.print(Text.assemble(f"{number} ", (layer.name, "bold"), f" {layer.kind} {format_percent(layer.share)}"))
    indented(console, f"{format_count(layer.parameters)} parameters, {format_bytes(layer.grad_bytes)} of gradients")
    indented(console, f"forward {format_seconds(layer.forward_s)}, backward {format_seconds(layer.backward_s)}, "
                       f"ready {format_seconds(layer.ready_s)}")  # fmt: skip


def _plan_rows(plans: Sequence[Plan], gap: Callable[[float | None], str]) -> list[list[str]]:
    """Return the predictions of each schedule. The gap is to the best schedule here, and controls have none."""
    best_s = min((plan.predicted_step_s for plan in plans if not is_control(plan.mode)), default=0.0)
    return [
        [
            plan.mode,
            str(len(plan.buckets)),
            format_seconds(plan.predicted_step_s),
            format_seconds(plan.predicted_exposed_s),
            gap(plan.predicted_step_s / best_s - 1 if best_s > 0 and not is_control(plan.mode) else None),
            format_bytes(max(plan.bucket_bytes, default=0)),
        ]
        for plan in plans
    ]


def _fitting(
    console: Console, title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], dispensable: Sequence[str]
) -> RichTable:
    """Return a table of these rows; columns in `dispensable` are omitted one by one until it fits the terminal."""
    for count in range(len(dispensable) + 1):
        kept = [at for at, heading in enumerate(headings) if heading not in dispensable[:count]]
        table = titled_table(title, *((headings[at], "left" if headings[at] == "mode" else "right") for at in kept))
        for row in rows:
            table.add_row(*(Text(row[at]) for at in kept))
        if spare_columns(console, table) >= 0:
            break
    return table


def step_table(step: StepTimes, label: Label) -> Table:
    """Return the step and its instrumented parts, beside the bare loop."""

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
        f"{sentences.instruments_line(step)}"
    )
    return Table(f"Where a step without communication goes ({label})", columns, rows, note, opened=True)


def plans_figure(plans: Sequence[Plan], bounds: Bounds | None) -> Figure | None:
    """Draw one bar per plan, shortest first: compute, and exposed communication. None without plans."""
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
    columns = [Column("mode", figures=False), *map(Column, ("buckets", "step", "exposed", "gap", "largest bucket"))]
    note = capital(sentences.PLAN_COLUMNS)
    return Table("Plans in figures (simulated)", columns, _plan_rows(plans, format_percent), note, opened=True)


def series_figure(record: Profile) -> Figure | None:
    """Draw every measured step of every series, in order. None if none was kept."""
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
            "Every step in figures", [Column("series", figures=False), Column("step"), Column("time")], rows, bulk=True
        ),
    )
