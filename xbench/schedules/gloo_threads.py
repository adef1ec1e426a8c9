"""Gloo's sending threads before its event loop, where a rank computes and communicates on one core.

Gloo's TCP event loop is level-triggered: when the socket of a peer has something to say and another thread holds that
peer's lock, the loop skips it and asks again, at once and for ever. On a core of its own that costs nothing. Where the
lock's holder needs the same core, the loop spins until the scheduler's next tick, and a small all-reduce takes 0.2 or
4 ms by chance. Threads that hold such locks (`pt_gloo_runloop`) run for microseconds at a time, so putting them before
the loop costs nobody anything. Two things are needed: a higher weight (nice), and a short slice, because Linux lets a
woken thread interrupt a running one before the end of its slice only where its own is shorter (custom slices of fair
threads: `sched_setattr`, Linux 6.12; older kernels ignore them). results/gloo-priority.json has the times with and
without. Every mode of a comparison runs in the same process and has it; schedules with many buckets gain most.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from pathlib import Path

THREADS = "pt_gloo_runloop"
NICE = -15
SLICE_NS = 100_000
"""The shortest that the kernel accepts."""

NOTE = f"Gloo's sending threads run before its event loop (nice {NICE}, slices of {SLICE_NS / 1e6:g} ms)"

PLAIN = "Gloo's threads run as they come (--gloo-threads plain)"

_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
_ATTRIBUTES = struct.Struct("IIQiIQQQ")
"""sched_attr: size, policy, flags, nice, priority, runtime, deadline, period; see sched_setattr(2)."""


def favour_gloo_threads() -> int:
    """Raise the priority of this process's Gloo threads; how many were raised: 0 where it is not allowed, or elsewhere.

    Call it after the first collective, when the threads are there. Needs Linux and CAP_SYS_NICE.
    """
    raised = 0
    try:
        threads = list(Path("/proc/self/task").iterdir())
    except OSError:
        return 0
    for thread in threads:
        try:
            if (thread / "comm").read_text().strip() == THREADS:
                favour_thread(int(thread.name))
                raised += 1
        except OSError:
            continue  # it ended, or we may not
    return raised


def are_favoured() -> bool:
    """Whether this process's Gloo threads, or some of them, have been put first."""
    try:
        for thread in Path("/proc/self/task").iterdir():
            named = (thread / "comm").read_text().strip() == THREADS
            if named and os.getpriority(os.PRIO_PROCESS, int(thread.name)) == NICE:
                return True
    except OSError:
        pass  # elsewhere, or it ended
    return False


def favour_thread(thread: int) -> None:
    """A higher weight and a short slice for a thread, by the kernel's number; where slices cannot be set, the weight.

    Raises OSError when that is not allowed.
    """
    number = _SCHED_SETATTR.get(platform.machine())
    if number is not None:
        attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, 0, NICE, 0, SLICE_NS, 0, 0)
        if ctypes.CDLL(None).syscall(number, thread, attributes, 0) == 0:
            return
    os.setpriority(os.PRIO_PROCESS, thread, NICE)
