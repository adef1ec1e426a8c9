"""Buckets of each schedule: which gradients share one collective.

Every function takes gradients in ready order and returns buckets in launch order. A bucket is a list of indices into
the ready order. No bucket holds two dtypes. There is one link, first in, first out. T(M) is the time of one collective.

- `single`: SyncEASGD; everything at once, after backward
- `wfbp`: wait-free backpropagation (Poseidon, ATC 2017); one collective per tensor
- `mgwfbp`: Shi, Chu, Li, MG-WFBP, INFOCOM 2019 and arXiv 1912.09268, algorithm 1
- `optimal`: dynamic programming, exact for any T
- `ddp`: torch.nn.parallel.DistributedDataParallel (Li et al., VLDB 2020)

The greedy algorithm of MG-WFBP is not optimal under its own model. Example: three gradients are ready at 0, 0.9 and
1.8, their transfers take 10, ~0 and ~0 seconds, and the latency is 1. The greedy plan ends at 12.8, the best at 12.0.

**A straight line.** For T(M) = α + βM and P[i] the bytes of the first i gradients, the recurrence of `optimal` is

    end[j] = min over i < j of  max(end[i], ready[j]) + α + β·(P[j] − P[i])

Two monotone sequences make a search needless. `ready` ascends, by assumption. `end` does not fall: the best plan of
j+1 without its last gradient is a plan of j that ends no later. So the cuts i with end[i] ≤ ready[j], at which the
link is free, are a prefix 0..f, and f never decreases as j grows. Two cases remain:

- The link is free (i ≤ f): the time is ready[j] + α + β·(P[j] − P[i]). It is least for the fewest bytes, i = f.
- The link is busy (f < i < j): the time is α + β·P[j] + (end[i] − β·P[i]). It is least for the least key end[i] −
  β·P[i], the minimum of a window whose two ends only move forward. A queue in ascending order of the keys gives it,
  and each i enters and leaves the queue once. Such recurrences generally need the convex hull of lines. All lines
  here have the same slope β, so a sliding-window minimum is enough.

No bucket holds two dtypes, so cuts before the current run of one dtype leave the window too. A gradient of zero
bytes costs nothing (T(0) = 0). By itself it ends at max(end[j−1], ready[j]), and no plan is better, as `end` never
falls.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Concatenate, ParamSpec

import numpy as np

from xbench.planning.cost import CostCurve, CostFunction
from xbench.planning.simulate import Buckets, last_arrival_s
from xbench.planning.step import Gradient, dtypes_of, require_ready_order

P = ParamSpec("P")

DDP_BUCKET_BYTES = (1024 * 1024, 25 * 1024 * 1024)
"""Limits of DDP's first bucket and of all later ones, unless a script sets others."""

_ROWS = 64
_TIE = 1e-12
"""Times within this share of each other are equal: they differ by rounding. Fewer buckets are then better."""


Family = Callable[Concatenate[Sequence[Gradient], P], Buckets]


def named(family: Family[P], gradients: Sequence[Gradient], *args: P.args, **kwargs: P.kwargs) -> tuple[str, Buckets]:
    """The name of a family of buckets, which is its function's name, and its buckets for these gradients."""
    return family.__name__, family(gradients, *args, **kwargs)


def single(gradients: Sequence[Gradient]) -> Buckets:
    """One bucket per dtype, in order of each dtype's first gradient."""
    buckets: dict[str, list[int]] = {}
    for index, gradient in enumerate(gradients):
        buckets.setdefault(gradient.dtype, []).append(index)
    return list(buckets.values())


def wfbp(gradients: Sequence[Gradient]) -> Buckets:
    """One bucket per gradient."""
    return [[index] for index in range(len(gradients))]


def mgwfbp(gradients: Sequence[Gradient], alpha_s: float, beta_s_per_byte: float) -> Buckets:
    """MG-WFBP's greedy: merge gradient l into the next one when ready[l+1] − start[l] < α.

    start[l] is the earliest start of l's collective after all earlier decisions: max(ready[l], end of the last closed
    bucket). A merge moves the bytes of l to l+1, and later starts are computed again. The paper numbers layers towards
    the loss, so its next layer is l−1. Its equations 17, 19 and 21 have a sign error: the gain is α.

    Two dtypes are never merged; the paper has one dtype. O(L). Raises ValueError when gradients are not in ready order.
    """
    require_ready_order(gradients)
    buckets: Buckets = []
    members: list[int] = []
    nbytes = 0
    link_free_s = 0.0
    for index, gradient in enumerate(gradients):
        members.append(index)
        nbytes += gradient.nbytes
        start_s = max(link_free_s, gradient.ready_s)
        following = gradients[index + 1] if index + 1 < len(gradients) else None
        if (
            following is not None
            and following.dtype == gradient.dtype
            and following.ready_s - start_s < alpha_s
        ):  # fmt: skip
            continue
        buckets.append(members)
        link_free_s = start_s + alpha_s + beta_s_per_byte * nbytes
        members, nbytes = [], 0
    return buckets


def optimal(gradients: Sequence[Gradient], curve: CostFunction) -> Buckets:
    """The contiguous in-order buckets whose last collective ends first, for any T ≥ 0.

        end[j] = min over i < j of  max(end[i], ready[j]) + T(bytes of i+1..j)

    O(L²), with one vector operation per row. O(L) where T is a straight line (`optimal_line`). Every
    prefix ends as early as possible. Among ends that differ only by rounding, the plan with fewer buckets wins: a
    launch costs nothing in this model, but does on a real link.

    With several dtypes, contiguous buckets break at every change of dtype, which is poor when two dtypes alternate. So
    four plans compete, and the earliest end wins. They are the contiguous plan, each dtype's own optimum launched in
    order of readiness, one bucket per dtype, and DDP's buckets. The result is never worse than those, but it is not
    proven optimal.

    Raises ValueError when gradients are not in ready order.
    """
    contiguous = optimal_contiguous(gradients, curve)
    dtypes = dtypes_of(gradients)
    if len(dtypes) == 1:
        return contiguous
    apart: Buckets = []
    for dtype in dtypes:
        places = [index for index, gradient in enumerate(gradients) if gradient.dtype == dtype]
        own = optimal_contiguous([gradients[index] for index in places], curve)
        apart.extend([places[index] for index in bucket] for bucket in own)
    apart.sort(key=lambda bucket: bucket[-1])
    candidates = [contiguous, apart, single(gradients), ddp(gradients)]
    return min(candidates, key=lambda buckets: (last_arrival_s(gradients, buckets, curve), len(buckets)))


def optimal_contiguous(gradients: Sequence[Gradient], curve: CostFunction) -> Buckets:
    """The dynamic programme of `optimal` alone."""
    if isinstance(curve, CostCurve) and curve.sizes.size == 1 and curve.sizes[0] == 0:  # one knot, at 0 bytes: a line
        return optimal_line(gradients, float(curve.times[0]), curve.slope)
    require_ready_order(gradients)
    count = len(gradients)
    ready = [gradient.ready_s for gradient in gradients]
    carried = np.concatenate([[0.0], np.cumsum([float(gradient.nbytes) for gradient in gradients])])
    run_start = [0] * count
    for j in range(1, count):
        run_start[j] = run_start[j - 1] if gradients[j].dtype == gradients[j - 1].dtype else j
    end = np.zeros(count + 1)
    launches = np.zeros(count + 1, dtype=np.int64)
    previous = np.zeros(count + 1, dtype=np.int64)
    scratch = np.empty(count)
    for block in range(0, count, _ROWS):
        top = min(block + _ROWS, count)
        # T for a block of rows in one call: [j, i] is a bucket of gradients i..j. Entries with i > j are never read.
        sizes = carried[block + 1 : top + 1, None] - carried[None, :top]
        took = curve(np.maximum(sizes, 0.0, out=sizes))
        for j in range(block, top):
            low = run_start[j]
            ends = np.maximum(end[low : j + 1], ready[j], out=scratch[: j + 1 - low])
            ends += took[j - block, low : j + 1]
            tied = np.flatnonzero(ends <= ends.min() * (1 + _TIE))
            chosen = tied[0] if tied.size == 1 else tied[np.argmin(launches[low + tied])]
            end[j + 1] = ends[chosen]
            launches[j + 1] = launches[low + chosen] + 1
            previous[j + 1] = low + chosen
    return _backwards(previous.tolist())


def optimal_line(
    gradients: Sequence[Gradient], alpha_s: float, beta_s_per_byte: float, *, across_dtypes: bool = False
) -> Buckets:
    """The plan of `optimal_contiguous` for T(M) = `alpha_s` + `beta_s_per_byte`·M, in one pass.

    The module gives the proof. Where several plans end alike with as few buckets, the two functions may choose
    differently. O(L). `across_dtypes` lets a bucket hold several dtypes (for bounds).

    Raises ValueError for gradients that are not in ready order, and for a negative or non-finite α or β.
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
    return _backwards(previous)


def _worse(key_s: float, launches: int, slack_s: float) -> bool:
    """True if a later cut makes one in the queue needless, by the differences of their keys and launches."""
    return key_s > slack_s or (key_s >= -slack_s and launches >= 0)


def _backwards(previous: Sequence[int]) -> Buckets:
    """The buckets up to the last cut, where the bucket before cut j begins at cut `previous[j]`."""
    buckets: Buckets = []
    after = len(previous) - 1
    while after:
        buckets.append(list(range(previous[after], after)))
        after = previous[after]
    return buckets[::-1]


def ddp(gradients: Sequence[Gradient]) -> Buckets:
    """DDP's buckets after it has rebuilt them at the end of its first step, in ready order."""
    return ddp_assignment(gradients, DDP_BUCKET_BYTES)


def ddp_assignment(gradients: Sequence[Gradient], limits_bytes: Sequence[int]) -> Buckets:
    """torch's `_compute_bucket_assignment_by_size` for tensors in ready order.

    A bucket closes when its bytes reach its limit, so it may exceed the limit by far. The next bucket takes the next
    limit, and the last limit serves all later ones. Each dtype fills its own bucket and has its own position in the
    limits. Buckets are launched in the order in which they close. Buckets still open at the end follow in the order of
    their first gradients; torch leaves their order to a hash map. Raises ValueError without limits.
    """
    if not limits_bytes:
        raise ValueError("bucket assignment needs at least one limit")
    closed: Buckets = []
    filling: dict[str, list[int]] = {}
    nbytes: dict[str, int] = {}
    limit_of: dict[str, int] = {}
    for index, gradient in enumerate(gradients):
        dtype = gradient.dtype
        filling.setdefault(dtype, []).append(index)
        nbytes[dtype] = nbytes.get(dtype, 0) + gradient.nbytes
        place = limit_of.setdefault(dtype, 0)
        if nbytes[dtype] >= limits_bytes[place]:
            closed.append(filling.pop(dtype))
            nbytes[dtype] = 0
            limit_of[dtype] = min(place + 1, len(limits_bytes) - 1)
    return closed + sorted(filling.values())
