"""The heap that ranks keep: page faults of a real process with and without, and what is left to the environment."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from xbench import heap

AGAIN_AND_AGAIN = """
import ctypes, resource, sys
from xbench.heap import give_back, keep_heap

def use():
    library.memset(ctypes.c_void_p(address := library.malloc(SIZE)), 1, SIZE)
    library.free(ctypes.c_void_p(address))

def faults(rounds):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(rounds):
        use()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

SIZE = 40 * 1024 * 1024  # more than any limit of glibc's own
library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
library.malloc.argtypes = [ctypes.c_size_t]
print(faults(10))
print(keep_heap())
use()
print(faults(10))
give_back()
print(faults(1))
"""


def run(**environment: str) -> list[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", AGAIN_AND_AGAIN], env=environ | environment, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


@pytest.mark.skipif(not hasattr(os, "confstr") or "glibc" not in str(os.confstr("CS_GNU_LIBC_VERSION")), reason="glibc")
def test_memory_that_was_used_once_is_there_for_the_next_step() -> None:
    without, kept, with_it, returned = run()
    assert kept == "True"
    # 10 times 40 MiB: 20 faults each where pages are of 2 MiB, 10 240 where they are of 4 KiB.
    assert int(without) >= 200
    assert int(with_it) < 20
    assert int(returned) >= 20, "what was free went back to the kernel"


def test_what_the_environment_settles_is_left_alone() -> None:
    without, kept, with_it, _ = run(MALLOC_TRIM_THRESHOLD_="131072")
    assert kept == "False"
    assert int(with_it) >= int(without) / 2


@pytest.mark.parametrize(
    ("name", "value", "settled"),
    [
        ("MALLOC_ARENA_MAX", "2", None),  # without its last underscore it is no variable of glibc's
        ("MALLOC_MMAP_MAX_", "0", "MALLOC_MMAP_MAX_"),
        ("MALLOC_TOP_PAD_", "", None),
        ("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=1", "GLIBC_TUNABLES"),
        ("GLIBC_TUNABLES", "glibc.rtld.nns=4", None),
        ("LD_PRELOAD", "/usr/lib/libjemalloc.so.2", "LD_PRELOAD"),
        ("LD_PRELOAD", "/usr/lib/libtcmalloc_minimal.so.4", "LD_PRELOAD"),
        ("LD_PRELOAD", "/usr/lib/libeatmydata.so", None),
    ],
)
def test_variables_that_settle_it(monkeypatch: pytest.MonkeyPatch, name: str, value: str, settled: str | None) -> None:
    for other in [*os.environ]:
        if other.startswith(("MALLOC_", "GLIBC_", "LD_PRELOAD")):
            monkeypatch.delenv(other)
    monkeypatch.setenv(name, value)
    assert heap.settled_by() == settled


def test_what_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap, "settled_by", lambda: None)
    monkeypatch.setattr(heap, "keep_heap", lambda: True)
    assert heap.arrange("keep") == heap.NOTE
    assert heap.arrange("system") == heap.SYSTEM
    monkeypatch.setattr(heap, "keep_heap", lambda: False)
    assert heap.arrange("keep") is None
    monkeypatch.setattr(heap, "settled_by", lambda: "LD_PRELOAD")
    assert heap.arrange("keep") == "the ranks' heaps are as the environment has them (LD_PRELOAD)"
