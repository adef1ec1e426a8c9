"""Threads that complete the collectives of an emulated link in time, on the host's clock.

`Pacer` is for a link without contention. A completion is known at launch, so a waiter sleeps until then, and the thread
serves only callbacks. `SharingPacer` is for a link that shares the processor with the computation. There a completion
is not known beforehand. Every half millisecond the thread measures the share of the time in which the computing thread
ran, advances the lane by that, and takes the collective's share of the processor by copying memory back and forth.

A wait ends with a short spin, because a sleeping thread wakes some ten microseconds late, and the waiter has nothing
else to do. A collective begins at the call that launches it.
"""

from __future__ import annotations

import contextlib
import ctypes
import heapq
import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from xbench.emulation.lane import Lane, LinkTransfer

TICK_S = 0.5e-3
SPIN_S = 80e-6
_CHUNK = 16 * 1024
_PR_SET_TIMERSLACK = 29
_threads = threading.local()


@dataclass(eq=False)
class PendingTransfer:
    """A collective in progress. `due_s`: time [s] of its completion, if known."""

    transfer: LinkTransfer
    due_s: float = 0.0
    arrived: threading.Event = field(default_factory=threading.Event)
    calls: list[Callable[[], None]] = field(default_factory=list)


class Pacer:
    """A lane whose completions are known at launch, and a thread that runs callbacks.

    Any thread may call any method. `close` ends the thread; collectives in progress then never complete.
    """

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.lead_s = 0.0
        """Time [s] by which the thread wakes early, because waking and calling take time; `calibrate` measures it."""
        self._changed = threading.Condition()
        self._closed = False
        self._due: list[tuple[float, int, PendingTransfer]] = []
        self._number = itertools.count()
        self._thread = threading.Thread(target=self._run, name="xbench-link", daemon=True)
        self._thread.start()

    @property
    def thread_id(self) -> int | None:
        """The kernel's id of the thread, for its priority."""
        return self._thread.native_id

    def launch(self, nbytes: int, share: float = 1.0) -> PendingTransfer:
        """Send `nbytes` after the collectives in progress; `share` of an all-reduce's time."""
        return self._launch(lambda now_s: self.lane.launch(now_s, nbytes, share=share))

    def launch_for(self, alone_s: float) -> PendingTransfer:
        """Send a collective that takes `alone_s` [s] alone."""
        return self._launch(lambda now_s: self.lane.launch_for(now_s, alone_s))

    def _launch(self, launch: Callable[[float], LinkTransfer]) -> PendingTransfer:
        with self._changed:
            transfer = launch(time.perf_counter())
            return PendingTransfer(transfer, self.lane.end_s(transfer))

    def call(self, pending: PendingTransfer, back: Callable[[], None]) -> None:
        """Call `back` from the thread on completion, or at once from here if it has completed already."""
        with self._changed:
            if not pending.arrived.is_set():
                if not pending.calls:
                    self._expect(pending)
                pending.calls.append(back)
                return
        back()

    def _expect(self, pending: PendingTransfer) -> None:
        """Make the thread wait for it."""
        heapq.heappush(self._due, (pending.due_s, next(self._number), pending))
        self._changed.notify()

    def wait(self, pending: PendingTransfer) -> None:
        """Return on completion."""
        sleep_until(pending.due_s)

    def has_arrived(self, pending: PendingTransfer) -> bool:
        """True if `wait` would return at once."""
        return time.perf_counter() >= pending.due_s

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        fine_timer()
        while True:
            with self._changed:
                arrived, idle_s = self._completed()
                if not arrived and not self._closed:
                    self._changed.wait(idle_s)
                    arrived, _ = self._completed()
                if self._closed:
                    return
                for pending in arrived:
                    pending.arrived.set()
            for pending in arrived:
                for back in pending.calls:
                    back()
            self._take_processor()

    def _completed(self) -> tuple[list[PendingTransfer], float | None]:
        """The collectives completed since the last call, and the time [s] to sleep without any; None: until woken."""
        until_s = time.perf_counter() + self.lead_s
        arrived = []
        while self._due and self._due[0][0] <= until_s:
            arrived.append(heapq.heappop(self._due)[2])
        return arrived, max(0.0, self._due[0][0] - until_s) if self._due else None

    def _take_processor(self) -> None:
        """Take the owed processor time. There is none here."""


class SharingPacer(Pacer):
    """A lane whose collectives and computation slow each other down. Construct it in the thread that computes."""

    def __init__(self, lane: Lane) -> None:
        self._computing = _ComputingShare(threading.get_ident())
        self._pending: dict[LinkTransfer, PendingTransfer] = {}
        self.taken_s = 0.0
        """Processor time [s] that the thread has taken to slow down the computation."""
        self._owed_s = 0.0
        self._memory = np.zeros((2, _CHUNK), dtype=np.float64)
        super().__init__(lane)

    def _launch(self, launch: Callable[[float], LinkTransfer]) -> PendingTransfer:
        with self._changed:
            if not self.lane.busy:
                self._computing.begin()
            transfer = launch(time.perf_counter())
            pending = self._pending[transfer] = PendingTransfer(transfer)
            self._changed.notify()
            return pending

    def _expect(self, pending: PendingTransfer) -> None:
        """Do nothing: the thread knows all collectives."""

    def wait(self, pending: PendingTransfer) -> None:
        """See `Pacer.wait`."""
        pending.arrived.wait()

    def has_arrived(self, pending: PendingTransfer) -> bool:
        """See `Pacer.has_arrived`."""
        return pending.arrived.is_set()

    def _completed(self) -> tuple[list[PendingTransfer], float | None]:
        """See `Pacer._completed`."""
        load = self.lane.load()
        share, passed_s = self._computing.since_last()
        self.lane.advance(time.perf_counter() + self.lead_s, share)
        completed = [transfer for transfer in self._pending if transfer.end_s is not None]  # launches advance it, too
        arrived = [self._pending.pop(transfer) for transfer in completed]
        self._owed_s += load * share * passed_s
        next_s = self.lane.next_end_s(share)
        if next_s is None:
            return arrived, None
        return arrived, min(TICK_S, max(0.0, next_s - time.perf_counter() - self.lead_s))

    def _take_processor(self) -> None:
        """See `Pacer._take_processor`."""
        used_s = time.thread_time()
        source, target = self._memory
        while self._owed_s > 0 and self.lane.busy:
            np.copyto(target, source)
            now_s = time.thread_time()
            self._owed_s -= now_s - used_s
            self.taken_s += now_s - used_s
            used_s = now_s
        self._owed_s = min(self._owed_s, TICK_S)


class _ComputingShare:
    """Share of the time in which a thread computed."""

    def __init__(self, thread: int) -> None:
        self._cpu = time.pthread_getcpuclockid(thread)
        self._last = self._now()

    def _now(self) -> tuple[float, float]:
        return time.perf_counter(), time.clock_gettime(self._cpu)

    def begin(self) -> None:
        """Measure from here on."""
        self._last = self._now()

    def since_last(self) -> tuple[float, float]:
        """Share, 0 to 1, since the last call or `begin`, and that time [s]."""
        (was_s, used_s), self._last = self._last, self._now()
        passed_s = self._last[0] - was_s
        if passed_s <= 0:
            return 1.0, passed_s
        return min(1.0, (self._last[1] - used_s) / passed_s), passed_s


def sleep_until(at_s: float, clock: Callable[[], float] = time.perf_counter) -> None:
    """Return at `at_s` [s on `clock`], within some microseconds if the processor is free."""
    fine_timer()
    left_s = at_s - clock()
    if left_s > SPIN_S:
        time.sleep(left_s - SPIN_S)
    while clock() < at_s:
        pass


def fine_timer() -> None:
    """Let this thread wake on time: Linux may wake others 50 µs late unless they ask (PR_SET_TIMERSLACK)."""
    if not getattr(_threads, "fine", False):
        _threads.fine = True
        with contextlib.suppress(OSError, AttributeError):  # not Linux: accept a small delay
            ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
