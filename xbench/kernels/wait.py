"""A wait on a CUDA stream, in place of a collective: what follows on the stream starts so many nanoseconds later.

Work on a stream runs first in, first out, so waits on one stream follow each other as collectives do. With `blocks` the
wait also takes memory bandwidth and multiprocessors: so many thread blocks copy a scratch buffer to and fro meanwhile.
See `cuda/wait.cu`. The device's clock moves in steps (`timer_step_ns`), and a wait is right to within one of them.

Without nvcc there is a twin of the plain wait, torch's spinning kernel. It counts cycles of a clock that changes its
rate, which is measured once, and it keeps a multiprocessor busy; `measured_clock` says which of the two is at work.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from xbench.errors import KernelError
from xbench.kernels import build

ALIGNED_BYTES = 128
HEADER_BYTES = 128
"""The first bytes of a scratch, zero between waits."""

_CALIBRATION_CYCLES = 20_000_000


def scratch_of(nbytes: int, device: torch.device) -> Tensor:
    """A scratch buffer whose waits copy within `nbytes` bytes; one serves one stream. Raises ValueError below 4 KiB."""
    if nbytes < 4096:
        raise ValueError(f"a scratch of {nbytes} bytes loads nothing: 4096 are the least")
    return torch.zeros(HEADER_BYTES + nbytes, dtype=torch.uint8, device=device)


def wait(ns: int, stream: torch.cuda.Stream, blocks: int = 0, scratch: Tensor | None = None) -> None:
    """Let the stream wait `ns` nanoseconds from when this comes to its turn; returns at once.

    `blocks` more thread blocks copy within `scratch` (of `scratch_of`, used on this stream alone) until then. Raises
    ValueError for a negative time or count or a scratch that does not fit, and KernelError where `blocks` are asked for
    and the kernel cannot be had, or the launch fails.
    """
    if ns < 0 or blocks < 0:
        raise ValueError(f"a wait of {ns} ns with {blocks} blocks cannot be")
    if blocks and (scratch is None or scratch.device != stream.device or scratch.data_ptr() % ALIGNED_BYTES):
        raise ValueError("a wait with load needs a scratch of its stream's device, as scratch_of makes it")
    found = build.for_gpu(stream.device)
    if isinstance(found, KernelError):
        if blocks:
            raise found
        with torch.cuda.stream(stream):
            _spin(round(ns * _cycles_per_ns(stream.device)))
        return
    address, nbytes = (scratch.data_ptr(), scratch.nbytes) if blocks and scratch is not None else (None, 0)
    with torch.cuda.device(stream.device):
        code = found.xbench_wait(ns, blocks, address, nbytes, stream.cuda_stream)
    build.check(found, code, f"a wait of {ns} ns")


def measured_clock(device: torch.device) -> bool:
    """Whether waits read the device's clock; else they count cycles, and `why_not` says why."""
    return why_not(device) is None


def why_not(device: torch.device) -> str | None:
    """Why the kernel cannot be had on this GPU; None where it can."""
    found = build.for_gpu(device)
    return str(found) if isinstance(found, KernelError) else None


def timer_step_ns(device: torch.device) -> int:
    """The smallest step in which the device's clock was seen to move [ns]. Raises KernelError without the kernel."""
    found = build.for_gpu(device)
    if isinstance(found, KernelError):
        raise found
    step = torch.zeros(1, dtype=torch.int64, device=device)
    with torch.cuda.device(device):
        code = found.xbench_timer_step(step.data_ptr(), torch.cuda.current_stream().cuda_stream)
    build.check(found, code, "the step of the device's clock")
    return int(step.item())


@functools.cache
def _cycles_per_ns(device: torch.device) -> float:
    """How fast the spinning kernel counts: one long spin, between two events."""
    with torch.cuda.device(device):
        _spin(_CALIBRATION_CYCLES // 10)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        _spin(_CALIBRATION_CYCLES)
        end.record()
        end.synchronize()
        took_ms: float = begin.elapsed_time(end)
        return _CALIBRATION_CYCLES / (took_ms * 1e6)


def _spin(cycles: int) -> None:
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]
