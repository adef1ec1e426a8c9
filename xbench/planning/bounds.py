"""How fast a synchronous step can be at best, and how much of the way there a schedule went.

With next-forward overlap allowed, a step takes at least its compute C and at least the link's time ΣT. Without, the
next forward waits for the last gradient and for the last update:

    forward + max(earliest end over plans, backward + optimizer)

An optimizer that starts only when everything has arrived adds its whole time to the earliest end; one that updates what
has arrived need not, so that time is not part of the bound.

T is the time of a collective that finds the link a little rested. Links that rest may save up: a token bucket lets a
burst pass at once, and then ΣT over many small collectives is less than any link can do. Where the pace of a queue was
measured, g seconds a byte, no plan is faster than that pace either, but for what a rested link had saved, once:

    earliest end ≥ max over j of ready[j] + g · (bytes of the gradients from j on) − max over M of (g·M − T(M))

And T itself was measured of collectives soon after one another. Where one after a longer rest takes less, by `rest_s`,
what travels since the link last rested may take that much less, once. Where gradients may travel at any time a step
gains nothing by that: the link rests as long as it then saves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from xbench.planning.cost import CostFunction
from xbench.planning.gradients import Gradient
from xbench.planning.merge import optimal_contiguous, single
from xbench.planning.simulate import transfers
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
    """Lower bounds [s] of a step under the link model `curve`, and the pace `queue_s_per_byte` [s/B] of a queue.

    `rest_s`: what a collective takes less where the link has rested.

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
    best = max(best, _at_the_pace_of_a_queue(gradients, curve, queue_s_per_byte)) - rest_s
    overlap_s = max(compute_s, link_s, _at_the_pace_of_a_queue(at_once, curve, queue_s_per_byte))
    return Bounds(
        compute_s=compute_s,
        communication_s=whole,
        overlap_bound_s=overlap_s,
        backward_overlap_bound_s=max(overlap_s, forward_s + max(best, backward_s + optimizer_s)),
    )


def _at_the_pace_of_a_queue(gradients: Sequence[Gradient], curve: CostFunction, s_per_byte: float) -> float:
    """When the last gradient has arrived at the earliest [s]; see the module."""
    if s_per_byte <= 0 or not gradients:
        return 0.0
    nbytes = np.array([gradient.nbytes for gradient in gradients], dtype=np.float64)
    from_here_on = np.cumsum(nbytes[::-1])[::-1]
    ready_s = np.array([gradient.ready_s for gradient in gradients])
    sizes = np.geomspace(1.0, max(1.0, float(from_here_on[0])), _SIZES)
    saved_s = max(0.0, float((s_per_byte * sizes - curve(sizes)).max()))
    return float((ready_s + s_per_byte * from_here_on).max()) - saved_s


def _seconds(gradients: Sequence[Gradient], bucket: list[int], curve: CostFunction) -> float:
    nbytes = sum(gradients[index].nbytes for index in bucket)
    return float(curve(np.array([nbytes], dtype=np.float64))[0])
