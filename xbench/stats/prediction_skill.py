"""Worth of a validation's predictions: beside naive predictors, for the order of modes, and for the choice of one.

**Naive predictors** know no schedule. One takes every mode to need what `ddp` is predicted to need. The other takes
every mode to need the computation plus T of all gradients in one collective. The skill of the model over one of them is
1 − median |error| / median |error of the naive predictor|, over the same predictions.

**Order.** Two modes of a cell whose measured ratio has an interval without 1 were measured in an order. The model
predicts it right, wrong, or not at all where it predicts the same time for both.

**Regret** is what the mode that is predicted to be fastest takes longer than the fastest measured one.

Controls do not count. Nothing is left out for being short, or for being `auto`.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from xbench.records import Order, Regret, Skill, ValidationCell
from xbench.stats.cells import link_of, percentile95, trained

REFERENCE = "ddp"


class _Row(NamedTuple):
    """Errors of one prediction: the model's and those of the naive predictors."""

    link: str
    error: float
    as_ddp: float
    one_bucket: float


def skills(cells: Sequence[ValidationCell]) -> list[Skill]:
    """Skill over all predictions, then by link in order of appearance.

    Cells without a prediction of `ddp`, and those of older records without T of one collective, are left out.
    """
    rows: list[_Row] = []
    for cell in cells:
        points = trained(cell)
        ddp_s = next((point.predicted_step_s for point in points if point.mode == REFERENCE), None)
        if ddp_s is None or cell.communication_s is None:
            continue
        one_bucket_s = cell.compute_s + cell.communication_s
        for point in points:
            measured_s = point.measured_step_s.median
            rows.append(_Row(link_of(cell), point.error, ddp_s / measured_s - 1, one_bucket_s / measured_s - 1))
    groups: dict[str, list[_Row]] = {"all": rows} if rows else {}
    for row in rows:
        groups.setdefault(row.link, []).append(row)
    return [_skill(name, found) for name, found in groups.items()]


def _skill(name: str, rows: Sequence[_Row]) -> Skill:
    median, as_ddp, one_bucket = (
        statistics.median(map(abs, errors)) for errors in zip(*(row[1:] for row in rows), strict=True)
    )
    return Skill(
        name=name,
        count=len(rows),
        median=median,
        as_ddp=as_ddp,
        as_ddp_skill=1 - median / as_ddp if as_ddp > 0 else None,
        one_bucket=one_bucket,
        one_bucket_skill=1 - median / one_bucket if one_bucket > 0 else None,
    )


def order(cells: Sequence[ValidationCell]) -> Order | None:
    """Count how often the order of two modes was predicted. None without a pair."""
    pairs = decided = right = equal = 0
    for cell in cells:
        predicted_s = {point.mode: point.predicted_step_s for point in trained(cell)}
        for pair in cell.pairs:
            if pair.mode not in predicted_s or pair.other not in predicted_s:
                continue
            pairs += 1
            low, high = pair.ci95
            if low <= 1 <= high:
                continue
            decided += 1
            difference_s = predicted_s[pair.mode] - predicted_s[pair.other]
            equal += difference_s == 0
            right += difference_s != 0 and (difference_s < 0) == (high < 1)
    return Order(pairs=pairs, decided=decided, right=right, equal=equal) if pairs else None


def regret(cells: Sequence[ValidationCell]) -> Regret | None:
    """Time lost by the mode that is predicted to be fastest; of equal ones the first. None without a cell of modes."""
    lost: list[tuple[float, float]] = []
    for cell in cells:
        points = trained(cell)
        if len(points) < 2:
            continue
        chosen = min(points, key=lambda point: point.predicted_step_s).measured_step_s.median
        least_s = min(point.measured_step_s.median for point in points)
        lost.append((chosen / least_s - 1, chosen - least_s))
    if not lost:
        return None
    shares, seconds = (sorted(values) for values in zip(*lost, strict=True))
    return Regret(
        cells=len(lost),
        best=sum(share == 0 for share in shares),
        median=statistics.median(shares),
        p95=percentile95(shares),
        worst=shares[-1],
        median_s=statistics.median(seconds),
        p95_s=percentile95(seconds),
        worst_s=seconds[-1],
    )
