"""All-reduce times for any number of workers: a measured curve gives the time of one message, and that gives T(M).

An all-reduce is a fixed sequence of messages. Let t(m) be the time of one message of m bytes between neighbours. It is
α + βm for a straight line (latency α, seconds per byte β). Gloo and NCCL run a ring on a few workers, where cost models
are measured. N0 workers send 2(N0−1) messages of M/N0 bytes one after the other, so

    T0(M) = 2(N0−1) · t(M/N0)        and inverted        t(m) = T0(N0·m) / (2(N0−1))

This holds for any curve. So the measured shape (a step between protocols, a bend where caches end) is converted too,
and it stays at its size of message. For M bytes and N workers:

| topology | T(M) | for t = α + βm | | --- | --- | --- | | `ring` | 2(N−1) · t(M/N) | 2(N−1)α + 2(N−1)/N·βM | |
`halving-doubling` | 2 · Σ t(M/2ᵏ), k = 1..log2 N | 2α·log2 N + 2(N−1)/N·βM | | `tree` | (2·log2 N − 1) · t(0) + t(M) |
2α·log2 N + βM | | `doubling` | log2 N · t(M) | (α + βM)·log2 N | | `hierarchical` | ring of G inside a host + ring of
N/G across hosts | the sum of two rings |

Sources: Thakur, Rabenseifner, Gropp 2005 (ring, doubling, halving and doubling); Sanders, Speck, Träff 2009 (two binary
trees, pipelined so that each byte crosses a link once per direction). The straight lines are those of `planning.cost`,
and a test compares the two.

**Sustained rate.** A link may have a burst allowance: a token bucket, a switch or a cloud network lets a burst pass at
once. A message within the allowance is faster than the link can be for long. T0 of a small all-reduce is measured after
a short idle time, so it contains such a burst. In a ring of hundreds of workers, a large all-reduce is hundreds of such
messages in a row, and without a limit more workers would take less time. So no all-reduce of M bytes ends before

    g · (bytes that a worker sends) − s        with s = max over M of g·(bytes sent for M) − T0(M), the most ever saved

Here g [s/B] is the final slope of the measured curve. Where the mean slope from the smallest to the largest measured
size is less, g is that, so that one stray point does not define the link. For a straight line, and for the measured
number of workers, this changes nothing. `bounds` applies the same rule to plans.

Assumptions: the reduction (γ seconds per byte) is part of β, as no all-reduce can separate them. Ring and
halving-doubling are not changed by that (both weigh β + γ/2). Trees and doubling are at most γ/2 per byte too low. All
links are equal and none is shared, so a switch with less than full bisection bandwidth is slower. No rank is late. With
N between two powers of two, the formulas of log2 N are interpolated. Messages smaller than the smallest measured take
its time, and larger ones continue with the last slope. At N0 = 2 ring, trees and halving-doubling have the same
straight line, so a measurement on two workers gives α and β for any of the three.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from xbench import records
from xbench.errors import SpecError, unknown
from xbench.field_types import MIN_S
from xbench.planning import cost
from xbench.planning.contention import Contention
from xbench.planning.cost import CostCurve, FloatArray
from xbench.records import ContentionPoint, CostModel, CostSegment, Interval
from xbench.spec import known_options, parse_int, parse_options
from xbench.units import parse_rate, parse_seconds

INSIDE_BPS = 1.6e12
"""Default rate [bit/s] inside a host: 200 GB/s per GPU and direction, NVLink of the A100's generation.

A large all-reduce reaches this rate; NVIDIA's nccl-tests call it bus bandwidth.
"""

INSIDE_LATENCY_S = 5e-6
"""Default latency [s] of a message inside a host, from a kernel's launch to its flag: NCCL's order of magnitude."""

MAX_S = 1e9
"""Longest part of a step [s]: thirty years. Sums of longer times would lose precision."""

_MAX_BYTES = 2**62

NAMES = ("ring", "tree", "halving-doubling", "hierarchical", "doubling")
_ALIASES = {"double-binary-trees": "tree", "recursive-doubling": "doubling"}


@dataclass(frozen=True)
class SustainedRate:
    """Sustained rate of a link: seconds per byte sent, and the seconds of burst credit after an idle link."""

    s_per_byte: float
    saved_s: float


UNPACED = SustainedRate(0.0, 0.0)
"""No limit: every message takes its time alone."""


@dataclass(frozen=True)
class Topology:
    """Connection of the workers and its all-reduce algorithm. `gpus` and `inside_*` apply only to `hierarchical`."""

    name: str
    gpus: int = 1
    inside_bps: float = INSIDE_BPS
    inside_latency_s: float = INSIDE_LATENCY_S

    def __str__(self) -> str:
        if self.name != "hierarchical":
            return self.name
        inside = f"rate={self.inside_bps / 1e9:g}gbit,latency={self.inside_latency_s * 1e6:g}us"
        return f"hierarchical:gpus={self.gpus},{inside}"

    def line(self, alpha_s: float, beta_s_per_byte: float, workers: int) -> tuple[float, float]:
        """(a [s], b [s/B]) of one all-reduce over `workers`, for messages of α + βm between hosts.

        The straight lines of the module's table. Raises ValueError for fewer than two workers.
        """
        if self.name != "hierarchical":
            return _LINES[self.name](alpha_s, beta_s_per_byte, 0.0, workers)
        inside, hosts = self._split(workers)
        terms = [cost.ring(self.inside_latency_s, 8 / self.inside_bps, 0.0, inside)] if inside > 1 else []
        if hosts > 1:
            terms.append(cost.ring(alpha_s, beta_s_per_byte, 0.0, hosts))
        return sum(a for a, _ in terms), sum(b for _, b in terms)

    def curve(self, message: CostCurve, workers: int, pace: SustainedRate = UNPACED) -> CostCurve:
        """T(M) of one all-reduce over `workers`, for messages that take `message` between hosts.

        No link is faster than its `pace` for long. The result is exact: a sum of piecewise linear curves is piecewise
        linear. Raises ValueError for fewer than two workers.
        """
        cost.check_workers(workers)
        if self.name == "hierarchical":
            inside, hosts = self._split(workers)
            near = CostCurve.line(self.inside_latency_s, 8 / self.inside_bps)
            rings = [_ring(near, inside)] if inside > 1 else []
            if hosts > 1:
                rings.append(no_sooner(_ring(message, hosts), 2 * (hosts - 1) / hosts, pace))
            return _sum([(1.0, 1.0, ring) for ring in rings])
        rounds = math.log2(workers)
        if self.name == "tree":  # no message is smaller than the bytes, so the burst credit is not counted twice
            base = float(message.times[0]) * (2 * rounds - 1)
            return CostCurve(message.sizes, message.times + base, message.slope)
        sent = 2 * (workers - 1) / workers
        if self.name == "ring":
            took = _ring(message, workers)
        elif self.name == "doubling":
            took, sent = _sum([(rounds, 1.0, message)]), rounds
        else:
            whole = math.floor(rounds)
            halvings = [(2.0, 0.5**k, message) for k in range(1, whole + 1)]
            rest = rounds - whole
            if rest > 0:  # between powers of two: a share of one more round, with the remaining bytes
                halvings.append((2 * rest, (0.5**whole - 1 / workers) / rest, message))
            took = _sum(halvings)
        return no_sooner(took, sent, pace)

    def share(self, workers: int) -> float:
        """Bytes of the largest message over the bytes of the all-reduce; between hosts for several hosts."""
        if self.name == "hierarchical":
            inside, hosts = self._split(workers)
            return 1 / hosts if hosts > 1 else 1 / inside
        return {"ring": 1 / workers, "halving-doubling": 0.5}.get(self.name, 1.0)

    def _split(self, workers: int) -> tuple[int, int]:
        """(Workers per host, hosts). A partly empty last host counts as full."""
        cost.check_workers(workers)
        return min(self.gpus, workers), math.ceil(workers / self.gpus)


_LINES: dict[str, Callable[[float, float, float, int], tuple[float, float]]] = {
    "ring": cost.ring,
    "tree": cost.double_binary_trees,
    "halving-doubling": cost.halving_doubling,
    "doubling": cost.recursive_doubling,
}


def parse_topology(text: str) -> Topology:
    """A topology from 'ring', 'tree', 'halving-doubling', 'doubling' or 'hierarchical:gpus=8[,rate=R][,latency=L]'.

    `rate` and `latency` are those inside a host. Raises SpecError with the nearest name or option.
    """
    name, options = parse_options(text)
    name = _ALIASES.get(name, name)
    if name not in NAMES:
        raise unknown("topology", name, NAMES, listing="xbench scale --help")
    if name != "hierarchical":
        known_options(text, options, ())
        return Topology(name)
    known_options(text, options, ("gpus", "rate", "latency"))
    if "gpus" not in options:
        raise SpecError(f"{text!r} does not say how many workers a host has", hint="write hierarchical:gpus=8")
    return Topology(
        name,
        parse_int(text, "gpus", options["gpus"], 2, 1024),
        parse_rate(options["rate"]) if "rate" in options else INSIDE_BPS,
        parse_seconds(options["latency"]) if "latency" in options else INSIDE_LATENCY_S,
    )


def message(measured: CostModel) -> CostCurve:
    """t(m): the time of one message of m bytes, from the measured ring. Raises ValueError for an invalid cost model."""
    return message_of(CostCurve.of(measured), measured.world_size)


def message_of(curve: CostCurve, workers: int) -> CostCurve:
    """t(m) = T(N·m) / (2(N−1)), from a ring of N = `workers` with the times `curve`. Raises ValueError for N < 2."""
    cost.check_workers(workers)
    rounds = 2.0 * (workers - 1)
    return CostCurve(curve.sizes / workers, curve.times / rounds, curve.slope * workers / rounds)


def terms(measured: CostModel) -> tuple[float, float]:
    """(α [s], β [s/B]) of one message, from the fitted line of a ring: a / 2(N−1) and b·N / 2(N−1)."""
    per_a, per_b = cost.ring(1.0, 1.0, 0.0, measured.world_size)
    return measured.alpha_s / per_a, measured.beta_s_per_byte / per_b


def pace_of(measured: CostModel) -> SustainedRate:
    """The sustained rate of the measured ring. Raises ValueError for fewer than two workers."""
    curve = CostCurve.of(measured)
    g = curve.slope
    sizes = [point.nbytes for point in measured.points]
    if sizes and min(sizes) < max(sizes):
        g = min(g, (curve(float(max(sizes))) - curve(float(min(sizes)))) / (max(sizes) - min(sizes)))
    _, sent = cost.ring(0.0, 1.0, 0.0, measured.world_size)
    return SustainedRate(g / sent, max(0.0, float(np.max(g * curve.sizes - curve.times))))


def no_sooner(curve: CostCurve, sent: float, pace: SustainedRate) -> CostCurve:
    """The maximum of the curve and the pace, where a worker sends `sent` bytes for each byte of an all-reduce."""
    slope = sent * pace.s_per_byte
    sizes, times = curve.sizes, curve.times
    if sizes[0] > 0:  # below the first knot a curve is constant
        sizes, times = np.concatenate([[0.0], sizes]), np.concatenate([times[:1], times])
    late = slope * sizes - pace.saved_s - times
    if np.all(late <= 0):
        return curve
    left, right = late[:-1], late[1:]
    crosses = left * right < 0
    met = sizes[:-1][crosses] + np.diff(sizes)[crosses] * (left / np.where(crosses, left - right, 1.0))[crosses]
    if late[-1] > 0 and curve.slope > slope * (1 + 1e-9):
        met = np.append(met, sizes[-1] + late[-1] / (curve.slope - slope))
    knots = np.union1d(sizes, met)
    knots = knots[knots >= min(float(curve.sizes[0]), float(met[0]))] if met.size else knots
    later = np.maximum(np.where(knots > 0, curve(knots), curve.times[0]), slope * knots - pace.saved_s)
    return CostCurve(knots, np.maximum.accumulate(later), max(curve.slope, slope))


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
        per = cost.ring(1.0, 1.0, 0.0, measured.world_size)[place]
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
    quiet = _of_the_longer(measured.quiet, longer) if measured.quiet is not None else None
    return replace(measured, log_sizes=log_sizes, collective=beside, compute=1 / (1 - lost), quiet=quiet)


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


def _ring(message: CostCurve, workers: int) -> CostCurve:
    """2(N−1) · t(M/N)."""
    return _sum([(2.0 * (workers - 1), 1.0 / workers, message)])


def _sum(parts: Sequence[tuple[float, float, CostCurve]]) -> CostCurve:
    """Σ count · t(share · M) as one curve, with the knots of all parts converted to M."""
    if len(parts) == 1:
        count, share, curve = parts[0]
        return CostCurve(curve.sizes / share, curve.times * count, curve.slope * share * count)
    sizes = np.unique(np.concatenate([curve.sizes / share for _, share, curve in parts]))
    times = np.zeros_like(sizes)
    for count, share, curve in parts:
        times += count * _from_first(curve, sizes * share)
    return CostCurve(
        sizes, np.maximum.accumulate(times), sum(count * share * curve.slope for count, share, curve in parts)
    )


def _from_first(curve: CostCurve, sizes: FloatArray) -> FloatArray:
    """The curve with its first time instead of T(0) = 0: a knot at zero bytes is the limit from above."""
    return np.where(sizes > 0, curve(sizes), curve.times[0])


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
