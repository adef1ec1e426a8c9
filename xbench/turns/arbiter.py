"""The turn arbiter: one small process per host, which grants the turns of every device on it.

    python -m xbench.turns.arbiter --socket PATH --jobs 2 --devices 4

It holds one `Turns` per device and applies it: a line comes in from a client, and replies go out to the clients
concerned. It sleeps in epoll between lines, so waiting costs nothing. Its socket has a path instead of a port. A
pathname socket is reachable from any network namespace of the machine, and messages on turns must not use the measured
link. Passing a turn takes two wake-ups, the arbiter's and the next job's; see benchmarks/turn_passing.py.

It prints 'ready' on stdout when it listens. It ends when every job has left every device, on SIGTERM, or, with
`--until-stdin-ends`, when its standard input closes, so that it never outlives the process that started it. It uses the
standard library only, because jobs wait for its start.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import selectors
import signal
import socket
import sys
from collections import deque
from pathlib import Path

from xbench.errors import RunError
from xbench.turns import wire
from xbench.turns.rules import Granted, Reply, Turns

_GRANT = wire.pack(wire.GRANT)


class _Peer:
    """One connection: a job on a device, after its hello."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.turns: Turns | None = None
        self.job = -1
        self.unread = b""
        self.is_closing = False


class Arbiter:
    """The server. It listens from construction on; `serve` runs until all jobs have left, `close` cleans up.

    Raises RunError if the socket cannot be made at `socket_path`.
    """

    def __init__(self, socket_path: Path, jobs: int, devices: int) -> None:
        if devices < 1:
            raise RunError(f"an arbiter of {devices} devices makes no sense: at least 1 is needed")
        if len(os.fsencode(socket_path)) > wire.MAX_PATH_BYTES:
            raise RunError(
                f"the socket path {str(socket_path)!r} is longer than the {wire.MAX_PATH_BYTES} bytes that Unix allows"
            )
        self._path = socket_path
        self._devices = [Turns(jobs, device) for device in range(devices)]
        self._peers: dict[tuple[int, int], _Peer] = {}
        self._closing: deque[_Peer] = deque()
        self._stopped = False
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.bind(os.fspath(socket_path))
            self._listener.listen(jobs * devices + 8)
        except OSError as error:
            self._listener.close()
            raise RunError(f"the arbiter cannot listen at {str(socket_path)!r}: {error.strerror}") from None
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)

    def stop_at_end_of(self, descriptor: int) -> None:
        """Stop serving when this pipe, socket or terminal ends. Raises RunError for another kind of descriptor."""
        try:
            self._selector.register(descriptor, selectors.EVENT_READ, "lifeline")
        except OSError:
            raise RunError("the arbiter's standard input must be a pipe to tell it when to end") from None

    def serve(self) -> None:
        """Answer clients until every job has left every device."""
        while not self._stopped and any(turns.living for turns in self._devices):
            for key, _ in self._selector.select():
                if isinstance(key.data, _Peer):
                    self._receive(key.data)
                elif key.data == "lifeline":
                    self._stopped = _has_ended(key.fd)
                else:
                    self._accept()
                while self._closing:
                    self._close_peer(self._closing.popleft())

    def close(self) -> None:
        """Unlink the socket and close all connections."""
        self._path.unlink(missing_ok=True)
        for peer in self._peers.values():
            peer.connection.close()
        self._listener.close()
        self._selector.close()

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            self._selector.register(connection, selectors.EVENT_READ, _Peer(connection))

    def _receive(self, peer: _Peer) -> None:
        if peer.is_closing:
            return
        try:
            data = peer.connection.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._mark_closing(peer)
            return
        *lines, peer.unread = (peer.unread + data).split(b"\n")
        for line in lines:
            if not peer.is_closing:
                self._handle(peer, line)
        if len(peer.unread) > wire.MAX_LINE_BYTES:
            self._mark_closing(peer)

    def _handle(self, peer: _Peer, line: bytes) -> None:
        """Handle one line. A client that breaks the rules gets an error; one that sends nonsense is disconnected."""
        try:
            if peer.turns is None:
                self._handle_hello(peer, line)
                return
            turns, job = peer.turns, peer.job
            if line == wire.ACQUIRE:
                replies = turns.acquire(job)
            elif line == wire.RELEASE:
                replies = turns.release(job)
            else:
                replies = self._handle_rare(peer, turns, line)
        except RunError as error:
            self._send(peer, wire.pack(wire.ERROR, str(error)))
            if peer.turns is None or line == wire.RELEASE:
                # A release has no answer, so this is the last message that the client can take for its own.
                self._mark_closing(peer)
        except (ValueError, TypeError, KeyError, RecursionError):
            self._send(peer, wire.pack(wire.ERROR, f"the arbiter does not understand {line[:40]!r}"))
            self._mark_closing(peer)
        else:
            self._send_replies(turns, replies)

    def _handle_rare(self, peer: _Peer, turns: Turns, line: bytes) -> list[Reply]:
        letter, content = wire.unpack(line)
        if letter == wire.BEGIN:
            block, pattern = content["block"], content["pattern"]
            if not isinstance(block, int | str) or not all(type(job) is int for job in pattern):
                raise ValueError("a block is named by a number or a text, and a pattern is a list of jobs")
            return turns.begin(peer.job, block, pattern)
        if letter == wire.MEET:
            return turns.barrier(peer.job, str(content["name"]))
        if letter == wire.END:
            replies = turns.end_block(peer.job, content["block"])
            self._send(peer, wire.pack(wire.OK))
            return replies
        if letter == wire.WHY:
            self._send(peer, wire.pack(wire.WHY, turns.reason(peer.job)))
            return []
        raise ValueError(f"no message begins with {letter!r}")

    def _handle_hello(self, peer: _Peer, line: bytes) -> None:
        letter, content = wire.unpack(line)
        if letter != wire.HELLO:
            raise ValueError("the first message is a hello")
        job, device = content["job"], content["device"]
        if type(job) is not int or type(device) is not int:
            raise ValueError("jobs and devices are numbers")
        if not 0 <= device < len(self._devices):
            raise RunError(f"there is no device {device}: the arbiter serves devices 0 to {len(self._devices) - 1}")
        turns = self._devices[device]
        turns.check(job)
        if (job, device) in self._peers:
            raise RunError(f"job {job} is connected to device {device} already")
        peer.turns, peer.job = turns, job
        self._peers[job, device] = peer
        self._send(peer, wire.pack(wire.OK))

    def _send_replies(self, turns: Turns, replies: list[Reply]) -> None:
        for reply in replies:
            peer = self._peers.get((reply.job, turns.device))
            if peer is not None:
                self._send(peer, _GRANT if isinstance(reply, Granted) else wire.pack(wire.OK, sorted(reply.living)))

    def _send(self, peer: _Peer, data: bytes) -> None:
        try:
            sent = peer.connection.send(data)
        except OSError:
            sent = 0
        if sent != len(data):
            # Dead, or it sends without reading: it cannot take part in turns.
            self._mark_closing(peer)

    def _mark_closing(self, peer: _Peer) -> None:
        """Mark a connection for closing, after the current line."""
        if not peer.is_closing:
            peer.is_closing = True
            self._closing.append(peer)

    def _close_peer(self, peer: _Peer) -> None:
        """Close a connection; its job leaves its device."""
        self._selector.unregister(peer.connection)
        peer.connection.close()
        if peer.turns is not None and self._peers.get((peer.job, peer.turns.device)) is peer:
            del self._peers[peer.job, peer.turns.device]
            self._send_replies(peer.turns, peer.turns.leave(peer.job))


def main(arguments: list[str] | None = None) -> int:
    """Run an arbiter; returns the exit code, 0 for a regular end."""
    parser = argparse.ArgumentParser(prog="python -m xbench.turns.arbiter", description="Grant turns on devices.")
    parser.add_argument("--socket", type=Path, required=True, help="path of the Unix socket to listen at")
    parser.add_argument("--jobs", type=int, required=True, help="jobs that share each device")
    parser.add_argument("--devices", type=int, default=1, help="devices of this host (default: 1)")
    parser.add_argument("--until-stdin-ends", action="store_true", help="end when standard input closes")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        with contextlib.closing(Arbiter(options.socket, options.jobs, options.devices)) as arbiter:
            if options.until_stdin_ends:
                arbiter.stop_at_end_of(sys.stdin.fileno())
            print("ready", flush=True)
            arbiter.serve()
    except RunError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def _has_ended(descriptor: int) -> bool:
    try:
        return not os.read(descriptor, 4096)
    except OSError:  # a closed terminal
        return True


if __name__ == "__main__":
    sys.exit(main())
