"""Sentences and tables of a validation's drawing, and of its predictions: skill, order of modes, regret."""

from __future__ import annotations

from xbench.records import Validation, ValidationCell
from xbench.stats.cells import shown_cells
from xbench.units import format_percent, format_seconds

SKILL_COLUMNS = ("group", "predictions", "median", "as ddp", "skill", "one bucket", "skill")
SKILL = "Skill: median error of the predictions beside that of two naive predictors"
NAIVE = (
    "As ddp: every mode takes what ddp is predicted to take. One bucket: computation plus T of all gradients. Skill: "
    "one minus the model's median error over the naive one; above zero, the model predicts better."
)


def visible(record: Validation) -> list[ValidationCell]:
    """Return the cells that reports show: of an unfinished drawing, those that are not held out."""
    return shown_cells(record.cells, complete=record.complete)


def drawing_lines(record: Validation) -> list[str]:
    """Say how cells were drawn, how many are there, what is held out, and what was discarded."""
    said = []
    if record.drawing is not None:
        drawn, held_out = len(record.drawing.cells), sum(cell.held_out for cell in record.drawing.cells)
        measured = sum(cell.error is None for cell in record.cells)
        shown = "shown with the others" if record.complete else "not shown before all are measured"
        said.append(
            f"Cells drawn by seed {record.drawing.seed}: {measured} of {drawn} measured, each once. Held out: "
            f"{held_out}, {shown}."
        )
    if record.discarded:
        count = len(record.discarded)
        attempts = "attempt counts" if count == 1 else "attempts count"
        said.append(f"{count} {attempts} for nothing: {'; '.join(record.discarded)}")
    return said


def skill_rows(record: Validation) -> list[list[str]]:
    """Return a row for each group, with the columns of `SKILL_COLUMNS`."""
    return [
        [
            row.name,
            str(row.count),
            format_percent(row.median),
            format_percent(row.as_ddp),
            _skill(row.as_ddp_skill),
            format_percent(row.one_bucket),
            _skill(row.one_bucket_skill),
        ]
        for row in record.skills
    ]


def choice_lines(record: Validation) -> list[str]:
    """Say how well the order of modes and the fastest one were predicted."""
    said = []
    order, regret = record.order, record.regret
    if order is not None:
        said.append(
            f"Order of two modes: predicted right in {order.right} of the {order.decided} pairs whose measured "
            f"difference is outside its interval ({order.equal} are predicted equal); {order.pairs} pairs in all."
        )
    if regret is not None:
        said.append(
            f"Regret of the predicted best mode: median {format_percent(regret.median)} "
            f"({format_seconds(regret.median_s)}), 95 % within {format_percent(regret.p95)} "
            f"({format_seconds(regret.p95_s)}), worst {format_percent(regret.worst)} "
            f"({format_seconds(regret.worst_s)}). It is the best in {regret.best} of {regret.cells} cells."
        )
    return said


def _skill(share: float | None) -> str:
    return "–" if share is None else f"{share:+.2f}"
