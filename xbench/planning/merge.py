"""Which gradients travel together: the buckets of each schedule.

Every function takes gradients in ready order and returns buckets in launch order, each a list of indices into that
order. No bucket holds two dtypes. The link is one, first in, first out; T(M) is the time of one collective.

| function | source |
| --- | --- |
| `single` | SyncEASGD: everything at once, after backward |
| `wfbp` | wait-free backpropagation (Poseidon, ATC 2017): one collective a tensor |
| `mgwfbp` | Shi, Chu, Li, MG-WFBP, INFOCOM 2019 and arXiv 1912.09268, algorithm 1 |
| `optimal` | dynamic programming, below; exact for any T |
| `ddp` | torch.nn.parallel.DistributedDataParallel (Li et al., VLDB 2020) |

The paper's greedy is not optimal under its own model: three gradients ready at 0, 0.9 and 1.8 with 10, ~0 and ~0
seconds of transfer and a latency of 1 end at 12.8 under it and at 12.0 at best.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Concatenate, ParamSpec

import numpy as np

from xbench.planning.cost import CostCurve, CostFunction
from xbench.planning.gradients import Gradient, dtypes_of, require_ready_order
from xbench.planning.optimal_linear import optimal_line
from xbench.planning.simulate import Buckets, transfers

P = ParamSpec("P")

DDP_FIRST_BUCKET_BYTES = 1024 * 1024
DDP_BUCKET_BYTES = 25 * 1024 * 1024

_ROWS = 64
_TIE = 1.0 + 1e-12
"""Ends within this factor are equal: they differ by rounding."""


Family = Callable[Concatenate[Sequence[Gradient], P], Buckets]


def named(family: Family[P], gradients: Sequence[Gradient], *args: P.args, **kwargs: P.kwargs) -> tuple[str, Buckets]:
    """The name of a family of buckets, which is its function's, and its buckets of these gradients."""
    return family.__name__, family(gradients, *args, **kwargs)


def single(gradients: Sequence[Gradient]) -> Buckets:
    """One bucket a dtype, in order of each dtype's first gradient."""
    buckets: dict[str, list[int]] = {}
    for index, gradient in enumerate(gradients):
        buckets.setdefault(gradient.dtype, []).append(index)
    return list(buckets.values())


def wfbp(gradients: Sequence[Gradient]) -> Buckets:
    """One bucket a gradient."""
    return [[index] for index in range(len(gradients))]


def mgwfbp(gradients: Sequence[Gradient], alpha_s: float, beta_s_per_byte: float) -> Buckets:
    """MG-WFBP's greedy: merge gradient l into the next one when ready[l+1] − start[l] < α.

    start[l] is when l's collective could start, given everything decided so far: max(ready[l], end of the last bucket
    closed). What l carries moves on to l+1, and the starts of what follows are computed anew. (The paper numbers
    layers down to the loss, so its next is l−1, and its equations 17, 19 and 21 have a sign slip: the gain is α.)
    Two dtypes, which the paper does not know, are never merged. O(L). Raises ValueError when not in ready order.
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
    """The buckets whose last collective ends first, over all contiguous in-order buckets, for any T ≥ 0.

        end[j] = min over i < j of  max(end[i], ready[j]) + T(bytes of i+1..j)

    O(L²), a vector operation a row; O(L) where T is a straight line (`straight.optimal_line`). Every prefix ends as
    early as it can; of ends that are equal but for rounding the one with fewer buckets is taken, because a launch, free
    in this model, is not free in the world.

    Several dtypes: contiguous buckets break at every change of dtype, which is hopeless when two dtypes alternate. So
    each dtype's own optimum, launched in order of readiness, one bucket a dtype, and DDP's buckets stand for election
    too, and the earliest end wins; then the answer is never worse than the other schedules', but not proven best.

    Raises ValueError when not in ready order.
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
    return min(candidates, key=lambda buckets: (transfers(gradients, buckets, curve)[-1].end_s, len(buckets)))


def optimal_contiguous(gradients: Sequence[Gradient], curve: CostFunction, *, across_dtypes: bool = False) -> Buckets:
    """The dynamic programme of `optimal` alone. `across_dtypes` lifts the rule of one dtype a bucket (for bounds)."""
    if isinstance(curve, CostCurve) and curve.sizes.size == 1 and curve.sizes[0] == 0:  # one knot, at no bytes: a line
        return optimal_line(gradients, float(curve.times[0]), curve.slope, across_dtypes=across_dtypes)
    require_ready_order(gradients)
    count = len(gradients)
    ready = [gradient.ready_s for gradient in gradients]
    carried = np.concatenate([[0.0], np.cumsum([float(gradient.nbytes) for gradient in gradients])])
    run_start = [0] * count
    if not across_dtypes:
        for j in range(1, count):
            run_start[j] = run_start[j - 1] if gradients[j].dtype == gradients[j - 1].dtype else j
    end = np.zeros(count + 1)
    launches = np.zeros(count + 1, dtype=np.int64)
    previous = np.zeros(count + 1, dtype=np.int64)
    scratch = np.empty(count)
    for block in range(0, count, _ROWS):
        top = min(block + _ROWS, count)
        # T for a block of rows in one call: [j, i] is a bucket of gradients i..j. i > j is no bucket and never read.
        sizes = carried[block + 1 : top + 1, None] - carried[None, :top]
        took = curve(np.maximum(sizes, 0.0, out=sizes))
        for j in range(block, top):
            low = run_start[j]
            ends = np.maximum(end[low : j + 1], ready[j], out=scratch[: j + 1 - low])
            ends += took[j - block, low : j + 1]
            tied = np.flatnonzero(ends <= ends.min() * _TIE)
            chosen = tied[0] if tied.size == 1 else tied[np.argmin(launches[low + tied])]
            end[j + 1] = ends[chosen]
            launches[j + 1] = launches[low + chosen] + 1
            previous[j + 1] = low + chosen
    buckets: Buckets = []
    after = count
    while after:
        first = int(previous[after])
        buckets.append(list(range(first, after)))
        after = first
    return buckets[::-1]


def ddp(
    gradients: Sequence[Gradient],
    first_bucket_bytes: int = DDP_FIRST_BUCKET_BYTES,
    bucket_bytes: int = DDP_BUCKET_BYTES,
) -> Buckets:
    """DDP's buckets once it has rebuilt them, after its first step, in the order gradients became ready."""
    return ddp_assignment(gradients, [first_bucket_bytes, bucket_bytes])


def ddp_assignment(gradients: Sequence[Gradient], limits_bytes: Sequence[int]) -> Buckets:
    """torch's `_compute_bucket_assignment_by_size` for tensors in ready order.

    A bucket closes when its bytes reach its limit, so it may go far over; the next takes the next limit, and the last
    limit serves all that follow. Each dtype fills its own bucket and walks the limits by itself. Buckets are launched
    in the order in which they close; those still open at the end follow (torch leaves their order to a hash map; here
    it is that of their first gradient). Raises ValueError without limits.
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
