"""Process group over Horovod's asynchronous all-reduce, for schedules that use process groups.

`--backend horovod` runs xbench's schedules, and measures collectives, over this group. An all-reduce of floats is
`horovod.torch.allreduce_async_(tensor, name, op=Sum)`: it is enqueued at once, negotiated with the other ranks in the
next cycle of Horovod's thread, and sent by its Gloo (or NCCL). There is no fusion (`options.UNFUSED`), so that each
bucket is one collective, as planned. Other operations (gathers, broadcasts, maxima) go to torch's own group and take
its time: no schedule needs them in a step.

Ranks find each other's tensors by name. A name that Horovod has seen before costs one bit in the next negotiation
instead of a whole request. So a piece of memory keeps its first name: buckets are the same memory in every step. Names
are numbered in the order of first launches, which is the same on every rank, as torch's own groups require, too. A
storage is held by a weak reference, so that its address is not mistaken for another's.

`horovod.torch.synchronize` would wait in a loop that never sleeps, on the core that Horovod's own threads need. Waiting
here alternates polling and sleeping.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from xbench.horovod.options import UNFUSED
from xbench.horovod.world import WORLD

BACKEND = "horovod"
POLL_S = 50e-6
SENT_BY_HOROVOD = (torch.float16, torch.float32, torch.float64)


class Names:
    """Horovod's name of each piece of memory, equal on every rank that launches in the same order."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, int, torch.dtype], tuple[Any, str]] = {}
        self._given = 0

    def of(self, tensor: Tensor) -> str:
        """The earlier name of this memory, else the next one."""
        ref: Any = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        key = (int(ref.cdata), int(tensor.storage_offset()), tensor.numel(), tensor.dtype)
        known = self._known.get(key)
        if known is not None and not known[0].expired():
            return known[1]
        if len(self._known) > 4096:
            self._known = {key: value for key, value in self._known.items() if not value[0].expired()}
        name = f"xbench.{self._given}"
        self._given += 1
        self._known[key] = ref, name
        return name


class HorovodWork(dist.Work):
    """One or more of Horovod's handles in progress."""

    def __init__(self, hvd: Any, tensors: Sequence[Tensor], handles: Sequence[int]) -> None:
        super().__init__()
        self._hvd = hvd
        self._tensors = list(tensors)
        self._handles = list(handles)
        self._lock = threading.Lock()

    def is_completed(self) -> bool:
        """True if `wait` would return at once."""
        return all(self._hvd.poll(handle) for handle in list(self._handles))

    def is_success(self) -> bool:
        """True once completed: Horovod raises errors in `wait`."""
        return self.is_completed()

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Return on completion. Raises Horovod's HorovodInternalError."""
        with self._lock:
            while self._handles:
                if not self._hvd.poll(self._handles[0]):
                    time.sleep(POLL_S)
                    continue
                self._hvd.synchronize(self._handles.pop(0))
        return True

    def synchronize(self) -> None:
        """Wait, as `wait` does."""
        self.wait()

    def result(self) -> list[Tensor]:
        """The reduced tensors."""
        return self._tensors

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        """A future of the reduced tensors, set on completion by a thread that waits, for timelines."""
        future: torch.futures.Future[list[Tensor]] = torch.futures.Future()

        def arrived() -> None:
            try:
                self.wait()
            except Exception as error:
                future.set_exception(error)  # type: ignore[arg-type]
            else:
                future.set_result(self._tensors)

        threading.Thread(target=arrived, name="horovod-future", daemon=True).start()
        return future


class HorovodGroup(dist.ProcessGroup):
    """Process group over Horovod. `under`: torch's group of the same ranks."""

    def __init__(self, rank: int, size: int, under: dist.ProcessGroup, start: Callable[[], Any] | None = None) -> None:
        super().__init__(rank, size)
        self._size = size
        self._under = under
        self._names = Names()
        self._start = start or (lambda: WORLD.start(UNFUSED))

    def size(self) -> int:
        """Number of ranks."""
        return self._size

    def getBackendName(self) -> str:
        """Name in messages of torch."""
        return BACKEND

    def allreduce(self, tensors: Any, opts: Any = None) -> dist.Work:  # type: ignore[override]
        """Sum floats by Horovod; forward anything else to torch's group."""
        tensors = [tensors] if isinstance(tensors, Tensor) else tensors
        opts = opts or dist.AllreduceOptions()
        if opts.reduceOp != dist.ReduceOp.SUM or any(tensor.dtype not in SENT_BY_HOROVOD for tensor in tensors):
            return self._under.allreduce(tensors, opts)
        return self._send(tensors)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> dist.Work:
        """Launch the tensors one after the other. Horovod negotiates them together, but has no coalesced collective.

        Their names are new each time if the tensors are.
        """
        return self._send(tensors)

    def _send(self, tensors: Sequence[Tensor]) -> HorovodWork:
        hvd = self._start()
        handles = [hvd.allreduce_async_(t, name=self._names.of(t), op=hvd.Sum) for t in tensors]
        return HorovodWork(hvd, tensors, handles)

    def broadcast(self, tensors: Any, opts: Any = None) -> dist.Work:  # type: ignore[override]
        """Forward to torch's group."""
        tensors = [tensors] if isinstance(tensors, Tensor) else tensors
        return self._under.broadcast(tensors, opts or dist.BroadcastOptions())

    def allgather(self, output: Any, tensors: Any, opts: Any = None) -> dist.Work:
        """Forward to torch's group."""
        return self._under.allgather(output, tensors, *([opts] if opts is not None else []))

    def barrier(self, opts: Any = None) -> dist.Work:
        """Forward to torch's group."""
        return self._under.barrier(*([opts] if opts is not None else []))

    def send(self, tensors: list[Tensor], dst: int, tag: int) -> dist.Work:
        """Forward to torch's group."""
        return self._under.send(tensors, dst, tag)

    def recv(self, tensors: list[Tensor], src: int, tag: int) -> dist.Work:
        """Forward to torch's group."""
        return self._under.recv(tensors, src, tag)


def new_group() -> dist.ProcessGroup:
    """A group of all ranks. Collective, after `init_process_group`, once per process."""

    def create(_store: Any, rank: int, size: int, _timeout: timedelta) -> HorovodGroup:
        under = dist.group.WORLD
        assert under is not None
        return HorovodGroup(rank, size, under)

    dist.Backend.register_backend(BACKEND, create, devices=["cpu", "cuda"])
    group = dist.new_group(backend=BACKEND)
    assert isinstance(group, dist.ProcessGroup)
    return group
