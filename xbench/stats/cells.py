"""Cells of a validation: their names, the cells that are shown, and the points that count."""

from __future__ import annotations

import math
from collections.abc import Sequence

from xbench.modes import mode_info
from xbench.records import ValidationCell, ValidationPoint


def name_of(cell: ValidationCell) -> str:
    """Name of a cell for people: 'resnet18 at 1gbit', or of a drawn one '7: resnet18 batch 4 at 1gbit, 3 workers'."""
    if cell.number is None:
        return f"{cell.workload.title} {link_of(cell)}"
    return (
        f"{cell.number}: {cell.workload.title} batch {cell.workload.batch_size} {link_of(cell)}, "
        f"{cell.fabric.world_size} workers"
    )


def link_of(cell: ValidationCell) -> str:
    """'at 1gbit', or 'on local:ranks=2' if links have no rate."""
    rate = next((part[5:] for part in cell.fabric.spec.split(":")[-1].split(",") if part.startswith("rate=")), None)
    return f"at {rate}" if rate else f"on {cell.fabric.spec}"


def shown_cells(cells: Sequence[ValidationCell], *, complete: bool) -> list[ValidationCell]:
    """The cells that figures and tables may use: before a drawing is complete, those that are not held out."""
    return [cell for cell in cells if complete or not cell.held_out]


def trained(cell: ValidationCell) -> list[ValidationPoint]:
    """The points of a cell without those of controls."""
    return [point for point in cell.points if mode_info(point.mode).trains]


def percentile95(ascending: Sequence[float]) -> float:
    """The smallest of these ascending values that at least 95 % of them do not exceed."""
    return ascending[math.ceil(0.95 * len(ascending)) - 1]
