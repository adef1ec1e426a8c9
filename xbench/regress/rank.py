"""One rank of a launch of `xbench regress`: blocks timed with given plans, or one count of a step's operations.

It is a `rank.main` rank without profile, parity checks and timelines, so that a launch is as short as its blocks.

Every collective goes through torch's dispatcher as an operator of `c10d`: those of our engine, of a schedule's own
group and of DDP's C++ reducer. torch's profiler records them all. An emulated link intercepts them before that, so they
are counted there. Nothing is timed in the same launch, because the profiler would slow the step.

The peak memory of a step is `torch.cuda.max_memory_allocated` on a GPU. On a CPU torch keeps no count, but its profiler
records every allocation. The peak is the highest sum of them since before the model was built. It excludes memory that
backends take without torch's allocator (Gloo's buffers, oneDNN's scratch space).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from xbench.interpreter import uncollected

with uncollected(program=__name__ == "__main__"):
    import torch
    import torch._dynamo
    import torch.distributed as dist

from torch.profiler import ProfilerActivity, profile, record_function

from xbench.emulation.group import EmulatedGroup
from xbench.modes import mode_info
from xbench.rank.events import ModeFailed, StepCounted
from xbench.rank.main import Rank, main
from xbench.rank.parity_checker import gathered
from xbench.rank.program import JobPlan, Phase, Program, complete, whole_cycles
from xbench.regress.alternation import Turns
from xbench.schedules import cycle_of
from xbench.schedules.served_parameters import trainable
from xbench.spec import ModeSpec
from xbench.torch_compile import cut_by_ddp

WARMUP_STEPS = 3
"""Steps before the counted one. DDP rebuilds its buckets after the first, and our engine learns an order in it."""

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


class LaunchProgram(Program):
    """Argument of every rank. `counted` are modes to count. `timed` explains the rest."""

    counted: tuple[str, ...] = ()
    turn_folder: str | None = None
    turns: int = 1


class LaunchRank(Rank):
    """State of one rank."""

    program: LaunchProgram

    def start(self) -> None:
        """Start as every rank does, then complete the plans with the parameters that they lack."""
        self.counter = Counter(torch.device(self.run.device)) if self.program.counted else None
        super().start()
        named = {name: p.numel() * p.element_size() for name, p in trainable(self.workload.model).items()}
        self.plans = [_covering(plan, named) for plan in self.plans]
        del self.snapshot  # only parity checks need it, and it is as large as the model
        folder = self.program.turn_folder
        self.shared: Turns | None = None
        if folder is not None:
            self.shared = Turns(Path(folder), leads=self.rank == 0, say=self.note)

    def run_all(self) -> None:
        """Count, then time."""
        if self.counter is not None:
            self.count(self.counter)
        super().run_all()

    def count(self, counter: Counter) -> None:
        """Count, over a cycle of steps, the bytes that each mode passes to collectives, and its memory."""
        cycles = {}
        if isinstance(self.group, EmulatedGroup):
            counter.overhear(self.group)
        for name in self.program.counted:
            mode = self.program.mode(name)
            library = mode_info(mode.carrier).library
            if library is not None:
                self.journal.write(ModeFailed(mode=name, message=f"{library}'s own collectives cannot be counted"))
            elif not self.refuses(mode):
                cycles[name] = self._count(counter, mode)
        found = counter.read()
        for name, cycle in cycles.items():
            seen = found[name]
            peaks = gathered(seen.peak_bytes)
            known = [peak for peak in peaks if peak is not None]
            if self.rank == 0:
                counted = StepCounted(
                    mode=name,
                    collectives=seen.collectives / cycle,
                    wire_bytes=seen.wire_bytes / cycle,
                    peak_bytes=max(known) if len(known) == len(peaks) else None,
                )
                self.journal.write(counted)

    def _count(self, counter: Counter, mode: ModeSpec) -> int:
        """Count one mode. Return the number of steps in its window."""
        what, cycle = f"counting {mode.text}", cycle_of(mode)
        self.barrier(what)
        with cut_by_ddp(self.workload.model, self.on_ddp(mode)), self.attach(mode) as handle:
            super().train(handle, whole_cycles(WARMUP_STEPS, cycle), what, _nothing)
            handle.finish()  # the window then holds the traffic of its own steps, and none of the step before
            self.device_idle()
            with counter.window(mode.text):
                super().train(handle, cycle, what, _nothing)
                handle.finish()
                self.device_idle()
        self.workload.optimizer.zero_grad(set_to_none=True)
        return cycle

    def block(self, phase: Phase, number: int) -> None:
        """Run one block, attaching its mode included, in turns with the other launch if there is one."""
        if self.shared is None:
            super().block(phase, number)
            return
        self.barrier(f"turns of block {number}")
        self.shared.take()
        super().block(phase, number)
        self.shared.give()

    def timed(self, phase: Phase, mode: ModeSpec, number: int) -> None:
        """Attach and warm up in one turn. Then use one turn for each timed part of the block."""
        if self.shared is None:
            super().timed(phase, mode, number)
            return
        cycle = cycle_of(mode)
        effort = self.run.effort
        assert effort.steps is not None  # a job always sets it
        steps, warmup = whole_cycles(effort.steps, cycle), whole_cycles(effort.warmup_steps, cycle)
        what = f"round {phase.round + 1} {mode.text}"
        with cut_by_ddp(self.workload.model, self.on_ddp(mode)), self.attach(mode) as handle:
            super().train(handle, warmup, what, _nothing)
            handle.finish()
            self.barrier(what)
            for turn in range(self.program.turns):
                self.shared.give()
                self.shared.take()
                stamps: list[Any] = []
                origin = self.origin()
                dist.all_reduce(torch.zeros(1, device=self.device))  # all ranks begin the turn together
                self._stamp(stamps)
                # A cycle that does not count, because the caches hold the other launch's data.
                self.train(handle, cycle + steps, what, partial(self._stamp, stamps))
                handle.finish()
                self.barrier(what)
                place = (phase.round * self.program.turns + turn, phase.position)
                self.tell_block(mode, place, cycle, origin, stamps)
        self.workload.optimizer.zero_grad(set_to_none=True)

    def _stamp(self, stamps: list[Any]) -> None:
        stamps.append(self.clock.mark())


def _nothing() -> None:
    pass


def _covering(plan: JobPlan, named: dict[str, int]) -> JobPlan:
    """Return the plan with a bucket for each trainable parameter (name: bytes) without a gradient in the record."""
    known = {name for buckets in plan.buckets.values() for bucket in buckets or () for name in bucket}
    missing = {name: nbytes for name, nbytes in named.items() if name not in known}
    return complete(plan, missing) if known and missing else plan


# --- counting -----------------------------------------------------------------------------------------------------


class WindowCounts(NamedTuple):
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

    def read(self) -> dict[str, WindowCounts]:
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
        found = {}
        for name, span in spans.items():
            sizes = heard.get(name, []) if heard is not None else None
            counts = _handed_over(events, *span) if sizes is None else (len(sizes), sum(sizes))
            found[name] = WindowCounts(*counts, peaks.get(name))
        return found


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


if __name__ == "__main__":
    main(sys.argv[1:], LaunchProgram, LaunchRank)
