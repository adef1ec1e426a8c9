"""A wait on a CUDA stream, in place of a collective: later work on the stream starts a number of nanoseconds later.

Work on a stream runs first in, first out, so waits on one stream follow each other as collectives do. With `blocks` the
wait also takes memory bandwidth and multiprocessors: that many thread blocks copy a scratch buffer back and forth
meanwhile. See `cuda/wait.cu`. The device's clock advances in steps (`timer_step_ns`), and a wait is exact to one of
them.

Where the kernel cannot be built there is a twin of the plain wait, torch's spinning kernel. It counts cycles of a clock
whose rate changes, which is measured once, and it keeps a multiprocessor busy; `why_not` tells why it is used.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import torch
from torch import Tensor

from xbench.errors import KernelError
from xbench.kernels.driver import Kernels, compiled, find_nvrtc

SUPPORTED = ("80", "90", "100")
"""Compute capabilities that the source must compile for: A100, H100 and H200, B200."""

KERNELS = ("wait_alone", "wait_with_load", "timer_step")
"""Kernels of the source."""

_PACKAGE = Path(__file__).parents[1]

ALIGNED_BYTES = 128
HEADER_BYTES = 128
"""Size [B] of the first part of a scratch, zero between waits."""

HEAD_START_NS = 2_000_000
"""Length [ns] of `head_start`: several times what the host needs to queue two collectives and two events.

On a virtual machine with an H100 each launch took the host 0.1 to 0.3 ms."""

_WARP, _THREADS, _WIDE_BYTES = 32, 256, 16  # of `cuda/wait.cu`: blocks without and with load, and one access

_CALIBRATION_CYCLES = 20_000_000


def scratch_of(nbytes: int, device: torch.device) -> Tensor:
    """A scratch buffer whose waits copy within `nbytes` bytes; one serves one stream. Raises ValueError below 4 KiB."""
    if nbytes < 4096:
        raise ValueError(f"a scratch of {nbytes} bytes loads nothing: 4096 are the least")
    return torch.zeros(HEADER_BYTES + nbytes, dtype=torch.uint8, device=device)


def wait(ns: int, stream: torch.cuda.Stream, blocks: int = 0, scratch: Tensor | None = None) -> None:
    """Let the stream wait `ns` nanoseconds from when it gets there; returns at once.

    `blocks` more thread blocks copy within `scratch` (of `scratch_of`, used on this stream alone) until then. Raises
    ValueError for a negative time or count or an unsuitable scratch. Raises KernelError if `blocks` are requested and
    the kernel is not available, or if the launch fails.
    """
    if ns < 0 or blocks < 0:
        raise ValueError(f"a wait of {ns} ns with {blocks} blocks cannot be")
    if blocks and (scratch is None or scratch.device != stream.device or scratch.data_ptr() % ALIGNED_BYTES):
        raise ValueError("a wait with load needs a scratch of its stream's device, as scratch_of makes it")
    kernels = for_gpu(stream.device)
    if isinstance(kernels, KernelError):
        if blocks:
            raise kernels
        with torch.cuda.stream(stream):
            _spin(round(ns * _cycles_per_ns(stream.device)))
        return
    duration = ctypes.c_uint64(ns)
    if scratch is None or not blocks:
        kernels.launch("wait_alone", 1, _WARP, stream.cuda_stream, duration)
        return
    address, lots = ctypes.c_void_p(scratch.data_ptr()), (scratch.nbytes - HEADER_BYTES) // _WIDE_BYTES
    if lots < 2 * blocks:
        raise ValueError(f"a scratch of {scratch.nbytes} bytes is too small for {blocks} blocks")
    counted = ctypes.c_uint64(lots)
    kernels.launch("wait_with_load", blocks + 1, _THREADS, stream.cuda_stream, duration, address, counted)


def head_start(stream: torch.cuda.Stream) -> None:
    """Occupy the stream for 2 ms, in which the host queues the work that is to be timed.

    The device then finds all of it queued. On an idle stream the time between two events would contain the host's time
    to launch the work between them. Raises KernelError if the launch fails.
    """
    wait(HEAD_START_NS, stream)


def why_not(device: torch.device) -> str | None:
    """Reason why the kernel is not available on this GPU; None if it is."""
    kernels = for_gpu(device)
    return str(kernels) if isinstance(kernels, KernelError) else None


def timer_step_ns(device: torch.device) -> int:
    """The smallest observed step of the device's clock [ns]. Raises KernelError without the kernel."""
    kernels = for_gpu(device)
    if isinstance(kernels, KernelError):
        raise kernels
    step = torch.zeros(1, dtype=torch.int64, device=device)
    stream = torch.cuda.current_stream(device).cuda_stream
    kernels.launch("timer_step", 1, _WARP, stream, ctypes.c_void_p(step.data_ptr()))
    return int(step.item())


def source() -> Path:
    """`wait.cu`: inside an installed package, next to it in a checkout. Raises KernelError without it."""
    for folder in (_PACKAGE / "cuda", _PACKAGE.parent / "cuda"):
        path = folder / "wait.cu"
        if path.exists():
            return path
    raise KernelError("the CUDA source is not installed beside xbench", hint="install it again, or use a checkout")


def for_gpu(device: torch.device) -> Kernels | KernelError:
    """The kernels on a GPU, built and tried once per process, or the error that prevents it."""
    return _for_gpu(device.index if device.index is not None else torch.cuda.current_device())


@functools.cache
def _for_gpu(index: int) -> Kernels | KernelError:
    """NVRTC takes a tenth of a second, so nothing is kept on disk."""
    try:
        library = find_nvrtc()
        if library is None:
            raise KernelError("there is no NVRTC of this torch's CUDA version to build the CUDA kernels with")
        major, minor = torch.cuda.get_device_capability(index)
        kernels = Kernels(compiled(library, source(), ("-std=c++17", f"-arch=sm_{major}{minor}")), index)
        kernels.load(KERNELS[0])
    except KernelError as error:
        return error
    return kernels


@functools.cache
def _cycles_per_ns(device: torch.device) -> float:
    """Rate of the spinning kernel's counter: one long spin, between two events."""
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
