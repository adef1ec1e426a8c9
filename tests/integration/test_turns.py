"""Turns between real processes: two arbiters as on two hosts, jobs that end, jobs that are killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from xbench.errors import RunError
from xbench.turns.client import TurnClient, running_arbiter

pytestmark = pytest.mark.integration

WAIT_S = 60.0

PRELUDE = """
import os, sys, time
from xbench.turns.client import TurnClient

host, job, log = sys.argv[1], int(sys.argv[2]), os.open(sys.argv[1] + ".log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
turns = TurnClient(host, job, 0, timeout_s=60)

def write(what):
    os.write(log, f"{job} {what}\\n".encode())

def steps(count, forward_backward=lambda: None):
    for _ in range(count):
        with turns.turn():
            write("takes")
            forward_backward()
            write("gives")
    turns.end_block()
"""


@pytest.fixture
def hosts(tmp_path, monkeypatch) -> Iterator[contextlib.ExitStack]:
    """A place with short paths for sockets, and what must be cleaned up in the end."""
    monkeypatch.chdir(tmp_path)
    with contextlib.ExitStack() as stack:
        yield stack


def start(stack: contextlib.ExitStack, host: str, job: int, script: str) -> subprocess.Popen[str]:
    """A job's process on a host; killed with the test."""
    code = PRELUDE + textwrap.dedent(script)
    process = subprocess.Popen([sys.executable, "-c", code, host, str(job)], stdout=subprocess.PIPE, text=True)

    def stop():
        process.kill()
        process.wait()
        process.stdout.close()

    stack.callback(stop)
    return process


def log_of(host: str) -> list[str]:
    """What the jobs of a host wrote while they held its device."""
    return Path(f"{host}.log").read_text().splitlines()


def whole_turns(log: list[str]) -> list[int]:
    """The jobs in the order of their turns, having checked that no turn lies inside another."""
    assert log[1::2] == [line.replace("takes", "gives") for line in log[::2]]
    return [int(line.split()[0]) for line in log[::2]]


def test_two_hosts_grant_in_the_same_order(hosts):
    processes = []
    for host in ("host0", "host1"):
        arbiter = hosts.enter_context(running_arbiter(Path(host), jobs=2, devices=1))
        script = "turns.begin('block', (0, 0, 1)); steps({})"
        processes += [start(hosts, host, 0, script.format(60)), start(hosts, host, 1, script.format(50)), arbiter]
    assert [process.wait(WAIT_S) for process in processes] == [0] * 6
    expected = [0, 0, 1] * 30 + [1] * 20
    assert whole_turns(log_of("host0")) == expected
    assert log_of("host0") == log_of("host1")


def test_a_holder_that_is_killed_passes_its_turn_on(hosts):
    hosts.enter_context(running_arbiter(Path("host"), jobs=2, devices=1))
    victim = start(
        hosts, "host", 0, "turns.begin(1, (0, 1)); steps(5, lambda: (print('held', flush=True), time.sleep(600)))"
    )
    survivor = start(hosts, "host", 1, """
        assert turns.begin(1, (0, 1)) == {0, 1}
        steps(5)
        assert turns.begin(2, (0, 1)) == {1}
        steps(2)
    """)  # fmt: skip
    assert victim.stdout.readline() == "held\n"
    victim.send_signal(signal.SIGKILL)
    assert survivor.wait(WAIT_S) == 0
    assert log_of("host") == ["0 takes", *["1 takes", "1 gives"] * 7]


def test_waiting_burns_no_cpu(hosts):
    """CPU seconds of a job that waits half a second for its turn, and of the arbiter: not wall-clock."""
    arbiter = hosts.enter_context(running_arbiter(Path("host"), jobs=2, devices=1))
    holder = TurnClient("host", 0, 0, timeout_s=WAIT_S)
    waiting = start(hosts, "host", 1, """
        turns.begin(1, (0, 1))
        print("waits", flush=True)
        before_s = time.process_time()
        turns.acquire()
        print(time.process_time() - before_s, flush=True)
    """)  # fmt: skip
    holder.begin(1, (0, 1))
    with holder.turn():
        assert waiting.stdout.readline() == "waits\n"
        before_s = cpu_s(arbiter.pid)
        time.sleep(0.6)
    assert float(waiting.stdout.readline()) < 0.05
    assert cpu_s(arbiter.pid) - before_s < 0.05


def cpu_s(pid: int) -> float:
    """User and system CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_the_arbiter_ends_with_the_process_that_started_it(hosts):
    code = """
        import os, time
        from pathlib import Path
        from xbench.turns.client import running_arbiter
        with running_arbiter(Path("host"), jobs=2, devices=1) as arbiter:
            print(arbiter.pid, flush=True)
            time.sleep(600)
    """
    starter = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
    hosts.callback(starter.stdout.close)
    pid = int(starter.stdout.readline())
    assert Path("host").exists()
    starter.kill()
    starter.wait(WAIT_S)
    deadline_s = time.monotonic() + WAIT_S
    while Path("host").exists() or Path(f"/proc/{pid}/exe").exists():
        assert time.monotonic() < deadline_s, "the arbiter is still there"
        time.sleep(0.01)


def test_an_arbiter_leaves_no_socket_behind(hosts):
    with running_arbiter(Path("host"), jobs=2, devices=1) as arbiter:
        assert Path("host").exists()
        with pytest.raises(RunError, match=r"^the arbiter cannot listen at 'host': Address already in use$"):
            hosts.enter_context(running_arbiter(Path("host"), jobs=2, devices=1))
        assert Path("host").exists()
    assert arbiter.returncode == 0
    assert not Path("host").exists()
