"""Engine costs in the computation: a hook for every gradient, and its copy into a bucket.

Both are measured with the real engine, which sends nothing: each launch returns a collective that has already arrived.

- **hooks**: backward passes over many parameters of one element, with the engine and without, in turn.
- **copies**: training steps, with the engine and without, in turn. The extra time of the slowest rank's step, minus the
  hooks, is the cost of the copies with all side effects. These are buckets that have left the caches since the last
  step, gradients whose memory is free at once, and an optimizer that reads buckets.

Where steps are so long that only a few fit the time, they vary by more than a copy takes. There the cost is that of a
copy from recently written memory into memory that was not used for long.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from xbench.profilers import SHARE
from xbench.profilers.layers import bare_step
from xbench.profilers.summary import slowest
from xbench.schedules.engine import Engine
from xbench.workloads.training_step import TrainingStep

STEPS_S = 6.0
"""Time budget [s] of the steps with and without the engine; a quick run has half."""

IN_A_ROW = 3
"""Steps of a kind in a row. The first does not count: it starts with the heap of the other kind."""

MIN_ROWS, MAX_ROWS, QUICK_ROWS = 4, 30, 10
TINY, TINY_PASSES = 64, 40
PIECE_BYTES = 4 * 1024 * 1024
MAX_COLD_BYTES = 128 * 1024 * 1024
"""Largest memory [B] that is written in turn, so that no part of it is in a cache at its turn."""

MIN_COPIES = 30


@dataclass
class EngineCost:
    """Results of one rank. `with_s` and `without_s`: one entry per step, none where steps are long.

    `gradients` is their number and `grad_bytes` [B] their size. `cold_s_per_byte` is the time of a copy into cold
    memory.
    """

    hook_s: float
    gradients: int
    grad_bytes: int
    cold_s_per_byte: float
    with_s: list[float] = field(default_factory=list)
    without_s: list[float] = field(default_factory=list)


class _Arrived:
    """A stand-in for a collective that has already arrived."""

    def wait(self) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


def measure_engine_cost(
    workload: TrainingStep,
    engine_of: Callable[[nn.Module, list[list[str]]], Engine],
    buckets: list[list[str]],
    *,
    step_s: float,
    note: Callable[[str], None],
    wire: torch.dtype = torch.float32,
    quick: bool = False,
) -> EngineCost:
    """Measure hooks and copies on CPU ranks. Trains the model, on gradients that are not averaged.

    `engine_of` attaches an engine with the given buckets to a model, and `buckets` are those of the workload. `step_s`
    [s] is the time of a step, equal on every rank. `wire` is the dtype in which an fp32 gradient is sent. Raises
    UsageError, as the engine does, for a model that it refuses.
    """
    carried = [p for p in workload.model.parameters() if p.requires_grad]
    grad_bytes = sum(p.numel() * p.element_size() for p in carried)
    most_s, most_rows = (STEPS_S / 2, QUICK_ROWS) if quick else (STEPS_S, MAX_ROWS)
    rows = min(most_rows, int(most_s * SHARE / (2 * IN_A_ROW * step_s)))
    found = EngineCost(0.0, len(carried), grad_bytes, _cold_copy_s_per_byte(grad_bytes, wire))
    engine = engine_of(workload.model, buckets)
    try:
        for number in range(rows if rows >= MIN_ROWS else 0):
            note(f"steps with and without hooks, {number + 1} of {rows}")
            with_s, without_s = _rows(engine, lambda: bare_step(workload), IN_A_ROW, number)
            found.with_s += with_s[1:]
            found.without_s += without_s[1:]
    finally:
        engine.detach()
    workload.optimizer.zero_grad(set_to_none=True)
    found.hook_s = hook_s(engine_of)
    return found


def bare_copy_cost(wire: torch.dtype, grad_bytes: int) -> EngineCost:
    """The cost of copies alone, where no engine can serve the model."""
    return EngineCost(0.0, 1, grad_bytes, _cold_copy_s_per_byte(grad_bytes, wire))


def summarise_engine_cost(ranks: Sequence[EngineCost]) -> tuple[float, float]:
    """Seconds per gradient and per byte, of the slowest rank's hook and the slowest rank's step; at least 0."""
    hook_s = max(rank.hook_s for rank in ranks)
    first = ranks[0]
    if not first.with_s:
        return hook_s, max(rank.cold_s_per_byte for rank in ranks)
    pairs = zip(slowest(rank.with_s for rank in ranks), slowest(rank.without_s for rank in ranks), strict=True)
    longer_s = statistics.median(with_s - without_s for with_s, without_s in pairs)
    hook_s = min(hook_s, max(0.0, longer_s) / first.gradients)
    return hook_s, max(0.0, longer_s - hook_s * first.gradients) / first.grad_bytes


def _rows(engine: Engine, run: Callable[[], object], count: int, number: int) -> tuple[list[float], list[float]]:
    """Times [s] of `run` with the engine's hooks and without, `count` in a row; odd `number` starts without.

    The engine's collectives are replaced by ones that have already arrived.
    """
    found: dict[bool, list[float]] = {True: [], False: []}
    before, engine.watch = engine.watch, lambda *_: _Arrived()
    try:
        for hooked in (False, True) if number % 2 else (True, False):
            with contextlib.nullcontext() if hooked else engine.no_sync():
                for _ in range(count):
                    begin_s = time.perf_counter()
                    run()
                    found[hooked].append(time.perf_counter() - begin_s)
                if not hooked:
                    engine.forget_kept()
    finally:
        engine.watch = before
    return found[True], found[False]


def hook_s(engine_of: Callable[[nn.Module, list[list[str]]], Engine], device: torch.device | None = None) -> float:
    """Host time of the hook of a gradient of one element on `device` [s]: median over pairs of backward passes.

    `engine_of` attaches an engine with the given buckets to a model. On a GPU the time includes the launches of the
    hook's own kernels. The passes are so few and small that the device's queue is never full.
    """
    tiny = nn.ParameterList(torch.zeros(1, device=device) for _ in range(TINY))
    engine = engine_of(tiny, [[name for name, _ in tiny.named_parameters()]])

    def run() -> None:
        for parameter in tiny:
            parameter.grad = None
        torch.cat(list(tiny)).sum().backward()  # type: ignore[no-untyped-call]

    try:
        rows = [_rows(engine, run, 1, number) for number in range(TINY_PASSES)]
    finally:
        engine.detach()
    return max(0.0, statistics.median(with_s[0] - without_s[0] for with_s, without_s in rows)) / TINY


def _cold_copy_s_per_byte(grad_bytes: int, wire: torch.dtype) -> float:
    """Time [s/B] of a scaled copy of recently written memory into pieces as large in total as the gradients, in turn.

    For a bucket of another dtype, the time includes the copy back.
    """
    elements = max(1, min(grad_bytes, PIECE_BYTES) // 4)
    pieces = max(1, min(grad_bytes, MAX_COLD_BYTES) // (4 * elements))
    source = torch.ones(elements)
    buckets = [torch.ones(elements, dtype=wire) for _ in range(pieces)]
    times: list[float] = []
    for number in range(max(MIN_COPIES, pieces)):
        bucket = buckets[number % pieces]
        source.fill_(1.0)
        begin_s = time.perf_counter()
        torch.mul(source, 0.5, out=bucket)
        if wire != source.dtype:
            source.copy_(bucket)
        times.append(time.perf_counter() - begin_s)
    return statistics.median(times) / (4 * elements)
