"""Contention model: how much computation and communication slow each other down (docs/planner.md).

Three tables by size M of a collective, each with one and with two in flight:

    ρ(M) = time of one collective during computation / its time alone         (`collective_slowdown`)
    σ(M) = time of computation during collectives of M bytes / its time alone (`compute_slowdown`)
    κ(M) = time of one collective while nothing computes / T(M)               (`paired_quiet`)

The host's cost of a launch is part of σ, as σ was measured with launches. The hook of each gradient, and the copy into
its bucket, delay backward separately. On a GPU the tables are not measured, and hold 1: launches and hooks cost what
they take the host where the step is launch-bound, and nothing where the host is ahead.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from xbench import records
from xbench.planning.cost import CostFunction, FloatArray
from xbench.planning.step import Gradient

LAUNCH_BOUND = 0.9
"""Share of the device's time of a step from which on the host's time makes it launch-bound. A device that waits for its
host takes as long as the host, and two measurements of one time may differ."""

_PER_OCTAVE = 4


@dataclass(frozen=True, eq=False)
class Contention:
    """ρ and σ by size for one and for two collectives in flight: linear in log M between the sizes, constant beyond.

    `log_sizes` (P,) ascends. `collective` and `compute` (2, P) are the slow-downs with one and with two in flight.
    """

    log_sizes: FloatArray
    collective: FloatArray
    compute: FloatArray
    hook_s: float = 0.0
    copy_s_per_byte: float = 0.0
    quiet: FloatArray | None = None
    """(2, P): time of a collective over its T while nothing computes, with one and two in flight; None: always T."""

    sustained: FloatArray | None = None
    """(P,): least time of a collective in a long sequence over its T, with one or two in flight; None: from the other
    tables, where one in flight takes T."""

    meeting_s: float = 0.0
    rest_s: float = 0.0
    """Largest time [s] that a collective saves after an idle link; the idle time must be at least as long."""

    launch_s: float = 0.0
    """Time [s] by which a launch delays the computation, beyond σ: c0 where a GPU's step is launch-bound, else 0."""

    @classmethod
    def of(cls, measured: records.Contention, transfer: CostFunction) -> Contention:
        """Build the tables from a record's points and `transfer`, T [s] of sizes [B].

        Slow-downs with one in flight are at least 1: a speed-up is noise. The tables have many sizes between the
        measured ones. Times are interpolated linearly in M there, because latency and bytes are linear in M and their
        ratios to T are not. With one in flight, the time that computation adds is added to T, which was also measured
        with one in flight. With two in flight, the measured times are used, as the link is never idle in a queue.

        Sizes beyond the measured ones use the ratios of the largest size. Its base is its T or its own time alone,
        whichever is shorter. Otherwise a disturbance of one of the two measurements would make all larger sizes look
        faster.

        Raises ValueError without a point or for a time that is not above zero.
        """
        by_size: dict[int, dict[int, records.ContentionPoint]] = {}
        for point in measured.points:
            if min(point.nbytes, point.alone_s, point.loaded_s, point.compute_slowdown) <= 0:
                raise ValueError(
                    f"a contention point of {point.nbytes} bytes has a size or time that is not above zero"
                )
            by_size.setdefault(point.nbytes, {})[point.in_flight] = point
        if not by_size:
            raise ValueError("there are no contention points")
        sizes = np.array(sorted(by_size), dtype=np.float64)
        # A size measured with only one of the two counts in flight uses its point for both.
        one = [found.get(1) or found[2] for _, found in sorted(by_size.items())]
        two = [found.get(2) or found[1] for _, found in sorted(by_size.items())]
        grid = _between(sizes)
        grid = np.append(grid, grid[-1] * 2 ** (1 / _PER_OCTAVE))

        def straight(values: Sequence[float]) -> FloatArray:
            return np.interp(grid, sizes, values)

        base_s = np.maximum(transfer(grid), 1e-9)
        base_s[-1] = min(base_s[-2], one[-1].alone_s)
        collective = np.maximum(1.0, 1.0 + straight([p.loaded_s - p.alone_s for p in one]) / base_s)
        log_grid, log_sizes = np.log(grid), np.log(sizes)
        compute = [np.interp(log_grid, log_sizes, [p.compute_slowdown for p in row]) for row in (one, two)]
        return cls(
            log_grid,
            np.stack([collective, straight([p.loaded_s for p in two]) / base_s]),
            np.maximum(1.0, np.stack(compute)),
            measured.hook_s,
            measured.copy_s_per_byte,
            np.stack([np.ones(len(grid)), straight([p.alone_s for p in two]) / base_s]),
            straight([min(p.alone_s, q.alone_s, q.loaded_s) for p, q in zip(one, two, strict=True)]) / base_s,
            measured.meeting_s,
            measured.rest_s,
        )

    @classmethod
    def planned(cls, measured: records.Contention, transfer: CostFunction) -> Contention | None:
        """Contention for plans: the measured slow-downs or, of a launch-bound step, its launches and hooks alone.

        None where neither slows anything: the host of a GPU is ahead. Raises ValueError as `of` does.
        """
        if measured.points:
            return cls.of(measured, transfer)
        if measured.launch_bound:
            return replace(cls.none(), hook_s=measured.hook_s, launch_s=measured.launch_s)
        return None

    @classmethod
    def none(cls) -> Contention:
        """No contention: communication and computation do not slow each other down."""
        return cls(np.zeros(1), np.ones((2, 1)), np.ones((2, 1)))

    def ready_s(self, gradients: Sequence[Gradient]) -> list[float]:
        """Ready time [s] of each gradient (in ready order), delayed by the hooks and copies up to it."""
        costs = (self.hook_s + self.copy_s_per_byte * gradient.nbytes for gradient in gradients)
        return [gradient.ready_s + late for gradient, late in zip(gradients, itertools.accumulate(costs), strict=True)]

    def after_launches(self, complete_s: Sequence[float]) -> list[float]:
        """Times [s] of the same buckets, in launch order, each delayed by its own launch and those before it."""
        return [at_s + self.launch_s * number for number, at_s in enumerate(complete_s, start=1)]

    def hooks_s(self, gradients: Sequence[Gradient]) -> float:
        """Time [s] that all hooks and copies add to a backward pass."""
        return sum(self.hook_s + self.copy_s_per_byte * gradient.nbytes for gradient in gradients)

    def slowdowns(self, nbytes: FloatArray) -> tuple[list[list[float]], list[list[float]], list[list[float]]]:
        """ρ, σ and κ of K sizes [B], each of shape (2, K): with one and with two in flight."""
        tables = (self.collective_slowdown, self.compute_slowdown, self.paired_quiet)
        rho, sigma, kappa = (table(nbytes).tolist() for table in tables)
        return rho, sigma, kappa

    def collective_slowdown(self, nbytes: FloatArray) -> FloatArray:
        """ρ, of shape (2, K) for K sizes [B]: with one and with two in flight."""
        return self._at(self.collective, nbytes)

    def compute_slowdown(self, nbytes: FloatArray) -> FloatArray:
        """σ, of shape (2, K) for K sizes [B]: with one and with two in flight."""
        return self._at(self.compute, nbytes)

    def paired_quiet(self, nbytes: FloatArray) -> FloatArray:
        """κ of shape (2, K) for K sizes [B]: time over T while nothing computes, with one and with two in flight."""
        if self.quiet is None:
            return np.ones((2, len(nbytes)))
        return self._at(self.quiet, nbytes)

    def least_sustained(self, nbytes: FloatArray) -> FloatArray:
        """Least time of each collective in a long sequence over T, of shape (K,) for K sizes [B]."""
        if self.sustained is None:
            two = np.minimum(self.collective_slowdown(nbytes)[1], self.paired_quiet(nbytes)[1])
            least: FloatArray = np.minimum(1.0, two)
        else:
            least = np.interp(np.log(np.maximum(nbytes, 1.0)), self.log_sizes, self.sustained)
        return least

    def _at(self, table: FloatArray, nbytes: FloatArray) -> FloatArray:
        where = np.log(np.maximum(nbytes, 1.0))
        return np.stack([np.interp(where, self.log_sizes, row) for row in table])


def is_launch_bound(host_step_s: float, device_step_s: float) -> bool:
    """True if a step's host time makes the host its bottleneck."""
    return host_step_s >= LAUNCH_BOUND * device_step_s


def _between(sizes: FloatArray) -> FloatArray:
    """The given sizes and sizes between them; neighbours differ by at most a factor of 2^(1/_PER_OCTAVE)."""
    found = [sizes[:1]]
    for low, high in itertools.pairwise(sizes.tolist()):
        found.append(np.geomspace(low, high, 1 + max(1, math.ceil(_PER_OCTAVE * math.log2(high / low))))[1:])
    return np.concatenate(found)


class TokenBucketCredit:
    """Burst credit [s] of an idle link: it grows by one second per second up to `most_s`, and is full at first."""

    def __init__(self, most_s: float) -> None:
        self._most_s = self._has_s = most_s
        self._since_s = 0.0

    def since(self, now_s: float) -> None:
        """Record that the link is idle from now on."""
        self._since_s = now_s

    def spent(self, now_s: float, most_s: float) -> float:
        """End the idle time. Return the time [s] that the next transfer saves, at most `most_s`."""
        if not self._most_s:
            return 0.0
        self._has_s = min(self._most_s, self._has_s + now_s - self._since_s)
        spent_s = min(self._has_s, max(0.0, most_s))
        self._has_s -= spent_s
        return spent_s
