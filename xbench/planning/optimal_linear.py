"""The exact contiguous plan when T is a straight line, in O(L log L): the sort into ready order, then one pass.

`merge.optimal_contiguous` tries every last bucket of every prefix, because T may be any curve. For T(M) = α + βM and
P[i] the bytes of the first i gradients, its recurrence reads

    end[j] = min over i < j of  max(end[i], ready[j]) + α + β·(P[j] − P[i])

Two orders make a search needless. `ready` rises, by assumption. `end` does not fall: cut the last gradient off the best
plan of j+1, and what is left is a plan of j that ends no later. So the cuts i with end[i] ≤ ready[j], those whose link
is free by then, are a prefix 0..f, and f never moves back as j grows. Two cases remain:

- the link is free (i ≤ f): the time is ready[j] + α + β·(P[j] − P[i]), least for the fewest bytes, i = f;
- the link is busy (f < i < j): the time is α + β·P[j] + (end[i] − β·P[i]), least for the least key end[i] − β·P[i].

The second is the minimum of a window whose two ends only move forward: a queue that is kept in rising order of its keys
answers it, each i entering and leaving once. (The sliding-window minimum is what is left of the convex hull of lines
that such recurrences need in general: all lines here have the same slope β.)

No bucket holds two dtypes, so cuts before the current run of one dtype drop out of the window too. A gradient of no
bytes costs nothing (T(0) = 0): by itself it ends at max(end[j−1], ready[j]), which no plan beats, as `end` never falls.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from xbench.planning.gradients import Gradient, require_ready_order
from xbench.planning.simulate import Buckets

_TIE = 1e-12
"""Times within this share of each other are equal: they differ by rounding. Then fewer buckets are better."""


def optimal_line(
    gradients: Sequence[Gradient], alpha_s: float, beta_s_per_byte: float, *, across_dtypes: bool = False
) -> Buckets:
    """The contiguous buckets whose last collective ends first when T(M) = `alpha_s` + `beta_s_per_byte`·M.

    The same last end as `merge.optimal_contiguous` with `Curve.line`; of plans that end alike it prefers fewer buckets,
    and where several are left the two may choose differently. `across_dtypes` lifts the rule of one dtype a bucket.
    O(L) for gradients in ready order. Raises ValueError for gradients that are not, and for a negative or non-finite α
    or β.
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
    busy: deque[int] = deque()  # cuts that end after ready[j], in rising order of their keys
    free = 0  # the last cut whose link is free at ready[j]; that of the cut before everything always is
    run_start = 0  # the first cut that leaves one dtype in the last bucket
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
    """Whether a cut in the queue is needless beside a later one, from the differences of their keys and launches."""
    return key_s > slack_s or (key_s >= -slack_s and launches >= 0)
