"""Timing of one emulated link: collectives go over it one after the other, each for T(bytes) of a cost model.

Without contention a collective's end is known at its launch:

    start = max(launch, end of its predecessor)        end = start + T(bytes)

With contention (by the rules of `planning.contention`) the collective in service advances at the rate 1 / (T·f). While
the device computes, f is ρ; otherwise it is the measured queue's slow-down. Both exist for one and for several
collectives in flight. The computation is slowed down by σ meanwhile, which `load` returns.

The lanes of two jobs of a process share one link (`SharedLink`): each gets an equal part of it while it sends. Ends are
then as exact as the observations are frequent: the lane's part counts as constant between two of them.

There is no clock and no thread here: the caller passes times [s], which must not decrease.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

import numpy as np

from xbench.planning.contention import Contention
from xbench.planning.cost import CostFunction


class SharedLink:
    """A link that several lanes of this process share. Each sending lane gets an equal part of it, as streams on a real
    link do.

    Of k sending lanes, each runs at 1/k of its pace; within a lane collectives go one after the other. So a small
    message of one job need not wait for a large one of the other. The link counts the *service* [s] of a lane that has
    never stopped sending:

        service(t) = ∫ dt / k(t)

    The service of a lane between two observations is the difference of the two (processor sharing in virtual time, as
    in fair queueing: Demers, Keshav, Shenker 1989). Any thread may call any method.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._service_s = self._at_s = 0.0
        self._sending = 0

    def _go_on_to(self, now_s: float) -> None:
        """Count the service until this time, unless it is past."""
        at_s = max(self._at_s, now_s)
        self._service_s += (at_s - self._at_s) / max(1, self._sending)
        self._at_s = at_s

    def begin(self, now_s: float) -> float:
        """Count one more sending lane from now on; returns the service [s] so far."""
        with self._lock:
            self._go_on_to(now_s)
            self._sending += 1
            return self._service_s

    def service(self, now_s: float) -> tuple[float, int]:
        """The service [s] until now, and the number of sending lanes."""
        with self._lock:
            self._go_on_to(now_s)
            return self._service_s, self._sending

    def leave(self, at_s: float) -> None:
        """Count one lane less since `at_s`, which may be a while ago: the others get its part from then on."""
        with self._lock:
            passed_s = max(0.0, self._at_s - at_s)
            self._go_on_to(at_s)
            if self._sending > 1:
                self._service_s += passed_s * (1 / (self._sending - 1) - 1 / self._sending)
            self._sending = max(0, self._sending - 1)


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
        self._link: SharedLink | None = None
        self._service_s = 0.0

    def share(self, link: SharedLink, now_s: float = 0.0) -> None:
        """Become one of the lanes of that link. Raises ValueError while a collective is in progress."""
        self.advance(now_s, 0.0)
        if self._queue:
            raise ValueError("a lane with collectives under way cannot become part of another link")
        self._link = link

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
        if self._link is not None and not self._queue:
            self._service_s = self._link.begin(self._now_s)
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
        link_share = self._link_share(self._now_s - at_s) if self._queue else 0.0
        while self._queue and at_s < self._now_s and link_share > 0:
            head = self._queue[0]
            whole_s = head.whole_s(self._slot(0), computing) / link_share
            left_s = head.remaining * whole_s
            if at_s + left_s > self._now_s:
                head.remaining -= (self._now_s - at_s) / whole_s
                break
            at_s += left_s
            head.remaining, head.end_s = 0.0, at_s
            arrived.append(self._queue.popleft())
        if self._link is not None and arrived and not self._queue:
            self._link.leave(at_s)
        return arrived

    def _link_share(self, passed_s: float) -> float:
        """Part of the last `passed_s` seconds in which the link served this lane.

        It exceeds 1 if another lane has reported, since the last observation, an end before that.
        """
        if self._link is None:
            return 1.0
        before_s, (self._service_s, _) = self._service_s, self._link.service(self._now_s)
        return (self._service_s - before_s) / passed_s if passed_s > 0 else 0.0

    def _sending(self) -> int:
        """Number of lanes with a collective in progress, including this one."""
        return 1 if self._link is None else max(1, self._link.service(self._now_s)[1])

    def _slot(self, index: int) -> int:
        return 1 if len(self._queue) - index + self._sending() - 1 > 1 else 0

    def end_s(self, transfer: LinkTransfer, computing: float = 1.0) -> float:
        """Time [s] of its completion if nothing more is launched and the device continues as it does.

        On a shared link: if the lanes that send now continue to.
        """
        if transfer.end_s is not None:
            return transfer.end_s
        at_s, sending = self._now_s, self._sending()
        for index, other in enumerate(self._queue):
            at_s += sending * other.remaining * other.whole_s(self._slot(index), computing)
            if other is transfer:
                return at_s
        raise ValueError("this collective was not launched on this lane")

    def next_end_s(self, computing: float = 1.0) -> float | None:
        """Time [s] of the next completion; None if the link is idle."""
        return self.end_s(self._queue[0], computing) if self._queue else None

    def load(self) -> float:
        """Share of the device that the collective in service takes from a computation: 1 − 1/σ, 0 when idle.

        On a shared link: this lane's part of that.
        """
        if not self._queue:
            return 0.0
        return max(0.0, 1.0 - 1.0 / self._queue[0].slowdown[self._slot(0)]) / self._sending()
