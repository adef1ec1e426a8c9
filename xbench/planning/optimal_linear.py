"""Exact contiguous plan for a straight line T in O(L log L): the sort into ready order, then one pass.

`merge.optimal_contiguous` tries every last bucket of every prefix, because T may be any curve. For T(M) = α + βM and
P[i] the bytes of the first i gradients, its recurrence is

    end[j] = min over i < j of  max(end[i], ready[j]) + α + β·(P[j] − P[i])

Two monotone sequences make a search needless. `ready` ascends, by assumption. `end` does not fall: the best plan of j+1
without its last gradient is a plan of j that ends no later. So the cuts i with end[i] ≤ ready[j], at which the link is
free, are a prefix 0..f, and f never decreases as j grows. Two cases remain:

- The link is free (i ≤ f): the time is ready[j] + α + β·(P[j] − P[i]). It is least for the fewest bytes, i = f.
- The link is busy (f < i < j): the time is α + β·P[j] + (end[i] − β·P[i]). It is least for the least key end[i] −
  β·P[i].

The second case is the minimum of a window whose two ends only move forward. A queue in ascending order of the keys
gives it, and each i enters and leaves the queue once. Such recurrences generally need the convex hull of lines. All
lines here have the same slope β, so a sliding-window minimum is enough.

No bucket holds two dtypes, so cuts before the current run of one dtype leave the window too. A gradient of zero bytes
costs nothing (T(0) = 0). By itself it ends at max(end[j−1], ready[j]), and no plan is better, as `end` never falls.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from xbench.planning.gradients import Gradient, require_ready_order
from xbench.planning.simulate import Buckets

_TIE = 1e-12
"""Times within this share of each other are equal: they differ by rounding. Fewer buckets are then better."""


def optimal_line(
    gradients: Sequence[Gradient], alpha_s: float, beta_s_per_byte: float, *, across_dtypes: bool = False
) -> Buckets:
    """The contiguous buckets whose last collective ends first when T(M) = `alpha_s` + `beta_s_per_byte`·M.

    The last end equals that of `merge.optimal_contiguous` with `CostCurve.line`. Among plans with equal ends it prefers
    fewer buckets; where several are left, the two functions may choose differently. `across_dtypes` lets a bucket hold
    several dtypes. O(L) for gradients in ready order. Raises ValueError for gradients that are not in ready order, and
    for a negative or non-finite α or β.
    """
    require_ready_order(gradients)
    for name, value in (("alpha", alpha_s), ("beta", beta_s_per_byte)):
        if not math.isfinite(value) or value < 0:
            raise ValueError(f"{name} is {value}: a straight line needs finite numbers that are not below zero")
    count = len(gradients)
    carried_s = [0.0] * (count + 1)  # β·P
    end_s = [0.0] * (count + 1)
    key_s = [0.0] * (count + 1)
    launches = [0] * (count + 1)
    previous = [0] * (count + 1)
    busy: deque[int] = deque()  # cuts that end after ready[j], in ascending order of their keys
    free = 0  # the last cut at which the link is free at ready[j]; cut 0 always is one
    run_start = 0  # the first cut after which the last bucket has one dtype
    for j in range(1, count + 1):
        gradient = gradients[j - 1]
        if j > 1 and not across_dtypes and gradient.dtype != gradients[j - 2].dtype:
            run_start = j - 1
        carried_s[j] = carried_s[j - 1] + beta_s_per_byte * gradient.nbytes
        while free + 1 < j and end_s[free + 1] <= gradient.ready_s:
            free += 1
        while busy and busy[0] < max(free + 1, run_start):
            busy.popleft()
        found: list[tuple[float, int]] = []  # (end, cut)
        if free >= run_start:
            found.append((gradient.ready_s + alpha_s + (carried_s[j] - carried_s[free]), free))
        if busy:
            found.append((end_s[busy[0]] + alpha_s + (carried_s[j] - carried_s[busy[0]]), busy[0]))
        if gradient.nbytes == 0:
            found.append((max(end_s[j - 1], gradient.ready_s), j - 1))
        earliest_s = min(found)[0]
        tied = [(launches[cut], after_s, cut) for after_s, cut in found if after_s <= earliest_s * (1 + _TIE)]
        before, end_s[j], previous[j] = min(tied)
        launches[j] = before + 1
        key_s[j] = end_s[j] - carried_s[j]
        slack_s = _TIE * end_s[j]
        while busy and _worse(key_s[busy[-1]] - key_s[j], launches[busy[-1]] - launches[j], slack_s):
            busy.pop()
        busy.append(j)
    buckets: Buckets = []
    after = count
    while after:
        buckets.append(list(range(previous[after], after)))
        after = previous[after]
    return buckets[::-1]


def _worse(key_s: float, launches: int, slack_s: float) -> bool:
    """True if a later cut makes one in the queue needless, by the differences of their keys and launches."""
    return key_s > slack_s or (key_s >= -slack_s and launches >= 0)
