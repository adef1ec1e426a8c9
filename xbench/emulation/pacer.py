"""Lets the collectives of an emulated link arrive in time, on the host's clock.

`Pacer` is for a link without contention: an arrival is known at launch, so whoever waits sleeps until then, and the
thread is there only for those who want to be called. `SharingPacer` is for a link that shares the processor with the
computation, or that several processes share: there nobody knows before, and the thread looks every half millisecond how
much of the time the computing threads were on a processor, moves the lane on by that, and takes from the processor what
the collective under way would take, by copying memory to and fro.

A wait ends with a short spin, because a sleeping thread is woken some ten microseconds late; the one that waits has
nothing else to do. A collective is dated at the call that launches it.
"""

from __future__ import annotations

import contextlib
import ctypes
import heapq
import itertools
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from xbench.emulation.lane import Lane, Travel
from xbench.emulation.shared_link import Member, Running, SharedLink

TICK_S = 0.5e-3
SPIN_S = 80e-6
_CHUNK = 16 * 1024
_PR_SET_TIMERSLACK = 29
_threads = threading.local()


@dataclass(eq=False)
class Flight:
    """A collective under way. `due_s`: when it arrives, where that is known."""

    travel: Travel
    due_s: float = 0.0
    landed: threading.Event = field(default_factory=threading.Event)
    calls: list[Callable[[], None]] = field(default_factory=list)


class Pacer:
    """A lane whose arrivals are known at launch, and a thread that calls those who want to be called.

    Any thread may call any method. `close` ends the thread; what is under way then arrives nowhere.
    """

    def __init__(self, lane: Lane, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self.lane = lane
        self.lead_s = 0.0
        """By how much the thread wakes early, because waking and calling take time; see `calibration`."""
        self._clock = clock
        self._changed = threading.Condition()
        self._closed = False
        self._due: list[tuple[float, int, Flight]] = []
        self._number = itertools.count()
        self._thread = threading.Thread(target=self._run, name="xbench-link", daemon=True)
        self._thread.start()

    @property
    def thread_id(self) -> int | None:
        """The kernel's number of the thread, for its priority."""
        return self._thread.native_id

    def launch(self, nbytes: int, share: float = 1.0) -> Flight:
        """Send so many bytes, behind what is under way; `share` of an all-reduce's time."""
        return self._launched(lambda now_s: self.lane.launch(now_s, nbytes, share=share))

    def launch_for(self, alone_s: float) -> Flight:
        """Send something that takes so long [s] by itself."""
        return self._launched(lambda now_s: self.lane.launch_for(now_s, alone_s))

    def _launched(self, launch: Callable[[float], Travel]) -> Flight:
        with self._changed:
            travel = launch(self._clock())
            return Flight(travel, self.lane.end_s(travel))

    def call(self, flight: Flight, back: Callable[[], None]) -> None:
        """Have `back` called from the thread when it arrives; from here, at once, when it has been called already."""
        with self._changed:
            if not flight.landed.is_set():
                if not flight.calls:
                    self._expect(flight)
                flight.calls.append(back)
                return
        back()

    def _expect(self, flight: Flight) -> None:
        """Have the thread wait for it."""
        heapq.heappush(self._due, (flight.due_s, next(self._number), flight))
        self._changed.notify()

    def wait(self, flight: Flight) -> None:
        """Return when it has arrived."""
        sleep_until(flight.due_s, self._clock)

    def has_arrived(self, flight: Flight) -> bool:
        """Whether `wait` would return at once."""
        return self._clock() >= flight.due_s

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
                landed, idle_s = self._look()
                if not landed and not self._closed:
                    self._changed.wait(idle_s)
                    landed, _ = self._look()
                if self._closed:
                    return
                for flight in landed:
                    flight.landed.set()
            for flight in landed:
                for back in flight.calls:
                    back()
            self._burden()

    def _look(self) -> tuple[list[Flight], float | None]:
        """What has arrived since the last look, and how long [s] to sleep if nothing has; None: until woken."""
        until_s = self._clock() + self.lead_s
        landed = []
        while self._due and self._due[0][0] <= until_s:
            landed.append(heapq.heappop(self._due)[2])
        return landed, max(0.0, self._due[0][0] - until_s) if self._due else None

    def _burden(self) -> None:
        """Take from the processor what is owed to it: nothing here."""


class SharingPacer(Pacer):
    """A lane whose collectives and computation slow each other, or that is one of several of a link.

    Construct it in the thread that computes.
    """

    def __init__(self, lane: Lane, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._computing = _Share(threading.get_ident(), clock)
        self._link: SharedLink | None = None
        self._flights: dict[Travel, Flight] = {}
        self.taken_s = 0.0
        """What the thread has taken from the processor [s] to be in the computation's way."""
        self._owed_s = 0.0
        self._memory = np.zeros((2, _CHUNK), dtype=np.float64)
        super().__init__(lane, clock=clock)

    def share(self, link: SharedLink) -> None:
        """From now on this is a lane of that link. Call it in the thread that computes. Raises as `Lane.share` does."""
        link.join()
        with self._changed:
            self.lane.share(link, self._clock())
            self._link = link

    def _launched(self, launch: Callable[[float], Travel]) -> Flight:
        with self._changed:
            if not self.lane.busy:
                self._computing.begin([] if self._link is None else self._link.others())
            travel = launch(self._clock())
            flight = self._flights[travel] = Flight(travel)
            self._changed.notify()
            return flight

    def _expect(self, flight: Flight) -> None:
        """The thread knows of all flights."""

    def wait(self, flight: Flight) -> None:
        """See `Pacer.wait`."""
        flight.landed.wait()

    def has_arrived(self, flight: Flight) -> bool:
        """See `Pacer.has_arrived`."""
        return flight.landed.is_set()

    def _look(self) -> tuple[list[Flight], float | None]:
        """See `Pacer._look`."""
        load = self.lane.load()
        share, passed_s = self._computing.since_last()
        self.lane.advance(self._clock() + self.lead_s, share)
        over = [travel for travel in self._flights if travel.end_s is not None]  # a launch moves the lane on as well
        landed = [self._flights.pop(travel) for travel in over]
        self._owed_s += load * share * passed_s
        next_s = self.lane.next_end_s(share)
        if next_s is None:
            return landed, None
        return landed, min(TICK_S, max(0.0, next_s - self._clock() - self.lead_s))

    def _burden(self) -> None:
        """See `Pacer._burden`."""
        used_s = time.thread_time()
        source, target = self._memory
        while self._owed_s > 0 and self.lane.busy:
            np.copyto(target, source)
            now_s = time.thread_time()
            self._owed_s -= now_s - used_s
            self.taken_s += now_s - used_s
            used_s = now_s
        self._owed_s = min(self._owed_s, TICK_S)


class _Share:
    """How much of the time this device computed: a thread of ours, and those of other processes that share it."""

    def __init__(self, thread: int, clock: Callable[[], float]) -> None:
        self._cpu = time.pthread_getcpuclockid(thread)
        self._clock = clock
        self._last = self._now()
        self._others: dict[Member, Running] = {}

    def _now(self) -> tuple[float, float]:
        return self._clock(), time.clock_gettime(self._cpu)

    def begin(self, others: Iterable[Member] = ()) -> None:
        """Look from here on, at these too."""
        self._others = {other: self._others.get(other) or Running(other) for other in others}
        for running in self._others.values():
            running.forget()
        self._last = self._now()

    def since_last(self) -> tuple[float, float]:
        """Since the last call, or `begin`: the share, 0 to 1, and of how many seconds."""
        (was_s, used_s), self._last = self._last, self._now()
        passed_s = self._last[0] - was_s
        if passed_s <= 0:
            return 1.0, passed_s
        own = (self._last[1] - used_s) / passed_s
        return min(1.0, own + sum(running.share(passed_s) for running in self._others.values())), passed_s


def sleep_until(at_s: float, clock: Callable[[], float]) -> None:
    """Return at `at_s` [s on `clock`], within some microseconds where the processor is free."""
    fine_timer()
    left_s = at_s - clock()
    if left_s > SPIN_S:
        time.sleep(left_s - SPIN_S)
    while clock() < at_s:
        pass


def sleep_for(seconds: float, link: SharedLink, clock: Callable[[], float], *, lead_s: float = 0.0) -> None:
    """Return when a lane that sends from now on has had so many seconds of this link, or `lead_s` before."""
    target_s = link.begin(clock()) + seconds - lead_s
    while True:
        now_s = clock()
        service_s, sending = link.service(now_s)
        left_s = (target_s - service_s) * sending
        if left_s <= 0:
            break
        sleep_until(now_s + min(left_s, TICK_S), clock)
    link.leave(clock())


def fine_timer() -> None:
    """Have this thread woken on time: Linux lets others be 50 µs late unless they ask (PR_SET_TIMERSLACK)."""
    if not getattr(_threads, "fine", False):
        _threads.fine = True
        with contextlib.suppress(OSError, AttributeError):  # not Linux: a little later, then
            ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
