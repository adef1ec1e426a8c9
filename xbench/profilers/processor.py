"""Use of processors by this process, as the kernel counts it: time in which its threads ran, or waited to run.

A thread that is ready but does not run waits for a processor that does other work, or works for another machine. Linux
counts both for each thread (`/proc/self/task/TID/schedstat`, in ns). Where it does not, nothing is known, and all
shares are 0.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

TASKS = Path("/proc/self/task")


class ThreadTimes(NamedTuple):
    """Time in which a thread ran, and in which it waited for a processor [s]."""

    ran_s: float
    waited_s: float


class ProcessorUse(NamedTuple):
    """Use of processors over a time, by the threads that were there from its start to its end."""

    waited_share: float
    """Share of the time in which one thread waited for a processor: that which waited longest."""
    wanted: float
    """Number of processors, on average, that the threads used or waited for."""


class ProcessorWatch:
    """Counts from its construction on."""

    def __init__(self, tasks: Path = TASKS) -> None:
        self._tasks = tasks
        self._begun_s, self._begun = time.monotonic(), read(tasks)

    def use(self) -> ProcessorUse:
        """Return the use since the construction."""
        took_s = time.monotonic() - self._begun_s
        return between(self._begun, read(self._tasks), took_s)


def read(tasks: Path = TASKS) -> dict[str, ThreadTimes]:
    """Return what the kernel has counted, by thread; nothing where it does not count."""
    found: dict[str, ThreadTimes] = {}
    with suppress(OSError):
        for task in tasks.iterdir():
            with suppress(OSError, ValueError):  # the thread has ended
                ran_ns, waited_ns, *_ = (task / "schedstat").read_text(encoding="ascii").split()
                found[task.name] = ThreadTimes(int(ran_ns) * 1e-9, int(waited_ns) * 1e-9)
    return found


def between(before: Mapping[str, ThreadTimes], after: Mapping[str, ThreadTimes], took_s: float) -> ProcessorUse:
    """Return the use between two readings that lie `took_s` [s] apart."""
    both = [(before[name], now) for name, now in after.items() if name in before]
    if not both or took_s <= 0:
        return ProcessorUse(0.0, 0.0)
    waited_s = [now.waited_s - then.waited_s for then, now in both]
    ran_s = [now.ran_s - then.ran_s for then, now in both]
    return ProcessorUse(max(waited_s) / took_s, (sum(waited_s) + sum(ran_s)) / took_s)
