"""Journal of a rank: events that the rank writes while it runs, and the parent's reader.

Each rank owns two files in the launch's directory. `job0-rank1.jsonl` has one event a line. `job0-rank1.state` is a
fixed-size note of the rank's current work, rewritten in mapped memory (about 2 µs). Events (`rank.events`) survive the
rank: a run that dies keeps every finished block. Neither file needs a network, so a dead link can still be reported.

A journal has one owner: it is created once, and never opened again to write. This module needs no torch, because both
sides import it.
"""

from __future__ import annotations

import io
import mmap
import os
import time
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from pathlib import Path

from xbench.errors import RunError
from xbench.rank.events import Event, Warned, parse

STATE_BYTES = 256

Take = Callable[[int, int, Event], None]
"""Function of a job, a rank and an event of it."""


def to_all(*takes: Take) -> Take:
    """Return a function that passes each event to all of these, in this order."""

    def take(job: int, rank: int, event: Event) -> None:
        for one in takes:
            one(job, rank, event)

    return take


class Journal:
    """Log of a rank. Writes are unbuffered, so they survive the rank and its parent.

    `listener`, if given, gets each event too. Raises RunError if the directory has this rank's journal already.
    """

    def __init__(self, directory: Path, job: int, rank: int, *, listener: Take | None = None) -> None:
        stem = f"job{job}-rank{rank}"
        self._job, self._rank = job, rank
        self._listener = listener
        self._of_job: int | None = None
        self._events = _new_file(directory / f"{stem}.jsonl")
        self._state = open(directory / f"{stem}.state", "w+b")
        self._state.truncate(STATE_BYTES)
        self._map = mmap.mmap(self._state.fileno(), STATE_BYTES)

    def write(self, event: Event) -> None:
        """Append one event. Raises OSError if the disk is full."""
        if self._of_job is not None:
            event = event.model_copy(update={"of_job": self._of_job})
        _write_line(self._events, event)
        if self._listener is not None:
            self._listener(self._job, self._rank, event)

    def note(self, state: str) -> None:
        """Note the rank's current work: 'optimal step 12: waiting for gradients'."""
        data = f"{time.monotonic():.6f} {state}".encode()[: STATE_BYTES - 1]
        self._map[: len(data) + 1] = data + b"\0"

    def of_job(self, job: int) -> Journal:
        """Return this journal for another job of the same process. Its events name that job."""
        other = copy(self)
        other._of_job = job
        return other

    def close(self) -> None:
        """Close both files."""
        self._map.close()
        self._state.close()
        self._events.close()


def _new_file(path: Path) -> io.FileIO:
    """Open a journal's file to write without a buffer. Raises RunError if it exists."""
    try:
        return open(path, "xb", buffering=0)
    except FileExistsError:
        raise RunError(f"{str(path)!r} belongs to another rank", hint="give each run a folder of its own") from None


def _write_line(stream: io.FileIO, event: Event) -> None:
    """Append an event, whole or not at all. Raises OSError, with the system's reason, if it does not fit."""
    data = event.line().encode()
    begin = stream.tell()
    written = 0
    try:
        while written < len(data):  # a nearly full disk takes a part, and gives its reason at the next write
            written += stream.write(data[written:])
    except OSError:
        stream.seek(begin)
        stream.truncate()
        raise


class Journals:
    """Journals of ranks on other machines, written here as their events arrive."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[tuple[int, int], io.FileIO] = {}

    def take(self, job: int, rank: int, event: Event) -> None:
        """Append one event of one rank, if there is room."""
        with suppress(OSError):
            if (job, rank) not in self._files:
                self._directory.mkdir(exist_ok=True)
                self._files[job, rank] = _new_file(self._directory / f"job{job}-rank{rank}.jsonl")
            _write_line(self._files[job, rank], event)


class JournalReader:
    """Reader of one rank's journal in the parent: complete lines only, each once.

    A warning replaces a line that is no event.
    """

    def __init__(self, directory: Path, job: int, rank: int) -> None:
        self.job = job
        self.rank = rank
        self._path = directory / f"job{job}-rank{rank}.jsonl"
        self._state = directory / f"job{job}-rank{rank}.state"
        self._offset = 0

    def poll(self) -> list[Event]:
        """Return the events since the last poll."""
        try:
            with open(self._path, "rb") as stream:
                stream.seek(self._offset)
                data = stream.read()
        except FileNotFoundError:
            return []
        whole = data.rfind(b"\n") + 1
        self._offset += whole
        return [self._event(line) for line in data[:whole].split(b"\n") if line]

    def _event(self, line: bytes) -> Event:
        try:
            return parse(line)
        except ValueError:
            return Warned(t=0.0, message=f"{self._path.name} has a broken line, which was left out")

    def state(self) -> tuple[float, str] | None:
        """Return (time.monotonic() of the note, the note), or None before the first."""
        try:
            text = self._state.read_bytes().split(b"\0", 1)[0].decode(errors="replace")
        except OSError:
            return None
        stamp, _, note = text.partition(" ")
        try:
            return float(stamp), note
        except ValueError:
            return None


def process_state(pid: int) -> str | None:
    """Return the kernel's letter for a process (R, S, T, Z ...), or None if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
            return stream.read().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return None


def pid_alive(pid: int) -> bool:
    """True if the process exists and is not a zombie."""
    return process_state(pid) not in (None, "Z", "X") and os.path.exists(f"/proc/{pid}")
