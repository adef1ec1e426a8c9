"""Charts of a convergence record: accuracy and loss of each mode, and the cost of its step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from xbench.records import Converged, Convergence, ConvergenceCurve, SeedMean
from xbench.report.charts.axes import BELOW, marks, named, plain, points, rounded, rows_axis, whiskers
from xbench.report.page.model import Badge, Cell, Figure, Layout, Table, Trace, columns
from xbench.stats.convergence import where
from xbench.text import counted
from xbench.units import format_bytes, format_count, format_seconds

SEEDS = "Thick: the mean over seeds. Thin: each seed."
CURVES: Layout = {"legend": BELOW, "hovermode": "closest", "margin": {"t": 8}}
SMOOTH = 40
"""Approximate number of points of a training-loss curve; each is the mean over a group of steps."""


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


def costs_table(record: Convergence) -> Table:
    """Return time, traffic, memory and computation of a step, one row per mode."""
    rows: list[list[Cell]] = [
        [
            mode.mode,
            format_seconds(mode.step_s),
            format_bytes(mode.sent_bytes),
            format_bytes(mode.activation_bytes),
            format_bytes(mode.activation_peak_bytes),
            f"{format_count(mode.backward_flops)}FLOP" if mode.backward_flops is not None else "–",
        ]
        for mode in record.modes.values()
    ]
    headings = columns(("mode", "step", "sent", "kept", "at most", "backward"), ("mode",))
    note = (
        "Sent: by a worker and step, as the network device counted. Kept: bytes of activations that autograd holds for "
        "backward, mean over workers and steps, and at most. Backward: floating-point operations, counted."
    )
    return Table(f"A step ({record.label}), and what it costs a worker", headings, rows, note, opened=True)
