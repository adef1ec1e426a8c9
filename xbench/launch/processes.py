"""Processes of a launch: each in a session of its own, tied to the parent's life, with its output in a file.

A session of its own keeps the terminal's Ctrl-C away from ranks, because the parent decides when they stop. It also
lets one signal reach a whole group. The guard (`launch_guard`) makes the kernel kill them if the parent is killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from xbench.launch_guard import GUARD

TERMINATE_S = 3.0
KILL_S = 5.0


@dataclass
class Started:
    """A process group that we started: its name, its host and its log."""

    name: str
    host: int
    job: int | None
    process: subprocess.Popen[bytes]
    log: Path


class ProcessGroups:
    """All process groups of one launch. `stop` leaves no process."""

    def __init__(self) -> None:
        self.started: list[Started] = []
        self._stopped = False

    def start(
        self,
        name: str,
        host: int,
        job: int | None,
        prefix: Sequence[str],
        argv: Sequence[str],
        env: Mapping[str, str],
        log: Path,
    ) -> Started:
        """Start `prefix` + guard + `argv` with both output streams in `log`. Raises OSError."""
        # A prefix's commands (ip netns exec, taskset) replace themselves, so the guard's parent is this process.
        command = [*prefix, *GUARD, str(os.getpid()), *argv]
        with open(log, "wb") as stream:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, env=dict(env), start_new_session=True
            )
        one = Started(name, host, job, process, log)
        self.started.append(one)
        return one

    def stop(self, others: Iterable[int] = ()) -> None:
        """Send SIGTERM to every group, and after 3 s SIGKILL to the rest, descendants and `others` (ranks) included."""
        if self._stopped:
            return
        self._stopped = True
        left = self._descendants()
        for pid in others:
            with contextlib.suppress(psutil.NoSuchProcess):
                left.append(psutil.Process(pid))
        left = [one for one in left if _session(one.pid) != os.getsid(0)]
        self._signal_groups(signal.SIGTERM)
        _wait(left, TERMINATE_S)
        left += self._descendants()
        self._signal_groups(signal.SIGKILL)
        for one in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        for started in self.started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                started.process.wait(KILL_S)
        _wait(left, KILL_S)

    def _descendants(self) -> list[psutil.Process]:
        found: list[psutil.Process] = []
        for started in self.started:
            if started.process.poll() is None:
                with contextlib.suppress(psutil.NoSuchProcess):
                    root = psutil.Process(started.process.pid)
                    found += [root, *root.children(recursive=True)]
        return found

    def _signal_groups(self, number: signal.Signals) -> None:
        for started in self.started:
            # While one member lives, the group's id is not reused. A group without members does not exist.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(started.process.pid, number)


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def _wait(processes: list[psutil.Process], seconds: float) -> None:
    """Wait until none of them runs. A zombie that its parent has not reaped counts as gone."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(_runs(one) for one in processes):
        time.sleep(0.02)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False
