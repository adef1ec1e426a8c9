"""Collectives that are launched in one order on every rank, by whichever thread makes the next one possible.

A **parcel** is one collective of a step. It may be launched when it is ready (what it sends is complete), every parcel
before it in the order has been launched, and no more than the credit would be under way with it, or nothing is. The
order is fixed before the step and equal on all ranks, so ranks never wait for each other's different collectives,
whatever becomes ready first and wherever.

Who launches when a parcel arrives and its credit is free again, while the main thread computes: the thread that learns
of the arrival first, which is the backend's own (its future calls back: Gloo's worker thread, the emulated link's
pacer). That thread also does what is due on arrival, such as the local sum of a reduce-scatter, which makes others
ready. One lock orders launches. Nobody sleeps and polls. Where nothing follows an arrival (no credit, and nothing to do
on it) nobody is told of it: whoever waits finds out.

Where a device's stream keeps collectives in order by itself (`streams`: NCCL, the emulated link of a GPU) arrivals need
no thread: all is launched as soon as it is ready, without credit, and to wait is to have the current stream wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from xbench.schedules.bucket import Work
from xbench.schedules.engine import Watch

PATIENCE_S = 30.0
"""Longest wait [s] for what is under way when a schedule is detached within a step."""


class QueuedCollective:
    """One collective: `start` launches it, with `nbytes` of gradients; `arrived` returns what is ready by its arrival.

    `prepare` is called before it is launched, and belongs to the computation. Where streams keep the order, `arrived`
    is called at the launch: what it does is queued behind the collective.
    """

    __slots__ = ("arrived", "is_here", "is_ready", "nbytes", "prepare", "start", "work")

    def __init__(
        self,
        nbytes: int,
        start: Callable[[], Work],
        arrived: Callable[[], Sequence[QueuedCollective]] | None = None,
        prepare: Callable[[], None] | None = None,
    ) -> None:
        self.nbytes = nbytes
        self.start = start
        self.arrived = arrived
        self.prepare = prepare
        self.work: Any = None
        self.is_ready = False
        self.is_here = False


class LaunchQueue:
    """The parcels of a step in launch order. `credit_bytes` may be under way at once; None: without limit."""

    def __init__(self, order: Sequence[QueuedCollective], *, streams: bool, credit_bytes: int | None = None) -> None:
        self.order = list(order)
        self.watch: Watch | None = None
        self.waiting: Callable[[], AbstractContextManager[None]] = nullcontext
        """Around each wait that is not over at once."""
        self._streams = streams
        self._credit_bytes = None if streams else credit_bytes
        self._hears = not streams and (credit_bytes is not None or any(parcel.arrived for parcel in order))
        """Whether anything follows arrivals. If not, all parcels are launched by who makes them ready."""
        self._changed = threading.Condition()
        self._next = 0
        self._landed = 0
        self._under_way = 0
        self._under_way_bytes = 0
        self._departing = False
        self._failure: BaseException | None = None

    @property
    def goes_when_ready(self) -> bool:
        """Whether a parcel is launched by who makes it and all before it ready, and by nobody later."""
        return not self._hears

    @property
    def can_be_counted(self) -> bool:
        """Whether whoever waits finds out what has arrived, one after the other: see `landed`."""
        return not self._hears and not self._streams

    def ready(self, parcels: Sequence[QueuedCollective]) -> None:
        """These can be sent now; launch what may be."""
        with self._changed:
            for parcel in parcels:
                parcel.is_ready = True
            self._depart()

    def _depart(self) -> None:
        """Launch while the next one may be. Holds the lock; a launch that arrives at once comes back in here."""
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
        """A parcel has arrived, or will never: called from the backend's thread."""
        failure: BaseException | None = None
        others: Sequence[QueuedCollective] = ()
        try:
            future.value()
            if parcel.arrived is not None:
                others = parcel.arrived()
        except BaseException as error:  # for whoever waits: this thread is not ours
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
        """Return when it has arrived. Raises what a collective of this step failed with."""
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
        """Return when it has arrived, of which nobody else hears."""
        if self._has_arrived(parcel):
            parcel.work.wait()
            return
        with self.waiting():
            parcel.work.wait()
        parcel.is_here = True

    def are_here(self, parcels: Sequence[QueuedCollective]) -> bool:
        """Whether they are known to have arrived: of what a stream keeps in order nobody knows."""
        return not self._streams and all(map(self._has_arrived, parcels))

    def landed(self, *, wait: bool) -> int:
        """How many have arrived, in launch order up to the first that has not; `wait`: for that one first.

        For departures that can be counted.
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
        """Wait for all, and expect the next step's."""
        for parcel in self.order:
            self.wait(parcel)
        for parcel in self.order:
            parcel.work = None
            parcel.is_ready = parcel.is_here = False
        self._next = self._landed = self._under_way = self._under_way_bytes = 0

    def settle(self, patience_s: float = PATIENCE_S) -> None:
        """Wait until nothing is under way, so that all ranks that stop at one place have launched the same parcels.

        What follows an arrival is launched by another thread: a rank that forgets it a moment earlier than the others
        leaves them a collective that nobody answers. Gives up after `patience_s` [s], because a rank that stops alone
        must say so.
        """
        if self._hears:
            with self._changed:
                self._changed.wait_for(lambda: not self._under_way or self._failure is not None, patience_s)

    def forget(self) -> None:
        """Nothing will be launched any more: let go of buffers, which would else wait for the collector of cycles."""
        for parcel in self.order:
            parcel.start, parcel.arrived, parcel.prepare = _never, None, None
        self.order = []


def _never() -> Work:
    raise RuntimeError("a schedule that was detached launches nothing")
