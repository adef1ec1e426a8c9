"""Counters of a training step: collectives as torch dispatches them, and memory as its allocator provides it.

Every collective goes through torch's dispatcher as an operator of `c10d`: those of our engine, of a schedule's own
group and of DDP's C++ reducer. torch's profiler records them all. An emulated link intercepts them before that, so they
are counted there. Nothing is timed here, because the profiler would slow the step.

The peak memory of a step is `torch.cuda.max_memory_allocated` on a GPU. On a CPU torch keeps no count, but its profiler
records every allocation. The peak is the highest sum of them since before the model was built. It excludes memory that
backends take without torch's allocator (Gloo's buffers, oneDNN's scratch space).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from xbench.emulation.group import EmulatedGroup

BACKENDS = ("gloo", "nccl")
BYTES = {
    "bool": 1, "unsigned char": 1, "signed char": 1, "short int": 2, "c10::Half": 2, "c10::BFloat16": 2, "int": 4,
    "float": 4, "long int": 8, "double": 8,
}  # fmt: skip
"""Size of an element [B], by the profiler's name of its type."""

RECEIVED = frozenset({"recv", "recvAnySource", "barrier", "monitoredBarrier"})
SENT_NOTHING = frozenset({"barrier", "monitored_barrier_", "recv_", "recv_any_source_"})
"""Operators of c10d that send no message of ours. The rank that sends counts it."""

_WINDOW = "xbench counts "


class Seen(NamedTuple):
    """Counts of one window: collectives, the bytes that this rank passed to them, and the peak memory [B]."""

    collectives: int
    wire_bytes: int
    peak_bytes: int | None


class Counter:
    """Counter of operations inside `window(name)`. Start it before anything is built, and read it after all windows."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._on_device: dict[str, int] = {}
        self._heard: dict[str, list[int]] | None = None
        self._window: str | None = None
        self._profile: Any = profile(activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True)
        self._profile.__enter__()  # type: ignore[no-untyped-call]

    def overhear(self, group: EmulatedGroup) -> None:
        """Count what this emulated group is given, instead of what reaches the ranks that really run."""
        self._heard = {}
        group.overhear(self._hear)

    def _hear(self, nbytes: int) -> None:
        if self._heard is not None and self._window is not None:
            self._heard.setdefault(self._window, []).append(nbytes)

    @contextmanager
    def window(self, name: str) -> Iterator[None]:
        """Context whose operations are counted under this name."""
        on_gpu = self._device.type == "cuda"
        if on_gpu:
            torch.cuda.reset_peak_memory_stats(self._device)
        self._window = name
        with record_function(_WINDOW + name):
            yield
        self._window = None
        if on_gpu:
            self._on_device[name] = torch.cuda.max_memory_allocated(self._device)

    def read(self) -> dict[str, Seen]:
        """Return the counts by window, and end the counting."""
        self._profile.__exit__(None, None, None)
        events = self._profile.profiler.kineto_results.events()
        spans = {
            event.name().removeprefix(_WINDOW): (event.start_ns(), event.start_ns() + event.duration_ns())
            for event in events
            if event.name().startswith(_WINDOW)
        }
        peaks = self._on_device if self._device.type == "cuda" else _peaks(events, spans)
        heard = self._heard
        return {
            name: Seen(*(_handed_over(events, *span) if heard is None else _sums(heard.get(name, []))), peaks.get(name))
            for name, span in spans.items()
        }


def _sums(heard: Sequence[int]) -> tuple[int, int]:
    return len(heard), sum(heard)


def _handed_over(events: Sequence[Any], begin_ns: int, end_ns: int) -> tuple[int, int]:
    """Return (collectives, bytes) of a window: dispatched operators, and the inputs of the backend's operations."""
    collectives = wire_bytes = 0
    for event in events:
        if not begin_ns <= event.start_ns() <= end_ns:
            continue
        family, _, name = event.name().partition(":")
        if family == "c10d":
            collectives += name.removeprefix(":") not in SENT_NOTHING
        elif family in BACKENDS and name not in RECEIVED:
            wire_bytes += sum(
                math.prod(shape) * BYTES[dtype] for shape, dtype in zip(event.shapes(), event.dtypes(), strict=True)
            )
    return collectives, wire_bytes


def _peaks(events: Sequence[Any], spans: dict[str, tuple[int, int]]) -> dict[str, int]:
    """Return the highest sum of all allocations within each window [B]."""
    moves = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    peaks = dict.fromkeys(spans, 0)
    held = 0
    for at_ns, nbytes in moves:
        held += nbytes
        for name, (begin_ns, end_ns) in spans.items():
            if begin_ns <= at_ns <= end_ns:
                peaks[name] = max(peaks[name], held)
    return peaks
