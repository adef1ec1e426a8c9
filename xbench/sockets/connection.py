"""One TCP connection of a rank to another: messages out and in, each way in the order in which they were asked for.

**Out.** Whoever asks hands the kernel what it takes at once, and a thread the rest, if there is any: a message that
fits costs its sender one call and wakes nobody.

**In.** Whoever waits for a message reads it: it waits in the kernel until a piece is there, however many packets that
comes in, and holds no lock of the interpreter meanwhile. Where a process has its cores for itself, its main thread may
ask the kernel again and again instead (`poll_s`), as NCCL and MPI do. Until then what has come lies in the kernel, so a
computation on the only core is not interrupted for it. A thread reads in its place where somebody will only be told (a
future), where other ranks wait for what this one makes of it, where more is expected than may lie there, and where a
core is idle anyway. A message is read only once this rank expects it.

A message begins with its number among those of its connection and its length, so that ranks which do not launch the
same collectives in the same order are told, and never add up what does not belong together.
"""

from __future__ import annotations

import queue
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import torch

PIECE_BYTES = 512 << 10
"""Of a message: what is read, or handed to the kernel, at once. Stays in a core's cache until it has been added."""

GOING_S = 2.0
"""How long a connection that is closed still sends."""

_HEADER = struct.Struct("!IQ")
_NUMBERS = 1 << 32
_AT_ONCE = 1024
"""Parts in one call to the kernel, at most: Linux's IOV_MAX."""

UNREAD_BYTES = 8 << 20
"""What may lie in the kernel until somebody waits for it, at most, where no core is idle."""

_ROOM_SHARE = 4
"""The kernel's room for what arrives, over what may lie there unread: packets need more room than their bytes."""

_TICK = struct.pack("ll", 0, 100_000)
"""How long the kernel waits for bytes before it lets a thread look at its clock: a timeval of 0.1 s."""

Buffer = bytes | memoryview

_NEWS = threading.Condition()
"""Of bytes that have gone, of all messages: hardly one waits for it."""


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as (elements,). Raises ValueError for what is no contiguous tensor of a CPU."""
    if not tensor.is_cpu or tensor.layout is not torch.strided or not tensor.is_contiguous():
        raise ValueError("the backend sockets carries dense and contiguous tensors of CPUs")
    if tensor.requires_grad:
        tensor = tensor.detach()
    return tensor if tensor.dim() == 1 else tensor.view(-1)


def memory_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor. Raises ValueError as `flat` does."""
    array: Any = flat(tensor).view(torch.uint8).numpy()
    return memoryview(array)


def _last(parts: Sequence[Buffer], nbytes: int) -> Iterator[memoryview]:
    """The last so many bytes of these, in pieces."""
    skipped = sum(map(len, parts)) - nbytes
    for part in parts:
        for at in range(min(skipped, len(part)), len(part), PIECE_BYTES):
            yield memoryview(part)[at : at + PIECE_BYTES]
        skipped = max(0, skipped - len(part))


class Outgoing:
    """A message on its way out: these bytes, which must not change before the kernel has taken them.

    `gone` is called when it has, by `Connection.send`'s caller or on a thread, or `lost` with why it never will.
    """

    def __init__(
        self, parts: Sequence[memoryview], gone: Callable[[], None], lost: Callable[[Exception], None]
    ) -> None:
        self.parts = parts  # cut into pieces only where the kernel does not take them at once
        self.nbytes = sum(map(len, parts))
        self.gone = gone
        self._lost = lost
        self._left = self.nbytes
        self._error: Exception | None = None
        self._waits = False

    def taken(self, left: int) -> None:
        """The kernel has taken more: all but so many bytes."""
        self._left = left
        self._tell()

    def fail(self, error: Exception) -> None:
        """The kernel will take no more."""
        self._error = error
        self._tell()
        self._lost(error)

    @property
    def has_gone(self) -> bool:
        """Whether the kernel has all of it."""
        return self._left == 0

    def wait_until_left(self, nbytes: int) -> None:
        """Return when the kernel has all but so many bytes. Raises what sending failed with."""
        if self._left > nbytes:
            with _NEWS:
                self._waits = True
                _NEWS.wait_for(lambda: self._left <= nbytes or self._error is not None)
        if self._left > nbytes and self._error is not None:
            raise self._error

    def _tell(self) -> None:
        if self._waits:  # set before the other thread looks at what is left, so one of the two sees the other
            with _NEWS:
                _NEWS.notify_all()


class Incoming:
    """A message that this rank expects.

    `read` yields where its bytes go, piece by piece, and is asked for the next when one is full. `fail` hears why they
    do not come. `may_wait`: whether `read` may wait for anything but the connection just now.
    """

    def __init__(
        self,
        nbytes: int,
        read: Callable[[Connection], Iterator[memoryview]],
        fail: Callable[[Exception], None],
        may_wait: Callable[[], bool] = lambda: False,
    ) -> None:
        self.nbytes = nbytes
        self.read = read
        self.fail = fail
        self.may_wait = may_wait


class Connection:
    """See the module. `peer`: the rank at the other end; `idle_core`: whether a core waits for work of a thread."""

    def __init__(self, connection: socket.socket, peer: int, *, idle_core: bool) -> None:
        self.peer = peer
        self.scratch = torch.empty(PIECE_BYTES, dtype=torch.uint8)
        """For whoever reads: a piece that is added to something."""
        self.poll_s = 0.0
        """How long the main thread, where it waits, asks the kernel again and again before it sleeps [s]."""
        self.scratch_bytes = memory_of(self.scratch)
        self._socket = connection
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TICK)
        room = connection.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // _ROOM_SHARE
        self._most_unread = 0 if idle_core else min(UNREAD_BYTES, room)
        self._sending = threading.Lock()
        self._sent = 0
        self._waiting = 0
        self._rest: queue.SimpleQueue[tuple[Outgoing, Sequence[Buffer], int] | None] = queue.SimpleQueue()
        self._sender: threading.Thread | None = None
        self._expected: deque[Incoming] = deque()
        self._unread = 0  # bytes that are expected, more or less: it is a threshold for speed alone
        self._reading = threading.Lock()
        self._message: Incoming | None = None  # what is being read, by whoever holds the lock
        self._pieces: Iterator[memoryview] = iter(())
        self._piece = memoryview(b"")
        self._received = 0
        self._header = bytearray(_HEADER.size)
        self._broken: Exception | None = None
        self._closed = False
        self._wake = threading.Event()
        self._receiver = threading.Thread(target=self._receive, name=f"xbench-from-{peer}", daemon=True)
        self._receiver.start()

    def send(self, message: Outgoing) -> bool:
        """After all that was sent before. True: it has gone, and the caller is to say so, once it holds no lock.

        What `gone` leads to may launch the next collective.
        """
        with self._sending:
            parts: list[Buffer] = [_HEADER.pack(self._sent % _NUMBERS, message.nbytes), *message.parts]
            self._sent += 1
            left = _HEADER.size + message.nbytes
            if self._waiting == 0:
                left -= self._taken_at_once(parts)
            message.taken(left)
            gone = left == 0
            if not gone:
                self._waiting += 1
                if self._sender is None:
                    self._sender = threading.Thread(target=self._send_rest, name=f"xbench-to-{self.peer}", daemon=True)
                    self._sender.start()
                self._rest.put((message, parts, left))
        return gone

    def expect(self, message: Incoming, *, at_once: bool) -> None:
        """After all that was expected before. `at_once`: somebody else waits for what this rank makes of it.

        Else it may lie in the kernel until somebody here waits for it.
        """
        self._expected.append(message)
        self._unread += message.nbytes
        if at_once or self._unread > self._most_unread:
            self.hurry()

    def hurry(self) -> None:
        """Have the thread read all that is expected."""
        self._wake.set()

    def read_until(self, over: Callable[[], bool], deadline_s: float) -> None:
        """Read on this thread until that is so, or the clock (monotonic) says so, or another thread has to."""
        if not self._reading.acquire(blocking=False):
            self.hurry()  # whoever reads may have other ends in mind
            return
        try:
            self._read(over, deadline_s)
        finally:
            self._reading.release()

    def read_what_is_there(self, over: Callable[[], bool]) -> None:
        """As `read_until`, without waiting for anything."""
        if self._reading.acquire(blocking=False):
            try:
                self._read(over, 0.0)
            finally:
                self._reading.release()

    def close(self) -> None:
        """Hang up when what was sent has gone, or after `GOING_S`. What is still expected fails, and the threads end.

        Threads that lived on would be stopped inside torch when the interpreter ends, which aborts the process.
        """
        self._broken = self._broken or ConnectionError("the process group was shut down")
        self._rest.put(None)
        if self._sender is not None and self._sender is not threading.current_thread():
            self._sender.join(GOING_S)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._closed = True
        self.hurry()
        for thread in (self._sender, self._receiver):
            if thread is not None and thread is not threading.current_thread():
                thread.join(GOING_S)
        self._socket.close()

    def _taken_at_once(self, parts: Sequence[Buffer]) -> int:
        """How many bytes of these the kernel has taken without waiting."""
        try:
            return self._socket.sendmsg(parts[:_AT_ONCE], [], socket.MSG_DONTWAIT)
        except OSError:  # there is no room, or the thread will meet the same error and tell
            return 0

    def _send_rest(self) -> None:
        while (rest := self._rest.get()) is not None:
            message, parts, left = rest
            try:
                for piece in _last(parts, left):
                    while piece:
                        count = self._socket.send(piece)
                        piece = piece[count:]
                        left -= count
                        message.taken(left)
                message.gone()
            except OSError as error:
                message.fail(self._lost(error))
            with self._sending:
                self._waiting -= 1
            del rest, message, parts, piece  # and with it the tensors, which nothing may need by the time of the next

    def _receive(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            closed = self._closed
            with self._reading:
                self._read(None, None)
            if closed:
                return

    def _read(self, over: Callable[[], bool] | None, deadline_s: float | None) -> None:
        """Read until `over`, or all that is expected. Holds the lock.

        `deadline_s` None is the thread, which may wait for everything; 0 waits for nothing.
        """
        polls = deadline_s is not None and self.poll_s > 0.0 and threading.current_thread() is threading.main_thread()
        flags = socket.MSG_DONTWAIT if polls or deadline_s == 0.0 else socket.MSG_WAITALL
        since_s = 0.0
        while over is None or not over():
            if self._message is None:
                if not self._expected:
                    return
                self._message = self._expected.popleft()
                self._pieces = self._pieces_of(self._message)
            message = self._message
            try:
                if self._piece:
                    self._fill(flags)
                elif deadline_s is not None and message.may_wait():
                    self.hurry()
                    return
                else:
                    self._piece = next(self._pieces)
            except StopIteration:
                self._end(message)
            except BlockingIOError:
                now_s = time.monotonic()
                if deadline_s is not None and now_s >= deadline_s:
                    return
                since_s = since_s or now_s
                if now_s - since_s >= self.poll_s or self._waiting:  # a thread that sends needs the interpreter
                    flags = socket.MSG_WAITALL
            except Exception as error:  # it is told to those who wait, and so is every later one
                self._broken = error
                self._end(message)
                message.fail(error)
            del message  # as in `_send_rest`

    def _end(self, message: Incoming) -> None:
        self._unread -= message.nbytes
        self._message, self._pieces, self._piece = None, iter(()), memoryview(b"")

    def _fill(self, flags: int) -> None:
        """Read more of the piece. Raises ConnectionError, and BlockingIOError where nothing comes."""
        try:
            count = self._socket.recv_into(self._piece, 0, flags)
        except BlockingIOError:
            raise
        except OSError as error:
            raise self._lost(error) from None
        if count == 0:
            raise self._lost(ConnectionError(f"rank {self.peer} has closed the connection"))
        self._piece = self._piece[count:]

    def _pieces_of(self, message: Incoming) -> Iterator[memoryview]:
        """Where a message's bytes go, how it begins included. Raises ConnectionError where that is not to be."""
        if self._broken is not None:
            raise self._broken
        yield memoryview(self._header)
        number, sent = _HEADER.unpack(self._header)
        expected = self._received % _NUMBERS
        if (number, sent) != (expected, message.nbytes):
            raise ConnectionError(
                f"rank {self.peer} sent {sent} bytes as its message {number}, where this rank expects {message.nbytes} "
                f"bytes as message {expected}: do all ranks launch the same collectives in one order?"
            )
        self._received += 1
        yield from message.read(self)

    def _lost(self, error: OSError) -> Exception:
        if self._broken is not None:
            return self._broken
        if isinstance(error, ConnectionError) and error.errno is None:
            return error
        return ConnectionError(f"the connection to rank {self.peer} is lost: {error}")
