"""What stands above and below every report of something measured: whether it is whole, and how it was made."""

from __future__ import annotations

from rich.console import Console

from xbench.records import Comparison, Contention, Profile
from xbench.report import lines
from xbench.report.drawing import fact, say


def top(record: Profile | Comparison, console: Console) -> None:
    """That the run ended early or that modes failed, if so."""
    note = lines.incomplete_line(record)
    if note:
        say(console, note, "bold yellow")
        console.print()


def bottom(record: Profile | Comparison, console: Console, effort: str | None = None, *, verbose: bool = False) -> None:
    """Fabric, cost model, effort, machine, warnings; notes on the usual set-up of ranks where `verbose`."""
    fact(console, "fabric", lines.fabric_line(record.fabric))
    for note in record.fabric.notes:
        if verbose or not lines.is_usual(note):
            fact(console, "", note)
    tuning = lines.tuning_line(record.spec)
    if tuning is not None and (verbose or not record.spec.host_tuning):
        fact(console, "tuning", tuning)
    if record.emulated is not None:
        fact(console, "emulated", lines.emulated_line(record.emulated))
    if record.cost_model is not None:
        fact(console, "cost model", lines.cost_line(record.cost_model))
        contention = lines.contention_line(_contention(record))
        if contention is not None:
            fact(console, "contention", contention)
    if effort:
        fact(console, "effort", effort)
    fact(console, "machine", lines.environment_line(record.environment))
    for warning in record.warnings:
        fact(console, "warning", warning, "yellow")
    hidden = [name for name, there in _hidden(record) if there]
    if hidden and not verbose:
        fact(console, "-v", f"shows {lines.and_of(hidden)} too")


def _hidden(record: Profile | Comparison) -> list[tuple[str, bool]]:
    """What is not shown without -v, and whether the record has it."""
    measured = isinstance(record, Profile) and record.cost_model is not None and bool(record.cost_model.points)
    usual = record.spec.tunes_ranks or any(map(lines.is_usual, record.fabric.notes))
    return [("the cost of each collective", measured), ("how threads and memory were set up", usual)]


def _contention(record: Profile | Comparison) -> Contention | None:
    if isinstance(record, Profile):
        return record.contention
    return record.jobs[0].contention if record.jobs else None
