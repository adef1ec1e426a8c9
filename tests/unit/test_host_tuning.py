"""Gloo's sending threads are raised and no others; freed memory is kept, unless the environment says otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import xbench
from xbench import host_tuning
from xbench.errors import SpecError


@contextmanager
def named_thread(name: str) -> Iterator[int]:
    """A thread that the kernel calls `name`; its id."""
    done, ready = threading.Event(), threading.Event()
    found: list[int] = []

    def wait() -> None:
        found.append(threading.get_native_id())
        with open(f"/proc/self/task/{found[0]}/comm", "w") as comm:
            comm.write(name)
        ready.set()
        done.wait()

    thread = threading.Thread(target=wait)
    thread.start()
    ready.wait()
    try:
        yield found[0]
    finally:
        done.set()
        thread.join()


def test_only_gloo_s_threads_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(host_tuning, "raise_thread", asked.append)
    with named_thread("pt_gloo_runloop") as gloo, named_thread("somebody"):
        assert host_tuning.raise_gloo_threads() == 1
    assert asked == [gloo]


def test_where_a_machine_has_no_such_call_the_weight_is_set_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int, int]] = []
    monkeypatch.setattr(host_tuning, "_SCHED_SETATTR", {})
    monkeypatch.setattr(os, "setpriority", lambda *call: asked.append(call))
    with named_thread("pt_gloo_runloop") as gloo:
        assert host_tuning.raise_gloo_threads() == 1
    assert asked == [(os.PRIO_PROCESS, gloo, host_tuning.NICE)]


def test_where_it_is_not_allowed_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError

    monkeypatch.setattr(host_tuning, "_SCHED_SETATTR", {})
    monkeypatch.setattr(os, "setpriority", refuse)
    with named_thread("pt_gloo_runloop"):
        assert host_tuning.raise_gloo_threads() == 0


def test_the_kernel_takes_the_weight_and_the_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", refuse)
    with named_thread("pt_gloo_runloop") as gloo, named_thread("somebody") as other:
        before = os.getpriority(os.PRIO_PROCESS, other)
        if host_tuning.raise_gloo_threads() == 0:
            pytest.skip("raising a priority is not allowed here")
        assert os.getpriority(os.PRIO_PROCESS, gloo) == host_tuning.NICE
        assert os.getpriority(os.PRIO_PROCESS, other) == before


AGAIN_AND_AGAIN = """
import ctypes, resource, sys
from xbench.host_tuning import keep_freed_memory, return_freed_memory

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
print(keep_freed_memory())
use()
print(faults(10))
return_freed_memory()
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
    assert host_tuning.allocator_variable() == settled


def test_the_variable_is_on_off_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert host_tuning.is_on({})
    assert host_tuning.is_on({"XBENCH_HOST_TUNING": "on"})
    assert host_tuning.is_on({"XBENCH_HOST_TUNING": ""})
    assert not host_tuning.is_on({"XBENCH_HOST_TUNING": "off"})
    with pytest.raises(SpecError, match="XBENCH_HOST_TUNING is 'no', and it can be on or off"):
        host_tuning.is_on({"XBENCH_HOST_TUNING": "no"})


@pytest.mark.parametrize(("value", "expected"), [("on", ["memory", "threads"]), ("off", [])])
def test_tune_host_does_both_or_nothing(monkeypatch: pytest.MonkeyPatch, value: str, expected: list[str]) -> None:
    done: list[str] = []
    monkeypatch.setattr(host_tuning, "keep_freed_memory", lambda: done.append("memory"))
    monkeypatch.setattr(host_tuning, "raise_gloo_threads", lambda: done.append("threads"))
    monkeypatch.setenv("XBENCH_HOST_TUNING", value)
    xbench.tune_host()
    assert done == expected
