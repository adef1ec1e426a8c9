"""What travels when ranks reduce or gather: every rank sends each other directly what that one needs.

| collective | sends | bytes out of a rank, of M |
| --- | --- | --- |
| all-reduce of two | everything to the other, and adds what comes, piece by piece | M |
| all-reduce of N | each other's N-th to it; adds up its own; then that to all | 2(N−1)/N · M |
| reduce-scatter, all-to-all | each other's N-th to it | (N−1)/N · M |
| all-gather | its own to all | (N−1)/N · M of what is gathered |
| broadcast | the root, everything to all | (N−1) · M |

These are a ring's bytes in two steps of latency, not 2(N−1): the pairwise exchange of Thakur, Rabenseifner, Gropp,
"Optimization of collective communication operations in MPICH" (2005), all pairs at once. Sums are taken in the order of
ranks on one rank alone, or are of two, so all ranks get the same bits, and the same in every run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from xbench.sockets.connection import PIECE_BYTES, Connection, Incoming, Outgoing, flat, memory_of

Combine = Callable[[Tensor, Tensor], object]
"""Changes the first into what it and the second make."""

_SUM: Combine = Tensor.add_

COMBINE: dict[str, Combine] = {
    "SUM": _SUM,
    "AVG": _SUM,
    "PRODUCT": Tensor.mul_,
    "MIN": lambda ours, theirs: torch.minimum(ours, theirs, out=ours),
    "MAX": lambda ours, theirs: torch.maximum(ours, theirs, out=ours),
    "BAND": Tensor.bitwise_and_,
    "BOR": Tensor.bitwise_or_,
    "BXOR": Tensor.bitwise_xor_,
}
"""By the names of torch's reductions."""

_NEWS = threading.Lock()
"""Orders a collective's end and who begins to wait for it. Of all of them: to make one each costs more than it does."""


class Flight(dist.Work):
    """A collective under way, until it lands or fails.

    `patience_s`: how long `wait` waits where nobody says. `sources`: connections on which what it needs may lie unread.
    """

    def __init__(self, tensors: Sequence[Tensor], patience_s: float, sources: Collection[Connection]) -> None:
        super().__init__()
        self._tensors = list(tensors)
        self._patience_s = patience_s
        self._sources = sources
        self._is_over = False
        self._lock = _NEWS  # held for a moment only, and by hardly two at once
        self._told: threading.Event | None = None
        self._error: Exception | None = None
        self._future: torch.futures.Future[list[Tensor]] | None = None

    def land(self) -> None:
        """It is over."""
        future = self._end(None)
        if future is not None:
            future.set_result(self._tensors)

    def fail(self, error: Exception) -> None:
        """It will never be; the first error is kept."""
        future = self._end(error)
        if future is not None:
            future.set_exception(error)  # type: ignore[arg-type]

    def _end(self, error: Exception | None) -> torch.futures.Future[list[Tensor]] | None:
        """Tell those who wait, once. The future that is to be told too."""
        with self._lock:
            if self._is_over:
                return None
            self._error = error
            self._is_over = True
            told, future = self._told, self._future
        if told is not None:
            told.set()
        return future

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Return when it is over. Raises what it failed with; TimeoutError after the group's patience, or `timeout`."""
        if not self._is_over:
            self._wait(timeout.total_seconds() or self._patience_s)
        if self._error is not None:
            raise self._error
        return True

    def _wait(self, patience_s: float) -> None:
        """Read on this thread, then leave it to others. Raises TimeoutError."""
        deadline_s = time.monotonic() + patience_s
        for source in self._sources:
            source.read_until(self._over, deadline_s)
        with self._lock:
            if self._is_over:
                return
            self._told = told = self._told or threading.Event()
        if not told.wait(max(0.0, deadline_s - time.monotonic())):
            raise TimeoutError(f"a collective over sockets was not over after {patience_s:g} s")

    def _over(self) -> bool:
        return self._is_over

    def is_completed(self) -> bool:
        """Whether `wait` would return, or raise, at once. Reads what is there."""
        if not self._is_over:
            for source in self._sources:
                source.read_what_is_there(self._over)
        return self._is_over

    def is_success(self) -> bool:
        """Whether it is over and did not fail."""
        return self._is_over and self._error is None

    def result(self) -> list[Tensor]:
        """The tensors that it fills."""
        return self._tensors

    def synchronize(self) -> None:
        """As `wait`."""
        self.wait()

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        """A future of the tensors that it fills. Somebody will hear of the end, so nothing lies unread any more."""
        for source in self._sources:
            source.hurry()
        with self._lock:
            if self._future is not None:
                return self._future
            future: torch.futures.Future[list[Tensor]] = torch.futures.Future()
            self._future = future
            over = self._is_over
        if over and self._error is not None:
            future.set_exception(self._error)  # type: ignore[arg-type]
        elif over:
            future.set_result(self._tensors)
        return future


class Countdown:
    """Calls `then` when it has been counted down so often, by whichever thread is the last; `fail` hears its errors."""

    def __init__(self, count: int, then: Callable[[], None], fail: Callable[[Exception], None]) -> None:
        self._count = count
        self._then = then
        self._fail = fail
        self._lock = threading.Lock()
        if count == 0:
            self._go_on()

    def __call__(self) -> None:
        """One less."""
        with self._lock:
            self._count -= 1
            last = self._count == 0
        if last:
            self._go_on()

    def _go_on(self) -> None:
        try:
            self._then()
        except Exception as error:  # for those who wait, whoever's thread this is
            self._fail(error)


def outgoing(tensors: Sequence[Tensor], gone: Callable[[], None], flight: Flight) -> Outgoing:
    """A message of these."""
    return Outgoing([memory_of(tensor) for tensor in tensors], gone, flight.fail)


def filling(tensors: Sequence[Tensor], filled: Callable[[], None], flight: Flight) -> Incoming:
    """A message into these."""
    parts = [memory_of(tensor) for tensor in tensors]

    def read(_: Connection) -> Iterator[memoryview]:
        for part in parts:
            for at in range(0, len(part), PIECE_BYTES):
                yield part[at : at + PIECE_BYTES]
        filled()

    return Incoming(sum(map(len, parts)), read, flight.fail)


class Swap:
    """An all-reduce of two, over this connection: what is the same each time it is launched.

    The other's tensors are combined with ours piece by piece, each as soon as it is there and ours has gone.
    """

    def __init__(
        self, tensors: Sequence[Tensor], combine: Combine, divisor: int, patience_s: float, connection: Connection
    ) -> None:
        self._tensors = list(tensors)
        self._combine = combine
        self._divisor = divisor
        self._patience_s = patience_s
        self._sources = [connection]
        self._ours = [memory_of(tensor) for tensor in tensors]
        self._nbytes = sum(map(len, self._ours))
        self._pieces: list[tuple[memoryview, Tensor, Tensor]] = []
        """Cut when the first of them is read: until then its bytes may be on their way."""

    def _cut(self, connection: Connection) -> Iterator[tuple[memoryview, Tensor, Tensor]]:
        """Where the bytes of each piece are read to, the piece of ours, and what was read as such a piece."""
        for tensor in self._tensors:
            ours = flat(tensor)
            most = PIECE_BYTES // tensor.element_size()
            theirs = connection.scratch.view(tensor.dtype)
            for at in range(0, tensor.numel(), most):
                piece = ours[at : at + most]
                count = piece.numel()
                yield connection.scratch_bytes[: count * piece.element_size()], piece, theirs[:count]

    def begin(self) -> tuple[Flight, Outgoing, Incoming]:
        """One more time: its end, and the messages that lead to it."""
        flight = Flight(self._tensors, self._patience_s, self._sources)
        ours = Outgoing(self._ours, _nothing, flight.fail)

        def read(connection: Connection) -> Iterator[memoryview]:
            self._pieces = self._pieces or list(self._cut(connection))
            left = self._nbytes
            for memory, piece, theirs in self._pieces:
                yield memory
                left -= len(memory)
                ours.wait_until_left(left)
                self._combine(piece, theirs)
            if self._divisor > 1:
                for tensor in self._tensors:
                    tensor.div_(self._divisor)
            flight.land()  # what was combined had gone

        return flight, ours, Incoming(self._nbytes, read, flight.fail, lambda: not ours.has_gone)


def _nothing() -> None:
    """What a message tells whose going another thread waits for."""


def add_up(own: Sequence[Tensor], others: Mapping[int, Sequence[Tensor]], rank: int, combine: Combine) -> None:
    """Combine what every rank has for this one, in the order of ranks, into `own`, which is what this one has."""
    order = sorted([rank, *others])
    for at, mine in enumerate(own):
        columns = [mine if one == rank else others[one][at] for one in order]
        first = columns[0]
        for column in columns[1:]:
            combine(first, column)
        if first is not mine:
            mine.copy_(first)
