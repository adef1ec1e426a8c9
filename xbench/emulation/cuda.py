"""Emulated link on a GPU: a separate stream, on which each collective is a wait of T(bytes).

The stream keeps the collectives in order, and each waits for the computation before its launch. So nothing here counts
time but the wait itself: one warp watches the GPU's own timer (`cuda/wait.cu`). It is exact and costs the host nothing,
but it occupies a slot of a multiprocessor. Kernels of another process may have to wait for a time slice meanwhile.

A requested slow-down σ of the computation is mimicked: additional blocks copy memory and leave 1/σ of the
multiprocessors to others.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from xbench.kernels.wait import head_start, scratch_of, wait, why_not
from xbench.planning.cost import CostCurve
from xbench.records import EmulatedLink

SCRATCH_CACHES = 4
"""Size of what emulated contention copies, in second-level caches: smaller copies would hardly use the memory."""


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


class StreamLink:
    """A link on a separate stream. `remarks` are for the user.

    It waits in a kernel, or in torch's own spinning kernel if that cannot be built, which is less exact.
    """

    def __init__(self, link: EmulatedLink, device: torch.device) -> None:
        self.device = device if device.index is not None else torch.device("cuda", torch.cuda.current_device())
        self.stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        self.remarks: list[str] = []
        self._curve = CostCurve.of(link.model)
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

    def send(self, tensors: Sequence[Tensor], inner: dist.Work | None, nbytes: int, share: float) -> dist.Work:
        """Send tensors once they have been computed. See `group.Send`."""
        end = self._block_stream(self._curve(float(nbytes)) * share)
        for tensor in tensors:
            if tensor.is_cuda:
                tensor.record_stream(self.stream)  # its memory is not reused before the link has finished with it
        return StreamWork(tensors, self.stream, end, inner)

    def _block_stream(self, seconds: float) -> torch.cuda.Event:
        end: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            wait(round(seconds * 1e9), self.stream, self._blocks, self._scratch)
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
