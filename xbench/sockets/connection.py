"""One TCP connection of a rank to another: messages out and in, each way in the order in which they were asked for.

**Out.** Whoever asks hands the kernel what it takes at once, and a thread the rest, if there is any: a message that
fits costs its sender one call and wakes nobody.

**In.** A thread waits in the kernel until a piece is there, however many packets it comes in, and holds no lock of the
interpreter meanwhile. It reads a message only once this rank expects it; what comes earlier waits in the connection.

A message begins with its number among those of its connection and its length, so that ranks which do not launch the
same collectives in the same order are told, and never add up what does not belong together.
"""

from __future__ import annotations

import queue
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch

PIECE_BYTES = 512 << 10
"""Of a message: what is read, or handed to the kernel, at once. Stays in a core's cache until it has been added."""

GOING_S = 2.0
"""How long a connection that is closed still sends."""

_HEADER = struct.Struct("!IQ")
_NUMBERS = 1 << 32
_AT_ONCE = 64
"""Pieces in one call to the kernel, at most."""


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as (elements,). Raises ValueError for what is no contiguous tensor of a CPU."""
    if tensor.device.type != "cpu" or tensor.layout != torch.strided or not tensor.is_contiguous():
        raise ValueError("the backend sockets carries dense and contiguous tensors of CPUs")
    return tensor.detach().view(-1)


def memory_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor. Raises ValueError as `flat` does."""
    array: Any = flat(tensor).view(torch.uint8).numpy()
    return memoryview(array)


class Outgoing:
    """A message on its way out: these bytes, which must not change before the kernel has taken them.

    `gone` is called when it has, by `Connection.send`'s caller or on a thread, or `lost` with why it never will.
    """

    def __init__(
        self, parts: Sequence[memoryview], gone: Callable[[], None], lost: Callable[[Exception], None]
    ) -> None:
        self.pieces = [part[at : at + PIECE_BYTES] for part in parts for at in range(0, len(part), PIECE_BYTES)]
        self.nbytes = sum(map(len, parts))
        self.gone = gone
        self._lost = lost
        self._left = self.nbytes
        self._error: Exception | None = None
        self._waits = False
        self._news = threading.Condition()

    def begin(self, number: int) -> None:
        """It is the connection's message of this number."""
        self.pieces.insert(0, memoryview(_HEADER.pack(number % _NUMBERS, self.nbytes)))
        self._left += _HEADER.size

    def taken(self, nbytes: int) -> None:
        """The kernel has taken so many bytes more."""
        self._left -= nbytes
        while nbytes and nbytes >= len(self.pieces[0]):
            nbytes -= len(self.pieces.pop(0))
        if nbytes:
            self.pieces[0] = self.pieces[0][nbytes:]
        self._tell()

    def fail(self, error: Exception) -> None:
        """The kernel will take no more."""
        self._error = error
        self._tell()
        self._lost(error)

    def wait_until_left(self, nbytes: int) -> None:
        """Return when the kernel has all but so many bytes. Raises what sending failed with."""
        if self._left > nbytes:
            with self._news:
                self._waits = True
                self._news.wait_for(lambda: self._left <= nbytes or self._error is not None)
        if self._left > nbytes and self._error is not None:
            raise self._error

    def _tell(self) -> None:
        if self._waits:  # set before the other thread looks at what is left, so one of the two sees the other
            with self._news:
                self._news.notify_all()


class Incoming:
    """A message that this rank expects: `read` takes it from the connection, `fail` hears why it does not come."""

    def __init__(self, nbytes: int, read: Callable[[Connection], None], fail: Callable[[Exception], None]) -> None:
        self.nbytes = nbytes
        self.read = read
        self.fail = fail


class Connection:
    """See the module. `peer`: the rank at the other end."""

    def __init__(self, connection: socket.socket, peer: int) -> None:
        self.peer = peer
        self.scratch = torch.empty(PIECE_BYTES, dtype=torch.uint8)
        """For whoever reads: a piece that is added to something."""
        self.scratch_bytes = memory_of(self.scratch)
        self._socket = connection
        self._sending = threading.Lock()
        self._sent = 0
        self._waiting = 0
        self._rest: queue.SimpleQueue[Outgoing | None] = queue.SimpleQueue()
        self._sender: threading.Thread | None = None
        self._expected: queue.SimpleQueue[Incoming | None] = queue.SimpleQueue()
        self._received = 0
        self._header = bytearray(_HEADER.size)
        self._broken: Exception | None = None
        self._receiver = threading.Thread(target=self._receive, name=f"xbench-from-{peer}", daemon=True)
        self._receiver.start()

    def send(self, message: Outgoing) -> bool:
        """After all that was sent before. True: it has gone, and the caller is to say so, once it holds no lock.

        What `gone` leads to may launch the next collective.
        """
        with self._sending:
            message.begin(self._sent)
            self._sent += 1
            gone = self._waiting == 0 and self._handed_over(message)
            if not gone:
                self._waiting += 1
                if self._sender is None:
                    self._sender = threading.Thread(target=self._send_rest, name=f"xbench-to-{self.peer}", daemon=True)
                    self._sender.start()
                self._rest.put(message)
        return gone

    def expect(self, message: Incoming) -> None:
        """After all that was expected before."""
        self._expected.put(message)

    def fill(self, into: memoryview) -> None:
        """Read so much of the message that is being read. For its `read`; raises ConnectionError."""
        try:
            while into:
                count = self._socket.recv_into(into, 0, socket.MSG_WAITALL)
                if count == 0:
                    raise ConnectionError(f"rank {self.peer} has closed the connection")
                into = into[count:]
        except OSError as error:
            raise self._lost(error) from None

    def close(self) -> None:
        """Hang up when what was sent has gone, or after `GOING_S`. What is still expected fails, and the threads end.

        Threads that lived on would be stopped inside torch when the interpreter ends, which aborts the process.
        """
        self._broken = self._broken or ConnectionError("the process group was shut down")
        self._expected.put(None)
        self._rest.put(None)
        if self._sender is not None and self._sender is not threading.current_thread():
            self._sender.join(GOING_S)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        for thread in (self._sender, self._receiver):
            if thread is not None and thread is not threading.current_thread():
                thread.join(GOING_S)
        self._socket.close()

    def _handed_over(self, message: Outgoing) -> bool:
        """Whether the kernel took all of it at once."""
        try:
            while message.pieces:
                message.taken(self._socket.sendmsg(message.pieces[:_AT_ONCE], [], socket.MSG_DONTWAIT))
        except OSError:  # there is no room, or the thread will meet the same error and tell
            return False
        return True

    def _send_rest(self) -> None:
        while (message := self._rest.get()) is not None:
            try:
                while message.pieces:
                    message.taken(self._socket.send(message.pieces[0]))
                message.gone()
            except OSError as error:
                message.fail(self._lost(error))
            with self._sending:
                self._waiting -= 1
            del message  # and with it the tensors, which nothing else may need by the time of the next

    def _receive(self) -> None:
        while (message := self._expected.get()) is not None:
            try:
                if self._broken is not None:
                    raise self._broken
                self._begin(message.nbytes)
                message.read(self)
            except Exception as error:  # it is told to those who wait, and so is every later one
                self._broken = error
                message.fail(error)
            del message  # as in `_send_rest`

    def _begin(self, nbytes: int) -> None:
        """Read how a message of so many bytes begins. Raises ConnectionError where it is another."""
        self.fill(memoryview(self._header))
        number, sent = _HEADER.unpack(self._header)
        expected = self._received % _NUMBERS
        if (number, sent) != (expected, nbytes):
            raise ConnectionError(
                f"rank {self.peer} sent {sent} bytes as its message {number}, where this rank expects {nbytes} bytes "
                f"as message {expected}: do all ranks launch the same collectives in one order?"
            )
        self._received += 1

    def _lost(self, error: OSError) -> Exception:
        if self._broken is not None:
            return self._broken
        if isinstance(error, ConnectionError) and error.errno is None:
            return error
        return ConnectionError(f"the connection to rank {self.peer} is lost: {error}")
