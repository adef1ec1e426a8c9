"""dear: an all-reduce in two halves, the second of which overlaps the next forward pass.

Zhang, Shi, Chu, Li: DeAR, "Accelerating distributed deep learning with fine-grained all-reduce pipelining" (ICDCS 2023,
arXiv 2302.12445). Each bucket's reduce-scatter is launched in backward, in launch order. After all of them, the
all-gathers follow in the order in which the next forward pass needs the buckets. A layer waits for the buckets of its
own parameters (see `next_forward`). `planning.next_forward.dear` predicts the step.

**Gloo.** Gloo's reduce-scatter is a whole all-reduce and a copy, so `dear` would send one half too much. Instead, each
rank sends every other rank its N-th of the bucket. It sums the received parts on the thread that handles the arrival,
and then sends the sum to all. A part is summed on one rank alone, so all have the same bits. Gloo's own all-to-all
would send one direction of a link after the other: its sender waits until the receiver has announced a buffer, and it
starts to send before it announces its own (`benchmarks/exchange.py`). So `PairwiseAllToAll` posts the receives first.

Over NCCL, and on a GPU's emulated link, reduce-scatters and all-gathers run in place on one stream, which keeps them in
order. Assumption: buckets are about as large as in a plan; without one, they have at most `BUCKET_BYTES`.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Module

from xbench.equal_ranks import on_device
from xbench.host_tuning import are_gloo_threads_raised, raise_thread
from xbench.schedules.base import AttachConfig
from xbench.schedules.bucket import CommBucket, Work, started
from xbench.schedules.deferred_update import UpdateGroup, assign
from xbench.schedules.first_use import FirstUse
from xbench.schedules.groups import backend_of
from xbench.schedules.launch_queue import LaunchQueue, QueuedCollective
from xbench.schedules.next_forward import DeferredUpdate, NextForward

Share = tuple[int, Tensor]
"""A rank of the group, and the tensor that it is sent or that it fills."""


class PairwiseAllToAll:
    """Sends and receives of one launch, in flight; see `bucket.Work`. `tag` is unique among those in flight.

    Gloo's point-to-point calls have no callback on completion. So one thread of the process waits for one exchange
    after the other, in launch order.
    """

    def __init__(self, group: dist.ProcessGroup, sends: Sequence[Share], receives: Sequence[Share], tag: int) -> None:
        self._works = [group.recv([tensor], rank, tag) for rank, tensor in receives]
        self._works += [group.send([tensor], rank, tag) for rank, tensor in sends]
        self._future: torch.futures.Future[None] = torch.futures.Future()
        _WAITER.watch_to_completion(self)

    def arrive(self) -> None:
        """Wait for all transfers and complete the future; runs on the waiting thread."""
        try:
            for work in self._works:
                work.wait()
        except Exception as error:  # raised in the thread that waits for the future
            self._future.set_exception(error)  # type: ignore[arg-type]
        else:
            self._future.set_result(None)

    def wait(self) -> bool:
        """Return when all transfers have completed. Raises their error."""
        self._future.wait()
        return True

    def is_completed(self) -> bool:
        """True if `wait` would return at once."""
        return self._future.done()

    def get_future(self) -> torch.futures.Future[None]:
        """A future that is done on arrival."""
        return self._future


class _CompletionThread:
    """The waiting thread. It starts with the first exchange, never stops, and has the priority of Gloo's threads."""

    def __init__(self) -> None:
        self._coming: queue.SimpleQueue[PairwiseAllToAll] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def watch_to_completion(self, exchange: PairwiseAllToAll) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="xbench-exchange", daemon=True)
            self._thread.start()
            if self._thread.native_id is not None and are_gloo_threads_raised():
                with suppress(OSError):
                    raise_thread(self._thread.native_id)
        self._coming.put(exchange)

    def _run(self) -> None:
        while True:
            self._coming.get().arrive()


_WAITER = _CompletionThread()


class _Halves:
    """The two collectives of one bucket on this rank."""

    def __init__(self, bucket: CommBucket, group: dist.ProcessGroup | None, *, in_place: bool, tag: int) -> None:
        self.bucket = bucket
        self._group = group
        self._rank, self._world = dist.get_rank(group), dist.get_world_size(group)
        self._in_place = in_place
        self._tag = tag
        parts = bucket.whole.chunk(self._world)
        self._own = parts[self._rank]
        others = [rank for rank in range(self._world) if rank != self._rank]
        self._others: list[Share] = [(rank, parts[rank]) for rank in others]
        self._exchanges = bool(others) and not in_place and "gloo" in backend_of(group, bucket.whole.device)
        alone = in_place or not others
        self._received: Tensor = bucket.whole if alone else torch.empty_like(bucket.whole)
        self._theirs: list[Share] = [(rank, self._received.chunk(self._world)[rank]) for rank in others]

    def scatter(self) -> Work:
        """Start the reduce-scatter."""
        whole, group = self.bucket.whole, self._group
        if self._in_place:
            return started(dist.reduce_scatter_tensor(self._own, whole, group=group, async_op=True))
        if self._exchanges:
            return self._exchange(self._others, self._theirs, self._tag)
        return started(dist.all_to_all_single(self._received, whole, group=group, async_op=True))

    def add(self) -> None:
        """Sum the received parts after the first half has arrived."""
        if self._exchanges:
            for _, theirs in self._theirs:
                self._own.add_(theirs)
        elif not self._in_place and self._world > 1:
            first, second, *others = self._received.chunk(self._world)
            torch.add(first, second, out=self._own)
            for other in others:
                self._own.add_(other)

    def gather(self) -> Work:
        """Start the all-gather."""
        group = self._group
        if self._exchanges:
            return self._exchange([(rank, self._own) for rank, _ in self._others], self._others, self._tag + 1)
        return started(dist.all_gather_into_tensor(self.bucket.whole, self._own, group=group, async_op=True))

    def _exchange(self, sends: Sequence[Share], receives: Sequence[Share], tag: int) -> Work:
        assert self._group is not None
        return PairwiseAllToAll(self._group, sends, receives, tag)


class DearEngine(NextForward):
    """Reduce-scatters in backward, all-gathers for the next forward pass."""

    name = "dear"

    def _plan_departures(self, setup: AttachConfig) -> LaunchQueue:
        self._scatters: dict[int, QueuedCollective] = {}
        self._gathers: dict[int, QueuedCollective] = {}
        self._scattered = 0
        self._lock = threading.Lock()
        self._order: list[QueuedCollective] | None = None
        streams = self.carrier == "streams"
        for number, bucket in enumerate(self._flat_buckets()):
            halves = _Halves(bucket, self.lane, in_place=streams, tag=2 * number)
            self._scatters[id(bucket)] = QueuedCollective(
                bucket.grad_bytes, halves.scatter, partial(self._sum, halves), partial(self._complete, bucket)
            )
            self._gathers[id(bucket)] = QueuedCollective(bucket.grad_bytes, halves.gather)
        gathers = reversed(self._gathers.values())  # until the first forward pass gives the order
        return LaunchQueue([*self._scatters.values(), *gathers], streams=streams)

    def _sum(self, halves: _Halves) -> Sequence[QueuedCollective]:
        """Sum what a scatter brought. After the last one, all gathers are ready."""
        with torch.no_grad():
            halves.add()
        with self._lock:
            self._scattered += 1
            if self._scattered < len(self.buckets):
                return ()
            self._scattered = 0
            return list(self._gathers.values())

    def _pieces_of(self, bucket: CommBucket, homes: Sequence[list[Module]]) -> list[UpdateGroup]:
        """See `NextForward._pieces_of`: a bucket is one update group."""
        unique = {id(module): module for modules in homes for module in modules}
        anywhere = [] if not all(homes) else list(unique.values())
        return [UpdateGroup(bucket, list(range(len(bucket.parameters))), [self._gathers[id(bucket)]], homes=anywhere)]

    def _filled(self, bucket: CommBucket) -> Sequence[QueuedCollective]:
        return [self._scatters[id(bucket)]]

    def _learnt(self, first_use: FirstUse) -> None:
        """Order the gathers as rank 0's forward pass needed them; other ranks may have another order.

        An emulated link of several ranks has no group of its own, and a broadcast would interfere with its collectives.
        There the order stays the reverse of the launches.
        """
        if self.lane is self.group and self.carrier == "exchange" and self.world_size > 1:
            return
        needed = [min((first_use.place(home) for home in piece.homes), default=-1) for piece in self.pieces]
        order: list[list[int]] = [sorted(range(len(needed)), key=needed.__getitem__)]
        source = dist.get_process_group_ranks(self.group)[0] if self.group is not None else 0
        with on_device(self._device):
            dist.broadcast_object_list(order, src=source, group=self.group)
        gathers = [self._gathers[id(self.pieces[number].bucket)] for number in order[0]]
        self._order = [*self._scatters.values(), *gathers]

    def _over(self) -> None:
        super()._over()
        if self._order is not None:
            self.departures.order, self._order = self._order, None
            assign(self.pieces, self.departures.order, self.optimizer)


class Dear(DeferredUpdate):
    """Two halves of an all-reduce around the optimizer's step."""

    engine = DearEngine
