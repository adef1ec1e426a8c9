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


def bottom(record: Profile | Comparison, console: Console, effort: str | None = None) -> None:
    """Fabric, cost model, effort, machine, warnings."""
    fact(console, "fabric", lines.fabric_line(record.fabric))
    for note in record.fabric.notes:
        fact(console, "", note)
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


def _contention(record: Profile | Comparison) -> Contention | None:
    if isinstance(record, Profile):
        return record.contention
    return record.jobs[0].contention if record.jobs else None
