"""Buckets of each schedule: which gradients share one collective.

Every function takes gradients in ready order and returns buckets in launch order. A bucket is a list of indices into
the ready order. No bucket holds two dtypes. There is one link, first in, first out. T(M) is the time of one collective.

- `single`: SyncEASGD; everything at once, after backward
- `wfbp`: wait-free backpropagation (Poseidon, ATC 2017); one collective per tensor
- `mgwfbp`: Shi, Chu, Li, MG-WFBP, INFOCOM 2019 and arXiv 1912.09268, algorithm 1; not optimal under its own model
- `optimal`: dynamic programming, exact for any T
- `ddp`: torch.nn.parallel.DistributedDataParallel (Li et al., VLDB 2020)
"""

from __future__ import annotations

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

    O(L²), with one vector operation per row. Every prefix ends as early as possible. Among ends that differ only by
    rounding, the plan with fewer buckets wins: a launch costs nothing in this model, but does on a real link.

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
    """The dynamic programme of `optimal` alone.

    Under a straight line, cuts of one busy period tie, and the last of them leaves the least to update after the end.
    A cut at which the link is free by then comes before them.
    """
    require_ready_order(gradients)
    straight = isinstance(curve, CostCurve) and curve.sizes.size == 1 and curve.sizes[0] == 0  # one knot, at 0 bytes
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
            tied = tied[launches[low + tied] == launches[low + tied].min()]
            if straight:
                free = tied[end[low + tied] <= ready[j]]
                tied = (free if free.size else tied)[::-1]
            chosen = tied[0]
            end[j + 1] = ends[chosen]
            launches[j + 1] = launches[low + chosen] + 1
            previous[j + 1] = low + chosen
    buckets: Buckets = []
    after = count
    while after:
        buckets.append(list(range(previous[after], after)))
        after = int(previous[after])
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
