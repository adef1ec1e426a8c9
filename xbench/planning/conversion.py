"""Measured inputs of plans, converted to another topology, number of workers or device.

A cost model and its contention are converted to other workers through the time of one message (`topology`): the
measured all-reduce is inverted as a ring of equal links, and the other topology's formula is applied to the result.
Where links inside a host are faster than those between hosts, a measurement on several hosts is of neither
(`flat_ring_caution`).

For another device, one factor scales every measured compute time, and the host's own costs of communication (launches,
hooks, copies into buckets). Slow-downs between collectives and computation keep their ratios, because they were not
measured on the other device. The wait for input stays: the loader is on the host.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TypeVar

import numpy as np

from xbench import records
from xbench.field_types import MIN_S
from xbench.planning import cost
from xbench.planning.contention import Contention, is_launch_bound
from xbench.planning.cost import CostCurve, FloatArray
from xbench.planning.topology import MAX_S, Topology, message, pace_of, terms
from xbench.records import ContentionPoint, CostModel, CostSegment, FabricRecord, Interval, Layer, StepTimes
from xbench.records.parts import Part

P = TypeVar("P", bound=Part)

COMPUTED = ("accumulate_s", "forward_s", "backward_s", "optimizer_s")
WHOLE = ("uninstrumented_step_s", "uninstrumented_ci95", "step_s", "step_ci95")
_MAX_BYTES = 2**62


def flat_ring_caution(fabric: FabricRecord) -> str | None:
    """Caution about a measurement over two kinds of links; None if there is one kind."""
    if fabric.hosts == 1 or fabric.ranks_per_host == 1:
        return None
    return (
        f"The all-reduce was measured on {fabric.hosts} hosts of {fabric.ranks_per_host} workers, and is taken for a "
        f"ring of {fabric.world_size} equal links. Links inside a host are faster than those between hosts, so other "
        "numbers of workers are less certain."
    )


def carried_over(measured: CostModel, topology: Topology, workers: int) -> CostModel:
    """The cost model for `workers`, from one measured in a ring of its own `world_size`.

    Its line is the topology's formula for the measured line. Its segments are the converted curve, so `CostCurve.of`
    returns that curve. It has no points, because nothing was measured for it, and its residuals are those of the
    measurement. For the measured ring it is the unchanged model. Raises ValueError as `curve` does.
    """
    if topology.name == "ring" and workers == measured.world_size:
        return measured
    alpha_s, beta_s_per_byte = terms(measured)
    a_s, b_s_per_byte = topology.line(alpha_s, beta_s_per_byte, workers)

    def interval(ends: Interval, estimate: float, place: int) -> Interval:
        """Convert both ends with the same formula, which is linear in α and in β."""
        unit = (1.0, 0.0) if place == 0 else (0.0, 1.0)
        slope = topology.line(*unit, workers)[place] - topology.line(0.0, 0.0, workers)[place]
        now = (a_s, b_s_per_byte)[place]
        per = cost.ring(1.0, 1.0, measured.world_size)[place]
        low, high = (now + slope * (end - estimate) / per for end in ends)
        return low, high

    return measured.model_copy(
        update={
            "world_size": workers,
            "alpha_s": a_s,
            "beta_s_per_byte": b_s_per_byte,
            "alpha_ci95": interval(measured.alpha_ci95, measured.alpha_s, 0),
            "beta_ci95": interval(measured.beta_ci95, measured.beta_s_per_byte, 1),
            "points": [],
            "segments": _segments(topology.curve(message(measured), workers, pace_of(measured))),
            "segmented_max_relative_residual": None,
        }
    )


def carried_contention(measured: Contention, link: CostModel, topology: Topology, workers: int) -> Contention:
    """Contention for `workers`, by size of all-reduce, from the ring in which `link` was measured.

    A message is assumed to keep a host as busy as one of its size did in the measurement. Where the link's pace makes
    an all-reduce longer than its messages, other delays fit into the extra time. Computation loses as much to the whole
    all-reduce as before. Raises ValueError as `Topology.curve` does.
    """
    if topology.name == "ring" and workers == link.world_size:
        return measured
    log_sizes = measured.log_sizes + math.log(1 / link.world_size / topology.share(workers))
    longer = paced(link, topology, workers, np.exp(log_sizes))
    if np.all(longer == 1.0):
        return replace(measured, log_sizes=log_sizes)
    beside = _of_the_longer(measured.collective, longer)
    lost = (1 - 1 / measured.compute) * measured.collective / (beside * longer)
    quiet, sustained = (
        _of_the_longer(table, longer) if table is not None else None for table in (measured.quiet, measured.sustained)
    )
    return replace(
        measured, log_sizes=log_sizes, collective=beside, compute=1 / (1 - lost), quiet=quiet, sustained=sustained
    )


def carried_to(was: records.Contention, link: CostModel, workers: int) -> records.Contention:
    """`carried_contention` in the form of a record, for a ring of `workers`.

    More workers send more messages of the same size. A point moves to the bytes with that size of message, N'/N times
    as many, rounded. Its times grow with the number of messages, by (N'−1)/(N−1), and both slow-downs are kept. Where
    the link's pace makes T(M) longer than its messages, the points are those of `carried_contention`, at as many sizes
    as plans use. Raises ValueError for fewer than two workers and for invalid points.
    """
    if workers == link.world_size or not was.points:
        return was
    among = Topology("ring")
    there = carried_contention(Contention.of(was, CostCurve.of(link)), link, among, workers)
    sizes = np.exp(there.log_sizes)
    if np.any(paced(link, among, workers, sizes) > 1):
        curve = CostCurve.of(carried_over(link, among, workers))
        return was.model_copy(update={"points": _points(there, sizes, curve)})
    longer = (workers - 1) / (link.world_size - 1)
    points = [
        point.model_copy(
            update={
                "nbytes": _whole(point.nbytes * workers / link.world_size),
                "alone_s": _possible(point.alone_s * longer),
                "loaded_s": _possible(point.loaded_s * longer),
            }
        )
        for point in was.points
    ]
    return was.model_copy(update={"points": points})


def _points(table: Contention, sizes: FloatArray, curve: CostCurve) -> list[ContentionPoint]:
    """Points from which plans build this table again: T of these sizes [B], times its ratios."""
    loaded, slowdowns, quiet = table.slowdowns(sizes)
    return [
        ContentionPoint(
            nbytes=_whole(nbytes),
            in_flight=row + 1,
            alone_s=_possible(took_s * quiet[row][place]),
            loaded_s=_possible(took_s * loaded[row][place]),
            compute_slowdown=slowdowns[row][place],
        )
        for place, (nbytes, took_s) in enumerate(zip(sizes.tolist(), curve(sizes).tolist(), strict=True))
        for row in (0, 1)
    ]


def _possible(seconds: float) -> float:
    return min(max(seconds, MIN_S), MAX_S)


def _whole(nbytes: float) -> int:
    return min(max(1, round(nbytes)), _MAX_BYTES)


def paced(link: CostModel, topology: Topology, workers: int, nbytes: FloatArray) -> FloatArray:
    """Ratio of an all-reduce's time to the time of its messages, due to the link's pace, by size [B]; at least 1.

    Raises ValueError as `Topology.curve` does.
    """
    t = message(link)
    whole, messages = topology.curve(t, workers, pace_of(link))(nbytes), topology.curve(t, workers)(nbytes)
    longer = whole / np.maximum(messages, MIN_S)
    return np.where(longer > 1 + 1e-9, longer, 1.0)


def _of_the_longer(ratios: FloatArray, longer: FloatArray) -> FloatArray:
    """Convert ratios to a time into ratios to one that is `longer` times as long; these are at least 1."""
    return np.where(longer > 1, np.maximum(1.0, ratios / longer), ratios)


def _segments(curve: CostCurve) -> list[CostSegment]:
    """The pieces of a curve; none for a straight line from zero bytes. Knots at a fraction of a byte are rounded."""
    starts, places = np.unique(np.round(curve.sizes).astype(np.int64), return_index=True)
    if starts.size == 1 and starts[0] == 0:
        return []
    slopes = np.append(np.diff(curve.times[places]) / np.diff(curve.sizes[places]), curve.slope)
    return [
        CostSegment(from_bytes=int(start), alpha_s=float(time_s - slope * start), beta_s_per_byte=float(slope))
        for start, time_s, slope in zip(starts, curve.times[places], slopes, strict=True)
    ]


def scaled_layer(layer: Layer, factor: float) -> Layer:
    """The layer on a device that takes `factor` times as long."""
    tensors = [_scaled(tensor, factor, "ready_s", "ready_loaded_s", "ready_loaded_each_s") for tensor in layer.tensors]
    return _scaled(layer, factor, "forward_s", "backward_s", "ready_s").model_copy(update={"tensors": tensors})


def scaled_times(times: StepTimes, factor: float) -> StepTimes:
    """The step's times, with their intervals, on a device that takes `factor` times as long. Input takes as before."""
    computed_s = sum(getattr(times, name) for name in COMPUTED)
    whole = (times.input_s + factor * computed_s) / (times.input_s + computed_s) if times.input_s else factor
    return _scaled(_scaled(times, factor, *COMPUTED), whole, *WHOLE)


def scaled_contention(was: records.Contention, factor: float) -> records.Contention:
    """Launches, hooks, copies and meetings `factor` times as long; slow-downs as measured.

    The host of a GPU stays the same. Its step may become launch-bound beside a faster device, or the reverse.
    """
    if was.host_step_s is not None and was.device_step_s is not None:
        device_step_s = was.device_step_s * factor
        bound = is_launch_bound(was.host_step_s, device_step_s)
        return was.model_copy(update={"device_step_s": device_step_s, "launch_bound": bound})
    return _scaled(was, factor, "launch_s", "hook_s", "copy_s_per_byte", "meeting_s")


def _scaled(part: P, factor: float, *names: str) -> P:
    """The part of a record with these times, or intervals of times, multiplied by `factor`."""

    def scaled(value: float | Interval | None) -> float | Interval | None:
        if isinstance(value, tuple):
            return (value[0] * factor, value[1] * factor)
        return None if value is None else value * factor

    return part.model_copy(update={name: scaled(getattr(part, name)) for name in names})
