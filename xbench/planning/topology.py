"""All-reduce times for any number of workers: a measured curve gives the time of one message, and that gives T(M).

An all-reduce is a fixed sequence of messages. Let t(m) be the time of one message of m bytes between neighbours. N0
workers in a ring send 2(N0−1) messages of M/N0 bytes one after the other, so t(m) = T0(N0·m) / (2(N0−1)). This holds
for any curve, so the measured shape (a step between protocols, a bend where caches end) is converted too, and stays at
its size of message. docs/plan.md has T(M) of each topology, and the sustained rate below which no link works for long.

Sources: Thakur, Rabenseifner, Gropp 2005 (ring); Sanders, Speck, Träff 2009 (two binary trees, pipelined so that each
byte crosses a link once per direction). Assumptions: the reduction (γ seconds per byte) is part of β, so trees are at
most γ/2 per byte too low. All links are equal and none is shared. With N between two powers of two, log2 N is
interpolated. At N0 = 2 ring and trees have the same straight line.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from xbench.errors import SpecError, unknown
from xbench.planning import cost
from xbench.planning.cost import CostCurve
from xbench.records import CostModel
from xbench.spec import known_options, parse_int, parse_options
from xbench.units import parse_rate, parse_seconds

INSIDE_BPS = 1.6e12
"""Default rate [bit/s] inside a host: 200 GB/s per GPU and direction, NVLink of the A100's generation.

A large all-reduce reaches this rate; NVIDIA's nccl-tests call it bus bandwidth.
"""

INSIDE_LATENCY_S = 5e-6
"""Default latency [s] of a message inside a host, from a kernel's launch to its flag: NCCL's order of magnitude."""

BETWEEN_LATENCY_S = 10e-6
"""Default latency [s] of a message between hosts, where the measured link is inside: that of InfiniBand, assumed."""

MAX_S = 1e9
"""Longest part of a step [s]: thirty years. Sums of longer times would lose precision."""

NAMES = ("ring", "tree", "hierarchical")


@dataclass(frozen=True)
class SustainedRate:
    """Sustained rate of a link: seconds per byte sent, and the seconds of burst credit after an idle link."""

    s_per_byte: float
    saved_s: float


UNPACED = SustainedRate(0.0, 0.0)
"""No limit: every message takes its time alone."""


@dataclass(frozen=True)
class Topology:
    """Connection of the workers and its all-reduce algorithm. All fields but `name` apply only to `hierarchical`.

    With `between_bps` the measured link is the one inside a host, and `inside_*` do not apply.
    """

    name: str
    gpus: int = 1
    inside_bps: float = INSIDE_BPS
    inside_latency_s: float = INSIDE_LATENCY_S
    between_bps: float | None = None
    between_latency_s: float = BETWEEN_LATENCY_S

    def __str__(self) -> str:
        if self.name != "hierarchical":
            return self.name
        latency_s, s_per_byte = self.given_link
        key = "between" if self.measured_inside else "rate"
        return f"hierarchical:gpus={self.gpus},{key}={8e-9 / s_per_byte:g}gbit,latency={latency_s * 1e6:g}us"

    @property
    def measured_inside(self) -> bool:
        """True if the measured link is the one inside a host, and not the one between hosts."""
        return self.between_bps is not None

    @property
    def given_link(self) -> tuple[float, float]:
        """(α [s], β [s/B]) of one message on the other link, which was not measured."""
        if self.between_bps is not None:
            return self.between_latency_s, 8 / self.between_bps
        return self.inside_latency_s, 8 / self.inside_bps

    def line(self, alpha_s: float, beta_s_per_byte: float, workers: int) -> tuple[float, float]:
        """(a [s], b [s/B]) of one all-reduce over `workers`, for messages of α + βm on the measured link.

        The straight lines of the module's table. Raises ValueError for fewer than two workers.
        """
        if self.name != "hierarchical":
            formula = cost.ring if self.name == "ring" else cost.double_binary_trees
            return formula(alpha_s, beta_s_per_byte, workers)
        terms = [
            cost.ring(*((alpha_s, beta_s_per_byte) if measured else self.given_link), count)
            for count, measured in self._rings(workers)
        ]
        return sum(a for a, _ in terms), sum(b for _, b in terms)

    def curve(self, message: CostCurve, workers: int, pace: SustainedRate = UNPACED) -> CostCurve:
        """T(M) of one all-reduce over `workers`, for messages that take `message` on the measured link.

        No link is faster than its `pace` for long. The result is exact: a sum of piecewise linear curves is piecewise
        linear. Raises ValueError for fewer than two workers.
        """
        cost.check_workers(workers)
        if self.name == "hierarchical":
            given = CostCurve.line(*self.given_link)
            rings = [
                at_pace(_ring(message, count), 2 * (count - 1) / count, pace) if measured else _ring(given, count)
                for count, measured in self._rings(workers)
            ]
            return _sum([(1.0, 1.0, ring) for ring in rings])
        if self.name == "tree":  # no message is smaller than the bytes, so the burst credit is not counted twice
            base = float(message.times[0]) * (2 * math.log2(workers) - 1)
            return CostCurve(message.sizes, message.times + base, message.slope)
        return at_pace(_ring(message, workers), 2 * (workers - 1) / workers, pace)

    def share(self, workers: int) -> float:
        """Bytes of the largest message over the bytes of the all-reduce; on the measured link for several hosts."""
        if self.name == "hierarchical":
            inside, hosts = self._split(workers)
            return 1 / hosts if hosts > 1 and not self.measured_inside else 1 / inside
        return 1 / workers if self.name == "ring" else 1.0

    def _rings(self, workers: int) -> list[tuple[int, bool]]:
        """(Workers, whether its link is the measured one) of the ring inside a host, and of the one between hosts.

        A ring of one worker is left out.
        """
        inside, hosts = self._split(workers)
        rings = [(inside, self.measured_inside), (hosts, not self.measured_inside)]
        return [(count, measured) for count, measured in rings if count > 1]

    def _split(self, workers: int) -> tuple[int, int]:
        """(Workers per host, hosts). A partly empty last host counts as full."""
        cost.check_workers(workers)
        return min(self.gpus, workers), math.ceil(workers / self.gpus)


def parse_topology(text: str) -> Topology:
    """A topology from 'ring', 'tree' or 'hierarchical:gpus=8[,rate=R][,latency=L]'.

    `rate` and `latency` are those inside a host. With `between=R` instead of `rate`, they are those between hosts, and
    the measured link is the one inside. Raises SpecError with the nearest name or option.
    """
    name, options = parse_options(text)
    name = "tree" if name == "double-binary-trees" else name
    if name not in NAMES:
        raise unknown("topology", name, NAMES, listing="xbench plan --help")
    if name != "hierarchical":
        known_options(text, options, ())
        return Topology(name)
    known_options(text, options, ("gpus", "rate", "between", "latency"))
    if "gpus" not in options:
        raise SpecError(f"{text!r} does not say how many workers a host has", hint="write hierarchical:gpus=8")
    if "rate" in options and "between" in options:
        raise SpecError(
            f"{text!r}: with between= the measured link is the one inside a host, so rate= has no place",
            hint="leave out rate=",
        )
    gpus = parse_int(text, "gpus", options["gpus"], 2, 1024)
    latency_s = parse_seconds(options["latency"]) if "latency" in options else None
    if "between" in options:
        far_s = BETWEEN_LATENCY_S if latency_s is None else latency_s
        return Topology(name, gpus, between_bps=parse_rate(options["between"]), between_latency_s=far_s)
    near_bps = parse_rate(options["rate"]) if "rate" in options else INSIDE_BPS
    return Topology(name, gpus, near_bps, INSIDE_LATENCY_S if latency_s is None else latency_s)


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
    per_a, per_b = cost.ring(1.0, 1.0, measured.world_size)
    return measured.alpha_s / per_a, measured.beta_s_per_byte / per_b


def pace_of(measured: CostModel) -> SustainedRate:
    """The sustained rate of the measured ring. Raises ValueError for fewer than two workers."""
    curve = CostCurve.of(measured)
    g = curve.slope
    sizes = [point.nbytes for point in measured.points]
    if sizes and min(sizes) < max(sizes):
        g = min(g, (curve(float(max(sizes))) - curve(float(min(sizes)))) / (max(sizes) - min(sizes)))
    _, sent = cost.ring(0.0, 1.0, measured.world_size)
    return SustainedRate(g / sent, max(0.0, float(np.max(g * curve.sizes - curve.times))))


def at_pace(curve: CostCurve, sent: float, pace: SustainedRate) -> CostCurve:
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
        # The first time stands for T(0) = 0: a knot at zero bytes is the limit from above.
        times += count * np.where(sizes > 0, curve(sizes * share), curve.times[0])
    return CostCurve(
        sizes, np.maximum.accumulate(times), sum(count * share * curve.slope for count, share, curve in parts)
    )
