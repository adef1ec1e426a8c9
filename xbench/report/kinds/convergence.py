"""`xbench converge` in the terminal: what each mode does to accuracy, in words; then beside it what a step costs."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from xbench.records import Converged, Convergence, MeanOf, WorkFormula
from xbench.report.console import NARROW_COLUMNS, fact, indented, say, titled_table
from xbench.report.sentences import environment_line, fabric_line, workload_line
from xbench.units import format_bytes, format_count, format_seconds

_COLUMNS = (
    ("mode", "left"), ("accuracy [95 % CI]", "right"), ("test loss", "right"), ("step", "right"), ("sent", "right"),
    ("kept", "right"), ("at most", "right"), ("backward", "right"),
)  # fmt: skip


def verdicts(record: Convergence) -> list[str]:
    """One sentence a mode: where its accuracy lies by the reference's interval, or why it has none."""
    base = record.modes[record.reference]
    said: list[str] = []
    if base.accuracy is not None:
        interval = f", 95 % CI {_points(*base.accuracy.ci95)}" if base.accuracy.ci95 is not None else ""
        said.append(f"{record.reference}, the reference, ends with an accuracy of {_percent(base.accuracy)}{interval}.")
    for mode in record.modes.values():
        if mode.status == "failed":
            said.append(f"{failed(mode)}.")
        elif mode.mode != record.reference and mode.accuracy is not None:
            said.append(f"{mode.mode} ends with {_percent(mode.accuracy)}: {_where(mode, record.reference)}.")
    return said


def failed(mode: Converged) -> str:
    """'optimal FAILED: why', or 'optimal was not trained', of a mode that has no accuracy."""
    if mode.status == "not trained":
        return f"{mode.mode} was not trained"
    return f"{mode.mode} FAILED: {mode.error or 'no reason was recorded'}"


def without_accuracy(mode: Converged) -> str:
    """What stands in a table in place of an accuracy."""
    return "not trained" if mode.status == "not trained" else "FAILED"


def _where(mode: Converged, reference: str) -> str:
    apart = ""
    if mode.difference is not None:
        apart = f"{100 * mode.difference.mean:+.2f} points"
        if mode.difference.ci95 is not None:
            low, high = mode.difference.ci95
            apart += f" [{100 * low:+.2f}, {100 * high:+.2f}]"
        apart += " seed by seed"
    if mode.verdict in ("below", "above") and mode.outside is not None:
        return f"{mode.verdict} {reference}'s interval by {100 * mode.outside:.2f} points ({apart})"
    if mode.verdict == "within":
        return f"within {reference}'s interval ({apart})"
    return f"{apart}; one seed has no interval" if apart else f"{reference} has no accuracy to compare with"


def render_convergence(record: Convergence, console: Console) -> None:
    """The verdicts, the table, and what it rests on."""
    if not record.complete:
        say(console, f"INCOMPLETE: {record.error or 'the run ended early'}. What was finished is below.", "bold yellow")
        console.print()
    for position, sentence in enumerate(verdicts(record)):
        say(console, sentence, "bold" if position == 0 else "")
    console.print()
    count = len(record.training.seeds)
    title = f"Means over {count} seed{'s' if count > 1 else ''}; a step ({record.label}) and what it costs a worker"
    rows = [(mode.mode, *_cells(mode)) for mode in record.modes.values()]
    if console.width < NARROW_COLUMNS:
        say(console, title, "italic")
        for name, *cells in rows:
            console.print(Text(name, style="bold"))
            indented(console, ", ".join(f"{h} {c}" for (h, _), c in zip(_COLUMNS[1:], cells, strict=True)))
    else:
        table = titled_table(title, *_COLUMNS)
        for name, *cells in rows:
            table.add_row(Text(name), *cells)
        console.print(table)
    say(
        console,
        "sent: by a worker and step, as the network device counted; kept: bytes of activations that autograd holds for "
        "backward, mean over workers and steps, and at most; backward: floating-point operations, counted.",
        "dim",
    )
    for sentence in by_formula(record):
        say(console, sentence, "dim")
    console.print()
    data, training = record.dataset, record.training
    fact(console, "data", f"{data.name}, {data.train} to train and {data.test} to test: {data.source}")
    fact(
        console,
        "training",
        f"{training.steps} steps ({training.epochs:.3g} epochs, {training.samples} samples) a seed, "
        f"{training.optimizer} with lr {training.lr:g} falling to zero, batch {training.batch_size} a worker; "
        "equal for all modes",
    )
    fact(console, "workload", workload_line(record.workload))
    fact(console, "fabric", fabric_line(record.fabric))
    fact(console, "machine", environment_line(record.environment))
    fact(console, "made by", record.command)
    for warning in record.warnings:
        fact(console, "warning", warning, "yellow")


def _cells(mode: Converged) -> tuple[str, ...]:
    if mode.accuracy is None or mode.test_loss is None:
        return (without_accuracy(mode), *["–"] * 6)
    interval = f" [{_points(*mode.accuracy.ci95)}]" if mode.accuracy.ci95 is not None else ""
    return (
        f"{_percent(mode.accuracy)}{interval}",
        f"{mode.test_loss.mean:.3f}",
        format_seconds(mode.step_s) if mode.step_s is not None else "–",
        format_bytes(round(mode.sent_bytes)) if mode.sent_bytes is not None else "–",
        format_bytes(round(mode.activation_bytes)) if mode.activation_bytes is not None else "–",
        format_bytes(round(mode.activation_peak_bytes)) if mode.activation_peak_bytes is not None else "–",
        f"{format_count(round(mode.backward_flops))}FLOP" if mode.backward_flops is not None else "–",
    )


def by_formula(record: Convergence) -> list[str]:
    """A sentence for each mode that leaves gradients out: what it should cost, and how far off what was measured is."""
    return [
        f"{mode.mode} by the formula (simulated): {_by_formula(mode, mode.formula)}."
        for mode in record.modes.values()
        if mode.formula is not None
    ]


def _by_formula(mode: Converged, formula: WorkFormula) -> str:
    """'sent 301.1 KiB, 1.2 % more measured; kept 5.0 MiB, as measured; ...'."""
    quantities = (
        ("sent", formula.sent_bytes, mode.sent_bytes, format_bytes(round(formula.sent_bytes))),
        ("kept", formula.activation_bytes, mode.activation_bytes, format_bytes(round(formula.activation_bytes))),
        (
            "backward",
            formula.backward_flops,
            mode.backward_flops,
            f"{format_count(round(formula.backward_flops))}FLOP",
        ),
    )
    return "; ".join(
        f"{name} {shown}{_beside(measured / expected - 1) if measured and expected else ''}"
        for name, expected, measured, shown in quantities
    )


def _beside(share: float) -> str:
    if abs(share) < 0.0005:
        return ", as measured"
    return f", measured {100 * abs(share):.1f} % {'more' if share > 0 else 'less'}"


def _percent(mean: MeanOf) -> str:
    return f"{100 * mean.mean:.2f} %"


def _points(low: float, high: float) -> str:
    return f"{100 * low:.2f} to {100 * high:.2f}"
