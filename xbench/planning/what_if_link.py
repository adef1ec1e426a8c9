"""What-if for another link: rewrites T(M) and the contention of measured collectives.

T(M). In a ring of N workers each link carries 2(N−1)/N of the bytes in 2(N−1) messages (Thakur et al. 2005). So a
measured time t of M bytes has three parts. They are taken in this order, none below zero:

    latency  min(t, α), α of the fitted line                        time of the 2(N−1) messages
    wire     min(t − latency, 2(N−1)/N · 8M / measured rate)        time of the link itself
    host     the rest                                               copies and additions of the hosts, congestion

For a rate r' and a latency of a message l' they become:

    latency' = α' = 2(N−1)·l'; a part that was below α is stretched when α grows, and capped when it shrinks
    wire'    = wire · configured rate / r'
    host'    = host

Contention. A link does no work on the host, so a collective's host time is kept. For a measured point of M bytes, with
σ the slow-down of computation during it:

    taken  d = (1 − 1/σ) · loaded_s     host time that computation loses to one collective: kept
    extra  e = loaded_s − alone_s       time that computation adds to the collective: kept; scaled in proportion where
                                        it is below zero, as two in flight can make it

    alone_s'  = alone_s rewritten in the same way as T
    loaded_s' = max(alone_s' + e, d / s)        σ' = 1 / (1 − d / loaded_s')        s = max(½, d / loaded_s)

s is the largest share of the host that collectives can take from computation: half, as a fair scheduler divides, or the
measured share where that is larger. It matters on a link so fast that the host's own work fills the collective: the
host then sets the pace.

More workers send more messages of the same size. A point moves to the bytes with that size of message, N'/N times as
many. Its times grow with the number of messages, by (N'−1)/(N−1). Both slow-downs are kept. Where T(M) of more workers
is longer than its messages (`topology.paced`), the points are those of `topology.carried_contention`, at as many sizes
as plans use.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from xbench.planning import contention as planning
from xbench.planning.cost import CostCurve, FloatArray, ring
from xbench.planning.topology import Topology, carried_contention, carried_over, paced
from xbench.records import (
    Contention,
    ContentionPoint,
    CostModel,
    CostPoint,
    CostSegment,
    FabricRecord,
    Interval,
)

MIN_S = 1e-12
"""Shortest collective of a what-if: a cost model's times are above zero."""

MAX_S = 1e9
"""Longest part of a step: thirty years. Sums of longer times would lose precision."""

FAIR_SHARE = 0.5
"""Share of a host that collectives can take from computation, unless a larger one was measured."""

_MAX_BYTES = 2**62


@dataclass(frozen=True)
class Link:
    """Configured rate of the fabric, its achieved rate, and the wire time of one byte of a collective."""

    asked_bps: float
    achieved_bps: float
    wire_s_per_byte: float

    @classmethod
    def of(cls, fabric: FabricRecord, cost: CostModel) -> Link:
        """Link of the fabric on which `cost` was measured. The achieved rate is the best available figure."""
        share = ring(0.0, 1.0, 0.0, cost.world_size)[1]
        fitted = 8 * share / cost.beta_s_per_byte if cost.beta_s_per_byte > 0 else math.inf
        achieved = fabric.measured_bps or fabric.rate_bps or fabric.allreduce_bps or fitted
        return cls(fabric.rate_bps or achieved, achieved, 8 * share / achieved)


@dataclass(frozen=True)
class Rewrite:
    """(M, t) → t' for another rate and latency, by the module's formulas. `slower`: configured over new rate."""

    wire_s_per_byte: float
    slower: float
    alpha_s: float
    new_alpha_s: float

    def time_s(self, nbytes: float, took_s: float) -> float:
        """Predicted time of an all-reduce of `nbytes` that took `took_s`."""
        latency_s = min(took_s, self.alpha_s)
        wire_s = min(took_s - latency_s, self.wire_s_per_byte * nbytes)
        return self.latency(latency_s) + wire_s * self.slower + (took_s - latency_s - wire_s)

    def latency(self, part_s: float) -> float:
        """The new latency of a collective of which `part_s`, at most α, was latency."""
        if self.alpha_s == 0:
            return self.new_alpha_s
        if self.new_alpha_s <= self.alpha_s:
            return min(part_s, self.new_alpha_s)
        return part_s / self.alpha_s * self.new_alpha_s

    def per_byte(self, beta: float) -> float:
        """The new seconds per byte of the fitted line."""
        wire = min(beta, self.wire_s_per_byte)
        return wire * self.slower + (beta - wire)

    def alpha_interval(self, was: Interval) -> Interval:
        """The interval scaled with the latency. A new latency where there was none has no width."""
        low, high = (end / self.alpha_s if self.alpha_s > 0 else 1.0 for end in was)
        return (min(low, 1.0) * self.new_alpha_s, max(high, 1.0) * self.new_alpha_s)

    def model(self, was: CostModel) -> CostModel:
        """The rewritten cost model. Its residuals stay those of the measurement."""
        return was.model_copy(
            update={
                "alpha_s": self.new_alpha_s,
                "beta_s_per_byte": self.per_byte(was.beta_s_per_byte),
                "alpha_ci95": self.alpha_interval(was.alpha_ci95),
                "beta_ci95": (self.per_byte(was.beta_ci95[0]), self.per_byte(was.beta_ci95[1])),
                "points": [self.point(point) for point in was.points],
                "segments": self.segments(was.segments, was.points) if was.segments else [],
            }
        )

    def point(self, point: CostPoint) -> CostPoint:
        """One measured size with its interval, rewritten."""
        low_s, high_s = (self.time_s(point.nbytes, max(0.0, end_s)) for end_s in point.ci95)
        took_s = max(self.time_s(point.nbytes, point.transfer_s), MIN_S)
        return point.model_copy(update={"transfer_s": took_s, "ci95": (low_s, high_s)})

    def segments(self, was: Sequence[CostSegment], points: Sequence[CostPoint]) -> list[CostSegment]:
        """The same knots at their new times, joined by straight pieces that do not fall."""
        starts = [float(segment.from_bytes) for segment in was]
        far = max([2 * starts[-1] + 1, *(float(point.nbytes) for point in points)])
        pieces = [*zip(starts, was, strict=True), (far, was[-1])]
        knots: list[tuple[float, float]] = []
        for nbytes, piece in pieces:
            took_s = self.time_s(nbytes, max(0.0, piece.alpha_s + piece.beta_s_per_byte * nbytes))
            knots.append((nbytes, max([took_s, *(before_s for _, before_s in knots[-1:])])))
        found: list[CostSegment] = []
        for (start, start_s), (end, end_s) in itertools.pairwise(knots):
            beta = (end_s - start_s) / (end - start)
            found.append(CostSegment(from_bytes=int(start), alpha_s=start_s - beta * start, beta_s_per_byte=beta))
        return found

    def contention(self, was: Contention) -> Contention:
        """The rewritten slow-downs. Hooks, copies and launches depend on the host and stay."""
        return was.model_copy(update={"points": [self.beside(point) for point in was.points]})

    def beside(self, point: ContentionPoint) -> ContentionPoint:
        """One size and number in flight, rewritten."""
        alone_s, loaded_s = self._unlimited(point)
        share = _share(point)
        taken_s = share * point.loaded_s
        loaded_s = max(loaded_s, taken_s / max(FAIR_SHARE, share))
        slowdown = 1 / (1 - taken_s / loaded_s) if share > 0 else point.compute_slowdown
        return point.model_copy(update={"alone_s": alone_s, "loaded_s": loaded_s, "compute_slowdown": slowdown})

    def host_bound(self, was: Contention) -> bool:
        """True if at some size the host, not the link, sets the pace of a collective during computation."""
        return any(self.beside(point).loaded_s > self._unlimited(point)[1] * (1 + 1e-9) for point in was.points)

    def _unlimited(self, point: ContentionPoint) -> tuple[float, float]:
        """(alone', alone' + extra) [s], without the limit of the host's share."""
        alone_s = max(self.time_s(point.nbytes, point.alone_s), MIN_S)
        if point.loaded_s < point.alone_s:
            return alone_s, max(alone_s * (point.loaded_s / point.alone_s), MIN_S)
        return alone_s, alone_s + (point.loaded_s - point.alone_s)


def carried_to(was: Contention, link: CostModel, workers: int) -> Contention:
    """Convert contention from the ring in which `link` was measured to one of `workers`.

    Sizes are rounded to whole bytes. Raises ValueError for fewer than two workers and for invalid points.
    """
    if workers == link.world_size or not was.points:
        return was
    among = Topology("ring")
    here = planning.Contention.of(was, CostCurve.of(link))
    there = carried_contention(here, link, among, workers)
    sizes = np.exp(there.log_sizes)
    if np.any(paced(link, among, workers, sizes) > 1):
        return was.model_copy(
            update={"points": _points(there, sizes, CostCurve.of(carried_over(link, among, workers)))}
        )
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


def _points(table: planning.Contention, sizes: FloatArray, curve: CostCurve) -> list[ContentionPoint]:
    """Points from which plans build this table again: T of these sizes [B], times its ratios."""
    loaded, slowdowns, quiet = (
        table.collective_slowdown(sizes),
        table.compute_slowdown(sizes),
        table.paired_quiet(sizes),
    )
    return [
        ContentionPoint(
            nbytes=_whole(nbytes),
            in_flight=row + 1,
            alone_s=_possible(took_s * float(quiet[row, place])),
            loaded_s=_possible(took_s * float(loaded[row, place])),
            compute_slowdown=float(slowdowns[row, place]),
        )
        for place, (nbytes, took_s) in enumerate(zip(sizes.tolist(), curve(sizes).tolist(), strict=True))
        for row in (0, 1)
    ]


def _possible(seconds: float) -> float:
    return min(max(seconds, MIN_S), MAX_S)


def _whole(nbytes: float) -> int:
    return min(max(1, round(nbytes)), _MAX_BYTES)


def _share(point: ContentionPoint) -> float:
    """Share of its host that computation loses during such collectives; a speed-up is noise."""
    return 1 - 1 / max(1.0, point.compute_slowdown)
