"""Lower bounds of a synchronous step, which show how close a schedule is to the best possible one.

With next-forward overlap, a step takes at least its compute time C and at least the link's time ΣT. Without it, the
next forward pass waits for the last gradient and for the last update:

    forward + max(earliest end over plans, backward + optimizer)

An optimizer that starts only after all gradients have arrived adds its whole time to the earliest end. An optimizer
that updates each gradient on arrival need not, so that time is not part of the bound.

T is measured with a short idle time before each collective. A link with a burst allowance (a token bucket) lets a burst
pass at once. ΣT over many small collectives is then less than the time that the link needs. Where the pace g [s/B] of a
queue was measured, no plan is faster than that pace. Only the saved burst credit is subtracted, once:

    earliest end ≥ max over j of ready[j] + g · (bytes of the gradients from j on) − max over M of (g·M − T(M))

That idle time is short. A collective after a longer one may take up to `rest_s` less. The backward-overlap bound
therefore subtracts `rest_s` once. With next-forward overlap a step gains nothing from this credit: the link is idle for
as long as it then saves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from xbench.planning.cost import CostFunction
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
    queue_s_per_byte: float = 0.0,
    rest_s: float = 0.0,
) -> Bounds:
    """Lower bounds [s] of a step under the link model `curve`.

    `queue_s_per_byte` is the measured pace of a queue [s/B]; 0 means none. `rest_s` [s] is the time that a collective
    saves after an idle link.

    `communication_s` is T of all gradients with one collective per dtype. The overlap bound takes the least ΣT over
    contiguous plans. That equals `communication_s` unless T grows faster than a straight line. Both bounds let a bucket
    hold several dtypes, so they hold for every schedule.

    `compute_s` should be forward + backward + optimizer. An instrumented step is a little longer than a bare one: scale
    the parts to the bare step. The backward-overlap bound is never below the overlap bound. Raises ValueError when
    gradients are not in ready order.
    """
    whole = float(curve(np.array(bucket_bytes(gradients, single(gradients)), dtype=np.float64)).sum())
    at_once = [replace(gradient, ready_s=0.0) for gradient in gradients]
    link_s = min(whole, last_arrival_s(at_once, optimal_contiguous(at_once, curve, across_dtypes=True), curve))
    best = last_arrival_s(gradients, optimal_contiguous(gradients, curve, across_dtypes=True), curve)
    best = max(best, _at_the_pace_of_a_queue(gradients, curve, queue_s_per_byte)) - rest_s
    overlap_s = max(compute_s, link_s, _at_the_pace_of_a_queue(at_once, curve, queue_s_per_byte))
    return Bounds(
        compute_s=compute_s,
        communication_s=whole,
        overlap_bound_s=overlap_s,
        backward_overlap_bound_s=max(overlap_s, forward_s + max(best, backward_s + optimizer_s)),
    )


def _at_the_pace_of_a_queue(gradients: Sequence[Gradient], curve: CostFunction, s_per_byte: float) -> float:
    """Earliest arrival [s] of the last gradient at the pace of a queue; the module gives the formula."""
    if s_per_byte <= 0 or not gradients:
        return 0.0
    nbytes = np.array([gradient.nbytes for gradient in gradients], dtype=np.float64)
    from_here_on = np.cumsum(nbytes[::-1])[::-1]
    ready_s = np.array([gradient.ready_s for gradient in gradients])
    sizes = np.geomspace(1.0, max(1.0, float(from_here_on[0])), _SIZES)
    saved_s = max(0.0, float((s_per_byte * sizes - curve(sizes)).max()))
    return float((ready_s + s_per_byte * from_here_on).max()) - saved_s
