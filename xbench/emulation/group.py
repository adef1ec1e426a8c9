"""Process group of an emulated link, which schedules and DistributedDataParallel use like any other group.

It has the ranks that really run, often one, and stands for `workers`. An all-reduce of M bytes, or a broadcast,
completes after T(M) of the link's model and after its predecessors. A reduce-scatter, an all-gather and an exchange
(which stands for a reduce-scatter) of M bytes in all take half of that, as in a ring. If several ranks run, the
underlying group really reduces their data, and a collective completes when both have. If one rank runs, every other
worker is assumed to have its gradients, so that the mean is its own. Other operations (gathers of lists, barriers) go
to the underlying group and take its time: no schedule needs them in a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from xbench.emulation.pacer import Pacer

BACKEND = "emulated"

HALF = 0.5
"""Share of an all-reduce's time that a reduce-scatter or an all-gather takes."""


Send = Callable[[Sequence[Tensor], dist.Work | None, int, float], dist.Work]
"""Function that sends tensors over the link, together with the real collective if several ranks run.

It takes the bytes that count, and the share of the time of an all-reduce of them.
"""


class HostWork(dist.Work):
    """A collective in progress on the host's clock; `inner` is the real one, if there is one."""

    def __init__(
        self, pacer: Pacer, tensors: Sequence[Tensor], inner: dist.Work | None, nbytes: int, share: float
    ) -> None:
        super().__init__()
        self._tensors = list(tensors)
        self._inner = inner
        self._pacer = pacer
        self._flight = pacer.launch(nbytes, share)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Return when it has completed."""
        self._pacer.wait(self._flight)
        if self._inner is not None:
            self._inner.wait()
        return True

    def is_completed(self) -> bool:
        """True if `wait` would return at once."""
        return self._pacer.has_arrived(self._flight) and (self._inner is None or self._inner.is_completed())

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        """A future of the reduced tensors, set on completion."""
        future: torch.futures.Future[list[Tensor]] = torch.futures.Future()

        def arrived() -> None:
            if self._inner is not None:
                self._inner.wait()
            future.set_result(self._tensors)

        self._pacer.call(self._flight, arrived)
        return future


class EmulatedGroup(dist.ProcessGroup):
    """Process group of an emulated link.

    `under`: the real group of the same ranks; `workers`: those of the link's model; `on_stream`: True if a
    stream of a GPU waits for the link, and the host does not.
    """

    def __init__(
        self, rank: int, size: int, send: Send, under: dist.ProcessGroup, workers: int, *, on_stream: bool
    ) -> None:
        super().__init__(rank, size)
        self._size = size
        self._send = send
        self.workers = workers
        self.waits_on_stream = on_stream and size == 1  # the real collective of several ranks blocks the host
        self._under = under

    def overhear(self, hear: Callable[[int], None]) -> None:
        """Call `hear` with the bytes of every collective from now on, at its launch."""
        send = self._send

        def send_and_report(tensors: Sequence[Tensor], inner: dist.Work | None, nbytes: int, share: float) -> dist.Work:
            hear(nbytes)
            return send(tensors, inner, nbytes, share)

        self._send = send_and_report

    def size(self) -> int:
        """Number of ranks that really run."""
        return self._size

    def getBackendName(self) -> str:
        """Name in messages of torch."""
        return BACKEND

    def allreduce(self, tensors: Any, opts: Any = None) -> dist.Work:  # type: ignore[override]
        """Completes after T of the tensors' bytes."""
        tensors = [tensors] if isinstance(tensors, Tensor) else tensors
        inner = self._under.allreduce(tensors, opts or dist.AllreduceOptions()) if self._size > 1 else None
        return self._send(tensors, inner, bytes_of(tensors), 1.0)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> dist.Work:
        """As one all-reduce of all the tensors."""
        inner = None
        if self._size > 1:
            inner = self._under.allreduce_coalesced(tensors, opts or dist.AllreduceCoalescedOptions())
        return self._send(tensors, inner, bytes_of(tensors), 1.0)

    def broadcast(self, tensors: Any, opts: Any = None) -> dist.Work:  # type: ignore[override]
        """Completes after T of the tensors' bytes, as an all-reduce does."""
        tensors = [tensors] if isinstance(tensors, Tensor) else tensors
        inner = self._under.broadcast(tensors, opts or dist.BroadcastOptions()) if self._size > 1 else None
        return self._send(tensors, inner, bytes_of(tensors), 1.0)

    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> dist.Work:
        """Completes after half of T of all gathered bytes."""
        inner = None
        if self._size > 1:
            inner = self._under._allgather_base(output, tensor, *([opts] if opts is not None else []))
        else:
            _copy(tensor, output)
        return self._send([output], inner, bytes_of([output]), HALF)

    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> dist.Work:
        """Completes after half of T of all reduced bytes."""
        inner = None
        if self._size > 1:
            inner = self._under._reduce_scatter_base(output, tensor, opts or dist.ReduceScatterOptions())
        else:
            _copy(tensor, output)
        return self._send([output], inner, bytes_of([tensor]), HALF)

    def all_to_all_single(
        self, output: Tensor, tensor: Tensor, output_sizes: Any, input_sizes: Any, opts: Any = None
    ) -> dist.Work:
        """Completes after half of T of all sent bytes, as a reduce-scatter of them does."""
        inner = None
        if self._size > 1:
            opts = opts or dist.AllToAllOptions()
            inner = self._under.alltoall_base(output, tensor, output_sizes, input_sizes, opts)
        else:
            _copy(tensor, output)
        return self._send([output], inner, bytes_of([tensor]), HALF)

    # Names in older versions of torch.
    _allgather_base = all_gather_single  # type: ignore[assignment]
    _reduce_scatter_base = reduce_scatter_single  # type: ignore[assignment]
    alltoall_base = all_to_all_single  # type: ignore[assignment]

    def allgather(self, output: Any, tensors: Any, opts: Any = None) -> dist.Work:
        """Forward to the underlying group."""
        return self._under.allgather(output, tensors, *([opts] if opts is not None else []))

    def barrier(self, opts: Any = None) -> dist.Work:
        """Forward to the underlying group."""
        return self._under.barrier(*([opts] if opts is not None else []))


def bytes_of(tensors: Sequence[Tensor]) -> int:
    """Bytes of all tensors together."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _copy(source: Tensor, target: Tensor) -> None:
    """Perform a collective of one rank."""
    if source.data_ptr() != target.data_ptr():
        target.copy_(source)


def new_group(send: Send, workers: int, *, on_stream: bool = False) -> dist.ProcessGroup:
    """A group of all ranks over this link; see `EmulatedGroup`. Collective, once per process."""

    def create(_store: Any, rank: int, size: int, _timeout: timedelta) -> EmulatedGroup:
        under = dist.group.WORLD
        assert under is not None
        return EmulatedGroup(rank, size, send, under, workers, on_stream=on_stream)

    dist.Backend.register_backend(BACKEND, create, devices=["cpu", "cuda"])
    group = dist.new_group(backend=BACKEND)
    assert isinstance(group, dist.ProcessGroup)
    return group
