"""Two settings of a process that computes on CPUs: freed memory is kept, and Gloo's sending threads have priority.

docs/how-it-measures.md says what a step costs without them, and why that is a property of no schedule.

Memory. glibc returns large pieces, and the top of its heap, to the kernel as soon as they are freed, by limits that
depend on earlier frees. With both limits off, a step that was run once finds its memory mapped. The process keeps its
peak. `return_freed_memory` returns free memory after a large and rare allocation.

Threads. Gloo's TCP event loop is level-triggered. When a peer's socket has data and another thread holds that peer's
lock, the loop skips the socket and polls again at once. If the lock's holder needs the same core, the loop spins until
the scheduler's next tick. The threads that hold such locks (`pt_gloo_runloop`) run for microseconds at a time, so a
higher priority for them costs other threads nothing. It takes a higher weight (nice) and a short slice: Linux lets a
woken thread interrupt a running one before the end of its slice only if its own slice is shorter (`sched_setattr`,
Linux 6.12; older kernels ignore slices).

XBENCH_HOST_TUNING=off turns both off. Ranks on GPUs have neither; there the variable turns off the binding to cores
(`rank.gpu`).
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from xbench.errors import SpecError

VARIABLE = "XBENCH_HOST_TUNING"
SENDING_THREADS = "pt_gloo_runloop"
NICE = -15
SLICE_NS = 100_000
"""Shortest slice that the kernel accepts [ns]."""

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
"""Parameters of mallopt(3)."""

_PRELOADED = ("malloc", "mimalloc", "snmalloc", "hoard")
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
_ATTRIBUTES = struct.Struct("IIQiIQQQ")
"""Layout of sched_attr: size, policy, flags, nice, priority, runtime, deadline, period (sched_setattr(2))."""


def is_on(environ: Mapping[str, str] = os.environ) -> bool:
    """True if XBENCH_HOST_TUNING allows tuning: on, off, or on if it is not set. Raises SpecError."""
    value = environ.get(VARIABLE) or "on"
    if value not in ("on", "off"):
        raise SpecError(f"{VARIABLE} is {value[:60]!r}, and it can be on or off", hint=f"export {VARIABLE}=off")
    return value == "on"


def tune_host() -> None:
    """Keep freed memory in this process, and give Gloo's sending threads a higher priority, as in every measurement.

    It is for training on CPUs. Steps then cause no page faults, and small all-reduces are fast even if a rank has one
    core. Call it after `init_process_group` and one collective, when Gloo's threads exist. It does what the system
    allows: memory is kept only with glibc, and priorities need Linux and root or CAP_SYS_NICE. With
    XBENCH_HOST_TUNING=off in the environment it does nothing. Raises SpecError for a value that is neither on nor off.
    """
    if is_on():
        keep_freed_memory()
        raise_gloo_threads()


def keep_freed_memory() -> bool:
    """Make glibc keep all freed memory from now on, so that steps on a CPU cause no page faults.

    Return whether glibc does so. It is False with another C library or allocator. It is also False if the environment
    configures the allocator (`allocator_variable`), which is then left alone.
    """
    if allocator_variable() is not None:
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version") or not hasattr(library, "mallopt"):
        return False
    return bool(library.mallopt(_M_MMAP_MAX, 0)) and bool(library.mallopt(_M_TRIM_THRESHOLD, -1))


def return_freed_memory() -> None:
    """Return free memory to the kernel, if glibc can."""
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)


def allocator_variable() -> str | None:
    """Return the environment variable by which the user has configured the allocator, or None."""
    for name, value in os.environ.items():
        if name.startswith("MALLOC_") and name.endswith("_") and value:
            return name
    if "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", ""):
        return "GLIBC_TUNABLES"
    preloaded = os.environ.get("LD_PRELOAD", "")
    return "LD_PRELOAD" if any(name in preloaded for name in _PRELOADED) else None


def raise_gloo_threads() -> int:
    """Raise the priority of this process's Gloo threads that send.

    They begin with the first collective of a process group. Call it after that, and again for groups made later. Return
    the number of raised threads: 0 without Linux, or without CAP_SYS_NICE. Raises nothing.
    """
    raised = 0
    for thread in _sending_threads():
        with suppress(OSError):  # it ended, or the priority is not allowed
            raise_thread(thread)
            raised += 1
    return raised


def are_gloo_threads_raised() -> bool:
    """True if any of this process's Gloo threads has a raised priority."""
    with suppress(OSError):  # it ended
        return any(os.getpriority(os.PRIO_PROCESS, thread) == NICE for thread in _sending_threads())
    return False


def raise_thread(thread: int) -> None:
    """Give a thread, by the kernel's number, a higher weight and a short slice; the weight alone on older kernels.

    Raises OSError if that is not allowed.
    """
    number = _SCHED_SETATTR.get(platform.machine())
    if number is not None:
        attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, 0, NICE, 0, SLICE_NS, 0, 0)
        if ctypes.CDLL(None).syscall(number, thread, attributes, 0) == 0:
            return
    os.setpriority(os.PRIO_PROCESS, thread, NICE)


def _sending_threads() -> list[int]:
    """Return the kernel's numbers of Gloo's sending threads in this process. Empty except on Linux."""
    found: list[int] = []
    with suppress(OSError):
        for thread in Path("/proc/self/task").iterdir():
            with suppress(OSError):  # it ended
                if (thread / "comm").read_text().strip() == SENDING_THREADS:
                    found.append(int(thread.name))
    return found
