"""Emulated link on a GPU: a separate stream, on which each collective is a wait of T(bytes).

The stream keeps the collectives in order, and each waits for the computation before its launch. So nothing here counts
time but the wait itself. There are two kinds of wait.

- `KernelLink`: one warp that watches the GPU's own timer (`cuda/wait.cu`). It is exact and costs the host nothing, but
  it occupies a slot of a multiprocessor, and another process's kernels may have to wait for a time slice meanwhile.
- `FlagLink`: the stream waits for a number in the host's memory, which a thread writes in time
  (`cuStreamWaitValue32`). The GPU runs nothing meanwhile, so several processes can share it. A thread has to notice the
  beginning of a collective, so it is some ten microseconds late; the average of that is subtracted.

A requested slow-down σ of the computation is mimicked with the kernel: additional blocks copy memory and leave 1/σ of
the multiprocessors to others. The flag slows nothing.
"""

from __future__ import annotations

import ctypes
import queue
import statistics
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from xbench.emulation.group import PoisonedTensors
from xbench.emulation.lane import SharedLink
from xbench.emulation.pacer import fine_timer, sleep_for, sleep_until
from xbench.errors import RunError
from xbench.kernels.wait import head_start, scratch_of, wait, why_not
from xbench.planning.cost import CostCurve
from xbench.records import EmulatedLink

SCRATCH_CACHES = 4
"""Size of what emulated contention copies, in second-level caches: smaller copies would hardly use the memory."""

LEAD_S, LEADS = 1e-3, 15
MOST_IN_FLIGHT = 64
"""Collectives on a link of flags, beyond which a launch waits for the oldest: far fewer than fill a driver's queue."""

_GREATER_OR_EQUAL = 0  # CU_STREAM_WAIT_VALUE_GEQ


class StreamWork(dist.Work):
    """A collective in progress on the link's stream; `inner` is the real one, if there is one."""

    def __init__(
        self, tensors: Sequence[Tensor], stream: torch.cuda.Stream, done: torch.cuda.Event, inner: dist.Work | None
    ) -> None:
        super().__init__()
        self._tensors = list(tensors)
        self._inner = inner
        self._stream = stream
        self._done = done

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Make the current stream wait for it, as NCCL's work does; the host continues."""
        if self._inner is not None:
            self._inner.wait()
        torch.cuda.current_stream(self._stream.device).wait_event(self._done)
        return True

    def is_completed(self) -> bool:
        """True if it has completed."""
        arrived: bool = self._done.query()  # type: ignore[no-untyped-call]
        return arrived and (self._inner is None or self._inner.is_completed())

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        """A future of the reduced tensors. It is set at once, and a waiter's stream waits for the link's."""
        if self._inner is not None:
            self._inner.wait()
        future: torch.futures.Future[list[Tensor]] = torch.futures.Future(devices=[self._stream.device])
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(self._done)
            future.set_result(self._tensors)
        return future


class HostWaitedWork(StreamWork):
    """A collective in progress on a `FlagLink`, for which the host waits. See `wait_for_device`."""

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Return when it has completed."""
        if self._inner is not None:
            self._inner.wait()
        self._done.synchronize()
        return super().wait()


class StreamLink(ABC):
    """A link on a separate stream. `remarks` are for the user.

    With `spoil`, tensors in transit are NaN until they arrive, as in `group.PoisonedTensors`. `host_waits`: True if the
    host waits for a collective, and not the stream of the computation alone.
    """

    spoil = False
    host_waits: ClassVar[bool] = False
    work: ClassVar[type[StreamWork]] = StreamWork

    def __init__(self, link: EmulatedLink, device: torch.device) -> None:
        self.device = device if device.index is not None else torch.device("cuda", torch.cuda.current_device())
        self.stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        self.remarks: list[str] = []
        self._curve = CostCurve.of(link.model)

    @abstractmethod
    def _wait_on_stream(self, seconds: float) -> None:
        """Block the link's stream, which is current, for `seconds`, from when it gets there."""

    def send(self, tensors: Sequence[Tensor], inner: dist.Work | None, nbytes: int, share: float) -> dist.Work:
        """Send tensors once they have been computed. See `group.Send`."""
        end = self._block_stream(self._curve(float(nbytes)) * share, tensors if self.spoil and inner is None else [])
        for tensor in tensors:
            if tensor.is_cuda:
                tensor.record_stream(self.stream)  # its memory is not reused before the link has finished with it
        return self.work(tensors, self.stream, end, inner)

    def _block_stream(self, seconds: float, spoiled: Sequence[Tensor] = ()) -> torch.cuda.Event:
        # A host that waits for it must not spin: that would take the core of the thread that writes flags.
        end: torch.cuda.Event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            poisoned = PoisonedTensors(spoiled)
            self._wait_on_stream(seconds)
            poisoned.restore()
            end.record(self.stream)
        return end

    def took_s(self, asked_s: float) -> float:
        """Time [s] of a wait of `asked_s` on the GPU's clock, as in a step whose host is ahead of the device."""
        torch.cuda.synchronize(self.device)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        current = torch.cuda.current_stream(self.device)
        head_start(current)  # else the host's time from one call to the next would count
        begin.record(current)
        current.wait_event(self._block_stream(asked_s))
        end.record(current)
        end.synchronize()
        milliseconds: float = begin.elapsed_time(end)
        return milliseconds * 1e-3


class KernelLink(StreamLink):
    """Waits in a kernel, or in torch's own spinning kernel if that cannot be built, which is less exact."""

    def __init__(self, link: EmulatedLink, device: torch.device) -> None:
        super().__init__(link, device)
        self._blocks = 0
        self._scratch: Tensor | None = None
        reason = why_not(device)
        if reason is not None:
            self.remarks.append(f"the link waits in torch's own kernel, which counts cycles: {reason}")
        if link.slowdown is None or link.slowdown <= 1:
            return
        if reason is not None:
            self.remarks.append("contention is not emulated without the kernel")
            return
        properties = torch.cuda.get_device_properties(device)
        multiprocessors = properties.multi_processor_count
        self._blocks = max(1, round(multiprocessors * (1 - 1 / link.slowdown)))
        self._scratch = scratch_of(SCRATCH_CACHES * properties.L2_cache_size, device)
        self.remarks.append(
            f"beside a collective {self._blocks} of {multiprocessors} multiprocessors copy memory, which mimics what "
            "it takes from a computation"
        )

    def _wait_on_stream(self, seconds: float) -> None:
        wait(round(seconds * 1e9), self.stream, self._blocks, self._scratch)


class FlagLink(StreamLink):
    """Waits for a number that a thread writes. Raises RunError if the driver does not support that."""

    host_waits = True
    work = HostWaitedWork

    def __init__(self, link: EmulatedLink, device: torch.device) -> None:
        super().__init__(link, device)
        self._driver = _stream_wait()
        self._flag = torch.zeros(1, dtype=torch.int32, pin_memory=True)
        self._number = 0
        self._lead_s = 0.0
        self._common: SharedLink | None = None
        self._in_flight: deque[torch.cuda.Event] = deque()
        self._waiting: queue.SimpleQueue[tuple[torch.cuda.Event, float, int]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="xbench-link", daemon=True).start()
        if link.slowdown is not None:
            self.remarks.append("contention is not emulated where several processes share a GPU")
        late_s = statistics.median(self.took_s(LEAD_S) for _ in range(LEADS)) - LEAD_S
        self._lead_s = max(0.0, late_s)

    def _block_stream(self, seconds: float, spoiled: Sequence[Tensor] = ()) -> torch.cuda.Event:
        while len(self._in_flight) >= MOST_IN_FLIGHT:
            self._in_flight.popleft().synchronize()
        self._in_flight.append(super()._block_stream(seconds, spoiled))
        return self._in_flight[-1]

    def share(self, link: SharedLink) -> None:
        """Become one of the lanes of that link."""
        self._common = link

    def _wait_on_stream(self, seconds: float) -> None:
        self._number += 1
        ready: torch.cuda.Event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        ready.record(self.stream)
        self._waiting.put((ready, seconds, self._number))
        code = self._driver(
            ctypes.c_void_p(self.stream.cuda_stream),
            ctypes.c_void_p(self._flag.data_ptr()),
            ctypes.c_uint32(self._number),
            ctypes.c_uint(_GREATER_OR_EQUAL),
        )
        if code != 0:
            raise RunError(f"the GPU's driver refused to let a stream wait (CUDA error {code})")

    def _run(self) -> None:
        torch.cuda.set_device(self.device)
        fine_timer()
        while True:
            ready, seconds, number = self._waiting.get()
            ready.synchronize()
            if self._common is None:
                sleep_until(time.perf_counter() + seconds - self._lead_s)
            else:
                sleep_for(seconds, self._common, lead_s=self._lead_s)
            self._flag[0] = number


def wait_for_device() -> None:
    """Wait until the device has done all that is queued on the current stream.

    Nothing that waits for a `FlagLink` may stay queued while the host goes on. The driver's queue may fill then, and a
    launch into a full queue blocks. Some of them, such as the recording of an event, keep the interpreter's lock. The
    link's thread would need it to let the device go on.
    """
    end: torch.cuda.Event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    end.record()
    end.synchronize()


def link_of(link: EmulatedLink, device: torch.device, *, shared: bool) -> StreamLink:
    """A KernelLink if this process has the device to itself, else a FlagLink. Raises RunError if unsupported."""
    return FlagLink(link, device) if shared else KernelLink(link, device)


def _stream_wait() -> ctypes._NamedFuncPointer:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        return driver.cuStreamWaitValue32_v2
    except (OSError, AttributeError):
        raise RunError("the GPU's driver has no cuStreamWaitValue32, so no stream can wait for the host") from None
