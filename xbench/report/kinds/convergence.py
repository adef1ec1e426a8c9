"""View of `xbench converge`: each mode's effect on accuracy in words, then the cost of its step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from rich.console import Console
from rich.text import Text

from xbench.records import Converged, Convergence, ConvergenceCurve, Label, SeedMean
from xbench.report import markup
from xbench.report.charts.axes import BELOW, marks, named, plain, points, rounded, rows_axis, whiskers
from xbench.report.console import NARROW_COLUMNS, facts, filled_table, headline, indented, say
from xbench.report.page.model import Badge, Cell, Facts, Figure, Layout, Section, Sentences, Table, Trace, columns
from xbench.report.sentences import environment_line, fabric_line, fabric_pairs, workload_pair
from xbench.report.view import Case, Detail, Row, Status, View, ends, fields
from xbench.stats.convergence import where
from xbench.text import capitalized, counted
from xbench.units import format_bytes, format_count, format_percent, format_seconds

_HEADINGS = ("mode", "accuracy [95 % CI]", "test loss", "step", "sent", "kept", "at most", "backward")
_NOTE = (
    "sent: by a worker and step, as the network device counted; kept: bytes of activations that autograd holds for "
    "backward, mean over workers and steps, and at most; backward: floating-point operations, counted."
)
SEEDS = "Thick: the mean over seeds. Thin: each seed."
CURVES: Layout = {"legend": BELOW, "hovermode": "closest", "margin": {"t": 8}}
SMOOTH = 40
"""Approximate number of points of a training-loss curve; each is the mean over a group of steps."""


class ConvergenceView(View[Convergence]):
    """Accuracy first, then loss, then costs."""

    name = "Convergence"
    cut_short = "the run ended early"
    aftermath = " What was finished is below."

    def title(self) -> str:
        return f"{self.record.workload.title} on {self.record.dataset.name}, {self.record.fabric.spec}"

    def subtitle(self) -> str:
        return f"{super().subtitle()} · reference {self.record.reference}"

    def headline(self) -> list[str]:
        return verdicts(self.record) or ["No mode was trained."]

    def answer(self) -> list[str]:
        said = [line for line in verdicts(self.record) if " FAILED: " not in line]
        return said or ["No mode was trained to the end."]

    def labels(self) -> list[Label]:
        return [self.record.label]

    def failures(self) -> list[str]:
        return [failed(mode) for mode in self.record.modes.values() if mode.status == "failed"]

    def draw(self, console: Console, detail: Detail) -> None:
        record = self.record
        self.draw_top(console)
        headline(console, verdicts(record))
        console.print()
        seeds = counted(len(record.training.seeds), "seed")
        title = f"Means over {seeds}; a step ({record.label}) and what it costs a worker"
        rows = [_cells(mode, record) for mode in record.modes.values()]
        if console.width >= NARROW_COLUMNS:
            console.print(filled_table(title, _HEADINGS, rows, ("mode",)))
        else:
            say(console, title, "italic")
            for name, *cells in rows:
                console.print(Text(name, style="bold"))
                indented(console, ", ".join(f"{h} {cell}" for h, cell in zip(_HEADINGS[1:], cells, strict=True)))
        say(console, _NOTE, "dim")
        for sentence in by_formula(record):
            say(console, sentence, "dim")
        console.print()
        facts(console, [
            ("data", self.data_line()),
            ("training", self.training_line()),
            *self.setup(),
            ("made by", record.command),
        ], record.warnings)  # fmt: skip

    def setup(self) -> list[tuple[str, str]]:
        record = self.record
        machine = ("machine", environment_line(record.environment))
        return [workload_pair(record.workload), ("fabric", fabric_line(record.fabric)), machine]

    def data_line(self, classes: str = "") -> str:
        data = self.record.dataset
        return f"{data.name}, {data.train} to train and {data.test} to test{classes}: {data.source}"

    def training_line(self) -> str:
        training = self.record.training
        return (
            f"{counted(training.steps, 'step')} ({training.epochs:.3g} epochs, "
            f"{counted(training.samples, 'sample')}) a seed, "
            f"{counted(len(training.seeds), 'seed')}, "
            f"{training.optimizer} with lr {training.lr:g} falling to zero, batch {training.batch_size} a worker; "
            "equal for all modes"
        )

    def markdown(self) -> list[str]:
        record, data = self.record, self.record.dataset
        samples = f"{data.name}, {data.train} to train, {data.test} to test"
        pairs = [("data", samples), ("training", self.training_line()), *self.setup()]
        headings = ["mode", "accuracy [95 % CI]", "test loss", f"step ({record.label})", "sent a step and worker"]
        return [
            f"### {markup.plain(record.workload.title)} on {markup.code(record.fabric.spec)} ({record.fabric.label})",
            markup.quoted(self.incomplete()),
            markup.lead(self.headline()),
            markup.table(headings, [_markdown_row(mode, record) for mode in record.modes.values()]),
            markup.warning_list(record.warnings),
            markup.details("Environment", markup.facts(pairs)),
        ]

    def sections(self) -> list[Section]:
        record = self.record
        accuracy, formula = accuracy_figure(record), by_formula(record)
        pairs = [
            ("data", self.data_line(f", {record.dataset.classes} classes")),
            ("training", self.training_line()),
            workload_pair(record.workload),
            *fabric_pairs(record.fabric),
        ]
        rows = [[mode.mode, *_costs(mode)] for mode in record.modes.values()]
        headings = columns(("mode", "step", "sent", "kept", "at most", "backward"), ("mode",))
        note = ". ".join(map(capitalized, _NOTE.split("; ")))
        costs = Table(f"A step ({record.label}), and what it costs a worker", headings, rows, note, opened=True)
        curves = [figure for figure in (curves_figure(record), losses_figure(record)) if figure is not None]
        return [
            Section("accuracy", "Accuracy in the end", [accuracy] if accuracy else []),
            Section("curves", "While it trained", curves),
            Section("costs", "What a step costs", [costs, *([Sentences(formula)] if formula else [])]),
            Section("basis", "What it rests on", [Facts(pairs)]),
        ]

    def tables(self) -> dict[str, list[Row]]:
        record = self.record
        of = {
            **fields(record, "label", "created", "complete"),
            "workload": record.workload.title,
            "fabric": record.fabric.spec,
            "ranks": record.fabric.world_size,
        }
        steps, epochs = [], []
        for curve in record.curves:
            which = {**of, "mode": curve.mode, "seed": curve.seed}
            for number, loss in enumerate(curve.train_loss):
                took_s = curve.steps_s[number] if number < len(curve.steps_s) else None
                steps.append({**which, "step": number, "train_loss": loss, "step_s": took_s})
            for number, (loss, accuracy) in enumerate(zip(curve.test_loss, curve.test_accuracy, strict=False), start=1):
                epochs.append({**which, "epoch": number, "test_loss": loss, "test_accuracy": accuracy})
        return {"steps": steps, "epochs": epochs, "modes": [{**of, **_row(mode)} for mode in record.modes.values()]}

    def cases(self, strict: bool) -> list[Case]:
        record = self.record
        group = f"{record.workload.title} on {record.fabric.spec} ({record.label})"
        found = []
        for mode in record.modes.values():
            if mode.status != "ok" or mode.accuracy is None:
                status: Status = "skipped" if mode.status == "not trained" else "error"
                found.append(Case(group, mode.mode, None, status, failed(mode)))
                continue
            word = "reference" if mode.mode == record.reference else where(mode.difference)
            share = format_percent(mode.accuracy.mean, 2)
            said = f"accuracy {share}{fewer_seeds(mode, record)} ({record.label}): {word}"
            found.append(Case(group, mode.mode, mode.step_s, message=said))
        return found


def _row(mode: Converged) -> Row:
    return {
        **fields(mode, "mode", "status", "error", "verdict"),
        "accuracy": mode.accuracy.mean if mode.accuracy else None,
        **ends("accuracy", mode.accuracy.ci95 if mode.accuracy else None),
        "test_loss": mode.test_loss.mean if mode.test_loss else None,
        **fields(mode, "step_s", "sent_bytes", "activation_bytes", "backward_flops"),
    }


def _markdown_row(mode: Converged, record: Convergence) -> list[str]:
    if mode.status != "ok" or mode.accuracy is None:
        return [markup.code(mode.mode), markup.strong(without_accuracy(mode)), "–", "–", "–"]
    span = f" [{', '.join(format_percent(end, 2) for end in mode.accuracy.ci95)}]" if mode.accuracy.ci95 else ""
    return [
        markup.code(mode.mode),
        f"{format_percent(mode.accuracy.mean, 2)}{span}{fewer_seeds(mode, record)}",
        f"{mode.test_loss.mean:.3f}" if mode.test_loss else "–",
        format_seconds(mode.step_s),
        format_bytes(mode.sent_bytes),
    ]


def verdicts(record: Convergence) -> list[str]:
    """Return one sentence per mode: its accuracy against the reference's interval, or why it has none."""
    base = record.modes[record.reference]
    said: list[str] = []
    if base.accuracy is not None:
        interval = f", 95 % CI {_points(*base.accuracy.ci95)}" if base.accuracy.ci95 is not None else ""
        said.append(
            f"{record.reference}, the reference, ends with an accuracy of "
            f"{format_percent(base.accuracy.mean, 2)}{interval}."
        )
    for mode in record.modes.values():
        if mode.status == "failed":
            said.append(f"{failed(mode)}.")
        elif mode.mode != record.reference and mode.accuracy is not None:
            said.append(
                f"{mode.mode} ends with {format_percent(mode.accuracy.mean, 2)}: {_where(mode, record.reference)}."
            )
    return said


def failed(mode: Converged) -> str:
    """Say why a mode has no accuracy: it failed, or was not trained."""
    if mode.status == "not trained":
        return f"{mode.mode} was not trained"
    return f"{mode.mode} FAILED: {mode.error or 'no reason was recorded'}"


def _where(mode: Converged, reference: str) -> str:
    """Format what the seeds' differences show, and what they could have shown."""
    if mode.difference is None:
        return f"{reference} has no accuracy to compare with"
    apart = f"{100 * mode.difference.mean:+.2f} points"
    if mode.difference.ci95 is None:
        return f"{apart} seed by seed; one seed has no interval"
    low, high = mode.difference.ci95
    if low == high == 0:
        return f"the same as {reference} in every seed"
    apart += f" [{100 * low:+.2f}, {100 * high:+.2f}] seed by seed"
    if low > 0 or high < 0:
        return f"{'above' if low > 0 else 'below'} {reference} ({apart})"
    if mode.detectable is None:
        return f"no difference from {reference} is shown ({apart})"
    found = f"{100 * mode.detectable:.2f} points would be found in 80 of 100 runs"
    return f"no difference from {reference} is shown ({apart}; {found})"


def _cells(mode: Converged, record: Convergence) -> list[str]:
    if mode.accuracy is None or mode.test_loss is None:
        return [mode.mode, without_accuracy(mode), *["–"] * 6]
    interval = f" [{_points(*mode.accuracy.ci95)}]" if mode.accuracy.ci95 is not None else ""
    return [
        mode.mode,
        f"{format_percent(mode.accuracy.mean, 2)}{interval}{fewer_seeds(mode, record)}",
        f"{mode.test_loss.mean:.3f}",
        *_costs(mode),
    ]


def _costs(mode: Converged) -> list[str]:
    """Format the time, traffic, memory and computation of a mode's step."""
    sizes = (mode.sent_bytes, mode.activation_bytes, mode.activation_peak_bytes)
    flops = f"{format_count(round(mode.backward_flops))}FLOP" if mode.backward_flops is not None else "–"
    return [format_seconds(mode.step_s), *map(format_bytes, sizes), flops]


def by_formula(record: Convergence) -> list[str]:
    """Return one sentence per mode that omits gradients: its predicted cost, and the error of the prediction."""
    found = []
    for mode in record.modes.values():
        formula = mode.formula
        if formula is None:
            continue
        flops = f"{format_count(round(formula.backward_flops))}FLOP"
        quantities = (
            ("sent", formula.sent_bytes, mode.sent_bytes, format_bytes(formula.sent_bytes)),
            ("kept", formula.activation_bytes, mode.activation_bytes, format_bytes(formula.activation_bytes)),
            ("backward", formula.backward_flops, mode.backward_flops, flops),
        )
        told = "; ".join(
            f"{name} {shown}{_beside(measured / expected - 1) if measured and expected else ''}"
            for name, expected, measured, shown in quantities
        )
        found.append(f"{mode.mode} by the formula (simulated): {told}.")
    return found


def _beside(share: float) -> str:
    if abs(share) < 0.0005:
        return ", as measured"
    return f", measured {100 * abs(share):.1f} % {'more' if share > 0 else 'less'}"


def _points(low: float, high: float) -> str:
    return f"{100 * low:.2f} to {100 * high:.2f}"


# --- charts: accuracy and loss of each mode, and the cost of its step -------------------------------------------------


def without_accuracy(mode: Converged) -> str:
    """Return the cell of a table for a mode without an accuracy."""
    return "not trained" if mode.status == "not trained" else "FAILED"


def fewer_seeds(mode: Converged, record: Convergence) -> str:
    """Return ' (2 of 3 seeds)' for a mode that an interrupted run trained from fewer seeds; '' for any other."""
    trained, asked = sum(curve.mode == mode.mode for curve in record.curves), len(record.training.seeds)
    return "" if trained >= asked else f" ({trained} of {counted(asked, 'seed')})"


def accuracy_figure(record: Convergence) -> Figure | None:
    """Draw the mean accuracy over seeds with its interval, and every seed's own. None if no mode finished."""
    shown = [(mode, mode.accuracy) for mode in record.modes.values() if mode.accuracy is not None]
    if not shown:
        return None
    names = [named(mode) for mode in record.modes]
    curves = [curve for curve in record.curves if curve.test_accuracy]
    seeds = points(
        [rounded(100 * curve.test_accuracy[-1]) for curve in curves],
        [named(curve.mode) for curve in curves],
        [f"{plain(curve.mode)}, seed {curve.seed}: {100 * curve.test_accuracy[-1]:.2f} %" for curve in curves],
        name="one seed",
        marker={"color": "--c5", "symbol": "line-ns-open", "size": 14, "line": {"width": 2}},
    )
    means = points(
        [rounded(100 * accuracy.mean) for _, accuracy in shown],
        [named(mode.mode) for mode, _ in shown],
        [f"<b>{plain(mode.mode)}</b> {_accuracy(mode, accuracy, record)}" for mode, accuracy in shown],
        name="mean, 95 % CI",
        error_x=whiskers(((one.mean, one.ci95 or (one.mean, one.mean)) for _, one in shown), 100),
        marker={"color": "--c1", "size": 11},
    )
    band = _band(record)
    told = [f"Means over {counted(len(record.training.seeds), 'seed')}."]
    if any(one.ci95 for _, one in shown):
        told.append("Whiskers are Student's 95 % intervals.")
    if band:
        told.append(f"The shaded band is that of {record.reference}, the reference.")
    return Figure(
        key="final-accuracy",
        title="Accuracy on data that was not trained on",
        labels=[record.label],
        told=" ".join(told),
        traces=[seeds, means],
        layout={
            "xaxis": {"title": {"text": "accuracy [%]"}},
            "yaxis": rows_axis(names),
            "shapes": band,
            "legend": BELOW,
            "margin": {"t": 8},
        },
        height=140 + 46 * len(names),
        table=_accuracies(record),
    )


def _band(record: Convergence) -> list[Layout]:
    base = record.modes.get(record.reference)
    if base is None or base.accuracy is None or base.accuracy.ci95 is None:
        return []
    low, high = (rounded(100 * end) for end in base.accuracy.ci95)
    return [{"type": "rect", "x0": low, "x1": high, "yref": "paper", "y0": 0, "y1": 1, "layer": "below",
             "fillcolor": "--c6", "opacity": 0.18, "line": {"width": 0}}]  # fmt: skip


def curves_figure(record: Convergence) -> Figure | None:
    """Draw test accuracy by epoch: the mean over seeds, and each seed behind it. None without curves."""
    traces = _traces(record, lambda curve: [100 * value for value in curve.test_accuracy], group=1)
    if not traces:
        return None
    across = {"title": {"text": "epoch"}, "dtick": 1 if record.training.epochs <= 12 else None}
    return Figure(
        key="test-accuracy",
        title="Test accuracy by epoch",
        labels=[record.label],
        told=SEEDS,
        traces=traces,
        layout={"xaxis": across, "yaxis": {"title": {"text": "accuracy [%]"}}, **CURVES},
        height=420,
        table=_epochs(record),
    )


def losses_figure(record: Convergence) -> Figure | None:
    """Draw training loss by step, averaged over groups of steps. None without curves."""
    longest = max((len(curve.train_loss) for curve in record.curves), default=0)
    group = max(1, longest // SMOOTH)
    traces = _traces(record, lambda curve: curve.train_loss, group=group)
    if not traces:
        return None
    return Figure(
        key="train-loss",
        title="Training loss by step",
        labels=[record.label],
        told=SEEDS + (f" A point is the mean of {group} steps." if group > 1 else ""),
        traces=traces,
        layout={
            "xaxis": {"title": {"text": "step"}}, "yaxis": {"title": {"text": "loss"}, "rangemode": "tozero"}, **CURVES
        },
        height=420,
        table=_losses(record, group),
    )  # fmt: skip


def _traces(record: Convergence, values: Callable[[ConvergenceCurve], Sequence[float]], group: int) -> list[Trace]:
    made: list[Trace] = []
    for mode, mark in marks(record.modes).items():
        curves = [grouped(values(curve), group) for curve in record.curves if curve.mode == mode]
        curves = [curve for curve in curves if curve]
        if not curves:
            continue
        length = min(map(len, curves))
        mean = [fmean(curve[place] for curve in curves) for place in range(length)]
        at = [group * (place + 1) for place in range(length)]
        common: Trace = {"type": "scatter", "legendgroup": plain(mode), "x": at}
        thin = {"mode": "lines", "showlegend": False, "hoverinfo": "skip", "opacity": 0.35,
                "line": {"color": mark.colour, "width": 1}}  # fmt: skip
        made += [{**common, **thin, "y": list(map(rounded, curve[:length]))} for curve in curves if len(curves) > 1]
        made.append({
            **common, "mode": "lines+markers" if length <= SMOOTH // 2 else "lines",
            "name": named(mode).replace("<br>", ""), "y": list(map(rounded, mean)),
            "line": {"color": mark.colour, "dash": mark.dash, "width": 3},
            "marker": {"color": mark.colour, "symbol": mark.symbol, "size": 8},
            "hovertemplate": "<b>%{fullData.name}</b><br>%{x}: %{y:.4~g}<extra></extra>",
        })  # fmt: skip
    return made


def grouped(values: Sequence[float], group: int) -> list[float]:
    """Return the mean of each whole group of values."""
    whole = len(values) // group * group
    return [fmean(values[start : start + group]) for start in range(0, whole, group)]


def _accuracies(record: Convergence) -> Table:
    rows: list[list[Cell]] = []
    for mode in record.modes.values():
        if mode.accuracy is None:
            badge = Badge(without_accuracy(mode), "failed" if mode.status == "failed" else "unknown")
            rows.append([mode.mode, "–", "–", "–", badge])
            continue
        apart = "–"
        if mode.difference is not None:
            apart = f"{100 * mode.difference.mean:+.2f}".replace("-", "−")
            if mode.difference.ci95 is not None:
                low, high = mode.difference.ci95
                apart += f" [{100 * low:+.2f}, {100 * high:+.2f}]".replace("-", "−")
        verdict = "reference" if mode.mode == record.reference else where(mode.difference)
        loss = f"{mode.test_loss.mean:.3f}" if mode.test_loss is not None else "–"
        rows.append([mode.mode, _accuracy(mode, mode.accuracy, record), apart, loss, Badge.of(verdict)])
    verdicts = "seed by seed"
    apart = f"points from {record.reference}, seed by seed [95 % CI]"
    headings = columns(("mode", "accuracy [95 % CI]", apart, "test loss", verdicts), ("mode", verdicts))
    return Table("Accuracy in figures", headings, rows, opened=True)


def _accuracy(mode: Converged, accuracy: SeedMean, record: Convergence) -> str:
    span = "" if accuracy.ci95 is None else f" [{', '.join(f'{100 * end:.2f}' for end in accuracy.ci95)}]"
    return f"{100 * accuracy.mean:.2f} %{span}{fewer_seeds(mode, record)}"


def _epochs(record: Convergence) -> Table:
    most = max((len(curve.test_accuracy) for curve in record.curves), default=0)
    rows: list[list[Cell]] = []
    for curve in record.curves:
        known = [f"{100 * share:.2f} %" for share in curve.test_accuracy]
        rows.append([curve.mode, str(curve.seed), *known, *["–"] * (most - len(known))])
    headings = columns(("mode", "seed", *(f"epoch {number}" for number in range(1, most + 1))), ("mode",))
    return Table("Test accuracy by seed and epoch", headings, rows, bulk=True)


def _losses(record: Convergence, group: int) -> Table:
    """Return one row per group of steps and one column per mode, with means over the seeds."""
    means: dict[str, list[float]] = {}
    for mode in record.modes:
        curves = [grouped(curve.train_loss, group) for curve in record.curves if curve.mode == mode]
        means[mode] = [fmean(several) for several in zip(*curves, strict=False)]
    longest = max(map(len, means.values()), default=0)
    rows: list[list[Cell]] = [
        [str(group * (place + 1)), *(f"{of[place]:.4f}" if place < len(of) else "–" for of in means.values())]
        for place in range(longest)
    ]
    return Table("Training loss in figures, means over seeds", columns(("step", *means)), rows, bulk=True)
