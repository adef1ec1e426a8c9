"""How fast a synchronous step can be at best, and how much of the way there a schedule went.

With next-forward overlap allowed, a step takes at least its compute C and at least the link's time ΣT. Without, the
next forward waits for the last gradient and for the last update:

    forward + max(earliest end over plans, backward + optimizer)

An optimizer that starts only when everything has arrived adds its whole time to the earliest end; one that updates what
has arrived need not, so that time is not part of the bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from xbench.planning.cost import Transfer
from xbench.planning.gradients import Gradient
from xbench.planning.merge import optimal_contiguous, single
from xbench.planning.simulate import transfers
from xbench.records import Bounds

_NOTHING = 1e-3


def bounds(
    gradients: Sequence[Gradient],
    curve: Transfer,
    *,
    forward_s: float,
    backward_s: float,
    optimizer_s: float,
    compute_s: float,
) -> Bounds:
    """Lower bounds [s] of a step under the link model `curve`.

    `communication_s` is T of all gradients in one collective a dtype. The overlap bound takes the least ΣT over
    contiguous plans, which is that same number unless T grows faster than a straight line. Both bounds let a bucket
    hold several dtypes, so that they stay bounds whatever a schedule does with them. `compute_s` should be
    forward + backward + optimizer (an instrumented step is a little longer than a bare one: scale the parts to it); the
    backward-overlap bound is never below the overlap bound. Raises ValueError when gradients are not in ready order.
    """
    whole = sum(_seconds(gradients, bucket, curve) for bucket in single(gradients))
    at_once = [replace(gradient, ready_s=0.0) for gradient in gradients]
    link_s = min(whole, transfers(at_once, optimal_contiguous(at_once, curve, across_dtypes=True), curve)[-1].end_s)
    best = transfers(gradients, optimal_contiguous(gradients, curve, across_dtypes=True), curve)[-1].end_s
    overlap_s = max(compute_s, link_s)
    return Bounds(
        compute_s=compute_s,
        communication_s=whole,
        overlap_bound_s=overlap_s,
        backward_overlap_bound_s=max(overlap_s, forward_s + max(best, backward_s + optimizer_s)),
    )


def removed_share(mode_step_s: float, reference_step_s: float, bound_s: float) -> float | None:
    """Share of the removable communication that a schedule removed: (reference − mode) / (reference − bound).

    Below 0 for a schedule slower than the reference; above 1 only when the bound's model was wrong. None when nothing
    is removable: the reference is within a thousandth of the bound, or under it.
    """
    removable_s = reference_step_s - bound_s
    if removable_s <= _NOTHING * reference_step_s:
        return None
    return (reference_step_s - mode_step_s) / removable_s


def _seconds(gradients: Sequence[Gradient], bucket: list[int], curve: Transfer) -> float:
    nbytes = sum(gradients[index].nbytes for index in bucket)
    return float(curve(np.array([nbytes], dtype=np.float64))[0])
