"""Lower bounds of a synchronous step, which show how close a schedule is to the best possible one (docs/planner.md).

Take any line ℓ(M) = a + bM with a, b ≥ 0 under the least time per collective of M bytes in a long sequence
(`Contention.sustained`), or else under T(M). A collective is at least ℓ(M) seconds of work for the link. Under a line,
the best division is contiguous and in ready order (`merge.optimal_contiguous`): a collective that sends a part of a
gradient may as well send all of it, since the rest was ready too and the next collective is shorter by the same time.
The bound is the largest over the lines on the lower convex hull, and the line of the least time per byte.

A link may save credit while it is idle. So the earliest end is lower by the saved credit, max over M of ℓ(M) − T(M),
and by `rest_s`, once each. With next-forward overlap neither is subtracted: within a step, the link is idle for as long
as it then saves.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from xbench.planning.contention import Contention
from xbench.planning.cost import CostCurve, CostFunction, FloatArray
from xbench.planning.merge import optimal_contiguous, single
from xbench.planning.simulate import bucket_bytes, last_arrival_s
from xbench.planning.step import Gradient
from xbench.records import Bounds

_SIZES = 512


def bounds(
    gradients: Sequence[Gradient],
    curve: CostFunction,
    *,
    forward_s: float,
    backward_s: float,
    optimizer_s: float,
    compute_s: float,
    contention: Contention | None = None,
) -> Bounds:
    """Lower bounds [s] of a step on a link with T = `curve`, whose long sequences take what `contention` measured.

    `communication_s` is T of all gradients with one collective per dtype. `compute_s` should be forward + backward +
    optimizer. An instrumented step is a little longer than a bare one: scale the parts to the bare step. The
    backward-overlap bound is never below the overlap bound. Raises ValueError when gradients are not in ready order.
    """
    whole = float(curve(np.array(bucket_bytes(gradients, single(gradients)), dtype=np.float64)).sum())
    nbytes = sum(gradient.nbytes for gradient in gradients)
    link_s, last_s = 0.0, 0.0
    alike = [replace(gradient, dtype="") for gradient in gradients]  # any may share a bucket
    for alpha_s, beta_s_per_byte, saved_s in _lines(curve, contention, nbytes) if nbytes else []:
        line = CostCurve.line(alpha_s, beta_s_per_byte)
        end_s = last_arrival_s(alike, optimal_contiguous(alike, line), line)
        link_s, last_s = max(link_s, alpha_s + beta_s_per_byte * nbytes), max(last_s, end_s - saved_s)
    last_s -= contention.rest_s if contention is not None else 0.0
    overlap_s = max(compute_s, link_s)
    return Bounds(
        compute_s=compute_s,
        communication_s=whole,
        overlap_bound_s=overlap_s,
        backward_overlap_bound_s=max(overlap_s, forward_s + max(last_s, backward_s + optimizer_s)),
    )


def _lines(curve: CostFunction, contention: Contention | None, nbytes: int) -> list[tuple[float, float, float]]:
    """Lines under Q for up to `nbytes` [B]: a [s], b [s/B], and the credit [s] that T saves against the line."""
    sizes = np.geomspace(1.0, max(2.0, nbytes), _SIZES)
    if isinstance(curve, CostCurve):
        sizes = np.union1d(sizes, curve.sizes[(curve.sizes > 1) & (curve.sizes < nbytes)])
    alone_s = curve(sizes)
    sustained_s = alone_s
    if contention is not None:
        sustained_s = alone_s * contention.least_sustained(sizes)
    lines = [*_hull(sizes, sustained_s), (0.0, float((sustained_s / sizes).min()))]
    return [(a, b, max(0.0, float((a + b * sizes - alone_s).max()))) for a, b in lines]


def _hull(sizes: FloatArray, times: FloatArray) -> list[tuple[float, float]]:
    """Edges (a, b) with a, b ≥ 0 of the lower convex hull of the points (M, Q)."""
    hull: list[tuple[float, float]] = []
    for size, took_s in zip(sizes.tolist(), times.tolist(), strict=True):
        while len(hull) > 1 and _turns_down(hull[-2], hull[-1], (size, took_s)):
            hull.pop()
        hull.append((size, took_s))
    edges = []
    for (size, took_s), (larger, longer_s) in itertools.pairwise(hull):
        slope = (longer_s - took_s) / (larger - size)
        if slope >= 0 and took_s >= slope * size:
            edges.append((took_s - slope * size, slope))
    return edges


def _turns_down(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> bool:
    """True if the middle point is on or above the line through the other two."""
    return (b[1] - a[1]) * (c[0] - a[0]) >= (c[1] - a[1]) * (b[0] - a[0])
