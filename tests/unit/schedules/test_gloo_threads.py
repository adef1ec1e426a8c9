"""Gloo's threads are put first, and no others; where that is not allowed nothing happens."""

from __future__ import annotations

import os
import subprocess
import sys
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


def test_above_compute_the_program_s_own_threads_yield_and_loops_interrupt_only_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policies: dict[int, int] = {}
    monkeypatch.setattr(gloo_threads, "favour_thread", lambda _: None)
    monkeypatch.setattr(os, "sched_setscheduler", lambda thread, policy, _: policies.update({thread: policy}))
    monkeypatch.setattr(os, "sched_getscheduler", lambda thread: policies.get(thread, os.SCHED_OTHER))
    with named_thread("pt_gloo_runloop"), named_thread("gloo_tcp_loop") as loop, named_thread("somebody") as other:
        assert gloo_threads.favour_gloo_threads() == 1
        assert policies == {}
        assert gloo_threads.favour_gloo_threads(above_compute=True) == 1
        assert gloo_threads.is_above_compute()
        assert policies[os.getpid()] == os.SCHED_IDLE
        assert policies[loop] == os.SCHED_BATCH
        assert other not in policies
    with named_thread("gloo_tcp_loop") as later:
        gloo_threads.favour_gloo_threads()
        assert policies[later] == os.SCHED_BATCH


def test_without_the_right_the_computation_does_not_yield_either(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> None:
        raise PermissionError

    changed: list[int] = []
    monkeypatch.setattr(gloo_threads, "favour_thread", refuse)
    monkeypatch.setattr(os, "sched_setscheduler", lambda thread, *_: changed.append(thread))
    with named_thread("pt_gloo_runloop"), named_thread("gloo_tcp_loop"):
        assert gloo_threads.favour_gloo_threads(above_compute=True) == 0
        assert gloo_threads.arrange("above-compute") == gloo_threads.NOT_ALLOWED
        assert gloo_threads.arrange("first") is None
    assert changed == []


def test_each_arrangement_says_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def favour(*, above_compute: bool) -> int:
        asked.append(above_compute)
        return 1

    monkeypatch.setattr(gloo_threads, "favour_gloo_threads", favour)
    assert gloo_threads.arrange("plain") == gloo_threads.PLAIN
    assert asked == []
    assert gloo_threads.arrange("first") == gloo_threads.NOTE
    assert gloo_threads.arrange("above-compute") == gloo_threads.ABOVE_COMPUTE
    assert asked == [False, True]


def test_the_kernel_takes_the_policies() -> None:
    code = (
        "import os, threading, time\n"
        "from xbench.schedules.gloo_threads import favour_gloo_threads, is_above_compute\n"
        "def named(name):\n"
        "    def run():\n"
        "        open(f'/proc/self/task/{threading.get_native_id()}/comm', 'w').write(name)\n"
        "        ids[name] = threading.get_native_id()\n"
        "        time.sleep(60)\n"
        "    threading.Thread(target=run, daemon=True).start()\n"
        "    while name not in ids: time.sleep(0.001)\n"
        "ids = {}\n"
        "named('pt_gloo_runloop'), named('gloo_tcp_loop')\n"
        "raised = favour_gloo_threads(above_compute=True)\n"
        "kinds = {os.SCHED_OTHER: 'other', os.SCHED_BATCH: 'batch', os.SCHED_IDLE: 'idle'}\n"
        "print(raised, is_above_compute(), *[kinds[os.sched_getscheduler(i)] for i in (os.getpid(), *ids.values())])\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    if said.startswith("0"):
        pytest.skip("raising a priority is not allowed here")
    assert said.split() == ["1", "True", "idle", "other", "batch"]
