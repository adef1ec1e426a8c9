"""Timing of one emulated link: collectives go over it one after the other, each for T(bytes) of a cost model.

Without contention a collective's end is known at its launch:

    start = max(launch, end of its predecessor)        end = start + T(bytes)

With contention (by the rules of `planning.contention`) the collective in service advances at the rate 1 / (T·f). While
the device computes, f is ρ; otherwise it is the measured queue's slow-down. Both exist for one and for several
collectives in flight. The computation is slowed down by σ meanwhile, which `load` returns.

There is no clock and no thread here: the caller passes times [s], which must not decrease.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from xbench.planning.contention import Contention
from xbench.planning.cost import CostFunction


@dataclass(eq=False)
class LinkTransfer:
    """A collective in progress. `end_s`: time of its completion, or None before that."""

    nbytes: int
    alone_s: float
    busy: tuple[float, float] = (1.0, 1.0)
    """Time over T while the device computes, with one and with several collectives in flight."""
    quiet: tuple[float, float] = (1.0, 1.0)
    """Time over T while the device is idle."""
    slowdown: tuple[float, float] = (1.0, 1.0)
    """Slow-down of a simultaneous computation."""
    remaining: float = 1.0
    end_s: float | None = None

    def whole_s(self, slot: int, computing: float) -> float:
        """Time [s] of the whole collective if the device computes for this share of the time (0 to 1)."""
        return self.alone_s * (computing * self.busy[slot] + (1.0 - computing) * self.quiet[slot])


class Lane:
    """The link. `transfer`: T [s] of a number of bytes; `contention`: slow-down of collectives and computation.

    Methods take `now_s`, the present time [s], and `computing`, the share of the time since the last call in which the
    device computed. They return times on the same clock.
    """

    def __init__(self, transfer: CostFunction, contention: Contention | None = None) -> None:
        self._transfer = transfer
        self._contention = contention
        self._queue: deque[LinkTransfer] = deque()
        self._now_s = 0.0

    @property
    def busy(self) -> bool:
        """True if a collective was in progress at the last `advance`."""
        return bool(self._queue)

    def launch(self, now_s: float, nbytes: int, computing: float = 1.0, *, share: float = 1.0) -> LinkTransfer:
        """Launch a collective of `nbytes` after all in progress; `share` of an all-reduce's time."""
        return self._enqueue(now_s, self._new_transfer(nbytes, share), computing)

    def launch_for(self, now_s: float, alone_s: float) -> LinkTransfer:
        """Launch a collective that takes `alone_s` [s] alone, whatever it carries: for calibration."""
        return self._enqueue(now_s, LinkTransfer(0, alone_s), 0.0)

    def _enqueue(self, now_s: float, transfer: LinkTransfer, computing: float) -> LinkTransfer:
        self.advance(now_s, computing)
        self._queue.append(transfer)
        return transfer

    def _new_transfer(self, nbytes: int, share: float) -> LinkTransfer:
        size = np.array([float(nbytes)])
        alone_s = float(self._transfer(size)[0]) * share
        if self._contention is None:
            return LinkTransfer(nbytes, alone_s)
        tables = (
            self._contention.collective_slowdown(size),
            self._contention.paired_quiet(size),
            self._contention.compute_slowdown(size),
        )
        busy, quiet, slowdown = ((float(table[0][0]), float(table[1][0])) for table in tables)
        return LinkTransfer(nbytes, alone_s, busy, quiet, slowdown)

    def advance(self, now_s: float, computing: float = 1.0) -> list[LinkTransfer]:
        """Advance to `now_s`; returns the completed collectives, in order.

        A time before the last one counts as that one.
        """
        arrived: list[LinkTransfer] = []
        at_s, self._now_s = self._now_s, max(self._now_s, now_s)
        while self._queue and at_s < self._now_s:
            head = self._queue[0]
            whole_s = head.whole_s(self._slot(0), computing)
            left_s = head.remaining * whole_s
            if at_s + left_s > self._now_s:
                head.remaining -= (self._now_s - at_s) / whole_s
                break
            at_s += left_s
            head.remaining, head.end_s = 0.0, at_s
            arrived.append(self._queue.popleft())
        return arrived

    def _slot(self, index: int) -> int:
        return 1 if len(self._queue) - index > 1 else 0

    def end_s(self, transfer: LinkTransfer, computing: float = 1.0) -> float:
        """Time [s] of its completion if nothing more is launched and the device continues as it does."""
        if transfer.end_s is not None:
            return transfer.end_s
        at_s = self._now_s
        for index, other in enumerate(self._queue):
            at_s += other.remaining * other.whole_s(self._slot(index), computing)
            if other is transfer:
                return at_s
        raise ValueError("this collective was not launched on this lane")

    def next_end_s(self, computing: float = 1.0) -> float | None:
        """Time [s] of the next completion; None if the link is idle."""
        return self.end_s(self._queue[0], computing) if self._queue else None

    def load(self) -> float:
        """Share of the device that the collective in service takes from a computation: 1 − 1/σ, 0 when idle."""
        if not self._queue:
            return 0.0
        return max(0.0, 1.0 - 1.0 / self._queue[0].slowdown[self._slot(0)])
