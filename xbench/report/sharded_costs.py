"""Sentences on the costs of sharded modes: collectives beside the usual all-reduce, and the host's time for units."""

from __future__ import annotations

from xbench.modes import mode_info
from xbench.records import Comparison
from xbench.report.sentences import cost_line
from xbench.text import and_of
from xbench.units import format_seconds


def other_cost_lines(record: Comparison) -> list[str]:
    """Describe T(M) of the collectives beside the all-reduce that most modes send."""
    return [
        cost_line(cost) + ("; each is awaited before the next" if name == "all_reduce" else "")
        for name, cost in record.other_costs.items()
    ]


def units_lines(record: Comparison) -> list[str]:
    """Describe the host's time for units of sharded modes."""
    lines = []
    for name, cost in record.unit_costs.items():
        modes = [mode.text for mode in record.spec.modes if mode_info(mode.carrier).units_of == name]
        unit, tensor = format_seconds(cost.unit_s), format_seconds(cost.tensor_s)
        lines.append(
            f"under {and_of(modes or [name])} a unit takes the host {unit} and a tensor {tensor}, besides collectives"
        )
    return lines
