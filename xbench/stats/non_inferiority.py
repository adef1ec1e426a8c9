"""Is `auto` slower than `ddp`? A test of non-inferiority over the cells of a validation.

"Not shown slower" is said of any pair that was measured badly enough. Non-inferiority turns the burden round: it is
shown that `auto` is not slower than `ddp` by the margin of 2 % or more (Schuirmann 1987, one of his two tests).

**Over cells.** A cell gives one number, the log of its ratio auto / ddp. Cells are independent: each has launches, a
profile and a plan of its own. So their mean has Student's distribution with one degree of freedom less than there are
cells, and what differs between launches is inside its spread. It is shown where the 95 % upper limit of the mean is
below the margin. Power is the probability of that, at the spread that was found, if `auto` were as fast as `ddp`
(noncentral t). Where it is not shown and the power is below 90 %, these cells cannot show it.

**By cell.** A cell's one-sided p is of its own launches (`stats.location`). Holm's method (1979) holds them together:
at most one run in twenty shows any cell in error.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from xbench.records import NonInferiority, ValidationCell
from xbench.stats.cells import name_of
from xbench.stats.compare import MIN_PAIRS, Blocks, log_ratios
from xbench.stats.location import located, student_quantile
from xbench.stats.regression import holm

MARGIN = 0.02
ERROR = 0.05
POWER = 0.9
MAX_CELLS = 1000
"""Most cells that a power is said to need."""


def one_sided_p(mode: Blocks, reference: Blocks, margin: float = MARGIN) -> float | None:
    """p against a mode that takes 1 + margin times the reference, or more. None for fewer than four pairs."""
    launches = log_ratios(mode, reference)
    if sum(map(len, launches)) < MIN_PAIRS:
        return None
    return located(launches).above(math.log1p(margin))


def non_inferiority(cells: Sequence[ValidationCell], margin: float = MARGIN) -> NonInferiority | None:
    """Test of `auto` against `ddp` over the cells that measured both. None for fewer than two."""
    found = [(cell, one.ratio) for cell in cells for one in cell.auto_against if one.mode == "ddp"]
    if len(found) < 2:
        return None
    logs = [math.log(ratio) for _, ratio in found]
    count, mean, deviation = len(logs), statistics.fmean(logs), statistics.stdev(logs)
    upper = mean + student_quantile(1 - ERROR, count - 1) * deviation / math.sqrt(count)
    tested = [cell.auto_not_slower_p for cell, _ in found if cell.auto_not_slower_p is not None]
    return NonInferiority(
        margin=margin,
        cells=count,
        ratio=math.exp(mean),
        upper=math.exp(upper),
        shown=upper < math.log1p(margin),
        power=power(count, deviation, margin),
        cells_needed=_cells_needed(deviation, margin),
        cells_tested=len(tested),
        cells_shown=sum(p < ERROR for p in holm(tested)),
        slower=[name_of(cell) for cell, _ in found if _is_slower(cell)],
    )


def power(cells: int, deviation: float, margin: float = MARGIN) -> float:
    """Probability that so many cells show non-inferiority if both are equally fast.

    `deviation`: standard deviation of a cell's log ratio. Noncentral t, as Julious 2004 uses it.
    """
    from scipy.special import nctdtr

    if deviation == 0:
        return 1.0
    shift = math.log1p(margin) * math.sqrt(cells) / deviation
    return 1 - float(nctdtr(cells - 1, shift, student_quantile(1 - ERROR, cells - 1)))


def _cells_needed(deviation: float, margin: float) -> int | None:
    """Number of cells with a power of 90 % at this deviation; None beyond `MAX_CELLS`."""
    return next((count for count in range(2, MAX_CELLS + 1) if power(count, deviation, margin) >= POWER), None)


def _is_slower(cell: ValidationCell) -> bool:
    return any(one.mode == "ddp" and one.verdict == "slower" for one in cell.auto_against)
