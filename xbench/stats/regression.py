"""Did it get slower? Launch pairs to an exact p, an estimate and an exact interval; Holm over many; a noise floor.

The unit is the launch pair: base and head, launched one after the other; its figure d is log(head / base). Launches
are what repeats independently (steps inside a launch share its memory layout, its ports and its luck), and the two of a
pair share whatever the machine did in that minute. Pairs alternate which side goes first (A-B-B-A), so that a linear
drift cancels. If nothing changed, each d is as likely to be +x as −x: that is all that is assumed.

**Test**: Wilcoxon's signed-rank test, exact, by the distribution of the rank sum over all 2ⁿ signs (midranks for ties).
The sign-flip test of the mean is exact as well, but its statistic lets one disturbed launch outweigh all others; a
rank lets it weigh n of n(n+1)/2. And the Hodges-Lehmann estimate (median of the Walsh averages (dᵢ+dⱼ)/2) and the
interval between two order statistics of those averages are this very test turned round, so the p, the estimate and the
interval never contradict each other.

**One side.** The gate asks "slower?", so p is one-sided, and "faster?" has a p of its own. The smallest p of n pairs is
2⁻ⁿ, where a two-sided test has 2¹⁻ⁿ: one pair less to wait for. Holm's adjustment of m cases multiplies the smallest by
m, so `pairs_needed` is the least n with m·2⁻ⁿ < α: 7 for one case, 9 for four, 11 for sixteen at α = 0.01.

**Interval**: two-sided, at least 95 %, the shortest that the exact distribution allows; below 6 pairs there is none.

**Noise floor.** F of n pairs: in 95 of 100 checks of unchanged code the whole interval lies within ±F. It is learned
from A/A pairs by drawing n of them again and again, each with a random sign, because it is known that nothing differs.
Then a slow-down of 2F has, in 95 of 100 checks, its whole interval beyond F. That is why a threshold is at least twice
the floor, and why the line that an interval's lower end has to pass is half the threshold (`LINE`): with the line at
the threshold T itself, a slow-down of exactly T would be found in one check of forty, however many pairs there were.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from xbench.records import Interval

LINE = 0.5
"""The share of the threshold that the lower end of a regression's interval has to pass."""

CONFIDENCE = 0.95
FLOOR_QUANTILE = 0.95
FLOOR_DRAWS = 2000


class SignedRank(NamedTuple):
    """The test of one case and what it says of the size. `center` and `interval` are on the scale of the differences.

    `interval` is None where there are too few pairs for one. `p_slower` tests "not above zero", `p_faster` "not below".
    """

    pairs: int
    center: float
    interval: Interval | None
    p_slower: float
    p_faster: float


def signed_rank(differences: Sequence[float], confidence: float = CONFIDENCE) -> SignedRank:
    """Wilcoxon's exact signed-rank test of paired differences, with the estimate and interval that belong to it.

    Zeros keep their ranks and have no sign (Pratt), ties share midranks. Raises ValueError for no differences, or for
    one that is not finite.
    """
    raise NotImplementedError


def log_ratios(base: Sequence[float], head: Sequence[float]) -> list[float]:
    """log(head / base) of each pair. Raises ValueError for a value that is not positive and finite, unequal lengths."""
    raise NotImplementedError


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p values, in the order given: reject those below α and the family's error is at most α."""
    raise NotImplementedError


def pairs_needed(alpha: float, cases: int) -> int:
    """The least number of pairs with which the smallest one-sided p of `cases` can be below `alpha` after Holm.

    At least 6, because an interval needs as many. Raises ValueError for an alpha outside (0, 1) or no cases.
    """
    raise NotImplementedError


def first_sides(pairs: int) -> list[str]:
    """Which side each pair launches first, 'base' or 'head', so that launches are A-B-B-A."""
    raise NotImplementedError


def noise_floor(differences: Sequence[float], pairs: int, seed: int = 0) -> float | None:
    """The floor F, as a share, for checks of `pairs` pairs, learned from A/A log ratios; None below 6 of either.

    Deterministic for a given seed.
    """
    raise NotImplementedError
