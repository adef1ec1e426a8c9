"""The arbiter of a host from outside: its start and end, and a job's connection to it for turns on one device.

A client blocks, asleep in the kernel while it waits:

    turns = TurnClient(path, job=0, device=local_rank)
    turns.begin("round 1 crossover", (0, 1))
    with turns.turn():
        ...                                   # this job has the device
    turns.end_block()

A client whose wait was cut short, by a time-out, a signal or a lost arbiter, has left. It cannot know whether a turn
was granted to it, and the others must not wait for a turn that is never used.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from xbench.errors import RunError
from xbench.turns import wire
from xbench.turns.rules import Block

CONNECT_S = 10.0
"""Time [s] for which a client tries to reach an arbiter that does not listen yet."""

WHY_S = 1.0
"""Time [s] for which a client that timed out waits for the reason."""

END_S = 5.0
"""Time [s] that an arbiter gets to end before it is killed."""


@contextlib.contextmanager
def running_arbiter(socket_path: Path, jobs: int, devices: int) -> Iterator[subprocess.Popen[str]]:
    """An arbiter that listens at `socket_path` during the body of a `with`.

    It ends with the body, or when this process dies. It has its own session, so that Ctrl-C reaches the jobs first and
    they end in order. Raises RunError if it cannot start.
    """
    command = [sys.executable, "-m", "xbench.turns.arbiter", "--until-stdin-ends"]
    command += ["--socket", str(socket_path), "--jobs", str(jobs), "--devices", str(devices)]
    arbiter = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert arbiter.stdout is not None
        assert arbiter.stderr is not None
        if arbiter.stdout.readline() != "ready\n":
            lines = arbiter.stderr.read().strip().splitlines()
            raise RunError(lines[-1] if lines else "the turn arbiter ended before it was ready")
        yield arbiter
    finally:
        arbiter.terminate()
        try:
            arbiter.wait(END_S)
        except subprocess.TimeoutExpired:
            arbiter.kill()
            arbiter.wait()
        for stream in (arbiter.stdin, arbiter.stdout, arbiter.stderr):
            if stream is not None:
                stream.close()


class TurnClient:
    """The connection of `job` to the arbiter for `device`, the job's rank on this host. It is not thread-safe.

    `timeout_s` bounds every wait (None: no limit). `turns` counts the turns taken, `waited_s` the seconds of waiting
    for them, without waits for blocks and barriers.

    Raises RunError if there is no arbiter at `socket_path`, or if it does not know the job or the device.
    """

    def __init__(self, socket_path: str | Path, job: int, device: int, *, timeout_s: float | None = 120.0) -> None:
        self.job = job
        self.device = device
        self.timeout_s = timeout_s
        self.turns = 0
        self.waited_s = 0.0
        self._holding = False
        self._block: Block | None = None
        self._unread = b""
        self._socket: socket.socket | None = _connect(os.fspath(socket_path))
        try:
            self._request(wire.HELLO, {"job": job, "device": device}, "to be greeted")
        except BaseException:
            self.leave()
            raise

    def begin(self, block: Block, pattern: Sequence[int]) -> set[int]:
        """Begin `block` together with all living jobs on this device; returns these.

        `pattern` is the same in every job and on every host. A job that it leaves out is parked: it ends its block
        without a turn. While a job dies, hosts can differ for a moment in the living jobs: use the set to report, and
        agree within the job before acting on it. Raises RunError if the other jobs wait for another block or pattern,
        or on time-out.
        """
        living = self._request(wire.BEGIN, {"block": block, "pattern": list(pattern)}, f"to begin block {block!r}")
        self._block = block
        return set(living)

    def acquire(self) -> None:
        """Wait for the device. Raises RunError outside a block, if this job holds it already, or on time-out."""
        start_s = time.perf_counter()
        self._request(wire.ACQUIRE, None, "for its turn")
        self.waited_s += time.perf_counter() - start_s
        self.turns += 1
        self._holding = True

    def release(self) -> None:
        """Pass the turn on, without waiting. Raises RunError if this job does not hold the device."""
        if not self._holding:
            raise RunError(f"job {self.job} releases device {self.device} without holding it")
        self._holding = False
        self._send(wire.pack(wire.RELEASE))

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Hold the device for the body of a `with`."""
        self.acquire()
        try:
            yield
        except BaseException:
            # The user must see the error of the turn, not that the arbiter has gone as well.
            with contextlib.suppress(RunError):
                self.release()
            raise
        self.release()

    def end_block(self) -> None:
        """Take no more turns in this block; the others continue. Does nothing after `leave`.

        Raises RunError outside a block, or while this job holds the device.
        """
        if self._socket is None:
            return
        if self._block is None:
            raise RunError(f"job {self.job} ends a block on device {self.device} and is in none")
        self._request(wire.END, {"block": self._block}, f"to end block {self._block!r}")
        self._block = None

    def barrier(self, name: str) -> set[int]:
        """Wait for all living jobs on this device to come to the barrier of that name; returns these.

        Raises RunError inside a block, if the others wait for something else, or on time-out.
        """
        return set(self._request(wire.MEET, {"name": name}, f"at barrier {name!r}"))

    def leave(self) -> None:
        """Close the connection: the turn passes on, and the others do not wait for this job.

        It is final and idempotent.
        """
        if self._socket is not None:
            # Shut down before closing: a forked child may hold a copy of the socket open.
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
        self._socket = None
        self._holding = False
        self._block = None

    def __enter__(self) -> TurnClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def _request(self, letter: bytes, content: Any, waiting: str) -> Any:
        """Send a message and wait for its answer.

        Raises RunError for an error reply; leaves if the wait is cut short.
        """
        self._send(wire.pack(letter, content))
        try:
            answer, content = self._receive_answer(waiting)
        except BaseException:
            self.leave()
            raise
        if answer == wire.ERROR:
            raise RunError(content)
        return content

    def _receive_answer(self, waiting: str) -> tuple[bytes, Any]:
        try:
            return self._receive_line(self.timeout_s)
        except TimeoutError:
            waited = f"job {self.job} waited {self.timeout_s:g} s {waiting} on device {self.device}"
        try:
            self._send(wire.pack(wire.WHY))
            answer, reason = self._receive_line(WHY_S)
        except TimeoutError:
            raise RunError(f"{waited}, and the arbiter does not answer") from None
        if answer == wire.WHY:
            raise RunError(f"{waited}, {reason}")
        # The answer came just after the time-out; the reply with the reason follows it.
        self._receive_line(WHY_S)
        return answer, reason

    def _receive_line(self, timeout_s: float | None) -> tuple[bytes, Any]:
        connection = self._connected()
        connection.settimeout(timeout_s)
        while b"\n" not in self._unread:
            try:
                data = connection.recv(4096)
            except ConnectionError:
                data = b""
            if not data:
                raise RunError(f"job {self.job} on device {self.device} lost its turn arbiter")
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return wire.unpack(line)

    def _send(self, data: bytes) -> None:
        try:
            self._connected().sendall(data)
        except (ConnectionError, BrokenPipeError):
            sentence = self._disconnect_reason()
            self.leave()
            raise RunError(sentence) from None

    def _disconnect_reason(self) -> str:
        """Reason of the arbiter's disconnection, if it sent one."""
        with contextlib.suppress(RunError, OSError, ValueError):
            answer, content = self._receive_line(WHY_S)
            if answer == wire.ERROR:
                return str(content)
        return f"job {self.job} on device {self.device} lost its turn arbiter"

    def _connected(self) -> socket.socket:
        if self._socket is None:
            raise RunError(f"job {self.job} has left device {self.device}")
        return self._socket


def _connect(path: str) -> socket.socket:
    """Connect to the arbiter at `path`, and wait a while for it to listen."""
    if len(os.fsencode(path)) > wire.MAX_PATH_BYTES:
        raise RunError(f"the socket path {path!r} is longer than the {wire.MAX_PATH_BYTES} bytes that Unix allows")
    deadline_s = time.monotonic() + CONNECT_S
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(path)
            return connection
        except (FileNotFoundError, ConnectionRefusedError) as error:
            connection.close()
            if time.monotonic() > deadline_s:
                raise RunError(f"no turn arbiter listens at {path!r}: {error.strerror}") from None
        except OSError as error:
            connection.close()
            raise RunError(f"the turn arbiter at {path!r} cannot be reached: {error.strerror}") from None
        time.sleep(0.01)
