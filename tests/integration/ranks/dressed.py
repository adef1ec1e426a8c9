"""Process groups of CPU ranks that behave towards the host as NCCL's do: Gloo, dressed as NCCL.

The host of a GPU queues work and runs ahead of it. Gloo's host waits instead, so Gloo alone hides deadlocks and costs
of NCCL. `dress()` registers the backend "dressed". Its groups have these properties of NCCL:

- *Lazy connections.* The first collective of a group blocks the host until all ranks of the group have called theirs.
  So does the first transfer between two ranks.
- *Streams.* The collectives of a group run in order, on a thread of the group. A collective starts after the work that
  the current stream waited for at its launch.
- *Hardware queues.* With `dress(one_queue=True)` the collectives of all groups of a rank run in the order in which the
  host launched them, as where streams share a hardware queue: with CUDA_DEVICE_MAX_CONNECTIONS=1, with more
  communicators than queues, and with NCCL_LAUNCH_ORDER_IMPLICIT=1. Without it every group has a queue of its own.
- *Waits of the stream.* `Work.wait` returns at once. The computation waits: the next operation on a tensor that a
  waited collective filled (`_Reads`).
- *No arrivals.* `Work.is_completed` is False until the host has synchronised with the device: by `DEVICE.synchronize`,
  or by a read of a tensor's values (`tolist`, `item`, `numpy`), which `DEVICE.reads` counts.

Two faults of a schedule are errors here. A wait of `PATIENCE_S` is a deadlock (`Stuck`), which names the group and the
missing ranks. An operation on a tensor in flight without a wait before it is a race (`Race`).
"""

from __future__ import annotations

import itertools
import queue
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

BACKEND = "dressed"
PATIENCE_S = 15.0


class Stuck(RuntimeError):
    """A wait that did not end."""


class Race(RuntimeError):
    """A tensor in flight was used without a wait."""


class DressedWork(dist.Work):
    """A collective on the stream of `group`. `run` does it, on the thread of the stream."""

    def __init__(self, stream: _Stream, name: str, tensors: Sequence[Tensor], run: Callable[[], object]) -> None:
        super().__init__()
        self.stream, self.name, self.tensors, self.run = stream, name, list(tensors), run
        self.after = DEVICE.waited()
        self.waited = self.seen = self.heard = False
        self.error: BaseException | None = None
        self._done = threading.Event()
        self._future: torch.futures.Future[list[Tensor]] = torch.futures.Future()

    def execute(self) -> None:
        """Run it after what it follows; called on the thread of its stream."""
        try:
            for work in self.after:
                work.arrive()
            self.run()
        except BaseException as error:
            self.error = error
            self._done.set()
            self._future.set_exception(error)  # type: ignore[arg-type]
        else:
            self._done.set()
            self._future.set_result(self.tensors)

    def arrive(self) -> None:
        """Return when it has really completed. Raises Stuck."""
        if not self._done.wait(2 * PATIENCE_S) or self.error is not None:
            raise Stuck(f"{self.name} of {self.stream.name} did not complete") from self.error

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Let the current stream wait for it; the host goes on."""
        DEVICE.wait_for(self)
        return True

    def is_completed(self) -> bool:
        """True if the host has seen it complete."""
        return self.seen

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        """A future that is done on completion, for who waits on the host, as DDP does here."""
        self.heard = True
        return self._future

    def is_ordered(self) -> bool:
        """True if the current stream follows it."""
        return self.waited or (self.heard and self._done.is_set())


class HardwareQueue:
    """Collectives that run one after the other, on a thread of the queue."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[DressedWork] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def put(self, work: DressedWork) -> None:
        """Add a collective at the end."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=work.stream.name, daemon=True)
            self._thread.start()
        self._waiting.put(work)

    def _run(self) -> None:
        while True:
            self._waiting.get().execute()


class Device:
    """The device of this rank: collectives in flight, by the memory that they use. `reads`: times the host waited.

    `queue`: the hardware queue of all groups; None where each has its own.
    """

    def __init__(self) -> None:
        self._in_flight: dict[int, list[DressedWork]] = {}
        self.reads = 0
        self.queue: HardwareQueue | None = None

    def is_busy(self) -> bool:
        """True if anything may be in flight."""
        return bool(self._in_flight)

    def launched(self, work: DressedWork) -> None:
        """Note a launch."""
        for tensor in work.tensors:
            self._in_flight.setdefault(tensor.untyped_storage().data_ptr(), []).append(work)

    def waited(self) -> list[DressedWork]:
        """Work that the current stream waits for and that may not have completed."""
        return [work for works in self._in_flight.values() for work in works if work.waited]

    def wait_for(self, work: DressedWork) -> None:
        """Let the current stream wait for it, and so for all that its own stream had before it."""
        for earlier in work.stream.until(work):
            earlier.waited = True

    def settle(self, tensor: Tensor) -> None:
        """Really wait for collectives in this tensor's memory. Raises Race where the stream does not wait for them."""
        if tensor.device.type != "cpu":
            return
        works = self._in_flight.pop(tensor.untyped_storage().data_ptr(), [])
        for work in works:
            if not work.is_ordered():
                raise Race(f"{work.name} of {work.stream.name} is in flight and its tensor is used")
            work.arrive()

    def read(self) -> None:
        """The host reads a value: it waits for all that the current stream waits for."""
        self.reads += 1
        for key, works in [*self._in_flight.items()]:
            for work in works:
                if work.is_ordered():
                    work.arrive()
                    work.seen = True
            if all(work.seen for work in works):
                del self._in_flight[key]

    def synchronize(self) -> None:
        """Wait until the device has nothing to do."""
        for works in self._in_flight.values():
            for work in works:
                work.arrive()
                work.seen = True
                work.waited = True
        self._in_flight.clear()


DEVICE = Device()


class _Reads(TorchDispatchMode):
    """Operations of the current stream: each one follows the collectives that fill its tensors."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            DEVICE.read()
        kwargs = kwargs or {}
        if not func.is_view and DEVICE.is_busy():
            for given in tree_leaves((args, kwargs)):
                if type(given) in (Tensor, torch.nn.Parameter):
                    DEVICE.settle(given)
        return func(*args, **kwargs)


class _Stream:
    """A communicator: its name, its ranks' first meeting, and the queue in which its collectives run."""

    def __init__(self, name: str, store: dist.Store, rank: int, ranks: Sequence[int]) -> None:
        self.name = name
        self._store, self._rank, self._ranks = store, rank, list(ranks)
        self._met = False
        self._queue = DEVICE.queue or HardwareQueue()
        self._launched: list[DressedWork] = []

    def launch(self, name: str, tensors: Sequence[Tensor], run: Callable[[], object]) -> DressedWork:
        """Queue a collective. The first one blocks the host until all ranks are here."""
        if not self._met:
            self._meet(name)
        work = DressedWork(self, name, tensors, run)
        self._launched.append(work)
        DEVICE.launched(work)
        self._queue.put(work)
        return work

    def until(self, work: DressedWork) -> list[DressedWork]:
        """This one and those launched before it, as far as nobody waited for them."""
        if work not in self._launched:
            return [work]
        place = self._launched.index(work) + 1
        found, self._launched = self._launched[:place], self._launched[place:]
        return found

    def _meet(self, name: str) -> None:
        self._store.set(f"{self.name}/{self._rank}", b"here")
        others = {rank: f"{self.name}/{rank}" for rank in self._ranks if rank != self._rank}
        try:
            if others:
                self._store.wait([*others.values()], timedelta(seconds=PATIENCE_S))
        except RuntimeError as error:
            missing = [rank for rank, key in others.items() if not self._store.check([key])]
            raise Stuck(
                f"deadlock: rank {self._rank} waits in the first {name} of {self.name} for ranks {missing}"
            ) from error
        self._met = True


class DressedGroup(dist.ProcessGroup):
    """A group of ranks. Gloo moves the data, on the group's thread."""

    waits_on_stream = True

    def __init__(self, store: dist.Store, rank: int, size: int, ranks: Sequence[int]) -> None:
        super().__init__(rank, size)
        self._size, self._store, self._ranks, self._rank = size, store, list(ranks), rank
        timeout = timedelta(seconds=PATIENCE_S)
        self._gloo = dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, size, timeout)
        self._stream = _Stream(f"group {tuple(ranks)}", store, ranks[rank], ranks)
        self._pairs: dict[int, _Stream] = {}

    def size(self) -> int:
        return self._size

    def getBackendName(self) -> str:
        return BACKEND

    def shutdown(self) -> None:
        return None

    def allreduce(self, tensors: Any, opts: Any = None) -> dist.Work:  # type: ignore[override]
        opts = opts or dist.AllreduceOptions()
        return self._launch("all-reduce", _listed(tensors), lambda: self._gloo.allreduce(_listed(tensors), opts).wait())

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> dist.Work:
        opts = opts or dist.AllreduceCoalescedOptions()
        return self._launch("all-reduce", tensors, lambda: self._gloo.allreduce_coalesced(tensors, opts).wait())

    def broadcast(self, tensors: Any, opts: Any = None) -> dist.Work:  # type: ignore[override]
        opts = opts or dist.BroadcastOptions()
        return self._launch("broadcast", _listed(tensors), lambda: self._gloo.broadcast(_listed(tensors), opts).wait())

    def allgather(self, outputs: Any, tensors: Any, opts: Any = None) -> dist.Work:
        used = [*tensors, *itertools.chain(*outputs)]
        return self._launch("all-gather", used, lambda: self._gloo.allgather(outputs, tensors).wait())

    def all_gather_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> dist.Work:
        def run() -> None:
            parts = [torch.empty_like(tensor) for _ in range(self._size)]
            self._gloo.allgather([parts], [tensor.clone()]).wait()
            torch.cat([part.view(-1) for part in parts], out=output.view(-1))

        return self._launch("all-gather", [output, tensor], run)

    def reduce_scatter_single(self, output: Tensor, tensor: Tensor, opts: Any = None) -> dist.Work:
        def run() -> None:
            whole = tensor.clone()
            self._gloo.allreduce([whole], dist.AllreduceOptions()).wait()
            output.copy_(whole.chunk(self._size)[self._rank])

        return self._launch("reduce-scatter", [output, tensor], run)

    # Names in older versions of torch.
    _allgather_base = all_gather_single  # type: ignore[assignment]
    _reduce_scatter_base = reduce_scatter_single  # type: ignore[assignment]

    def barrier(self, opts: Any = None) -> dist.Work:
        return self._launch("barrier", [], lambda: self._gloo.barrier().wait())

    def send(self, tensors: Any, rank: int, tag: int) -> dist.Work:
        return self._pair(rank).launch("send", tensors, lambda: self._gloo.send(tensors, rank, tag).wait())

    def recv(self, tensors: Any, rank: int, tag: int) -> dist.Work:
        return self._pair(rank).launch("receive", tensors, lambda: self._gloo.recv(tensors, rank, tag).wait())

    def _pair(self, rank: int) -> _Stream:
        """The communicator of this rank and another one."""
        if rank not in self._pairs:
            pair = sorted((self._ranks[rank], self._ranks[self._rank]))
            self._pairs[rank] = _Stream(f"pair {tuple(pair)}", self._store, self._ranks[self._rank], pair)
        return self._pairs[rank]

    def _launch(self, name: str, tensors: Sequence[Tensor], run: Callable[[], object]) -> dist.Work:
        return self._stream.launch(name, tensors, run)


def dress(*, one_queue: bool = False) -> None:
    """Register the backend in this process, and let its main thread's operations wait for collectives."""
    if one_queue:
        DEVICE.queue = HardwareQueue()

    def create(options: Any, _: object) -> DressedGroup:
        size = options.group_size
        ranks = list(options.global_ranks_in_group) or list(range(size))
        return DressedGroup(options.store, options.group_rank, size, ranks)

    dist.Backend.register_backend(BACKEND, create, extended_api=True, devices=["cpu"])
    for name in ("tolist", "numpy"):  # they read memory without an operation
        setattr(Tensor, name, _reading(getattr(Tensor, name)))
    _Reads().__enter__()


def _reading(method: Callable[..., Any]) -> Callable[..., Any]:
    def reading(*args: Any, **kwargs: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            DEVICE.read()
        return method(*args, **kwargs)

    return reading


@contextmanager
def optimizer_calls() -> Iterator[list[int]]:
    """Parameters in each call of SGD that updated any, in the block."""
    calls: list[int] = []
    module: Any = sys.modules[torch.optim.SGD.__module__]
    plain = module.sgd

    def counted(params: Any, *args: Any, **kwargs: Any) -> None:
        if params:
            calls.append(len(params))
        plain(params, *args, **kwargs)

    module.sgd = counted
    try:
        yield calls
    finally:
        module.sgd = plain


def _listed(tensors: Any) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)
