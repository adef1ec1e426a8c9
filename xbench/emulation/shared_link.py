"""Where the processes that share a device meet on its one emulated link: a page of memory that all of them map.

The jobs of a pair are processes of their own, and each has a lane; the link between the hosts that they stand for is
one. Whoever has something under way gets an equal share of it, as streams on a real link do: of k lanes that send, each
goes on at 1/k of its pace, and within a lane collectives go one after the other. So a small message of one job need not
wait for a large one of the other.

What is kept is the *service* [s] that a lane has had which never stopped sending:

    service(t) = ∫ dt / k(t)

It moves on whenever a lane begins or ends (`begin`, `leave`), and what a lane got of the link between two looks is the
difference of the two (processor sharing in virtual time, as in fair queueing: Demers, Keshav, Shenker 1989).

Where collectives and computation slow each other, the device computes when any of its processes does: each says which
of its threads computes (`join`), and the others look how much that one runs (`Running`).

Times [s] are of `time.perf_counter`, which on Linux is one clock for all processes. All methods hold the file's lock
for some microseconds; a process that dies gives it back.
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
"""Processes that can meet on one link."""

_STATE = struct.Struct("ddqq")
_MEMBER = struct.Struct("qq")


class Member(NamedTuple):
    """A process on this link, and its thread that computes."""

    process: int
    thread: int


class _State(NamedTuple):
    """`service_s` at `at_s` [s], lanes that send since then, processes that have joined."""

    service_s: float
    at_s: float
    sending: int
    members: int

    def on_to(self, now_s: float) -> _State:
        """The same at this time, or at its own if that is later."""
        at_s = max(self.at_s, now_s)
        return self._replace(service_s=self.service_s + (at_s - self.at_s) / max(1, self.sending), at_s=at_s)


class SharedLink:
    """The link at this path, which the first process to come makes, for as long as the process lives.

    Whoever made the folder removes the file. Raises OSError where it cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._file, mmap.PAGESIZE)  # what is new is zero: nobody sends
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
        """Say that this thread computes on the device. Raises ValueError when MOST others do."""
        with self._locked() as state:
            if state.members == MOST:
                raise ValueError(f"{MOST} processes share this link already")
            place = _STATE.size + state.members * _MEMBER.size
            _MEMBER.pack_into(self._memory, place, os.getpid(), threading.get_native_id())
            self._write(state._replace(members=state.members + 1))

    def others(self) -> list[Member]:
        """Who has joined from other processes."""
        with self._locked() as state:
            places = [_STATE.size + number * _MEMBER.size for number in range(state.members)]
            members = [Member(*_MEMBER.unpack_from(self._memory, place)) for place in places]
        return [member for member in members if member.process != os.getpid()]

    def begin(self, now_s: float) -> float:
        """One more lane sends from now on: the service [s] so far."""
        with self._locked() as state:
            state = state.on_to(now_s)
            self._write(state._replace(sending=state.sending + 1))
        return state.service_s

    def service(self, now_s: float) -> tuple[float, int]:
        """The service [s] until now, and how many lanes send."""
        with self._locked() as state:
            return state.on_to(now_s).service_s, state.sending

    def leave(self, at_s: float) -> None:
        """One lane has had nothing to send since `at_s`, which may be a while ago: the others get what it left."""
        with self._locked() as state:
            passed_s = max(0.0, state.at_s - at_s)
            state = state.on_to(at_s)
            if state.sending > 1:
                more_s = passed_s * (1 / (state.sending - 1) - 1 / state.sending)
                state = state._replace(service_s=state.service_s + more_s)
            self._write(state._replace(sending=max(0, state.sending - 1)))


class Running:
    """How long another process's thread has run, as the kernel counts it (/proc/PID/task/TID/schedstat).

    The count of a thread that runs on another core moves only at the scheduler's ticks, so what it has moved by is
    handed out by and by: a thread that always runs is seen to do so at every look after the first tick.
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
        """Begin here."""
        self._seen_s, self._owed_s = self._ran_s() or self._seen_s, 0.0

    def share(self, passed_s: float) -> float:
        """Of so many seconds that have passed since the last look, the share (0 to 1) in which it ran."""
        ran_s = self._ran_s()
        if ran_s is None or passed_s <= 0:
            return 0.0
        self._owed_s += ran_s - self._seen_s
        self._seen_s = ran_s
        given_s = min(self._owed_s, passed_s)
        self._owed_s -= given_s
        return given_s / passed_s
