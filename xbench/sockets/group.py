"""The process group whose collectives are `collectives`: what schedules, and DistributedDataParallel, see as any other.

    dist.init_process_group("gloo")
    group = xbench.new_socket_group()                         every rank calls it together
    DistributedDataParallel(model, process_group=group)
    xbench.attach(model, optimizer, plan=..., process_group=group)

Gloo moves bytes by a thread that asks the kernel which connections have something to say, and by threads that hold a
connection's lock while they copy. Where a rank computes and communicates on one core they wait for each other's turns
on it (`host.tuning`). Here whoever launches hands the bytes to the kernel itself, and whoever waits reads
what has come; see `connection` for when a thread does.

Of two ranks an all-reduce is one message each way; of more it is two, and the second ones have connections of their own
(see `_Seconds`). Messages go in the order of launches, which has to be the same on every rank. Point-to-point calls and
gathers to one rank are Gloo's: this group is meant to be beside one of Gloo.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from xbench.environment import usable_cores
from xbench.sockets.collectives import (
    COMBINE,
    Combine,
    Countdown,
    Flight,
    Swap,
    add_up,
    filling,
    outgoing,
)
from xbench.sockets.connection import Connection, Outgoing, flat
from xbench.sockets.meeting import connected

BACKEND = "sockets"

_LANES = 2
"""Connections between two ranks: of the messages that launches send, and of those that wait for other ranks' first."""

Shares = dict[int, list[Tensor]]
"""By rank: what it is sent, or what it fills."""


class SocketGroup(dist.ProcessGroup):
    """See the module. `lanes`: the connections to every other rank, for first messages and for second ones."""

    def __init__(self, rank: int, size: int, lanes: Sequence[dict[int, Connection]], timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._rank = rank
        self._size = size
        self._others = [other for other in range(size) if other != rank]
        self._lanes = lanes
        self._patience_s = timeout.total_seconds()
        self.poll_s = 0.0
        self._launching = threading.Lock()
        self._seconds = _Seconds()
        self.hang_up = weakref.finalize(self, _close, [one for lane in lanes for one in lane.values()])

    def size(self) -> int:
        """Ranks."""
        return self._size

    def getBackendName(self) -> str:
        """What messages of torch call it."""
        return BACKEND

    def poll(self, seconds: float) -> None:
        """From now on, the main thread asks the kernel again and again, so long [s], before it sleeps.

        For ranks that have their cores for themselves: a processor that sleeps wakes late and cold, a virtual one above
        all. Beside another job on the same core it would take that one's time, and another thread of its own would take
        the computation's. 0, the default, sleeps at once. Does nothing in a group of more than two, where threads are
        at work that would be kept waiting.
        """
        self.poll_s = seconds
        if self._size == 2:
            for connection in self._lanes[0].values():
                connection.poll_s = seconds

    def shutdown(self) -> None:
        """Close every connection; what is under way fails."""
        self.hang_up()

    abort = shutdown

    def allreduce(self, tensors: Any, opts: Any = None) -> dist.Work:  # type: ignore[override]
        """Of each of the tensors, in place. Raises ValueError for reductions that are not in `COMBINE`."""
        return self._reducing(_listed(tensors), _reduction(opts))()

    def summing(self, tensor: Tensor) -> Callable[[], dist.Work]:
        """What launches an all-reduce of this tensor, in place, each time it is called.

        Cheaper than `all_reduce` of torch, which asks for the same things anew each time. Raises ValueError, here or at
        the first launch, for a tensor that is not dense, contiguous and a CPU's.
        """
        return self._reducing([tensor], "SUM")

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> dist.Work:
        """As one all-reduce of all the tensors."""
        return self.allreduce(tensors, opts)

    def broadcast(self, tensors: Any, opts: Any = None) -> dist.Work:  # type: ignore[override]
        """The root's tensors to all."""
        tensors = _listed(tensors)
        root = 0 if opts is None else opts.rootRank
        if self._rank == root:
            return self._launch(tensors, dict.fromkeys(self._others, tensors), {})
        return self._launch(tensors, {}, {root: tensors})

    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> dist.Work:
        """Every rank's tensor, in the order of ranks."""
        return self._gather(list(flat(output).chunk(self._size)), tensor, [output])

    def allgather(self, output: Any, tensors: Any, opts: Any = None) -> dist.Work:
        """Every rank's tensor into a list of its own; as with Gloo, they need not be contiguous."""
        (asked,), (tensor,) = output, _listed(tensors)
        filled = [one if one.is_contiguous() else torch.empty(one.shape, dtype=one.dtype) for one in asked]

        def arrived() -> None:
            for one, found in zip(asked, filled, strict=True):
                if one is not found:
                    one.copy_(found)

        return self._gather(filled, tensor.contiguous(), list(asked), arrived)

    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> dist.Work:
        """This rank's share of the reduced tensor. Raises ValueError as `allreduce` does."""
        name = _reduction(opts)
        shares = flat(tensor).chunk(self._size)
        received: Shares = {other: [torch.empty_like(shares[self._rank])] for other in self._others}
        mine = flat(output)

        def arrived() -> None:
            mine.copy_(shares[self._rank])
            add_up([mine], received, self._rank, COMBINE[name])
            if name == "AVG":
                mine.div_(self._size)

        return self._launch([output], {other: [shares[other]] for other in self._others}, received, arrived)

    def all_to_all_single(
        self, output: Tensor, tensor: Tensor, output_sizes: Any, input_sizes: Any, opts: Any = None
    ) -> dist.Work:
        """Each rank's share of the tensor to it; sizes are of the first dimension, and equal where there are none."""
        ours = torch.split(tensor, list(input_sizes)) if input_sizes else tensor.chunk(self._size)
        theirs = torch.split(output, list(output_sizes)) if output_sizes else output.chunk(self._size)
        theirs[self._rank].copy_(ours[self._rank])
        sends = {other: [ours[other]] for other in self._others}
        return self._launch([output], sends, {other: [theirs[other]] for other in self._others})

    # What older torch calls them.
    _allgather_base = all_gather_single  # type: ignore[assignment]
    _reduce_scatter_base = reduce_scatter_single  # type: ignore[assignment]
    alltoall_base = all_to_all_single  # type: ignore[assignment]

    def barrier(self, opts: Any = None) -> dist.Work:
        """Over when every rank has launched it."""
        return self.allreduce([torch.zeros(1)])

    def _reducing(self, tensors: list[Tensor], reduction: str) -> Callable[[], dist.Work]:
        """What launches an all-reduce of these; see `collectives`."""
        combine, divisor = COMBINE[reduction], self._size if reduction == "AVG" else 1
        if self._size != 2:
            return lambda: self._reduce_and_gather(tensors, combine, divisor)
        (connection,) = self._lanes[0].values()
        swap = Swap(tensors, combine, divisor, self._patience_s, connection)

        def launch() -> dist.Work:
            flight, ours, theirs = swap.begin()
            with self._launching:
                connection.expect(theirs, at_once=False)
                connection.send(ours)
            return flight

        return launch

    def _reduce_and_gather(self, tensors: list[Tensor], combine: Combine, divisor: int) -> dist.Work:
        """An all-reduce of any number of ranks; see `collectives`."""
        flight = Flight(tensors, self._patience_s, self._lanes[1].values())
        shares: list[list[Tensor]] = [[] for _ in range(self._size)]
        for tensor in tensors:
            for share, part in zip(shares, flat(tensor).tensor_split(self._size), strict=True):
                share.append(part)
        own = shares[self._rank]
        received: Shares = {other: [torch.empty_like(part) for part in own] for other in self._others}
        over = Countdown(2 * len(self._others), flight.land, flight.fail)

        def tell() -> None:
            for other in self._others:
                message = outgoing(own, over, flight)
                if self._lanes[1][other].send(message):
                    message.gone()

        def arrived() -> None:
            add_up(own, received, self._rank, combine)
            _divide(own, divisor)
            self._seconds.go_on(second)

        ours = {other: shares[other] for other in self._others}
        post = self._posting(flight, ours, received, arrived, at_once=True)
        final = {other: filling(shares[other], over, flight) for other in self._others}
        with self._launching:
            second = self._seconds.next(tell)
            for other, message in final.items():
                self._lanes[1][other].expect(message, at_once=False)
            gone = post()
        for sent in gone:
            sent.gone()
        return flight

    def _gather(
        self, filled: list[Tensor], tensor: Tensor, result: list[Tensor], then: Callable[[], object] | None = None
    ) -> dist.Work:
        if filled[self._rank].data_ptr() != tensor.data_ptr():
            filled[self._rank].copy_(tensor.view_as(filled[self._rank]))
        sent = [tensor]
        sends = dict.fromkeys(self._others, sent)
        return self._launch(result, sends, {other: [filled[other]] for other in self._others}, then)

    def _launch(
        self, result: Sequence[Tensor], sends: Shares, receives: Shares, then: Callable[[], object] | None = None
    ) -> dist.Work:
        """One message to each of these ranks, one from each of those, and then `then`."""
        flight = Flight(result, self._patience_s, [self._lanes[0][other] for other in receives])

        def arrived() -> None:
            if then is not None:
                then()
            flight.land()

        post = self._posting(flight, sends, receives, arrived, at_once=False)
        with self._launching:
            gone = post()
        for message in gone:
            message.gone()
        return flight

    def _posting(
        self, flight: Flight, sends: Shares, receives: Shares, arrived: Callable[[], None], *, at_once: bool
    ) -> Callable[[], list[Outgoing]]:
        """What starts these messages, and returns those that have gone. Nothing can be refused any more by then."""
        landed = Countdown(len(sends) + len(receives), arrived, flight.fail)
        going = {other: outgoing(tensors, landed, flight) for other, tensors in sends.items()}
        coming = {other: filling(tensors, landed, flight) for other, tensors in receives.items()}

        def post() -> list[Outgoing]:
            for other, expected in coming.items():
                self._lanes[0][other].expect(expected, at_once=at_once)
            return [message for other, message in going.items() if self._lanes[0][other].send(message)]

        return post


@dataclass
class _Second:
    """The second messages of one all-reduce, and whether what they say is known."""

    send: Callable[[], None]
    is_ready: bool = False


class _Seconds:
    """Second messages in the order of launches, whichever thread is the first to know what its own says.

    They have connections of their own, because they wait for first messages of other ranks. Behind the first message of
    a later all-reduce, on one connection, nobody could read them before that had been launched here, and a schedule may
    launch it only when the earlier all-reduce is over.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._line: deque[_Second] = deque()
        self._goes_on = False
        """Whether a thread is at it. It holds no lock while it sends: what that leads to may launch the next."""

    def next(self, send: Callable[[], None]) -> _Second:
        """Those of the next all-reduce that is launched."""
        second = _Second(send)
        with self._lock:
            self._line.append(second)
        return second

    def go_on(self, ready: _Second) -> None:
        """Send these, and all behind them that are ready, if none before them is missing."""
        with self._lock:
            ready.is_ready = True
            if self._goes_on:
                return
            self._goes_on = True
        while True:
            with self._lock:
                if not self._line or not self._line[0].is_ready:
                    self._goes_on = False
                    return
                first = self._line.popleft()
            first.send()


def _reduction(opts: Any) -> str:
    operation = "SUM" if opts is None else getattr(opts.reduceOp, "op", opts.reduceOp).name
    if operation not in COMBINE:
        raise ValueError(f"the backend sockets does not know {operation}; it can be {', '.join(COMBINE)}")
    return str(operation)


def _divide(tensors: Sequence[Tensor], divisor: int) -> None:
    if divisor > 1:
        for tensor in tensors:
            tensor.div_(divisor)


def _listed(tensors: Any) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _close(connections: Sequence[Connection]) -> None:
    for connection in connections:
        connection.close()


def new_group(
    ranks: Sequence[int] | None = None, *, timeout: timedelta | None = None, poll_s: float = 0.0
) -> dist.ProcessGroup:
    """Make a process group of CPUs over sockets of its own, in place of Gloo's: for DDP or `attach`.

    `ranks` are the global ranks in it, None being all; these call it together, after `init_process_group`. `timeout`
    is how long a collective waits for a rank, None being torch's own. `poll_s` is how long the main thread polls a
    socket before it sleeps [s]. The group takes the network that GLOO_SOCKET_IFNAME names, or else the one that leads
    to MASTER_ADDR. Raises UsageError for an interface without an address, and TimeoutError or torch's DistStoreError
    where a rank does not come.
    """
    register()
    own_only = ranks is not None
    made: Any = dist.new_group(ranks, timeout=timeout, backend=BACKEND, use_local_synchronization=own_only)
    assert isinstance(made, SocketGroup)
    made.poll(poll_s)
    return made


def register() -> None:
    """Tell torch of the backend, once a process."""
    if BACKEND.upper() not in dist.Backend.__dict__:
        dist.Backend.register_backend(BACKEND, _create, devices=["cpu"])


def _create(store: Any, rank: int, size: int, timeout: timedelta) -> SocketGroup:
    found = connected(store, rank, size, _LANES if size > 2 else 1, timeout.total_seconds())
    idle = _has_idle_core()
    lanes = [{other: Connection(one, other, idle_core=idle) for other, one in lane.items()} for lane in found]
    return SocketGroup(rank, size, lanes, timeout)


def _has_idle_core() -> bool:
    """Whether this process may run on more cores than it computes on."""
    return usable_cores() > torch.get_num_threads()
