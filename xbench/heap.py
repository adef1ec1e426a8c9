"""The heap of a rank that computes on a CPU: memory that is freed stays with the process.

torch takes a CPU tensor's memory from the C library. glibc hands large pieces back to the kernel as soon as they are
freed, and the top of its heap too, by limits that move with what was freed before; the same memory is then asked for
again at the next step, zeroed by the kernel and mapped page by page. Whether a step pays for that (5 000 page faults
with ResNet-18's gradients, a tenth of its time; 117 000 with VGG-11's, four tenths) depends on where its tensors
happened to lie, differs from process to process and from schedule to schedule, and has nothing to do with either. With
both limits off a step that was run once finds its memory mapped. results/heap.json has steps with and without.

What this costs is that the process keeps its peak. `give_back` returns what is free, after something large and rare.
"""

from __future__ import annotations

import ctypes
import os

NOTE = "freed memory stays in the ranks' heaps, so that steps pay for no page faults"

SYSTEM = "the ranks' heaps are as the C library has them (--heap system)"

OTHERS = "the ranks' heaps are as the environment has them ({})"

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
"""See mallopt(3)."""

_PRELOADED = ("malloc", "mimalloc", "snmalloc", "hoard")


def keep_heap() -> bool:
    """Let glibc keep all memory that is freed, from now on, so that steps on a CPU cause no page faults.

    The process keeps its peak of memory. Returns whether glibc does so: False with another C library or allocator, and
    where the environment settles the heap already (MALLOC_…_, GLIBC_TUNABLES, LD_PRELOAD), which is left alone.
    """
    if settled_by() is not None:
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version") or not hasattr(library, "mallopt"):
        return False
    return bool(library.mallopt(_M_MMAP_MAX, 0)) and bool(library.mallopt(_M_TRIM_THRESHOLD, -1))


def give_back() -> None:
    """Return memory that is free to the kernel, where glibc can."""
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)


def settled_by() -> str | None:
    """The environment variable by which the user has settled how the heap works, or None."""
    for name, value in os.environ.items():
        if name.startswith("MALLOC_") and name.endswith("_") and value:
            return name
    if "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", ""):
        return "GLIBC_TUNABLES"
    preloaded = os.environ.get("LD_PRELOAD", "")
    return "LD_PRELOAD" if any(name in preloaded for name in _PRELOADED) else None


def arrange(asked: str) -> str | None:
    """Do as `--heap` asks; what to say of it, None where `keep` is not to be had."""
    if asked == "system":
        return SYSTEM
    settled = settled_by()
    if settled is not None:
        return OTHERS.format(settled)
    return NOTE if keep_heap() else None
