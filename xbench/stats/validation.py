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

from xbench.modes import mode_info, tried_modes
from xbench.records import ErrorSummary, Goal, ValidationCell, ValidationPoint
from xbench.spec import Overlap
from xbench.stats.compare import MIN_PAIRS
from xbench.stats.removed import removed_share

MEDIAN_GOAL, P95_GOAL = 0.05, 0.12
SHARE_OF_CELLS = 0.9
NEAR_BOUND = 0.06
REMOVED = 0.6
SLOW_LINK_BPS = 1e9
"""Up to this rate a link is what a step waits for, and the claims about the bound are made."""


def summaries(cells: Sequence[ValidationCell], *, at_speed: bool = False) -> list[ErrorSummary]:
    """Errors of all predictions, then by mode, by workload and by link, each in order of appearance.

    `at_speed`: of the predictions at the speed that computation had among the timed blocks. Controls do not count.
    """
    rows: list[tuple[ValidationCell, ValidationPoint, float]] = []
    for cell in cells:
        for point in cell.points:
            error = point.error_at_speed if at_speed else point.error
            if mode_info(point.mode).trains and error is not None:
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


def goals(cells: Sequence[ValidationCell], overlap: Overlap = "backward") -> list[Goal]:
    """The claims that these cells can decide, each with what was found.

    `overlap`: what gradients might overlap under `auto`, and so which bound its steps are held to.
    """
    cells = [cell for cell in cells if cell.points]
    found: list[Goal] = []
    claimed = [c.model_copy(update={"points": [p for p in c.points if p.mode in tried_modes()]}) for c in cells]
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
    return found + _auto_goals([cell for cell in cells if _point(cell, "auto") is not None], overlap)


def _auto_goals(cells: Sequence[ValidationCell], overlap: Overlap) -> list[Goal]:
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
                claim=f"auto is not shown slower than any other mode in {SHARE_OF_CELLS:.0%} of the cells",
                found=f"in {ahead} of {len(telling)}{_listed(behind, 'behind')}{too_few}{_power(telling)}",
                held=ahead >= SHARE_OF_CELLS * len(telling),
            )
        )
    slow = [c for c in with_ddp if _bound_s(c, overlap) and (c.fabric.rate_bps or math.inf) <= SLOW_LINK_BPS]
    what = "backward overlap" if overlap == "backward" else "overlap with the next forward pass too"
    if slow:
        over = {name_of(cell): _step_s(cell, "auto") / _bound_s(cell, overlap) - 1 for cell in slow}
        far = [f"{name} {share:.1%}" for name, share in over.items() if share > NEAR_BOUND]
        found.append(
            Goal(
                claim=f"auto is within {NEAR_BOUND:.0%} of the bound of {what} in every cell up to 1 Gbit/s",
                found=f"in {len(slow) - len(far)} of {len(slow)}" + _listed(far, "above"),
                held=not far,
            )
        )
        found.append(_removed([(_step_s(c, "auto"), _step_s(c, "ddp"), _bound_s(c, overlap)) for c in slow], what))
    return found


def _bound_s(cell: ValidationCell, overlap: Overlap) -> float:
    """The bound [s] of what gradients might overlap under `auto`; 0 where the cell has none."""
    return (cell.backward_overlap_bound_s if overlap == "backward" else cell.overlap_bound_s) or 0.0


def _power(cells: Sequence[ValidationCell]) -> str:
    """What "not slower" is worth: the width of the intervals, and how often the medians alone say otherwise."""
    halves = [(o.ci95[1] - o.ci95[0]) / 2 / o.ratio for cell in cells for o in cell.auto_against if o.ratio > 0]
    behind = []
    for cell in cells:
        others = [p.measured_step_s.median for p in cell.points if mode_info(p.mode).trains and p.mode != "auto"]
        if others and _step_s(cell, "auto") > min(others):
            behind.append(_step_s(cell, "auto") / min(others) - 1)
    if not halves:
        return ""
    text = f"; intervals reach ±{statistics.median(halves):.1%} in the median, ±{max(halves):.1%} at most"
    if behind:
        text += f"; by medians alone another mode is faster in {len(behind)}, by {max(behind):.1%} at most"
    return text


def _removed(steps_s: Sequence[tuple[float, float, float]], what: str) -> Goal:
    """Σ (ddp − auto) over Σ (ddp − bound), in seconds, and with every cell's times as shares of its own DDP step.

    `steps_s`: auto's step, ddp's and the bound [s] of each cell.
    """
    plain = removed_share(*(sum(times) for times in zip(*steps_s, strict=True)))
    even = removed_share(*(sum(times) for times in zip(*((a / d, 1.0, b / d) for a, d, b in steps_s), strict=True)))
    return Goal(
        claim=f"auto removes at least {REMOVED:.0%} of the exposed communication that ddp leaves and {what} could "
        "remove, up to 1 Gbit/s",
        found="nothing can be removed: ddp is at the bound"
        if plain is None or even is None
        else f"{plain:.0%} of all such seconds, {even:.0%} with every cell counted alike",
        held=plain is None or even is None or min(plain, even) >= REMOVED,
    )


def name_of(cell: ValidationCell) -> str:
    """'resnet18 at 1gbit', for people."""
    return f"{cell.workload.title} {link_of(cell)}"


def link_of(cell: ValidationCell) -> str:
    """'at 1gbit', or 'on local:ranks=2' where links have no rate."""
    rate = next((part[5:] for part in cell.fabric.spec.split(":")[-1].split(",") if part.startswith("rate=")), None)
    return f"at {rate}" if rate else f"on {cell.fabric.spec}"


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
