"""Clocks that can stand in the timed loop: a mark costs nanoseconds, and nothing waits until the loop is over.

A mark is a point in the work of the *device*. On a CPU the work is done when the call returns, so a mark is the
host's `perf_counter_ns`. On a GPU the call returns before the work has begun, so a mark is a CUDA event recorded on the
current stream; it gets its time when the stream reaches it. Asking for that time too early would mean to wait inside
the loop, which would serialise what is being measured. Hence the order that every user of a clock keeps:

    marks in the loop → `flush()` once after it → `elapsed_s()` as often as needed → `reset()`

The clock is always passed in, never taken from a global, so tests drive a clock of their own and expect exact numbers.
"""

from __future__ import annotations

import time
from typing import Any, Protocol, TypeAlias

import torch

from xbench.errors import SpecError

Mark: TypeAlias = Any
"""What `Clock.mark` returns: nanoseconds on a host clock, a recorded event on a CUDA clock. Opaque to others."""


class Clock(Protocol):
    """Marks points in a device's work and says how long it took from one to another."""

    def mark(self) -> Mark:
        """A mark here. Does not wait for anything."""
        ...

    def elapsed_s(self, start: Mark, end: Mark) -> float:
        """Seconds from `start` to `end`; only valid when `flush()` was called after both were made."""
        ...

    def flush(self) -> None:
        """Wait until all marks made so far have their time."""
        ...

    def reset(self) -> None:
        """Forget all marks made so far; the clock may use what held them again."""
        ...


class HostClock:
    """The time at which the host got there: right for a device that works while the host waits, as a CPU does."""

    mark = staticmethod(time.perf_counter_ns)

    def elapsed_s(self, start: Mark, end: Mark) -> float:
        """Seconds from `start` to `end`."""
        nanoseconds: int = end - start
        return nanoseconds * 1e-9

    def flush(self) -> None:
        """Nothing to wait for: a mark has its time from the beginning."""

    def reset(self) -> None:
        """Nothing to give back: a mark is a number."""


class CudaClock:
    """The time at which the GPU got there: events on whatever stream is current when the mark is made.

    Events come from a pool, because to create one costs more than to record it. Resolution about 0.5 µs. Marks may be
    made on several streams (what a collective's future calls back has one of its own): `flush` waits for the last on
    each. A mark costs the host the look-up of the stream and the recording, a few microseconds; it waits for nothing.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._free: list[torch.cuda.Event] = []
        self._used: list[torch.cuda.Event] = []
        self._last: dict[int, torch.cuda.Event] = {}

    def mark(self) -> Mark:
        """An event recorded on the device's current stream."""
        event = self._free.pop() if self._free else self._new_event()
        stream = torch.cuda.current_stream(self.device)
        event.record(stream)
        self._used.append(event)
        self._last[stream.cuda_stream] = event
        return event

    @staticmethod
    def _new_event() -> torch.cuda.Event:
        event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        return event

    def elapsed_s(self, start: Mark, end: Mark) -> float:
        """Seconds of device time from `start` to `end`."""
        milliseconds: float = start.elapsed_time(end)
        return milliseconds * 1e-3

    def flush(self) -> None:
        """Wait for the last event on every stream; those before it on the same stream are then done."""
        for event in self._last.values():
            event.synchronize()
        self._last.clear()

    def reset(self) -> None:
        """Put all events back into the pool."""
        self._free.extend(self._used)
        self._used.clear()
        self._last.clear()


def clock_for(device: torch.device | str) -> Clock:
    """The clock that tells the truth about work on `device`. Raises SpecError for a device that has none."""
    device = torch.device(device)
    if device.type == "cpu":
        return HostClock()
    if device.type == "cuda":
        return CudaClock(device)
    raise SpecError(f"device {str(device)!r} has no clock", hint="use cpu or cuda")
