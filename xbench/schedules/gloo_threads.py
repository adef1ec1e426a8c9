"""Gloo's threads where a rank computes and communicates on one core: who runs before whom.

Gloo's TCP event loop is level-triggered: when the socket of a peer has something to say and another thread holds that
peer's lock, the loop skips it and asks again, at once and for ever. On a core of its own that costs nothing. Where the
lock's holder needs the same core, the loop spins until the scheduler's next tick, and a small all-reduce takes 0.2 or
4 ms by chance. Threads that hold such locks (`pt_gloo_runloop`) run for microseconds at a time, so putting them before
the loop costs nobody anything. Two things are needed: a higher weight (nice), and a short slice, because Linux lets a
woken thread interrupt a running one before the end of its slice only where its own is shorter (custom slices of fair
threads: `sched_setattr`, Linux 6.12; older kernels ignore them).

The loop can still be woken by a packet while a sending thread holds the lock, and take the core from it. A loop of
SCHED_BATCH takes it from nobody when it wakes, so the holder ends first; but then it does not interrupt the computation
either, unless that is of SCHED_IDLE, which anything interrupts (sched(7)). Together they are `above_compute`: the
computation gets what the rest leaves. It is not the default, since that goes for anything else in the same session or
container too, a data loader or a stranger's program, however long that runs.

results/gloo-priority.json has the times of all three. Every mode of a comparison runs in the same process and has it;
schedules with many buckets gain most.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from contextlib import suppress
from pathlib import Path

THREADS = "pt_gloo_runloop"
LOOP = "gloo_tcp_loop"
NICE = -15
SLICE_NS = 100_000
"""The shortest that the kernel accepts."""

NOTE = f"Gloo's sending threads run before its event loop (nice {NICE}, slices of {SLICE_NS / 1e6:g} ms)"

ABOVE_COMPUTE = (
    f"{NOTE}, and both before the computation (SCHED_IDLE beside loops of SCHED_BATCH; --gloo-threads above-compute)"
)

NOT_ALLOWED = "Gloo's threads run as they come: raising them, as --gloo-threads above-compute does, is not allowed here"

PLAIN = "Gloo's threads run as they come (--gloo-threads plain)"

_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
_ATTRIBUTES = struct.Struct("IIQiIQQQ")
"""sched_attr: size, policy, flags, nice, priority, runtime, deadline, period; see sched_setattr(2)."""


def favour_gloo_threads(*, above_compute: bool = False) -> int:
    """Raise the priority of this process's Gloo threads, which makes small all-reduces fast where a rank has one core.

    Call it once the process group is made, when its threads are there, and again for threads of Gloo that begin later.
    With `above_compute` the computation yields to them too: the threads that have the program's own name, and those
    that they start from then on. Returns the number of threads that were raised: 0 without Linux, or without
    CAP_SYS_NICE. Raises nothing.
    """
    raised = 0
    threads = _threads()
    for thread in _named(threads, THREADS):
        with suppress(OSError):  # it ended, or we may not
            favour_thread(thread)
            raised += 1
    if above_compute and raised:
        for thread in _named(threads, threads.get(os.getpid(), "")):
            _set_policy(thread, os.SCHED_IDLE)
    if is_above_compute():
        for thread in _named(threads, LOOP):
            yield_on_waking(thread)
    return raised


def arrange(asked: str | None) -> str | None:
    """Do as `--gloo-threads` asks, after the first collective; what to say of it, None where the default is denied."""
    if asked == "plain":
        return PLAIN
    above = asked == "above-compute"
    if favour_gloo_threads(above_compute=above) == 0:
        return NOT_ALLOWED if above else None
    return ABOVE_COMPUTE if above else NOTE


def are_favoured() -> bool:
    """Whether this process's Gloo threads, or some of them, have been put first."""
    with suppress(OSError):  # it ended
        return any(os.getpriority(os.PRIO_PROCESS, thread) == NICE for thread in _named(_threads(), THREADS))
    return False


def is_above_compute() -> bool:
    """Whether this process's computation yields to all else (`above_compute`)."""
    return hasattr(os, "SCHED_IDLE") and os.sched_getscheduler(os.getpid()) == os.SCHED_IDLE


def yield_on_waking(thread: int) -> None:
    """Let an event loop's thread, by the kernel's number, take the core from no running thread but a yielding one."""
    _set_policy(thread, os.SCHED_BATCH)


def _threads() -> dict[int, str]:
    """This process's threads: the kernel's number, and its name for them. Empty where it is not Linux."""
    found: dict[int, str] = {}
    with suppress(OSError):
        for thread in Path("/proc/self/task").iterdir():
            with suppress(OSError):  # it ended
                found[int(thread.name)] = (thread / "comm").read_text().strip()
    return found


def _named(threads: dict[int, str], name: str) -> list[int]:
    return [thread for thread, called in threads.items() if called == name]


def _set_policy(thread: int, policy: int) -> None:
    with suppress(OSError):  # it ended, or we may not
        os.sched_setscheduler(thread, policy, os.sched_param(0))


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
