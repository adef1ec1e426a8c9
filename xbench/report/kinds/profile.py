"""Views of a profile and of a traced run: the step, its layers, the cost of communication, and the plans."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.text import Text

from xbench.records import Bounds, Label, Layer, Plan, Profile, StepTimes
from xbench.records.comparison import Traced
from xbench.report import markup, sentences, view
from xbench.report.advice import Advice, of_profile
from xbench.report.answer import is_control, layer_figures
from xbench.report.charts.axes import BELOW, marks, named, plain, rows_axis, time_axis, time_unit, vertical_line
from xbench.report.charts.layers import COST_HEADINGS, cost_rows, link_cost, waterfall
from xbench.report.charts.steps import profile_steps
from xbench.report.charts.text import draw_profile_gpu, gpu_blocks
from xbench.report.charts.trace import profile_trace
from xbench.report.console import NARROW_COLUMNS, as_text, fact, filled_table, fitting_table, indented, say, say_next
from xbench.report.page.model import Block, Cell, Facts, Figure, Section, Sentences, Table, Trace, columns
from xbench.stats.steps import short_step_caution
from xbench.text import capitalized, counted
from xbench.units import format_bytes, format_percent, format_seconds, format_signed_percent

TOP_LAYERS = 10
OVERHEAD_GOAL = 0.02
CLOSE = 0.05
"""A prediction of the traced step further off than this is no basis for others."""

PLAN_HEADINGS = ("mode", "buckets", "step", "exposed", "gap", "largest")


class ProfileView(view.MeasuredView[Profile]):
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

    def hidden_tables(self) -> list[str]:
        cost = self.record.cost_model
        return ["the cost of each collective"] if cost is not None and cost.points else []

    def advice(self) -> list[Advice]:
        return of_profile(self.record)

    def paste(self) -> list[Block]:
        return view.following([one for one in self.advice() if one.command is not None])

    def draw(self, console: Console, detail: view.Detail) -> None:
        record, found = self.record, self.advice()
        self.draw_top(console)
        for sentence in self.answer_before_plans():
            say(console, sentence, "bold")
        if found:
            say(console, found[0].told, "bold")
            say_next(console, found[1:])
        for line in self.stragglers():
            say(console, line, "yellow")
        if found or self.stragglers():
            console.print()
        say(console, sentences.workload_line(record.workload), "" if found else "bold")
        console.print()
        if record.step is not None:
            for sentence in self.step_sentences(record.step):
                say(console, sentence)
            console.print()
        if record.layers:
            _draw_layers(record.layers, detail.all_layers, console)
        if record.plans:
            rows = _plan_rows(list(record.plans.values()), format_signed_percent)
            title = "Plans and their predicted steps (simulated)"
            console.print(fitting_table(console, title, PLAN_HEADINGS, rows, ("mode",), ("largest", "exposed")))
            say(console, sentences.PLAN_COLUMNS, "dim")
            for note in self.plan_notes():
                say(console, note)
            for caution in self.cautions():
                say(console, caution, "yellow")
        cost = record.cost_model
        if detail.verbose and cost is not None and cost.points:
            console.print()
            title = f"Cost of one {cost.collective} ({record.fabric.label})"
            dispensable = ("times", "wait", "95 % CI")
            console.print(fitting_table(console, title, COST_HEADINGS, cost_rows(cost), (), dispensable))
            say(console, sentences.COST_COLUMNS, "dim")
            say(console, sentences.waits_line(cost))
        draw_profile_gpu(record.gpu, record.gpu_missing, console)
        console.print()
        if record.bounds is not None:
            fact(console, "bounds", sentences.bounds_line(record.bounds))
        self.draw_bottom(console, verbose=detail.verbose)

    def answer_before_plans(self) -> list[str]:
        """Return what is said before the recommended plan."""
        return []

    def step_sentences(self, step: StepTimes) -> list[str]:
        """Describe the bare step, the instrumented one with its parts, and the cost of the instruments."""
        above = f"That is more than the goal of {format_percent(OVERHEAD_GOAL, 0)}, so read the parts as shares."
        return [
            sentences.step_line(step, self.record.fabric.label),
            sentences.parts_line(step),
            sentences.instruments_line(step),
            *([above] if step.overhead_ratio > OVERHEAD_GOAL else []),
            f"Medians and 95 % intervals of {counted(step.steps, 'step')}, after {step.warmup_steps} of warm-up that "
            "are kept apart.",
        ]

    def plan_notes(self) -> list[str]:
        return [f"{plan.mode}: {plan.note}" for plan in self.record.plans.values() if plan.note]

    def cautions(self) -> list[str]:
        return short_step_caution(plan.predicted_step_s for plan in self.record.plans.values())

    def step_told(self, step: StepTimes) -> str:
        """Return the sentences of the step in Markdown."""
        parts = f"{sentences.parts_line(step)} {sentences.instruments_line(step)}"
        return f"**{sentences.step_line(step, self.record.fabric.label)}** {parts}"

    def step_table(self, step: StepTimes) -> Table:
        """Return the table of the step's parts."""
        return step_table(step, self.record.fabric.label)

    def markdown(self) -> list[str]:
        record, step = self.record, self.record.step
        told = "**No step was measured.**"
        if step is not None:
            told = self.step_told(step)
        plans = [
            [markup.code(mode), str(len(plan.buckets)), format_seconds(plan.predicted_step_s),
             format_seconds(plan.predicted_exposed_s)]
            for mode, plan in record.plans.items()
        ]  # fmt: skip
        return [
            self.markdown_title(record.workload.title),
            markup.quoted(self.incomplete()),
            markup.advice(self.advice()),
            markup.bullets(self.stragglers(), bold=True),
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
            self.step_table(record.step) if record.step is not None else None,
            waterfall(record.layers, record.cost_model, label),
            link_cost(record.cost_model, label),
        ]
        planned = [*([plans] if plans else []), *view.caution_blocks(self.cautions())]
        planned += [Sentences(notes)] if notes else []
        bounds = [("bounds", sentences.bounds_line(record.bounds))] if record.bounds is not None else []
        pairs = [sentences.workload_pair(record.workload), *bounds, *self.link_facts()]
        gpus = gpu_blocks([("profile", record.gpu)], record.gpu_missing, label)
        return [
            Section("plans", "Plans", planned),
            Section(
                "step", "One step on a timeline", [*view.caution_blocks(self.stragglers()), *profile_steps(record)]
            ),
            Section("layers", "Layers and the link", [block for block in found if block is not None]),
            Section("samples", "Every sample", [series] if series else []),
            Section("basis", "What it rests on", [Facts(pairs), *gpus]),
        ]

    def tables(self) -> dict[str, list[view.Row]]:
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
                **view.fields(plan, "predicted_step_s", "predicted_exposed_s"),
                "buckets": len(plan.buckets),
                "largest_bucket_bytes": max(plan.bucket_bytes, default=None),
            }
            for mode, plan in record.plans.items()
        ]
        return {"layers": self.layer_rows(), "samples": samples, "plans": plans}

    def cases(self, strict: bool) -> list[view.Case]:
        record = self.record
        group = f"{record.workload.title} on {record.fabric.spec} ({record.fabric.label})"
        if record.step is None:
            return [view.Case(group, "profile", status="error", message=record.error or "no step was measured")]
        told = sentences.step_line(record.step, record.fabric.label)
        step_s = record.step.uninstrumented_step_s
        found = [view.Case(group, "profile", step_s, message=told[0].lower() + told[1:].rstrip("."))]
        for mode, plan in record.plans.items():
            told = f"predicted step {format_seconds(plan.predicted_step_s)} (simulated)"
            found.append(view.Case(group, f"plan of {mode}", plan.predicted_step_s, message=told))
        return found

    def trace(self) -> view.StepTrace:
        return self.trace_of(*profile_trace(self.record))


def _draw_layers(layers: Sequence[Layer], all_layers: bool, console: Console) -> None:
    shown = view.longest_layers(layers, len(layers) if all_layers else TOP_LAYERS)
    if console.width < NARROW_COLUMNS:
        for number, layer in shown:
            parameters, gradient, forward, backward, ready, share = layer_figures(layer)
            console.print(Text.assemble(f"{number} ", (layer.name, "bold"), f" {layer.kind} {share}"))
            indented(console, f"{parameters} parameters, {gradient} of gradients")
            indented(console, f"forward {forward}, backward {backward}, ready {ready}")
    else:
        headings = ("#", "layer", "kind", "parameters", "gradient", "forward", "backward", "ready", "share")
        rows = [[str(number), layer.name, layer.kind, *layer_figures(layer)] for number, layer in shown]
        console.print(filled_table("Layers in gradient-ready order", headings, rows, ("layer", "kind")))
    if len(shown) < len(layers):
        rest = sum(layer.share for layer in layers) - sum(layer.share for _, layer in shown)
        hidden = len(layers) - len(shown)
        more = "1 more layer takes" if hidden == 1 else f"{hidden} more layers take"
        say(console, f"{more} {format_percent(rest)} of the step: --all shows {'it' if hidden == 1 else 'them'}.")
    console.print()


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


def step_table(step: StepTimes, label: Label) -> Table:
    """Return the step and its instrumented parts, beside the bare loop."""
    earlier = [("micro-steps before the last", step.accumulate_s, None)] if step.micro_steps > 1 else []
    parts = (
        *([("input", step.input_s, None)] if step.input_s else []),
        *earlier,
        ("forward", step.forward_s, None),
        ("backward", step.backward_s, None),
        ("optimizer", step.optimizer_s, None),
        ("step, instrumented", step.step_s, step.step_ci95),
        ("step, bare", step.uninstrumented_step_s, step.uninstrumented_ci95),
    )
    rows = [
        [name, format_seconds(time_s), " – ".join(map(format_seconds, ci95)) if ci95 is not None else "–"]
        for name, time_s, ci95 in parts
    ]
    note = (
        f"Medians of {counted(step.steps, 'step')}, after {step.warmup_steps} of warm-up that are kept apart. "
        f"{sentences.instruments_line(step)}"
    )
    title = f"Where a step without communication goes ({label})"
    return Table(title, columns(("part", "time", "95 % CI"), ("part",)), rows, note, opened=True)


def plans_figure(plans: Sequence[Plan], bounds: Bounds | None) -> Figure | None:
    """Draw one bar per plan, shortest first: compute, and exposed communication. None without plans."""
    order = sorted(plans, key=lambda plan: plan.predicted_step_s)
    if not order:
        return None
    unit = time_unit(order[-1].predicted_step_s)
    names = [named(plan.mode) for plan in order]
    said = [
        f"<b>{plain(plan.mode)}</b> (simulated)<br>{format_seconds(plan.predicted_step_s)} a step, of which "
        f"{format_seconds(plan.predicted_exposed_s)} exposed<br>{counted(len(plan.buckets), 'bucket')}"
        for plan in order
    ]
    common: Trace = {"type": "bar", "orientation": "h", "y": names, "customdata": said,
                     "hovertemplate": "%{customdata}<extra></extra>"}  # fmt: skip
    shapes = []
    if bounds is not None:
        line = vertical_line(unit.of(bounds.backward_overlap_bound_s), color="--c2", width=2, dash="dash")
        shapes = [{**line, "showlegend": True, "name": "bound, next forward waits (simulated)"}]
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
            "yaxis": rows_axis(names),
            "shapes": shapes,
            "legend": BELOW,
            "margin": {"t": 8},
        },
        height=128 + 34 * len(names),
        table=Table(
            "Plans in figures (simulated)",
            columns(("mode", "buckets", "step", "exposed", "gap", "largest bucket"), ("mode",)),
            _plan_rows(order, format_percent),
            capitalized(sentences.PLAN_COLUMNS),
            opened=True,
        ),
    )  # fmt: skip


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
        table=Table("Every step in figures", columns(("series", "step", "time"), ("series",)), rows, bulk=True),
    )


class TracedView(ProfileView):
    """One traced run: its step, what of it is exposed, and what any schedule could remove."""

    name = "Traced run"

    def headline(self) -> list[str]:
        return [*self.answer_before_plans(), *(one.told for one in self.advice() if one.command is None)]

    @property
    def traced(self) -> Traced:
        """The traced run."""
        assert self.record.traced is not None  # this view is of no other profile
        return self.record.traced

    def answer_before_plans(self) -> list[str]:
        """Say what the traced step takes, what of it is exposed, and how much of that any schedule could remove."""
        record, traced, step = self.record, self.traced, self.record.step
        if step is None:
            return []
        took = sentences.seconds_text(step.step_s, step.step_ci95)
        steps = f"{counted(len(traced.periods_s), 'step')} of {counted(traced.ranks, 'rank')}"
        exposed = f"In {_share(traced.exposed_s, step.step_s)} of it a collective ran and nothing computed"
        waited = f"The step waited for its gradients during {_share(traced.waited_s, step.step_s)}."
        found = [
            f"The traced step takes {took} (real, {steps} of {record.fabric.world_size}).",
            f"{exposed} (exposed communication). {waited}",
        ]
        if record.bounds is not None:
            removable_s = max(0.0, step.step_s - record.bounds.overlap_bound_s)
            found.append(f"No schedule can remove more than {_share(removable_s, step.step_s)} (simulated).")
        return found

    def step_sentences(self, step: StepTimes) -> list[str]:
        """Describe the parts of the traced step, how close the model comes to it, and the slow-down of kernels."""
        traced, plans = self.traced, self.record.plans
        found = [
            f"Without waiting it takes {format_seconds(step.uninstrumented_step_s)} (real): forward "
            f"{format_seconds(step.forward_s)}, backward {format_seconds(step.backward_s)}, and "
            f"{format_seconds(step.optimizer_s)} for the optimizer and all else."
        ]
        if traced.collective == "all_reduce" and "ddp" in plans:  # the run was DDP's
            gap = plans["ddp"].predicted_step_s / step.step_s - 1
            sure = "" if abs(gap) <= CLOSE else ": too far off to trust its other predictions"
            off = f"{format_signed_percent(gap)} off the traced one{sure}"
            found.append(f"For the traced buckets the model's step is {off}.")
        slower = traced.compute_slowdown
        if slower is not None:
            found.append(f"Kernels beside a collective took {slower:.2f} times as long as alone.")
        return found

    def step_told(self, step: StepTimes) -> str:
        return " ".join(self.step_sentences(step))

    def step_table(self, step: StepTimes) -> Table:
        parts = (
            ("forward", step.forward_s),
            ("backward", step.backward_s),
            ("optimizer and all else", step.optimizer_s),
            ("step without its wait for gradients", step.uninstrumented_step_s),
            ("step as traced", step.step_s),
        )
        rows = [[name, format_seconds(time_s)] for name, time_s in parts]
        title = f"Where the traced step goes ({self.record.fabric.label})"
        return Table(title, columns(("part", "time"), ("part",)), rows, opened=True)

    def advice(self) -> list[Advice]:
        """Return the recommendation, and the command that shows the buckets: nothing here can be run to prove it."""
        return [
            *super().advice(),
            Advice("For the buckets, other links and what to paste:", f"xbench plan {shlex.quote(self.place)}"),
        ]

    def draw(self, console: Console, detail: view.Detail) -> None:
        super().draw(console, detail)
        if detail.verbose:
            table = bucket_table(self.traced)
            say(console, f"\n{table.title}")
            console.print(as_text(table))

    def markdown(self) -> list[str]:
        title, *rest = super().markdown()
        return [title, *self.answer_before_plans(), *rest]

    def sections(self) -> list[Section]:
        step = self.record.step
        said = Sentences(self.step_sentences(step) if step is not None else [])
        blocks: list[Block] = [said, bucket_table(self.traced)]
        return [Section("traced", "The traced step", blocks), *super().sections()]


def bucket_table(traced: Traced) -> Table:
    """The collectives of a step: after which gradient each was launched, its bytes, and its time."""
    rows = [
        [str(number), str(one.gradients), format_bytes(one.nbytes), format_seconds(one.launched_s),
         format_seconds(one.duration_s)]
        for number, one in enumerate(traced.buckets, start=1)
    ]  # fmt: skip
    note = "launched: since the first gradient, by the host; ran: waiting for peers included, shortest rank; medians."
    title = f"Collectives of a traced step ({traced.collective}, real)"
    return Table(title, columns(["#", "after gradient", "bytes", "launched", "ran"]), rows, note, opened=True)


def _share(seconds: float, whole_s: float) -> str:
    return f"{format_seconds(seconds)} ({format_percent(seconds / whole_s)})"
