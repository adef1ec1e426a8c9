"""Time of a collective on the real links, for sizes from 1 KiB to the model's whole gradient.

docs/how-it-measures.md says what is timed. Before each repetition an all-reduce of one element aligns the ranks, and
`summary.cost_points` separates the wait for a late rank from the transfer. Repetitions are shuffled over the whole
measurement, in the same order on all ranks, so that drift is spread over the curve and does not bend it.

Ranks under one kernel share its clock. The clock of another rank is estimated as in NTP, from the exchange with the
shortest round trip, within which it is read: the error is at most half of that. Offsets are taken before and after, and
drift is interpolated. The messages go through the store of the rendezvous: NCCL would connect each pair of ranks.

On a CPU the all-reduce is called as the schedules call it: `schedules.bucket.start_all_reduce`, and a wait. On a GPU
that call would use a stream inside NCCL's process group, and two events on the current stream would contain the waits
of both streams for each other. So the call is `async_op=False` there, on a stream beside the compute stream (since
torch 2.8), behind a kernel that occupies the stream while the host queues the repetition (`kernels.wait.head_start`).

Each call is on a part of one buffer. M is the size of the whole tensor: the input of a reduce-scatter and the output of
an all-gather. They are called as `fully_shard` calls them: the all-gather in place, the reduce-scatter into another
tensor.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import random
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _get_default_store

from xbench.kernels.wait import head_start
from xbench.profilers.clock import Clock, Mark
from xbench.schedules.bucket import start_all_reduce, started
from xbench.schedules.groups import workers_of

ELEMENT_BYTES = 4

MOST_AT_ONCE, AT_ONCE_BYTES = 8, 1 << 20
"""Limits of the calls of a repetition: their number, and their bytes together."""


class TimedCall(ABC):
    """A collective over `group`, on fp32 zeros of up to `most_bytes`, or on as many elements of `dtype`."""

    name: str
    of_shards = False
    """True if each rank has one N-th of the tensor."""

    staggered = False
    """True if ranks on CPUs start one after the other, as they do in a step."""

    def __init__(
        self,
        most_bytes: int,
        device: torch.device,
        group: dist.ProcessGroup | None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._group = group
        self._cut = workers_of(group) if self.of_shards else 1
        self._buffer = torch.zeros(self._elements(most_bytes), device=device, dtype=dtype)
        self._shard = self._buffer.new_zeros(len(self._buffer) // self._cut) if self.of_shards else None
        self._on_gpu = device.type == "cuda"

    def _elements(self, nbytes: int) -> int:
        """Elements of a tensor of so many bytes of fp32, rounded up to equal parts for all ranks."""
        return -(-nbytes // (ELEMENT_BYTES * self._cut)) * self._cut

    @property
    def title(self) -> str:
        """The name as people write it: 'all-reduce'."""
        return self.name.replace("_", "-")

    def at_once(self, nbytes: int) -> int:
        """Number of calls on `nbytes` [B] that are timed together, each of which counts for its share of the time."""
        return 1

    def run(self, nbytes: int) -> None:
        """Run it on `nbytes` [B]. On a GPU it uses the current stream; on a CPU it returns when it is done."""
        self._run(self._buffer[: self._elements(nbytes)])

    @abstractmethod
    def _run(self, part: Tensor) -> None:
        """Run it on a part of the buffer."""


class AllReduce(TimedCall):
    """An all-reduce, called as the schedules call it."""

    name = "all_reduce"

    def _run(self, part: Tensor) -> None:
        if self._on_gpu:
            dist.all_reduce(part, group=self._group)
        else:
            start_all_reduce(part, self._group).wait()


class AllReduceInTurn(AllReduce):
    """The same where ranks wait for each one, and start the next one after the other."""

    staggered = True


class Broadcast(TimedCall):
    """Broadcasts from the first rank. Small ones are started together, as ZeroRedundancyOptimizer starts them."""

    name = "broadcast"

    def at_once(self, nbytes: int) -> int:
        """See `TimedCall.at_once`."""
        return max(1, min(MOST_AT_ONCE, AT_ONCE_BYTES // nbytes))

    def _run(self, part: Tensor) -> None:
        count = self.at_once(part.numel() * ELEMENT_BYTES)
        works = [dist.broadcast(part, group=self._group, group_src=0, async_op=True) for _ in range(count)]
        for work in map(started, works):
            work.wait()


class ReduceScatter(TimedCall):
    """A reduce-scatter."""

    name = "reduce_scatter"
    of_shards = True
    staggered = True

    def _run(self, part: Tensor) -> None:
        assert self._shard is not None
        dist.reduce_scatter_tensor(self._shard[: len(part) // self._cut], part, group=self._group)


class AllGather(TimedCall):
    """An all-gather."""

    name = "all_gather"
    of_shards = True
    staggered = True

    def _run(self, part: Tensor) -> None:
        own = part.chunk(self._cut)[dist.get_rank(self._group)]
        dist.all_gather_into_tensor(part, own, group=self._group)


CALLS: dict[str, type[TimedCall]] = {call.name: call for call in (AllReduceInTurn, ReduceScatter, AllGather, Broadcast)}


MIN_BYTES = 1024
MAX_SIZES = 24
SIZES_PER_OCTAVE = 2
MIN_SPAN_BYTES = 64 * 1024
"""Least value of the largest size, however small the model: a fit of a line needs a span."""

REPETITIONS = 30
WANTED_REPETITIONS = 5
MIN_REPETITIONS = 2
SMALL_SHARE = 0.01
MAX_S = 4.0
MAY_BE_LONG_BYTES = 4 * 1024 * 1024
"""Smaller sizes are not checked against MAX_S: the check costs an exchange between the ranks."""

PINGS = 24
ANCHORS = 8
STAGGER_S = 3e-3
"""Time between the starts of two ranks [s], where ranks are not to start together."""

SEED = 0
"""Seed of the order of repetitions, which must be the same on all ranks."""


def sizes(total_bytes: int) -> list[int]:
    """Log-spaced sizes [B] from 1 KiB to the first multiple of 4 not below `total_bytes` (and not below 64 KiB).

    About two per octave, at most 24, ascending, all multiples of 4 (one fp32). Raises ValueError below one byte.
    """
    if total_bytes < 1:
        raise ValueError(f"a gradient of {total_bytes} bytes has nothing to reduce")
    largest = _whole_elements(max(total_bytes, MIN_SPAN_BYTES))
    octaves = math.log2(largest / MIN_BYTES)
    count = min(MAX_SIZES, math.ceil(SIZES_PER_OCTAVE * octaves) + 1)
    between = (MIN_BYTES * 2 ** (octaves * step / (count - 1)) for step in range(count - 1))
    return [*(_whole_elements(round(size)) for size in between), largest]


def _whole_elements(nbytes: int) -> int:
    return -(-nbytes // ELEMENT_BYTES) * ELEMENT_BYTES


def plan_repetitions(durations_s: Sequence[float], *, most: int, seconds_budget: float) -> list[int]:
    """Number of repetitions of each size, after one repetition of each took `durations_s`.

    Each size has at least five. If that would take more than twice the budget, the number falls, but never below two.
    All sizes share the rest of the budget equally, up to `most` repetitions each. Even without a rest, a size may use 1
    % of the budget, because short collectives vary most and cost least. The total includes the first repetitions. It is
    at most the budget or the least repetitions, plus those parts of 1 %.
    """
    once_s = sum(durations_s)
    floor = WANTED_REPETITIONS
    while floor > MIN_REPETITIONS and (1 + floor) * once_s > 2 * seconds_budget:
        floor -= 1
    floor = min(floor, most)
    share_s = max(SMALL_SHARE * seconds_budget, (seconds_budget - (1 + floor) * once_s) / max(1, len(durations_s)))
    return [min(most, floor + int(share_s / duration)) if duration > 0 else most for duration in durations_s]


@dataclass(frozen=True)
class ClockOffsets:
    """Each rank's `time.perf_counter()` minus rank 0's, when rank 0's showed `at_s`; each within ± `error_s` [s]."""

    at_s: float
    offset_s: list[float]
    error_s: list[float]


def clock_offsets(group: dist.ProcessGroup | None, device: torch.device, *, trust_kernel: bool = True) -> ClockOffsets:
    """Estimate the ranks' host-clock offsets. Every rank of `group` must call it, and all get the same result.

    With `trust_kernel`, ranks on rank 0's kernel share its clock and are not measured. Each other rank exchanges 24
    messages with rank 0; the exchange with the shortest round trip counts.
    """
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    identity = _kernel_identity() if trust_kernel else rank
    own = torch.tensor([identity, secrets.randbits(62)], dtype=torch.int64, device=device)
    everyone = [torch.empty_like(own) for _ in range(world)]
    dist.all_gather(everyone, own, group=group)
    kernels, (number, *_) = zip(*(entry.tolist() for entry in everyone), strict=True)
    answer = torch.zeros(2 * world + 1, dtype=torch.float64, device=device)
    for peer in range(1, world):
        if kernels[peer] == kernels[0]:
            continue
        keys = f"clock/{number}/{peer}"  # the number is rank 0's, so that no two measurements have the same keys
        if rank == 0:
            answer[peer], answer[world + peer] = _ask(_get_default_store(), keys)
        elif rank == peer:
            _answer(_get_default_store(), keys)
    answer[2 * world] = time.perf_counter()
    dist.broadcast(answer, group=group, group_src=0)
    values = answer.tolist()
    return ClockOffsets(at_s=values[2 * world], offset_s=values[:world], error_s=values[world : 2 * world])


def _ask(store: Any, keys: str) -> tuple[float, float]:
    """Measure from rank 0: (offset, its error bound) [s] of a peer's clock, from the shortest round trip."""
    best_ns: tuple[int, float] | None = None
    for ping in range(PINGS):
        sent = time.perf_counter_ns()
        store.set(f"{keys}/{ping}/ask", "now")
        store.wait([f"{keys}/{ping}/answer"])
        back = time.perf_counter_ns()
        theirs = int(store.get(f"{keys}/{ping}/answer"))
        if best_ns is None or back - sent < best_ns[0]:
            best_ns = (back - sent, theirs - (sent + back) / 2)
    assert best_ns is not None
    return best_ns[1] * 1e-9, best_ns[0] / 2 * 1e-9


def _answer(store: Any, keys: str) -> None:
    """Reply from the peer: answer each message with its time of arrival."""
    for ping in range(PINGS):
        store.wait([f"{keys}/{ping}/ask"])
        store.set(f"{keys}/{ping}/answer", str(time.perf_counter_ns()))


def _kernel_identity() -> int:
    """Equal numbers for processes with the same monotonic clock: one boot of one kernel, one time namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        text = boot + os.readlink("/proc/self/ns/time")
    except OSError:
        return secrets.randbits(62)  # different from all others, so the offset is measured
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7])


def common_time(host_s: float, rank: int, before: ClockOffsets, after: ClockOffsets) -> float:
    """Seconds since `before` was taken, on rank 0's clock, at which `rank`'s own clock showed `host_s`.

    The offset is interpolated between the two estimates and constant outside them.
    """
    offset_s = before.offset_s[rank]
    span_s = after.at_s - before.at_s
    if span_s > 0:
        progress = min(max((host_s - offset_s - before.at_s) / span_s, 0.0), 1.0)
        offset_s += progress * (after.offset_s[rank] - before.offset_s[rank])
    return host_s - offset_s - before.at_s


def measure_all_reduce(
    sizes_bytes: Sequence[int],
    device: torch.device | str,
    group: dist.ProcessGroup | None,
    *,
    repetitions: int = REPETITIONS,
    seconds_budget: float = 5.0,
    clock: Clock,
    note: Callable[[str], object] = lambda _: None,
    wire: torch.dtype = torch.float32,
) -> list[dict[str, Any]]:
    """Time all-reduces of fp32 zeros of each size [B] over `group`; every rank calls it with the same arguments.

    With another dtype as `wire`, the same numbers of elements are sent in that dtype. A size stays that of the fp32
    gradients.

    Returns this rank's raw times, one dict per size, in the order of `sizes_bytes`. `nbytes` is the size, and `warmup`
    is the number of first repetitions that do not count: 1. `start_s` and `end_s` have one entry per repetition, in
    seconds on the time line that all ranks share. `offset_s` is this rank's clock minus rank 0's at the start of the
    measurement. `clock_error_s` bounds the error of that estimate (0: one kernel has both clocks).

    A size has at most `repetitions` counted repetitions, and fewer where `seconds_budget` [s] requires it (see
    `plan_repetitions`), equally many on every rank. `note` is called with a text before each repetition.
    Raises ValueError for a group of one, a size that is not a positive multiple of 4, or fewer than one repetition.
    """
    device = torch.device(device)
    _check(sizes_bytes, group, repetitions)
    call = partial(AllReduce, max(sizes_bytes), device, group, wire)
    return _measured(call, sizes_bytes, device, group, repetitions, seconds_budget, clock, note)


def measure_collective(
    name: str,
    sizes_bytes: Sequence[int],
    device: torch.device | str,
    group: dist.ProcessGroup | None,
    *,
    seconds_budget: float,
    clock: Clock,
    note: Callable[[str], object] = lambda _: None,
) -> list[dict[str, Any]]:
    """Time another collective (`CALLS`) as `measure_all_reduce` times an all-reduce; a size is that of the
    whole tensor [B]. Raises ValueError as that does, and KeyError for an unknown name.

    On CPUs one rank starts after the other, as in a step that waits for each collective; the last one's start counts.
    Small collectives take longer then. Between two ranks Gloo's all-gather takes 1.0 or 1.5 times the time of its
    bytes. Where the ranks start 1 ms apart it is either, and from 3 ms on it is 1.5, as in most steps.
    """
    device = torch.device(device)
    _check(sizes_bytes, group, REPETITIONS)
    call = partial(CALLS[name], max(sizes_bytes), device, group)
    return _measured(call, sizes_bytes, device, group, REPETITIONS, seconds_budget, clock, note)


def _check(sizes_bytes: Sequence[int], group: dist.ProcessGroup | None, repetitions: int) -> None:
    if workers_of(group) < 2:
        raise ValueError("a collective needs at least two ranks")
    if not sizes_bytes or any(size < ELEMENT_BYTES or size % ELEMENT_BYTES for size in sizes_bytes):
        raise ValueError(f"sizes must be positive multiples of {ELEMENT_BYTES} bytes: {list(sizes_bytes)}")
    if repetitions < 1:
        raise ValueError(f"{repetitions} repetitions measure nothing")


def _measured(
    call: Callable[[], TimedCall],
    sizes_bytes: Sequence[int],
    device: torch.device,
    group: dist.ProcessGroup | None,
    repetitions: int,
    seconds_budget: float,
    clock: Clock,
    note: Callable[[str], object],
) -> list[dict[str, Any]]:
    """Repeat a call on each size, and return this rank's raw times. `call()` makes its buffers."""
    before = clock_offsets(group, device)
    with _communication_stream(device):
        runs = _Repetitions(call(), sizes_bytes, device, group, clock, note)
        anchor, anchor_host_s = _anchor(clock)
        pilot_s = runs.pilot()
        aligned_s = [s + min(pilot_s) for s in pilot_s]
        counts = plan_repetitions(aligned_s, most=repetitions, seconds_budget=seconds_budget)
        runs.repeat_in_mixed_order(_agree(counts, group, device))
    runs.free()
    after, rank = clock_offsets(group, device), dist.get_rank(group)

    def stamp(mark: Mark) -> float:
        return round(common_time(anchor_host_s + clock.elapsed_s(anchor, mark), rank, before, after), 9)

    def ends(size: int, pairs: Sequence[tuple[Mark, Mark]]) -> list[float]:
        calls = runs.calls_at_once[size]
        return [round(stamp(start) + (stamp(end) - stamp(start)) / calls, 9) for start, end in pairs]

    raw = [
        {
            "nbytes": size,
            "warmup": 1,
            "start_s": [stamp(start) for start, _ in pairs],
            "end_s": ends(size, pairs),
            "offset_s": round(before.offset_s[rank], 9),
            "clock_error_s": round(max(before.error_s[rank], after.error_s[rank]), 9),
        }
        for size, pairs in runs.marks.items()
    ]
    clock.reset()
    return raw


class _Repetitions:
    """Calls of a collective on each size [B], with two marks each; `marks` holds them by size."""

    def __init__(
        self,
        call: TimedCall,
        sizes_bytes: Sequence[int],
        device: torch.device,
        group: dist.ProcessGroup | None,
        clock: Clock,
        note: Callable[[str], object],
    ) -> None:
        self.marks: dict[int, list[tuple[Mark, Mark]]] = {size: [] for size in sizes_bytes}
        self._device, self._group, self._clock, self._note = device, group, clock, note
        self._call, self._count = call, 0
        self.calls_at_once = {size: call.at_once(size) for size in sizes_bytes}
        self._token = torch.zeros(1, device=device)

    def pilot(self) -> list[float]:
        """Time of one repetition of each size [s]. Sizes beyond the first that takes too long are left out."""
        sizes = list(self.marks)
        self._repeat(sizes[0])  # sets up connections, buffers and kernels before the pilot
        self.marks[sizes[0]].clear()
        for index, size in enumerate(sizes):
            self._note(f"{self._call.title} of {size} bytes, first repetition")
            self._repeat(size)
            took = self.marks[size][0]
            if size >= MAY_BE_LONG_BYTES and _too_long(self._clock, took, self._group, self._device):
                self.marks = {kept: self.marks[kept] for kept in sizes[: index + 1]}
                break
        self._clock.flush()
        return [self._clock.elapsed_s(*marks[0]) for marks in self.marks.values()]

    def repeat_in_mixed_order(self, counts: Sequence[int]) -> None:
        """The given numbers of repetitions, in the same shuffled order on all ranks."""
        order = [size for size, count in zip(self.marks, counts, strict=True) for _ in range(count)]
        random.Random(SEED).shuffle(order)
        for position, size in enumerate(order, start=1):
            self._note(f"{self._call.title} {position} of {len(order)}: {size} bytes")
            self._repeat(size)
        self._clock.flush()

    def free(self) -> None:
        """Free the buffers. On a GPU only this stream could use its memory again, so that goes back to the driver."""
        del self._call, self._token
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _repeat(self, size: int) -> None:
        if self._device.type == "cuda":  # the module's docstring explains it
            head_start(torch.cuda.current_stream(self._device))
        dist.all_reduce(self._token, group=self._group)
        if self._call.staggered and self._device.type == "cpu":
            self._count += 1
            wait_s = (dist.get_rank(self._group) + self._count) % workers_of(self._group) * STAGGER_S
            until_s = time.perf_counter() + wait_s
            while time.perf_counter() < until_s:  # a rank that comes late to a collective has computed
                pass
        start = self._clock.mark()
        self._call.run(size)
        self.marks[size].append((start, self._clock.mark()))


def _anchor(clock: Clock) -> tuple[Mark, float]:
    """A mark and the host's `perf_counter` [s] at it: the best of several, so that a preemption does not shift all."""
    tries: list[tuple[float, float, Mark]] = []
    for _ in range(ANCHORS):
        early_s = time.perf_counter()
        mark = clock.mark()
        clock.flush()
        late_s = time.perf_counter()
        tries.append((late_s - early_s, (early_s + late_s) / 2, mark))
    _, host_s, mark = min(tries, key=lambda entry: entry[0])
    return mark, host_s


def _communication_stream(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """On a GPU, a stream beside the compute stream that waits for all earlier work; on a CPU nothing."""
    if device.type == "cuda":
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(device))
        return torch.cuda.stream(stream)
    return contextlib.nullcontext()


def _too_long(clock: Clock, took: tuple[Mark, Mark], group: dist.ProcessGroup | None, device: torch.device) -> bool:
    """True if a repetition took longer than MAX_S on any rank; the same result on all ranks."""
    clock.flush()
    slowest = torch.tensor([clock.elapsed_s(*took)], dtype=torch.float64, device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=group)
    return slowest.item() > MAX_S


def _agree(counts: list[int], group: dist.ProcessGroup | None, device: torch.device) -> list[int]:
    """Broadcast rank 0's counts to every rank."""
    shared = torch.tensor(counts, dtype=torch.int64, device=device)
    dist.broadcast(shared, group=group, group_src=0)
    agreed: list[int] = shared.tolist()
    return agreed
