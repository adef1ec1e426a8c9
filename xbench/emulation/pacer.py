"""One emulated link on the host's clock: a lane, which is its timing, and the thread that completes its collectives.

`Lane` has no clock and no thread: the caller passes times [s], which must not decrease. Collectives go over it one
after the other, each for T(bytes) of a cost model. Without contention a collective's end is known at its launch:

    start = max(launch, end of its predecessor)        end = start + T(bytes)

With contention (docs/planner.md) the collective in service advances at the rate 1 / (T·f). While the device computes, f
is ρ; otherwise it is the measured queue's slow-down. The computation is slowed down by σ meanwhile, which `load`
returns.

`Pacer` is for a link without contention: a waiter sleeps until the completion, and the thread serves only callbacks.
`SharingPacer` is for a link that shares the processor with the computation. Every half millisecond its thread measures
the share of the time in which the computing thread ran, advances the lane by that, and takes the collective's share of
the processor by copying memory back and forth. A wait ends with a short spin, because a sleeping thread wakes some ten
microseconds late. A collective begins at the call that launches it.
"""

from __future__ import annotations

import contextlib
import ctypes
import heapq
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from xbench.planning.contention import Contention
from xbench.planning.cost import CostFunction

TICK_S = 0.5e-3
SPIN_S = 80e-6
_CHUNK = 16 * 1024
_PR_SET_TIMERSLACK = 29
_threads = threading.local()


@dataclass(eq=False)
class LinkTransfer:
    """A collective in progress. `end_s`: time of its completion, or None before that."""

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
        return self._enqueue(now_s, LinkTransfer(alone_s), 0.0)

    def _enqueue(self, now_s: float, transfer: LinkTransfer, computing: float) -> LinkTransfer:
        self.advance(now_s, computing)
        self._queue.append(transfer)
        return transfer

    def _new_transfer(self, nbytes: int, share: float) -> LinkTransfer:
        size = np.array([float(nbytes)])
        alone_s = float(self._transfer(size)[0]) * share
        if self._contention is None:
            return LinkTransfer(alone_s)
        tables = (
            self._contention.collective_slowdown(size),
            self._contention.paired_quiet(size),
            self._contention.compute_slowdown(size),
        )
        busy, quiet, slowdown = ((float(table[0][0]), float(table[1][0])) for table in tables)
        return LinkTransfer(alone_s, busy, quiet, slowdown)

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


@dataclass(eq=False)
class PendingTransfer:
    """A collective in progress. `due_s`: time [s] of its completion, if known."""

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
            return PendingTransfer(self.lane.end_s(transfer))

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
            pending = self._pending[transfer] = PendingTransfer()
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
