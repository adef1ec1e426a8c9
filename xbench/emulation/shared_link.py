"""Shared state of one emulated link: a page of memory that all processes on a device map.

The jobs of a pair are separate processes with a lane each; they share the link between the hosts that they stand for.
Each lane with a collective in progress gets an equal share of it, as streams on a real link do. Of k sending lanes,
each runs at 1/k of its pace; within a lane collectives go one after the other. So a small message of one job need not
wait for a large one of the other.

The page keeps the *service* [s] of a lane that has never stopped sending:

    service(t) = ∫ dt / k(t)

It is updated whenever a lane begins or ends (`begin`, `leave`). The service of a lane between two observations is the
difference of the two (processor sharing in virtual time, as in fair queueing: Demers, Keshav, Shenker 1989).

If collectives and computation slow each other down, the device computes when any of its processes does. Each registers
its computing thread (`join`), and the others measure how much that one runs (`Running`).

Times [s] are of `time.perf_counter`, which on Linux is one clock for all processes. All methods hold the file's lock
for some microseconds; the lock of a process that dies is released.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MOST = 16
"""Largest number of processes on one link."""

_STATE = struct.Struct("ddqq")
_MEMBER = struct.Struct("qq")


class Member(NamedTuple):
    """A process on this link, and its computing thread."""

    process: int
    thread: int


class _State(NamedTuple):
    """`service_s` at `at_s` [s], number of lanes that send since then, number of joined processes."""

    service_s: float
    at_s: float
    sending: int
    members: int

    def on_to(self, now_s: float) -> _State:
        """The state at this time, or at its own if that is later."""
        at_s = max(self.at_s, now_s)
        return self._replace(service_s=self.service_s + (at_s - self.at_s) / max(1, self.sending), at_s=at_s)


class SharedLink:
    """The link at this path, for the life of this process. The first process makes it.

    The creator of the folder removes the file. Raises OSError if it cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._file, mmap.PAGESIZE)  # a new page is zero: no lane sends
        self._memory = mmap.mmap(self._file, mmap.PAGESIZE)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[_State]:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield _State(*_STATE.unpack_from(self._memory))
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _write(self, state: _State) -> None:
        _STATE.pack_into(self._memory, 0, *state)

    def join(self) -> None:
        """Register this thread as computing on the device. Raises ValueError if MOST others have joined."""
        with self._locked() as state:
            if state.members == MOST:
                raise ValueError(f"{MOST} processes share this link already")
            offset = _STATE.size + state.members * _MEMBER.size
            _MEMBER.pack_into(self._memory, offset, os.getpid(), threading.get_native_id())
            self._write(state._replace(members=state.members + 1))

    def others(self) -> list[Member]:
        """Members of other processes."""
        with self._locked() as state:
            offsets = [_STATE.size + number * _MEMBER.size for number in range(state.members)]
            members = [Member(*_MEMBER.unpack_from(self._memory, offset)) for offset in offsets]
        return [member for member in members if member.process != os.getpid()]

    def begin(self, now_s: float) -> float:
        """Count one more sending lane from now on; returns the service [s] so far."""
        with self._locked() as state:
            state = state.on_to(now_s)
            self._write(state._replace(sending=state.sending + 1))
        return state.service_s

    def service(self, now_s: float) -> tuple[float, int]:
        """The service [s] until now, and the number of sending lanes."""
        with self._locked() as state:
            return state.on_to(now_s).service_s, state.sending

    def leave(self, at_s: float) -> None:
        """Count one lane less since `at_s`, which may be a while ago: the others get its share from then on."""
        with self._locked() as state:
            passed_s = max(0.0, state.at_s - at_s)
            state = state.on_to(at_s)
            if state.sending > 1:
                more_s = passed_s * (1 / (state.sending - 1) - 1 / state.sending)
                state = state._replace(service_s=state.service_s + more_s)
            self._write(state._replace(sending=max(0, state.sending - 1)))


class Running:
    """Running time of another process's thread, as the kernel counts it (/proc/PID/task/TID/schedstat).

    The count of a thread on another core advances only at the scheduler's ticks. So its increments are distributed over
    time: a thread that always runs is seen to do so at every observation after the first tick.
    """

    def __init__(self, member: Member) -> None:
        self._path = f"/proc/{member.process}/task/{member.thread}/schedstat"
        self._seen_s = self._ran_s() or 0.0
        self._owed_s = 0.0

    def _ran_s(self) -> float | None:
        try:
            with open(self._path) as file:
                return int(file.read().split()[0]) * 1e-9
        except (OSError, ValueError, IndexError):  # it has ended, or this kernel does not count
            return None

    def forget(self) -> None:
        """Begin a new measurement."""
        self._seen_s, self._owed_s = self._ran_s() or self._seen_s, 0.0

    def share(self, passed_s: float) -> float:
        """Share (0 to 1) of the last `passed_s` seconds in which it ran."""
        ran_s = self._ran_s()
        if ran_s is None or passed_s <= 0:
            return 0.0
        self._owed_s += ran_s - self._seen_s
        self._seen_s = ran_s
        given_s = min(self._owed_s, passed_s)
        self._owed_s -= given_s
        return given_s / passed_s
