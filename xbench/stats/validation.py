"""Summary of a validation's cells: accuracy of the predictions, and the claims about `auto`.

The error of a prediction is predicted over measured, minus one. Groups are summarised by the median and the 95th
percentile of its absolute value (the smallest error that at least 95 % of them do not exceed), which many small errors
cannot hide. Every mode that trains counts, and so does every step, however short. The claim about `auto` and `ddp`
is a test of non-inferiority (`stats.non_inferiority`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Literal

from xbench.records import ErrorSummary, Goal, ValidationCell, ValidationPoint
from xbench.stats.cells import link_of, name_of, percentile95, trained
from xbench.stats.compare import removed_share
from xbench.stats.non_inferiority import MAX_CELLS, POWER, non_inferiority
from xbench.stats.prediction_skill import regret, skills
from xbench.stats.steps import MIN_PREDICTABLE_S, is_predictable
from xbench.units import format_seconds

MEDIAN_GOAL, P95_GOAL = 0.05, 0.12
REGRET_MEDIAN_GOAL, REGRET_P95_GOAL = 0.01, 0.05
NEAR_BOUND = 0.06
REMOVED = 0.6
SLOW_LINK_BPS = 1e9
"""Largest rate at which a step waits for the link, so that the claims about the bound are made."""

LONG = f"steps from {format_seconds(MIN_PREDICTABLE_S, 2)}"
SHORT = f"steps below {format_seconds(MIN_PREDICTABLE_S, 2)}"
"""Groups of predictions: those that are relied on, and those that are not."""

HELD_OUT, OTHERS = "held-out cells", "other cells"
"""Groups of predictions in a drawing."""

Overlap = Literal["backward", "forward"]


def summaries(cells: Sequence[ValidationCell], *, at_speed: bool = False) -> list[ErrorSummary]:
    """Errors of all predictions, then of held-out cells, by length of step, mode, workload and link.

    Groups of one kind are in order of appearance.
    `at_speed`: errors of the predictions at the speed of computation in the timed blocks. Controls do not count.
    There are no rows by length if every step is long enough to predict.
    """
    rows: list[tuple[ValidationCell, ValidationPoint, float]] = []
    for cell in cells:
        for point in trained(cell):
            error = point.error_at_speed if at_speed else point.error
            if error is not None:
                rows.append((cell, point, error))
    groups: dict[str, list[float]] = {"all": []}
    if any(cell.held_out for cell in cells):
        for name, held_out in ((OTHERS, False), (HELD_OUT, True)):
            groups[name] = [error for cell, _, error in rows if cell.held_out == held_out]
    if not all(is_predictable(point.predicted_step_s) for _, point, _ in rows):
        for name, long in ((LONG, True), (SHORT, False)):
            groups[name] = [error for _, point, error in rows if is_predictable(point.predicted_step_s) == long]
    for name in ("mode", "workload", "fabric"):
        for cell, point, error in rows:
            key = {"mode": point.mode, "workload": cell.workload.title, "fabric": link_of(cell)}[name]
            groups.setdefault(key, []).append(error)
    groups["all"] = [error for _, _, error in rows]
    return [summary(name, errors) for name, errors in groups.items() if errors]


def by_distance(cells: Sequence[ValidationCell]) -> list[ErrorSummary]:
    """Errors of held-out sizes at the speed of the computation there, by the two numbers of workers, ascending.

    `name` is 'measured on 2, predicted for 4 workers'.
    """
    groups: dict[tuple[int, int], list[float]] = {}
    for cell in cells:
        if cell.predicted_on != cell.fabric.world_size:
            errors = groups.setdefault((cell.predicted_on, cell.fabric.world_size), [])
            errors += [point.error_at_speed for point in trained(cell) if point.error_at_speed is not None]
    return [
        summary(f"measured on {small}, predicted for {large} workers", errors)
        for (small, large), errors in sorted(groups.items())
        if errors
    ]


def summary(name: str, errors: Sequence[float]) -> ErrorSummary:
    """Summary of one group. Raises ValueError for no errors."""
    if not errors:
        raise ValueError(f"{name!r} has no predictions to sum up")
    sizes = sorted(abs(error) for error in errors)
    return ErrorSummary(
        name=name,
        count=len(sizes),
        median=statistics.median(sizes),
        p95=percentile95(sizes),
        worst=sizes[-1],
        bias=statistics.median(errors),
    )


def goals(cells: Sequence[ValidationCell], overlap: Overlap = "backward") -> list[Goal]:
    """The claims that these cells can decide, each with its result.

    `overlap`: what gradients may overlap under `auto`, which selects the bound of its steps.
    """
    cells = [cell for cell in cells if cell.points]
    decided = _error_claims(cells) + _skill_claims(cells) + _regret_claims(cells)
    both = [cell for cell in cells if _point(cell, "auto") is not None and _point(cell, "ddp") is not None]
    decided += _auto_claims(cells) + _bound_claims(both, overlap)
    return [Goal(claim=claim, found=found, held=held) for claim, found, held in decided]


def _error_claims(cells: Sequence[ValidationCell]) -> list[tuple[str, str, bool]]:
    """Claims on the errors of all modes: (claim, what was found, whether it holds), as all below."""
    points = [point for cell in cells for point in trained(cell)]
    if not points:
        return []
    total = summary("all", [point.error for point in points])
    short = sum(not is_predictable(point.predicted_step_s) for point in points)
    of = f"{total.count} predictions" + (f", {short} of {SHORT} among them" if short else "")
    return [
        (f"{name} of the prediction error at most {most:.0%}", f"{value:.1%} of {of}", value <= most)
        for name, value, most in (("median", total.median, MEDIAN_GOAL), ("95th percentile", total.p95, P95_GOAL))
    ]


def _skill_claims(cells: Sequence[ValidationCell]) -> list[tuple[str, str, bool]]:
    """Claim on the skill over both naive predictors on every link."""
    links = skills(cells)[1:]
    if not links:
        return []
    found = []
    for link in links:
        said = [_signed(share) for share in (link.as_ddp_skill, link.one_bucket_skill)]
        found.append(f"{link.name} {said[0]} and {said[1]}")
    held = all((share or 0.0) > 0 for link in links for share in (link.as_ddp_skill, link.one_bucket_skill))
    claim = "predictions are better than naive ones (every mode as ddp; computation plus T of one bucket) on every link"
    return [(claim, f"skill {'; '.join(found)}", held)]


def _regret_claims(cells: Sequence[ValidationCell]) -> list[tuple[str, str, bool]]:
    """Claims on what the mode that is predicted to be fastest takes longer than the fastest."""
    found = regret(cells)
    if found is None:
        return []
    return [
        (
            f"{name} of the regret of the predicted best mode at most {most:.0%}",
            f"{share:.1%} ({format_seconds(seconds)}) over {found.cells} cells",
            share <= most,
        )
        for name, share, seconds, most in (
            ("median", found.median, found.median_s, REGRET_MEDIAN_GOAL),
            ("95th percentile", found.p95, found.p95_s, REGRET_P95_GOAL),
        )
    ]


def _auto_claims(cells: Sequence[ValidationCell]) -> list[tuple[str, str, bool]]:
    """Claim that `auto` is not slower than `ddp`, by a margin."""
    found = non_inferiority(cells)
    if found is None:
        return []
    claim = f"auto is not slower than ddp by {found.margin:.0%} or more, in the mean over cells"
    told = f"{found.ratio:.3f} of ddp's time over {found.cells} cells, at most {found.upper:.3f} with 95 % confidence"
    if not found.shown and found.power < POWER:
        enough = found.cells_needed or f"more than {MAX_CELLS}"
        told += f"; these cells cannot show it: their power is {found.power:.0%}, and {enough} cells would have 90%"
    else:
        told += f"; power {found.power:.0%}"
    told += f"; of a cell alone shown in {found.cells_shown} of {found.cells_tested}"
    told += f"; slower beyond the interval in {len(found.slower)}{_in_brackets(found.slower)}"
    return [(claim, told, found.shown)]


def _bound_claims(with_ddp: Sequence[ValidationCell], overlap: Overlap) -> list[tuple[str, str, bool]]:
    slow = [c for c in with_ddp if _bound_s(c, overlap) and (c.fabric.rate_bps or math.inf) <= SLOW_LINK_BPS]
    if not slow:
        return []
    what = "backward overlap" if overlap == "backward" else "overlap with the next forward pass too"
    excess = {name_of(cell): _step_s(cell, "auto") / _bound_s(cell, overlap) - 1 for cell in slow}
    above = [f"{name} {share:.1%}" for name, share in excess.items() if share > NEAR_BOUND]
    near = f"auto is within {NEAR_BOUND:.0%} of the bound of {what} in every cell up to 1 Gbit/s"
    told = f"in {len(slow) - len(above)} of {len(slow)}" + _in_brackets(above, "above")
    # Shares of all seconds, and with every cell's times as shares of its own DDP step.
    steps_s = [(_step_s(c, "auto"), _step_s(c, "ddp"), _bound_s(c, overlap)) for c in slow]
    alike = [(auto_s / ddp_s, 1.0, bound_s / ddp_s) for auto_s, ddp_s, bound_s in steps_s]
    shares = [removed_share(*(sum(times) for times in zip(*rows, strict=True))) for rows in (steps_s, alike)]
    removed = [share for share in shares if share is not None]
    claim = (
        f"auto removes at least {REMOVED:.0%} of the exposed communication that ddp leaves and {what} could remove, up "
        "to 1 Gbit/s"
    )
    whole = "nothing can be removed: ddp is at the bound"
    if len(removed) == 2:
        whole = f"{removed[0]:.0%} of all such seconds, {removed[1]:.0%} with every cell counted alike"
    return [(near, told, not above), (claim, whole, len(removed) < 2 or min(removed) >= REMOVED)]


def _bound_s(cell: ValidationCell, overlap: Overlap) -> float:
    """The bound [s] of what gradients may overlap under `auto`; 0 if the cell has none."""
    return (cell.backward_overlap_bound_s if overlap == "backward" else cell.overlap_bound_s) or 0.0


def _in_brackets(names: Sequence[str], word: str = "") -> str:
    return f" ({word}{': ' if word else ''}{', '.join(names)})" if names else ""


def _signed(share: float | None) -> str:
    return "–" if share is None else f"{share:+.2f}"


def _point(cell: ValidationCell, mode: str) -> ValidationPoint | None:
    return next((point for point in cell.points if point.mode == mode), None)


def _step_s(cell: ValidationCell, mode: str) -> float:
    point = _point(cell, mode)
    assert point is not None
    return point.measured_step_s.median
