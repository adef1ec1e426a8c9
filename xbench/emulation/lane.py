"""One emulated link: collectives go over it one after the other, each for T(bytes) of a cost model.

Without contention a collective's end is known when it is launched:

    start = max(launch, end of the one before)        end = start + T(bytes)

With contention (see `planning.contention`, whose rules these are) the one that is being served advances at the rate
1 / (T·f), where f is ρ while the device computes and the measured queue's pace while it does not, for one or for more
than one in flight; and the device that computes meanwhile is slowed by σ, which `load` tells.

The lanes of processes that share a device share its link too (`share`): each gets an equal part of it while it sends.
Ends are then as exact as looks are often: between two of them our part is taken to be the same all along.

No clock and no thread: times [s] come in from outside and must not go back.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from xbench.emulation.shared_link import SharedLink
from xbench.planning.contention import Contention
from xbench.planning.cost import Transfer


@dataclass(eq=False)
class Travel:
    """A collective on its way. `end_s`: when it arrived, or None while it travels."""

    nbytes: int
    alone_s: float
    busy: tuple[float, float] = (1.0, 1.0)
    """Time over T while the device computes, with one and with more in flight."""
    quiet: tuple[float, float] = (1.0, 1.0)
    """The same while it does not."""
    slowdown: tuple[float, float] = (1.0, 1.0)
    """Of the computation beside it."""
    remaining: float = 1.0
    end_s: float | None = None

    def whole_s(self, slot: int, computing: float) -> float:
        """What all of it takes [s] at this share of time (0 to 1) in which the device computes."""
        return self.alone_s * (computing * self.busy[slot] + (1.0 - computing) * self.quiet[slot])


class Lane:
    """The link. `transfer`: T [s] of a number of bytes; `contention`: what collectives and computation cost each other.

    Methods take `now_s`, the present time [s]; `computing`, the share of the time since the last call in which the
    device computed; and return times on the same clock.
    """

    def __init__(self, transfer: Transfer, contention: Contention | None = None) -> None:
        self._transfer = transfer
        self._contention = contention
        self._queue: deque[Travel] = deque()
        self._now_s = 0.0
        self._link: SharedLink | None = None
        self._service_s = 0.0

    def share(self, link: SharedLink, now_s: float = 0.0) -> None:
        """From now on this is one of the lanes of that link. Raises ValueError while something is under way."""
        self.advance(now_s, 0.0)
        if self._queue:
            raise ValueError("a lane with collectives under way cannot become part of another link")
        self._link = link

    @property
    def contended(self) -> bool:
        """Whether collectives and computation slow each other down."""
        return self._contention is not None

    @property
    def busy(self) -> bool:
        """Whether anything was under way when `advance` was last called."""
        return bool(self._queue)

    def launch(self, now_s: float, nbytes: int, computing: float = 1.0, *, share: float = 1.0) -> Travel:
        """A collective of so many bytes, behind all that are under way; `share` of an all-reduce's time."""
        return self._behind(now_s, self._travel(nbytes, share), computing)

    def launch_for(self, now_s: float, alone_s: float) -> Travel:
        """A collective that takes so long [s] by itself, whatever it carries: for calibration."""
        return self._behind(now_s, Travel(0, alone_s), 0.0)

    def _behind(self, now_s: float, travel: Travel, computing: float) -> Travel:
        self.advance(now_s, computing)
        if self._link is not None and not self._queue:
            self._service_s = self._link.begin(self._now_s)
        self._queue.append(travel)
        return travel

    def _travel(self, nbytes: int, share: float) -> Travel:
        size = np.array([float(nbytes)])
        alone_s = float(self._transfer(size)[0]) * share
        if self._contention is None:
            return Travel(nbytes, alone_s)
        tables = (
            self._contention.collective_slowdown(size),
            self._contention.paired_quiet(size),
            self._contention.compute_slowdown(size),
        )
        busy, quiet, slowdown = ((float(table[0][0]), float(table[1][0])) for table in tables)
        return Travel(nbytes, alone_s, busy, quiet, slowdown)

    def advance(self, now_s: float, computing: float = 1.0) -> list[Travel]:
        """Go on to `now_s`; what arrived on the way, in order. A time before the last one counts as that one."""
        arrived: list[Travel] = []
        at_s, self._now_s = self._now_s, max(self._now_s, now_s)
        part = self._part(self._now_s - at_s) if self._queue else 0.0
        while self._queue and at_s < self._now_s and part > 0:
            head = self._queue[0]
            whole_s = head.whole_s(self._slot(0), computing) / part
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

    def _part(self, passed_s: float) -> float:
        """Of the seconds that have passed until now, the part in which the link was ours.

        Above 1 where another has told since our last look that it had ended before that.
        """
        if self._link is None:
            return 1.0
        before_s, (self._service_s, _) = self._service_s, self._link.service(self._now_s)
        return (self._service_s - before_s) / passed_s if passed_s > 0 else 0.0

    def _sending(self) -> int:
        """Lanes that have something under way, this one included."""
        return 1 if self._link is None else max(1, self._link.service(self._now_s)[1])

    def _slot(self, place: int) -> int:
        return 1 if len(self._queue) - place + self._sending() - 1 > 1 else 0

    def end_s(self, travel: Travel, computing: float = 1.0) -> float:
        """When it arrives, or arrived, if nothing more is launched and the device goes on as it does.

        On a shared link: if those that send now go on to.
        """
        if travel.end_s is not None:
            return travel.end_s
        at_s, sending = self._now_s, self._sending()
        for place, other in enumerate(self._queue):
            at_s += sending * other.remaining * other.whole_s(self._slot(place), computing)
            if other is travel:
                return at_s
        raise ValueError("this collective was not launched on this lane")

    def next_end_s(self, computing: float = 1.0) -> float | None:
        """When the one being served arrives; None when the link is idle."""
        return self.end_s(self._queue[0], computing) if self._queue else None

    def load(self) -> float:
        """The share of the device that the collective under way takes from a computation: 1 − 1/σ, 0 when idle.

        On a shared link: its part of that.
        """
        if not self._queue:
            return 0.0
        return max(0.0, 1.0 - 1.0 / self._queue[0].slowdown[self._slot(0)]) / self._sending()
