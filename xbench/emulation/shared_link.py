"""Where the processes that share a device meet on its one emulated link: a queue in a file that all of them map.

The jobs of a pair are processes of their own, and each has a lane; the link between the hosts they stand for is one. It
serves first in, first out, as the predictions for pairs say (`planning.turns`). Two kinds of lane queue here:

- one whose collectives take a time known at launch (or, on a GPU, at the moment they begin) reserves that much of the
  link, and knows the end at once: `reserve`;
- one whose collectives are slowed by what the device computes takes a ticket (`take`), is served when the number comes
  up, from the end of the one before (`turn`), and says when its own ended (`pass_on`). The device computes when any of
  its processes does, so each says which of its threads computes (`join`), and the others look how much that one runs.

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

_QUEUE = struct.Struct("qqdq")  # the next ticket, the one being served, when the last one ended, how many have joined
_MEMBER = struct.Struct("qq")


class Member(NamedTuple):
    """A process on this link, and its thread that computes."""

    process: int
    thread: int


class _State(NamedTuple):
    next: int
    serving: int
    free_s: float
    members: int


class SharedLink:
    """The queue at this path, which the first process to come makes. Raises OSError where it cannot be."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._file, mmap.PAGESIZE)  # what is new is zero: nobody waits, and the link is free
        self._memory = mmap.mmap(self._file, mmap.PAGESIZE)

    def close(self) -> None:
        """Forget the file, which whoever made its folder removes."""
        self._memory.close()
        os.close(self._file)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[_State]:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield _State(*_QUEUE.unpack_from(self._memory))
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _write(self, state: _State) -> None:
        _QUEUE.pack_into(self._memory, 0, *state)

    def join(self) -> None:
        """Say that this thread computes on the device. Raises ValueError when MOST others do."""
        with self._locked() as state:
            if state.members == MOST:
                raise ValueError(f"{MOST} processes share this link already")
            place = _QUEUE.size + state.members * _MEMBER.size
            _MEMBER.pack_into(self._memory, place, os.getpid(), threading.get_native_id())
            self._write(state._replace(members=state.members + 1))

    def others(self) -> list[Member]:
        """Who has joined from other processes."""
        with self._locked() as state:
            places = [_QUEUE.size + number * _MEMBER.size for number in range(state.members)]
            members = [Member(*_MEMBER.unpack_from(self._memory, place)) for place in places]
        return [member for member in members if member.process != os.getpid()]

    def reserve(self, now_s: float, alone_s: float) -> float:
        """The end [s] of something that takes so long and comes now, behind all that came before it."""
        with self._locked() as state:
            end_s = max(now_s, state.free_s) + alone_s
            self._write(state._replace(free_s=end_s))
        return end_s

    def take(self) -> int:
        """A ticket, behind all others."""
        with self._locked() as state:
            self._write(state._replace(next=state.next + 1))
        return state.next

    def turn(self, ticket: int) -> float | None:
        """When [s] the one before this ticket ended; None while the link serves another."""
        with self._locked() as state:
            return state.free_s if state.serving == ticket else None

    def pass_on(self, end_s: float) -> None:
        """What was served ended at this time [s]; the next ticket's turn."""
        with self._locked() as state:
            self._write(state._replace(serving=state.serving + 1, free_s=end_s))

    def waiting(self) -> int:
        """Tickets taken and not yet done with, of all processes; the one being served is among them."""
        with self._locked() as state:
            return state.next - state.serving


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
