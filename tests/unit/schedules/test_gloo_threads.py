"""Gloo's threads are put first, and no others; where that is not allowed nothing happens."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from xbench.schedules import gloo_threads


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
    monkeypatch.setattr(gloo_threads, "favour_thread", asked.append)
    with named_thread("pt_gloo_runloop") as gloo, named_thread("somebody"):
        assert gloo_threads.favour_gloo_threads() == 1
    assert asked == [gloo]


def test_where_a_machine_has_no_such_call_the_weight_is_set_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int, int]] = []
    monkeypatch.setattr(gloo_threads, "_SCHED_SETATTR", {})
    monkeypatch.setattr(os, "setpriority", lambda *call: asked.append(call))
    with named_thread("pt_gloo_runloop") as gloo:
        assert gloo_threads.favour_gloo_threads() == 1
    assert asked == [(os.PRIO_PROCESS, gloo, gloo_threads.NICE)]


def test_where_it_is_not_allowed_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError

    monkeypatch.setattr(gloo_threads, "_SCHED_SETATTR", {})
    monkeypatch.setattr(os, "setpriority", refuse)
    with named_thread("pt_gloo_runloop"):
        assert gloo_threads.favour_gloo_threads() == 0


def test_the_kernel_takes_the_weight_and_the_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", refuse)
    with named_thread("pt_gloo_runloop") as gloo, named_thread("somebody") as other:
        before = os.getpriority(os.PRIO_PROCESS, other)
        if gloo_threads.favour_gloo_threads() == 0:
            pytest.skip("raising a priority is not allowed here")
        assert os.getpriority(os.PRIO_PROCESS, gloo) == gloo_threads.NICE
        assert os.getpriority(os.PRIO_PROCESS, other) == before
