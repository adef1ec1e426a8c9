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
from collections.abc import Callable, Mapping, Sequence
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


class Flight(dist.Work):
    """A collective under way, until it lands or fails. `patience_s`: how long `wait` waits where nobody says."""

    def __init__(self, tensors: Sequence[Tensor], patience_s: float) -> None:
        super().__init__()
        self._tensors = list(tensors)
        self._patience_s = patience_s
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._error: Exception | None = None
        self._future: torch.futures.Future[list[Tensor]] | None = None

    def land(self) -> None:
        """It is over."""
        with self._lock:
            if self._over.is_set():
                return
            self._over.set()
            future = self._future
        if future is not None:
            future.set_result(self._tensors)

    def fail(self, error: Exception) -> None:
        """It will never be; the first error is kept."""
        with self._lock:
            if self._over.is_set():
                return
            self._error = error
            self._over.set()
            future = self._future
        if future is not None:
            future.set_exception(error)  # type: ignore[arg-type]

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Return when it is over. Raises what it failed with; TimeoutError after the group's patience, or `timeout`."""
        patience_s = timeout.total_seconds() or self._patience_s
        if not self._over.wait(patience_s):
            raise TimeoutError(f"a collective over sockets was not over after {patience_s:g} s")
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        """Whether `wait` would return, or raise, at once."""
        return self._over.is_set()

    def is_success(self) -> bool:
        """Whether it is over and did not fail."""
        return self._over.is_set() and self._error is None

    def result(self) -> list[Tensor]:
        """The tensors that it fills."""
        return self._tensors

    def synchronize(self) -> None:
        """As `wait`."""
        self.wait()

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        """A future of the tensors that it fills."""
        with self._lock:
            if self._future is not None:
                return self._future
            future: torch.futures.Future[list[Tensor]] = torch.futures.Future()
            self._future = future
            over = self._over.is_set()
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

    def read(connection: Connection) -> None:
        for part in parts:
            for at in range(0, len(part), PIECE_BYTES):
                connection.fill(part[at : at + PIECE_BYTES])
        filled()

    return Incoming(sum(map(len, parts)), read, flight.fail)


def swapping(
    tensors: Sequence[Tensor],
    ours: Outgoing,
    combine: Combine,
    combined: Callable[[], None],
    flight: Flight,
) -> Incoming:
    """The other's tensors, each piece combined with ours as soon as it is there and ours has gone."""
    nbytes = ours.nbytes

    def read(connection: Connection) -> None:
        left = nbytes
        for tensor in tensors:
            ours_flat = flat(tensor)
            most = PIECE_BYTES // tensor.element_size()
            theirs = connection.scratch.view(tensor.dtype)
            for at in range(0, tensor.numel(), most):
                piece = ours_flat[at : at + most]
                size = piece.numel() * piece.element_size()
                connection.fill(connection.scratch_bytes[:size])
                left -= size
                ours.wait_until_left(left)
                combine(piece, theirs[: piece.numel()])
        combined()

    return Incoming(nbytes, read, flight.fail)


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
