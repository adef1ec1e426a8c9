"""Clocks for timed loops: a mark costs nanoseconds to microseconds, and no mark waits for the device.

A mark is a point in the work of the *device*. On a CPU the work is done when the call returns, so a mark is the host's
`perf_counter_ns`. On a GPU the call returns before the work has begun. There a mark is a CUDA event recorded on the
current stream, and it gets its time when the stream reaches it. A read of that time inside the loop would wait, and the
wait would serialise the measured work. Hence the order of calls:

    marks in the loop → `flush()` once after it → `elapsed_s()` as often as needed → `reset()`

The clock is always a parameter, never a global, so tests use their own clock and expect exact numbers.
"""

from __future__ import annotations

import time
from typing import Any, Protocol, TypeAlias

import torch

from xbench.errors import SpecError

Mark: TypeAlias = Any
"""Result of `Clock.mark`: nanoseconds on a host clock, a recorded event on a CUDA clock. Opaque to other code."""


class Clock(Protocol):
    """Marks of points in a device's work, and the time between two of them."""

    def mark(self) -> Mark:
        """Return a mark at this point, without waiting."""

    def elapsed_s(self, start: Mark, end: Mark) -> float:
        """Seconds from `start` to `end`. Valid only after a `flush()` that follows both marks."""

    def reserve(self, marks: int) -> None:
        """Prepare for so many more marks before the next `reset`, so that none of them costs more than another."""

    def flush(self) -> None:
        """Wait until all marks made so far have their time."""

    def reset(self) -> None:
        """Forget all earlier marks; the clock may reuse their objects."""


class HostClock:
    """Host time: right for a device that works while the host waits, such as a CPU."""

    mark = staticmethod(time.perf_counter_ns)

    def elapsed_s(self, start: Mark, end: Mark) -> float:
        """Seconds from `start` to `end`."""
        nanoseconds: int = end - start
        return nanoseconds * 1e-9

    def reserve(self, marks: int) -> None:
        """Do nothing: a mark is a number."""

    def flush(self) -> None:
        """Do nothing: a mark has its time at once."""

    def reset(self) -> None:
        """Do nothing: a mark is a number."""


class CudaClock:
    """Device time of a GPU, by events on the stream that is current at the mark.

    Events come from a pool, because creating one costs more than recording it. The resolution is about 0.5 µs. Marks
    may be on several streams (a collective's callback has its own), so `flush` waits for the last event on each. A mark
    costs the host a few microseconds, for the look-up of the stream and the recording. It never waits.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._free: list[torch.cuda.Event] = []
        self._used: list[torch.cuda.Event] = []
        self._last: dict[int, torch.cuda.Event] = {}

    def mark(self) -> Mark:
        """Record an event on the device's current stream."""
        try:
            event = self._free.pop()
        except IndexError:  # another thread marks, too: Gloo's, for a collective of a GPU's tensors
            event = self._new_event()
        stream = torch.cuda.current_stream(self.device)
        event.record(stream)
        self._used.append(event)
        self._last[stream.cuda_stream] = event
        return event

    @staticmethod
    def _new_event() -> torch.cuda.Event:
        event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        return event

    def reserve(self, marks: int) -> None:
        """Create events for so many more marks. CUDA makes an event when it is first recorded."""
        stream = torch.cuda.current_stream(self.device)
        while len(self._free) < marks:
            event = self._new_event()
            event.record(stream)
            self._free.append(event)

    def elapsed_s(self, start: Mark, end: Mark) -> float:
        """Seconds of device time from `start` to `end`."""
        milliseconds: float = start.elapsed_time(end)
        return milliseconds * 1e-3

    def flush(self) -> None:
        """Wait for the last event on every stream; the earlier ones on the same stream are then done."""
        for event in self._last.values():
            event.synchronize()
        self._last.clear()

    def reset(self) -> None:
        """Put all events back into the pool."""
        self._free.extend(self._used)
        self._used.clear()
        self._last.clear()


def clock_for(device: torch.device | str) -> Clock:
    """The right clock for work on `device`. Raises SpecError for a device without one."""
    device = torch.device(device)
    if device.type == "cpu":
        return HostClock()
    if device.type == "cuda":
        return CudaClock(device)
    raise SpecError(f"device {str(device)!r} has no clock", hint="use cpu or cuda")
