"""The process group of an emulated link: what schedules, and DistributedDataParallel, see as any other.

It has the ranks that really run, often one, and stands for `workers`. An all-reduce of M bytes, or a broadcast, arrives
after T(M) of the link's model and behind those before it; a reduce-scatter, an all-gather and an exchange (which stands
for a reduce-scatter) of M bytes in all after half of that, as in a ring. Where several ranks really run, their data are
really reduced too, by the group underneath, and a collective has arrived when both have; where one runs, every other
worker is taken to have its gradients, so that their mean is its own. Everything else (gathers of lists, barriers) goes
to the group underneath and takes what it takes: no schedule needs it in a step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from xbench.emulation.pacer import Pacer

BACKEND = "emulated"


HALF = 0.5
"""Of an all-reduce's time: what a reduce-scatter or an all-gather takes."""


class Send(Protocol):
    """Lets tensors travel over the link, beside the real collective among the ranks that run, if there are several.

    `share`: of the time that an all-reduce of `nbytes` takes; without `nbytes` those of the tensors.
    """

    def __call__(
        self, tensors: Sequence[Tensor], inner: dist.Work | None, share: float = 1.0, nbytes: int | None = None
    ) -> dist.Work:
        """Start them."""
        ...


class Spoiled:
    """What travels, out of reach: NaN from here to `restore`, so that whoever reads too early trains on NaN."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = [tensor for tensor in tensors if tensor.is_floating_point()]
        self._kept: list[Tensor] = [tensor.clone() for tensor in self._tensors]
        for tensor in self._tensors:
            tensor.fill_(float("nan"))
        self._lock = threading.Lock()

    def restore(self) -> None:
        """Put it back, the first time that it is called."""
        with self._lock:
            for tensor, kept in zip(self._tensors, self._kept, strict=True):
                tensor.copy_(kept)
            self._tensors, self._kept = [], []


class EmulatedWork(dist.Work):
    """What every emulated collective has in common; `wait` and `is_completed` are those of its kind."""

    def __init__(self, tensors: Sequence[Tensor], inner: dist.Work | None) -> None:
        super().__init__()
        self._tensors = list(tensors)
        self._inner = inner

    def is_success(self) -> bool:
        """An emulated link loses nothing."""
        return self.is_completed()

    def result(self) -> list[Tensor]:
        """The reduced tensors."""
        return self._tensors

    def synchronize(self) -> None:
        """As `wait`."""
        self.wait()


class HostWork(EmulatedWork):
    """A collective under way on the host's clock; `inner` is the real one, if there is one.

    With `spoil` what travels cannot be read before it has arrived (`Spoiled`).
    """

    def __init__(
        self,
        tensors: Sequence[Tensor],
        pacer: Pacer,
        inner: dist.Work | None,
        *,
        spoil: bool = False,
        share: float = 1.0,
        nbytes: int | None = None,
    ) -> None:
        super().__init__(tensors, inner)
        self._pacer = pacer
        self._spoiled = Spoiled(tensors if spoil and inner is None else [])
        self._flight = pacer.launch(bytes_of(tensors) if nbytes is None else nbytes, share)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Return when it has arrived."""
        self._pacer.wait(self._flight)
        if self._inner is not None:
            self._inner.wait()
        self._spoiled.restore()
        return True

    def is_completed(self) -> bool:
        """Whether `wait` would return at once."""
        return self._pacer.has_arrived(self._flight) and (self._inner is None or self._inner.is_completed())

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        """A future of the reduced tensors, complete on arrival."""
        future: torch.futures.Future[list[Tensor]] = torch.futures.Future()

        def arrived() -> None:
            if self._inner is not None:
                self._inner.wait()
            self._spoiled.restore()
            future.set_result(self._tensors)

        self._pacer.call(self._flight, arrived)
        return future


class EmulatedGroup(dist.ProcessGroup):
    """See the module. `under`: the real group of the same ranks; `workers`: what the link's model is of."""

    def __init__(self, rank: int, size: int, send: Send, under: dist.ProcessGroup, workers: int) -> None:
        super().__init__(rank, size)
        self._size = size
        self._send = send
        self.workers = workers
        self._under = under

    def overhear(self, hear: Callable[[int], None]) -> None:
        """Tell `hear` the bytes of every collective from now on, when it is launched."""
        send = self._send

        def overheard(
            tensors: Sequence[Tensor], inner: dist.Work | None, share: float = 1.0, nbytes: int | None = None
        ) -> dist.Work:
            hear(bytes_of(tensors) if nbytes is None else nbytes)
            return send(tensors, inner, share, nbytes)

        self._send = overheard

    def size(self) -> int:
        """Ranks that really run."""
        return self._size

    def getBackendName(self) -> str:
        """What messages of torch call it."""
        return BACKEND

    def allreduce(self, tensors: Any, opts: Any = None) -> dist.Work:  # type: ignore[override]
        """Arrives after T of the tensors' bytes."""
        tensors = [tensors] if isinstance(tensors, Tensor) else tensors
        inner = self._under.allreduce(tensors, opts or dist.AllreduceOptions()) if self._size > 1 else None
        return self._send(tensors, inner)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> dist.Work:
        """As one all-reduce of all the tensors."""
        inner = None
        if self._size > 1:
            inner = self._under.allreduce_coalesced(tensors, opts or dist.AllreduceCoalescedOptions())
        return self._send(tensors, inner)

    def broadcast(self, tensors: Any, opts: Any = None) -> dist.Work:  # type: ignore[override]
        """Arrives after T of the tensors' bytes, as an all-reduce of them would."""
        tensors = [tensors] if isinstance(tensors, Tensor) else tensors
        inner = self._under.broadcast(tensors, opts or dist.BroadcastOptions()) if self._size > 1 else None
        return self._send(tensors, inner)

    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> dist.Work:
        """Arrives after half of T of all that is gathered."""
        inner = None
        if self._size > 1:
            inner = self._under._allgather_base(output, tensor, *([opts] if opts is not None else []))
        else:
            _copy(tensor, output)
        return self._send([output], inner, HALF)

    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> dist.Work:
        """Arrives after half of T of all that is reduced."""
        inner = None
        if self._size > 1:
            inner = self._under._reduce_scatter_base(output, tensor, opts or dist.ReduceScatterOptions())
        else:
            _copy(tensor, output)
        return self._send([output], inner, HALF, bytes_of([tensor]))

    def all_to_all_single(
        self, output: Tensor, tensor: Tensor, output_sizes: Any, input_sizes: Any, opts: Any = None
    ) -> dist.Work:
        """Arrives after half of T of all that is sent: what a reduce-scatter of it would take."""
        inner = None
        if self._size > 1:
            opts = opts or dist.AllToAllOptions()
            inner = self._under.alltoall_base(output, tensor, output_sizes, input_sizes, opts)
        else:
            _copy(tensor, output)
        return self._send([output], inner, HALF, bytes_of([tensor]))

    # What older torch calls them.
    _allgather_base = all_gather_single  # type: ignore[assignment]
    _reduce_scatter_base = reduce_scatter_single  # type: ignore[assignment]
    alltoall_base = all_to_all_single  # type: ignore[assignment]

    def allgather(self, output: Any, tensors: Any, opts: Any = None) -> dist.Work:
        """Of the group underneath, as it is."""
        return self._under.allgather(output, tensors, *([opts] if opts is not None else []))

    def barrier(self, opts: Any = None) -> dist.Work:
        """Of the group underneath, as it is."""
        return self._under.barrier(*([opts] if opts is not None else []))


def bytes_of(tensors: Sequence[Tensor]) -> int:
    """Of all of them together."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _copy(source: Tensor, target: Tensor) -> None:
    """What a collective of one rank does."""
    if source.data_ptr() != target.data_ptr():
        target.copy_(source)


def host_send(pacer: Pacer, *, spoil: bool = False) -> Send:
    """Over a link on the host's clock; with `spoil`, see `HostWork`."""

    def send(
        tensors: Sequence[Tensor], inner: dist.Work | None, share: float = 1.0, nbytes: int | None = None
    ) -> dist.Work:
        return HostWork(tensors, pacer, inner, spoil=spoil, share=share, nbytes=nbytes)

    return send


def new_group(send: Send, workers: int) -> dist.ProcessGroup:
    """A group of all ranks over this link. Every rank calls it together, after `init_process_group`; once a process."""

    def create(_store: Any, rank: int, size: int, _timeout: timedelta) -> EmulatedGroup:
        under = dist.group.WORLD
        assert under is not None
        return EmulatedGroup(rank, size, send, under, workers)

    dist.Backend.register_backend(BACKEND, create, devices=["cpu", "cuda"])
    group = dist.new_group(backend=BACKEND)
    assert isinstance(group, dist.ProcessGroup)
    return group
