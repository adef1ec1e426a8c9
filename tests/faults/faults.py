"""Faults that come from outside a rank: signals to processes of a run, and changes of its links."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable

from xbench.fabrics import links

from .harness import Live, MissedError, Plant

INTERFACE = links.INTERFACE
STOPPED_S = 3.0
"""Time [s] that a process stands still when it is stopped and continued."""

NUMBERS = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "hup": signal.SIGHUP, "int": signal.SIGINT,
           "stop": signal.SIGSTOP, "segv": signal.SIGSEGV, "cont": signal.SIGCONT, "quit": signal.SIGQUIT}  # fmt: skip


def send(pid: int, name: str) -> None:
    """A signal by its short name; `pause` stops a process for a while."""
    if name == "pause":
        os.kill(pid, signal.SIGSTOP)
        time.sleep(STOPPED_S)
        os.kill(pid, signal.SIGCONT)
    else:
        os.kill(pid, NUMBERS[name])


def to_parent(name: str) -> Plant:
    """kill, term, hup or pause of the parent; int, int2, int5 are Ctrl-C once, twice and twelve times in 1.2 s."""

    def plant(live: Live) -> None:
        if not name.startswith("int"):
            send(live.pid, name)
            return
        os.killpg(live.pid, signal.SIGINT)
        for _ in range({"int": 0, "int2": 1, "int5": 11}[name]):
            time.sleep(0.3 if name == "int2" else 0.1)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(live.pid, signal.SIGINT)

    return plant


def to_rank(name: str, rank: int = 1, job: int = 0) -> Plant:
    """A signal to one rank."""
    return lambda live: send(live.rank_pid(rank, job), name)


def to_agent(name: str, index: int = 0) -> Plant:
    """A signal to one of the agents, which start and watch the ranks of a host."""

    def plant(live: Live) -> None:
        agents = live.pids_of("launch/agent.py")
        if not agents:
            raise MissedError("there is no agent")
        send(agents[index % len(agents)], name)

    return plant


# --- links ------------------------------------------------------------------------------------------------------------


def _host(host: int | str, *commands: list[str], pause_s: float = 0.0) -> Plant:
    """Commands of ip and tc in the namespace of one host, {name} filled in."""

    def plant(live: Live) -> None:
        name = live.namespace(host)
        for number, command in enumerate(commands):
            if number:
                time.sleep(pause_s)
            done = subprocess.run([word.format(name=name) for word in command], capture_output=True, text=True)
            if done.returncode:
                raise MissedError(f"{' '.join(command)}: {done.stderr.strip()}")

    return plant


_DOWN = ["ip", "-n", "{name}", "link", "set", INTERFACE, "down"]
_UP = ["ip", "-n", "{name}", "link", "set", INTERFACE, "up"]

LINK_CHANGES: dict[str, Plant] = {
    "down": _host(1, _DOWN),
    "switch-down": _host("sw", ["ip", "-n", "{name}", "link", "set", "xbbr0", "down"]),
    "down-up": _host(1, _DOWN, _UP, pause_s=1.0),
    "rerate": _host(1, ["tc", "-n", "{name}", "qdisc", "replace", "dev", INTERFACE, "root", "tbf", "rate", "20mbit",
                        "burst", "16kb", "limit", "1mb"]),
    "unshape": _host(1, ["tc", "-n", "{name}", "qdisc", "del", "dev", INTERFACE, "root"]),
    "delete-namespace": _host(1, ["ip", "netns", "delete", "{name}"]),
    "flush-address": _host(1, ["ip", "-n", "{name}", "addr", "flush", "dev", INTERFACE]),
}  # fmt: skip
"""All change the link of host 1 of a shaped fabric, but `switch-down`."""


AMID_STEPS_S = 0.5
"""After the begin of a block: its warm-up is over, and about half of its timed steps come yet."""


def go(live: Live) -> None:
    """Let the model strike: see workload.py."""
    live.steer("go")


def at(phase: str, plant: Plant, delay_s: float = 0.1) -> Plant:
    """The fault, some time after rank 0 has begun a phase."""
    return _later(lambda live: live.wait_for_phase(phase), delay_s, plant)


def after(delay_s: float, plant: Plant) -> Plant:
    """The fault, some time after the start."""
    return _later(lambda live: None, delay_s, plant)


def when(what: Callable[[Live], bool], name: str, plant: Plant, delay_s: float = 0.2) -> Plant:
    """The fault, some time after something is true of the run."""
    return _later(lambda live: live.wait_until(lambda: what(live), name), delay_s, plant)


def _later(wait: Plant, delay_s: float, plant: Plant) -> Plant:
    def planted(live: Live) -> None:
        wait(live)
        time.sleep(delay_s)
        plant(live)

    return planted
