"""How good the predictions were, and whether `auto` kept what it promises: summaries of a validation's cells.

The error of a prediction is predicted over measured, minus one; groups are summed up by the median and the 95th
percentile of its absolute value (the smallest error that at least 95 % of them do not exceed), which no share of small
errors can hide. Claims about `auto` that concern single cells are held to the cell's paired interval: noise alone
decides which of two equal plans has the smaller median.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from xbench.records import ErrorSummary, Goal, ValidationCell, ValidationPoint
from xbench.stats.compare import MIN_PAIRS

MEDIAN_GOAL, P95_GOAL = 0.05, 0.12
SHARE_OF_CELLS = 0.9
NEAR_BOUND = 0.06
REMOVED = 0.6
SLOW_LINK_BPS = 1e9
"""Up to this rate a link is what a step waits for, and the claims about the bound are made."""

CONTROLS = ("compute",)
PREDICTED = ("ddp", "single", "wfbp", "mgwfbp", "optimal")
"""Schedules whose predictions the claims are about."""


def summaries(cells: Sequence[ValidationCell], *, at_speed: bool = False) -> list[ErrorSummary]:
    """Errors of all predictions, then by mode, by workload and by link, each in order of appearance.

    `at_speed`: of the predictions at the speed that computation had among the timed blocks. Controls do not count.
    """
    rows: list[tuple[ValidationCell, ValidationPoint, float]] = []
    for cell in cells:
        for point in cell.points:
            error = point.error_at_speed if at_speed else point.error
            if point.mode not in CONTROLS and error is not None:
                rows.append((cell, point, error))
    groups: dict[str, list[float]] = {"all": []}
    for name in ("mode", "workload", "fabric"):
        for cell, point, error in rows:
            key = {"mode": point.mode, "workload": cell.workload.title, "fabric": link_of(cell)}[name]
            groups.setdefault(key, []).append(error)
    groups["all"] = [error for _, _, error in rows]
    return [summary(name, errors) for name, errors in groups.items() if errors]


def summary(name: str, errors: Sequence[float]) -> ErrorSummary:
    """One group's figures. Raises ValueError for no errors."""
    if not errors:
        raise ValueError(f"{name!r} has no predictions to sum up")
    sizes = sorted(abs(error) for error in errors)
    return ErrorSummary(
        name=name,
        count=len(sizes),
        median=statistics.median(sizes),
        p95=sizes[math.ceil(0.95 * len(sizes)) - 1],
        worst=sizes[-1],
        bias=statistics.median(errors),
    )


def goals(cells: Sequence[ValidationCell]) -> list[Goal]:
    """The claims that these cells can decide, each with what was found."""
    cells = [cell for cell in cells if cell.points]
    found: list[Goal] = []
    claimed = [c.model_copy(update={"points": [p for p in c.points if p.mode in PREDICTED]}) for c in cells]
    whole = next(iter(summaries(claimed)), None)
    if whole is not None:
        for name, value, most in (("median", whole.median, MEDIAN_GOAL), ("95th percentile", whole.p95, P95_GOAL)):
            found.append(
                Goal(
                    claim=f"{name} of the prediction error at most {most:.0%}",
                    found=f"{value:.1%} of {whole.count} predictions",
                    held=value <= most,
                )
            )
    return found + _auto_goals([cell for cell in cells if _point(cell, "auto") is not None])


def _auto_goals(cells: Sequence[ValidationCell]) -> list[Goal]:
    found: list[Goal] = []
    with_ddp = [cell for cell in cells if _point(cell, "ddp") is not None]
    telling = [cell for cell in cells if cell.blocks >= MIN_PAIRS]
    too_few = f"; {len(cells) - len(telling)} had too few rounds to tell" if len(telling) < len(cells) else ""
    paired = [cell for cell in telling if cell in with_ddp]
    if paired:
        slower = [name_of(cell) for cell in paired if _verdict(cell) == "slower"]
        found.append(
            Goal(
                claim="auto is never slower than ddp beyond its interval",
                found=f"slower in {len(slower)} of {len(paired)} cells{_listed(slower)}{too_few}",
                held=not slower,
            )
        )
    if telling:
        behind = [name_of(c) for c in telling if any(o.verdict == "slower" for o in c.auto_against)]
        ahead = len(telling) - len(behind)
        found.append(
            Goal(
                claim=f"auto is at least as fast as every other mode in {SHARE_OF_CELLS:.0%} of the cells",
                found=f"in {ahead} of {len(telling)}{_listed(behind, 'behind')}{too_few}",
                held=ahead >= SHARE_OF_CELLS * len(telling),
            )
        )
    slow = [c for c in with_ddp if c.backward_overlap_bound_s and (c.fabric.rate_bps or math.inf) <= SLOW_LINK_BPS]
    if slow:
        over = {name_of(cell): _step_s(cell, "auto") / (cell.backward_overlap_bound_s or 1) - 1 for cell in slow}
        far = [f"{name} {share:.1%}" for name, share in over.items() if share > NEAR_BOUND]
        found.append(
            Goal(
                claim=f"auto is within {NEAR_BOUND:.0%} of the backward-overlap bound in every cell up to 1 Gbit/s",
                found=f"in {len(slow) - len(far)} of {len(slow)}" + _listed(far, "above"),
                held=not far,
            )
        )
        found.append(_removed(slow))
    return found


def _removed(cells: Sequence[ValidationCell]) -> Goal:
    """Σ (ddp − auto) over Σ (ddp − bound), in seconds, and with every cell's times as shares of its own DDP step."""
    gained = [_step_s(cell, "ddp") - _step_s(cell, "auto") for cell in cells]
    possible = [_step_s(cell, "ddp") - (cell.backward_overlap_bound_s or 0.0) for cell in cells]
    steps = [_step_s(cell, "ddp") for cell in cells]
    plain = _ratio(sum(gained), sum(possible))
    even = _ratio(
        sum(g / s for g, s in zip(gained, steps, strict=True)), sum(p / s for p, s in zip(possible, steps, strict=True))
    )
    return Goal(
        claim=f"auto removes at least {REMOVED:.0%} of the exposed communication that ddp leaves and backward overlap "
        "could remove, up to 1 Gbit/s",
        found=f"{plain:.0%} of all such seconds, {even:.0%} with every cell counted alike",
        held=plain >= REMOVED and even >= REMOVED,
    )


def name_of(cell: ValidationCell) -> str:
    """'resnet18 at 1gbit', for people."""
    return f"{cell.workload.title} {link_of(cell)}"


def link_of(cell: ValidationCell) -> str:
    """'at 1gbit', or 'on local:ranks=2' where links have no rate."""
    rate = next((part[5:] for part in cell.fabric.spec.split(":")[-1].split(",") if part.startswith("rate=")), None)
    return f"at {rate}" if rate else f"on {cell.fabric.spec}"


def _ratio(gained: float, possible: float) -> float:
    return gained / possible if possible > 0 else 1.0


def _listed(names: Sequence[str], word: str = "") -> str:
    return f" ({word}{': ' if word else ''}{', '.join(names)})" if names else ""


def _point(cell: ValidationCell, mode: str) -> ValidationPoint | None:
    return next((point for point in cell.points if point.mode == mode), None)


def _verdict(cell: ValidationCell) -> str | None:
    found = _point(cell, "auto")
    return found.verdict if found is not None else None


def _step_s(cell: ValidationCell, mode: str) -> float:
    found = _point(cell, mode)
    assert found is not None
    return found.measured_step_s.median
