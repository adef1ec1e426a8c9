"""Queue of collectives that are launched in one order on every rank, by the thread that makes the next one possible.

An entry is one collective of a step. It is launched when its data is complete, every collective before it in the order
has been launched, and the bytes in flight with it are within the credit, or none are in flight. The order is fixed
before the step and equal on all ranks, so ranks never wait for each other's different collectives.

An arrival frees credit while the main thread computes. The next launch is then by the thread that handles the arrival,
which is the backend's own: Gloo's worker thread, or the pacer of the emulated link, calls the future's callback. That
thread also does the work that follows an arrival, such as the local sum of a reduce-scatter, which makes others ready.
One lock orders launches, and no thread polls. Where nothing follows an arrival, there is no callback.

With `streams`, a device's stream keeps collectives in order by itself (NCCL, the emulated link of a GPU). Every
collective is launched as soon as it is ready, without credit. A wait makes the current stream wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from xbench.schedules.bucket import Work
from xbench.schedules.engine import Watch

PATIENCE_S = 30.0
"""Longest wait [s] for collectives in flight when a schedule is detached within a step."""


@dataclass(eq=False, slots=True)
class QueuedCollective:
    """One collective: `start` launches it, with `nbytes` of gradients.

    `prepare` is called before the launch and belongs to the computation. `arrived` does what follows the arrival, and
    returns those that this makes ready. With streams it is called at the launch, and its work is queued behind the
    collective.
    """

    nbytes: int
    start: Callable[[], Work]
    arrived: Callable[[], Sequence[QueuedCollective]] | None = None
    prepare: Callable[[], None] | None = None
    work: Any = None
    is_ready: bool = False
    is_here: bool = False


class LaunchQueue:
    """The collectives of a step in launch order. At most `credit_bytes` are in flight at once; None: no limit."""

    def __init__(self, order: Sequence[QueuedCollective], *, streams: bool, credit_bytes: int | None = None) -> None:
        self.order = list(order)
        self.watch: Watch | None = None
        self.waiting: Callable[[], AbstractContextManager[None]] = nullcontext
        """Context around each wait that does not end at once."""
        self._streams = streams
        self._credit_bytes = None if streams else credit_bytes
        self._hears = not streams and (credit_bytes is not None or any(parcel.arrived for parcel in order))
        """True if work follows arrivals. If not, the thread that makes a collective ready also launches it."""
        self._changed = threading.Condition()
        self._next = 0
        self._landed = 0
        self._under_way = 0
        self._under_way_bytes = 0
        self._departing = False
        self._failure: BaseException | None = None

    @property
    def goes_when_ready(self) -> bool:
        """True if a collective is launched at once, by the thread that makes it and all before it ready."""
        return not self._hears

    @property
    def can_be_counted(self) -> bool:
        """True if waiting threads find arrivals themselves, one after the other, as `landed` does."""
        return not self._hears and not self._streams

    def ready(self, parcels: Sequence[QueuedCollective]) -> None:
        """Mark these as ready; launch those that may be launched."""
        with self._changed:
            for parcel in parcels:
                parcel.is_ready = True
            self._depart()

    def _depart(self) -> None:
        """Launch while the next one may be. The caller holds the lock; an arrival during a launch calls this again."""
        if self._departing:
            return
        self._departing = True
        try:
            while self._next < len(self.order) and self._may_go(self.order[self._next]):
                parcel = self.order[self._next]
                self._next += 1
                self._under_way += 1
                self._under_way_bytes += parcel.nbytes
                if parcel.prepare is not None:
                    parcel.prepare()
                parcel.work = parcel.start() if self.watch is None else self.watch(parcel.nbytes, parcel.start)
                if self._hears:
                    parcel.work.get_future().add_done_callback(lambda future, parcel=parcel: self._here(parcel, future))
                elif self._streams:
                    self._under_way = 0
                    for other in parcel.arrived() if parcel.arrived is not None else ():
                        other.is_ready = True
        finally:
            self._departing = False

    def _may_go(self, parcel: QueuedCollective) -> bool:
        if not parcel.is_ready or self._failure is not None:
            return False
        if self._credit_bytes is None or not self._under_way:
            return True
        return self._under_way_bytes + parcel.nbytes <= self._credit_bytes

    def _here(self, parcel: QueuedCollective, future: Any) -> None:
        """Handle an arrival or a failure; called from the backend's thread."""
        failure: BaseException | None = None
        others: Sequence[QueuedCollective] = ()
        try:
            future.value()
            if parcel.arrived is not None:
                others = parcel.arrived()
        except BaseException as error:  # raised in the waiting thread: this one is the backend's
            failure = error
        with self._changed:
            self._under_way -= 1
            self._under_way_bytes -= parcel.nbytes
            parcel.is_here = failure is None
            try:
                if failure is None:
                    for other in others:
                        other.is_ready = True
                    self._depart()
            except BaseException as error:
                failure = error
            self._failure = self._failure or failure
            self._changed.notify_all()

    def wait(self, parcel: QueuedCollective) -> None:
        """Return when it has arrived. Raises the error of a failed collective of this step."""
        if self._streams:
            with self.waiting():
                parcel.work.wait()
            return
        if not self._hears:
            self._wait_itself(parcel)
            return
        if not parcel.is_here:
            with self.waiting(), self._changed:
                self._changed.wait_for(lambda: parcel.is_here or self._failure is not None)
            if self._failure is not None:
                raise self._failure
        parcel.work.wait()

    def _wait_itself(self, parcel: QueuedCollective) -> None:
        """Return when it has arrived, without a callback."""
        if self._has_arrived(parcel):
            parcel.work.wait()
            return
        with self.waiting():
            parcel.work.wait()
        parcel.is_here = True

    def are_here(self, parcels: Sequence[QueuedCollective]) -> bool:
        """True if all are known to have arrived; never known where a stream keeps the order."""
        return not self._streams and all(map(self._has_arrived, parcels))

    def landed(self, *, wait: bool) -> int:
        """Number of arrivals, in launch order up to the first missing one. With `wait`, wait for that one first.

        Valid only where `can_be_counted` is true.
        """
        if wait and self._landed < self._next:
            self._wait_itself(self.order[self._landed])
        while self._landed < self._next and self._has_arrived(self.order[self._landed]):
            self._landed += 1
        return self._landed

    def _has_arrived(self, parcel: QueuedCollective) -> bool:
        if not self._hears and not parcel.is_here:
            parcel.is_here = parcel.work.is_completed()
        return parcel.is_here

    def begin_again(self) -> None:
        """Wait for all, and start again for the next step."""
        for parcel in self.order:
            self.wait(parcel)
        for parcel in self.order:
            parcel.work = None
            parcel.is_ready = parcel.is_here = False
        self._next = self._landed = self._under_way = self._under_way_bytes = 0

    def settle(self, patience_s: float = PATIENCE_S) -> None:
        """Wait until nothing is in flight, so that ranks that stop at the same point have launched the same.

        Another thread launches the collectives that follow an arrival. A rank that clears its queue a moment before the
        others would leave them a collective without a partner. The wait ends after `patience_s` [s], because a rank
        that stops alone must report it.
        """
        if self._hears:
            with self._changed:
                self._changed.wait_for(lambda: not self._under_way or self._failure is not None, patience_s)

    def forget(self) -> None:
        """Drop all collectives and their buffers, which otherwise stay until the collector of cycles runs."""
        for parcel in self.order:
            parcel.start, parcel.arrived, parcel.prepare = _never, None, None
        self.order = []


def _never() -> Work:
    raise RuntimeError("a schedule that was detached launches nothing")
