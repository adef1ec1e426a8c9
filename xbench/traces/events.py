"""One rank's trace, reduced to what a profile needs: steps, backward nodes, collectives and device work.

Times are in seconds from the first event of the file. Names follow Kineto's, from torch 1.13 to today's: once,
categories were capitalized, and only a kernel's name told a collective.

Events are checked against each other. One that lies far from all others is left out, and so is one that repeats
another. A kernel ends when the next launch of its stream has begun. A collective whose kernel has no name is what the
host called when it launched it. `remarks` count what was left out or cut.
"""

from __future__ import annotations

import bisect
import math
import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from xbench.text import counted
from xbench.traces.arguments import integer_of, is_undefined, number_of, shape_of, shaped, size_of
from xbench.traces.kernels import ROUNDING_S, FloatArray, cut, disordered, launch_of, repeated

NODE = "autograd::engine::evaluate_function: "
ACCUMULATE = "torch::autograd::AccumulateGrad"
_CATEGORIES = {"operator": "cpu_op", "runtime": "cuda_runtime", "memcpy": "gpu_memcpy", "memset": "gpu_memset"}
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCHES = ("cuda_runtime", "cuda_driver")
_HOST = ("cpu_op", "user_annotation")
_READ = (*_DEVICE, *_LAUNCHES, *_HOST)
_NO_WORK = ("ProfilerStep", "Optimizer.", "DistributedDataParallel", "c10d::", "record_param_comms", "nccl:", "gloo:")
"""Host operators that only mark a span or launch a collective; torch 1.13 wrote marks as operators."""
_COPY_BACK = "torch.distributed.ddp.reducer::copy_bucket_to_grad"

MAX_GAP_US = 60e6
"""A few events that are farther from all others than this have no place in the trace [us]."""

MAX_FAR_SHARE = 0.01
"""Largest share of the events that may be left out for being far from the others."""

NEAR_CALLS = 32
"""Calls of collectives, of all threads, among which those that launched a kernel are sought."""

UNKNOWN = "unknown"
"""Kind of a collective that neither its kernel nor the host names."""

GRADIENT_KINDS = ("all_reduce", "reduce_scatter")
"""Collectives that carry gradients."""

_STEP = re.compile(r"ProfilerStep#(\d{1,18})")
_ANNOTATED = re.compile(r"(?:nccl|gloo|mpi|ucc):_?(\w+)")
_OPERATION = re.compile(r"c10d::_?(\w+?)_?$")
_LIBRARY = re.compile(r"(?:n|r|ms)ccl", re.IGNORECASE)
_KERNEL = re.compile(r"(?:n|r|ms)ccl\w*?(AllReduce|AllGather|ReduceScatter|Broadcast|SendRecv|Reduce)", re.IGNORECASE)
_KINDS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "broadcast": "broadcast",
    "alltoall": "all_to_all",
    "sendrecv": "all_to_all",
    "reduce": "reduce",
}
"""Kind of a collective by how its name begins, without underscores: '_allgather_base' is an all-gather."""


@dataclass(frozen=True)
class Node:
    """One node of the backward graph as the host ran it; `sequence` names the forward operator, if there is one."""

    name: str
    start_s: float
    end_s: float
    thread: int
    sequence: int | None

    @property
    def is_gradient(self) -> bool:
        """True for the node that hands over one parameter's gradient."""
        return self.name == ACCUMULATE


@dataclass
class Collective:
    """One collective: when the host launched it, when it ran (on the device or the library's thread), and its size.

    `nbytes` [B] is the size of the larger of input and output; None where the trace does not say.
    """

    kind: str
    launched_s: float
    start_s: float
    end_s: float
    nbytes: int | None
    dtype: str | None
    group_size: int | None = None
    is_other: bool = False
    """True for what is known to carry no gradients of all workers: a group that lacks some of the run's ranks, as in
    tensor parallelism, or the statistics of SyncBatchNorm."""

    @property
    def may_carry_gradients(self) -> bool:
        """True for a reduction over all ranks."""
        return self.kind in GRADIENT_KINDS and not self.is_other


@dataclass(frozen=True, order=True)
class Mark:
    """The span of one `ProfilerStep#N` on the host [s], with its N."""

    since_s: float
    until_s: float
    number: int


@dataclass
class RankTrace:
    """What one file says. Arrays are sorted by start; `work_*` is what computes: kernels, or operators on a CPU."""

    rank: int | None = None
    world_size: int | None = None
    """The file's own number, else the largest group that reduced something; None where neither is known."""
    backend: str | None = None
    device: str | None = None
    is_gpu: bool = False
    marked_steps: list[Mark] = field(default_factory=list)
    optimizer_s: list[tuple[float, float]] = field(default_factory=list)
    scaler_s: list[tuple[float, float]] = field(default_factory=list)
    """Updates of a GradScaler, also after steps that it skipped."""
    step_ends_s: list[tuple[float, float]] = field(default_factory=list)
    """Spans of both, which end a step, in order."""
    nodes: list[Node] = field(default_factory=list)
    gradient_shapes: dict[float, tuple[tuple[int, ...], str]] = field(default_factory=dict)
    """Shape and dtype of a gradient by the start of its inner operator [s], where shapes were recorded."""
    forward_s: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Span of the forward operator by sequence number."""
    collectives: list[Collective] = field(default_factory=list)
    processes: list[str] = field(default_factory=list)
    """Processes that ran backward passes."""
    has_overlaps: bool = False
    """True where one step overlaps itself, or two optimizer steps each other, as in a file of several ranks."""
    lost_s: FloatArray = field(default_factory=lambda: np.empty(0))
    """Launches of kernels that are not in the trace."""
    remarks: list[str] = field(default_factory=list)
    """What was left out or cut, and what is missing."""
    work_start_s: FloatArray = field(default_factory=lambda: np.empty(0))
    work_end_s: FloatArray = field(default_factory=lambda: np.empty(0))
    work_launched_s: FloatArray = field(default_factory=lambda: np.empty(0))
    """When the host launched that work; the work's own start on a CPU."""
    compute_slowdown: float | None = None
    """Time of kernels beside a collective over that of the same kernels alone; None where that cannot be told."""


@dataclass
class _Seen:
    """Compact columns of the events that are too many to keep as objects."""

    starts: array[float] = field(default_factory=lambda: array("d"))  # of all events
    spans: array[float] = field(default_factory=lambda: array("d"))  # start, end, thread of host operators; copy back?
    launches: array[float] = field(default_factory=lambda: array("d"))  # correlation, start, thread, of a kernel?
    kernels: array[float] = field(default_factory=lambda: array("d"))  # correlation, start, end, shape, stream, a copy?
    streams: dict[tuple[str, str, bool], int] = field(default_factory=dict)  # device, stream, of collectives?
    kernel_shapes: dict[tuple[str, str, str], int] = field(default_factory=dict)  # name, grid and block
    device_collectives: list[Collective] = field(default_factory=list)  # number n is the kernel of shape -1 - n
    host_collectives: list[tuple[Collective, str, int]] = field(default_factory=list)  # and: who told it, and thread
    processes: set[str] = field(default_factory=set)
    forward_threads: set[int] = field(default_factory=set)
    undefined_s: list[float] = field(default_factory=list)  # starts of operators that accumulate no gradient
    last_s: float = -math.inf  # start of the last event
    timeless: int = 0
    far: int = 0
    cut: int = 0
    repeated: int = 0
    disordered: int = 0
    foreign: int = 0


def collect(events: Iterable[Mapping[str, Any]], header: Mapping[str, Any]) -> RankTrace:
    """Reduce the events of one rank, which are read again if some lie far from the others.

    `header` is read after the events, when the stream has filled it.
    """
    trace, seen = _read(events, -math.inf, math.inf)
    low, high = _frame(seen.starts)
    if len(seen.starts) and (low > min(seen.starts) or high < max(seen.starts)):
        trace, seen = _read(events, low, high)
    _take_header(trace, header)
    _finish(trace, seen)
    return trace


def _read(events: Iterable[Mapping[str, Any]], low: float, high: float) -> tuple[RankTrace, _Seen]:
    """Take the events that start between two times [us]."""
    trace, seen = RankTrace(), _Seen()
    origin: float | None = None
    for event in events:
        if event.get("ph") != "X":
            continue
        start, length = number_of(event.get("ts")), number_of(event.get("dur"))
        category = str(event.get("cat", "")).lower()
        category = _CATEGORIES.get(category, category)
        if start is None or length is None or length < 0:
            seen.timeless += category in _READ
        elif not low <= start <= high:
            seen.far += category in _READ
        else:
            origin = start if origin is None else origin
            start_s = (start - origin) / 1e6
            seen.starts.append(start)
            seen.last_s = max(seen.last_s, start_s)
            _take(trace, seen, event, category, (start_s, start_s + length / 1e6))
    return trace, seen


def _frame(starts_us: array[float]) -> tuple[float, float]:
    """First and last start [us] without the few that are far from all others."""
    starts = np.sort(np.frombuffer(starts_us, dtype=np.float64))
    groups = np.split(starts, np.flatnonzero(np.diff(starts) > MAX_GAP_US) + 1)
    near = [group for group in groups if len(group) > max(1.0, MAX_FAR_SHARE * len(starts))] or groups
    return (near[0][0], near[-1][-1]) if len(starts) else (-math.inf, math.inf)


def _take(trace: RankTrace, seen: _Seen, event: Mapping[str, Any], category: str, span: tuple[float, float]) -> None:
    name, args = str(event.get("name", "")), event.get("args")
    args = args if isinstance(args, dict) else {}
    thread = integer_of(event.get("tid")) or 0
    if category in _DEVICE:
        _take_device(seen, event, args, category != "kernel", span)
    elif category in _LAUNCHES:
        correlation = number_of(args.get("correlation"))
        if correlation is not None:
            seen.launches.extend((correlation, span[0], thread, "LaunchKernel" in name))
    elif category in _HOST:
        if name.startswith(NODE):
            seen.processes.add(str(event.get("pid")))
        _take_host(trace, seen, name, args, span, thread)
        if category == "cpu_op" and not name.startswith(_NO_WORK):
            seen.spans.extend((*span, thread, name == _COPY_BACK))


def _take_device(
    seen: _Seen, event: Mapping[str, Any], args: Mapping[str, Any], is_copy: bool, span: tuple[float, float]
) -> None:
    name, (start_s, end_s) = str(event.get("name", "")), span
    named = _KERNEL.search(name)
    kind = _kind(str(args.get("Collective name", ""))) or (_kind(named.group(1)) if named else None)
    if kind is None and _LIBRARY.search(name) and not is_copy:
        kind = UNKNOWN
    if kind is not None and not end_s > start_s:  # its launch counts as one without a kernel
        seen.timeless += 1
        return
    if kind is None:
        shape = (name, str(args.get("grid")), str(args.get("block")))
        number = seen.kernel_shapes.setdefault(shape, len(seen.kernel_shapes))
    else:
        seen.device_collectives.append(_told(kind, span, args))
        number = -len(seen.device_collectives)
    place = (str(event.get("pid")), str(args.get("stream", event.get("tid"))), kind is not None)
    correlation, stream = integer_of(args.get("correlation")), seen.streams.setdefault(place, len(seen.streams))
    seen.kernels.extend((-1.0 if correlation is None else correlation, start_s, end_s, number, stream, is_copy))


def _told(kind: str, span: tuple[float, float], args: Mapping[str, Any]) -> Collective:
    """The collective of a kernel, or of the host's record of its parameters."""
    nbytes, dtype = size_of(args)
    size = integer_of(args.get("Group size")) or 0
    return Collective(kind, span[0], *span, nbytes, dtype, size if size > 0 else None)


def _take_host(
    trace: RankTrace, seen: _Seen, name: str, args: Mapping[str, Any], span: tuple[float, float], thread: int
) -> None:
    start_s, end_s = span
    if (mark := _STEP.fullmatch(name)) is not None:
        trace.marked_steps.append(Mark(start_s, end_s, int(mark.group(1))))
    elif name.startswith("Optimizer.step"):
        trace.optimizer_s.append(span)
    elif name == "aten::_amp_update_scale_":
        trace.scaler_s.append(span)
    elif name.startswith(NODE):
        sequence = integer_of(args.get("Sequence number"))
        trace.nodes.append(Node(name[len(NODE) :], start_s, end_s, thread, sequence))
    elif name == "record_param_comms" and (kind := _kind(str(args.get("Collective name", "")))) is not None:
        seen.host_collectives.append((_told(kind, span, args), "parameters", thread))
    elif (told := _ANNOTATED.fullmatch(name) or _OPERATION.fullmatch(name)) is not None:
        kind = _kind(told.group(1))
        if kind is not None:
            teller = "call" if name.startswith("c10d") else "library"
            seen.host_collectives.append((Collective(kind, start_s, *span, *shaped(args)), teller, thread))
    elif name == ACCUMULATE:
        shape = shape_of(args)
        if shape is not None:
            trace.gradient_shapes[start_s] = shape
        elif is_undefined(args):
            seen.undefined_s.append(start_s)
    elif integer_of(args.get("Fwd thread id")) == 0 and (number := integer_of(args.get("Sequence number"))) is not None:
        known = trace.forward_s.get(number)
        if known is None or end_s - start_s > known[1] - known[0]:
            trace.forward_s[number] = span
            seen.forward_threads.add(thread)


def _take_header(trace: RankTrace, header: Mapping[str, Any]) -> None:
    info = header.get("distributedInfo")
    if isinstance(info, dict):
        trace.rank, trace.world_size = integer_of(info.get("rank")), integer_of(info.get("world_size"))
        trace.backend = str(info["backend"]) if info.get("backend") else None
    devices = header.get("deviceProperties")
    if isinstance(devices, list) and devices and isinstance(devices[0], dict):
        trace.device = str(devices[0].get("name") or "") or None


def _finish(trace: RankTrace, seen: _Seen) -> None:
    trace.processes = sorted(seen.processes)
    trace.marked_steps.sort()
    trace.optimizer_s.sort()
    trace.step_ends_s = sorted([*trace.optimizer_s, *trace.scaler_s])
    trace.nodes.sort(key=lambda node: node.start_s)
    trace.has_overlaps = _overlap(trace)
    last_s: dict[int, float] = {}
    for mark in reversed(trace.marked_steps):
        last_s.setdefault(mark.number, mark.since_s)
    again = len({one.number for one in trace.marked_steps if last_s[one.number] >= one.until_s > one.since_s})
    # The host did nothing twice at the same time in the same thread.
    nodes = list(dict.fromkeys(trace.nodes))
    calls = {(call[0].kind, call[0].start_s, call[0].end_s, *call[1:]): call for call in seen.host_collectives}
    seen.repeated += len(trace.nodes) - len(nodes) + len(seen.host_collectives) - len(calls)
    trace.nodes, seen.host_collectives = nodes, list(calls.values())
    _drop_undefined(trace, seen)
    _cut_host(trace, seen)
    trace.is_gpu = any(number >= 0 for number in seen.kernels[3::6])
    if trace.is_gpu:
        _finish_device(trace, seen)
    else:
        _finish_host(trace, seen)
    trace.collectives.sort(key=lambda one: one.launched_s)
    _tell_others(trace)
    unknown = sum(one.kind == UNKNOWN for one in trace.collectives)
    trace.remarks = [
        what.format(counted(number, one))
        for number, one, what in (
            (seen.timeless, "event", "left out {} without a time, or with a negative one"),
            (seen.far, "event", "left out {} far from all others"),
            (seen.repeated, "event", "left out {} that the file holds twice"),
            (seen.disordered, "kernel", "{} out of the order of launches: times are wrong"),
            (seen.foreign, "kernel", "{} of collectives launched before the trace or by another rank"),
            (again, "step", "{} marked again later, as in a file of several runs"),
            (seen.cut, "event", "cut {} that outlasted the next one of its stream, its step or all others"),
            (unknown, "kernel", "{} of collectives that nothing names"),
            (
                len(trace.lost_s),
                "kernel",
                "{} missing that the host launched",
            ),
        )
        if number
    ]


def _overlap(trace: RankTrace) -> bool:
    twice = [(one, two) for one, two in pairwise(trace.marked_steps) if one.number == two.number]
    spans = [((one.since_s, one.until_s), (two.since_s, two.until_s)) for one, two in twice]
    return any(
        since_s + ROUNDING_S < after_s < until_s - ROUNDING_S and until_s + ROUNDING_S < end_s
        for (since_s, until_s), (after_s, end_s) in [*spans, *pairwise(trace.optimizer_s)]
    )


def _cut_host(trace: RankTrace, seen: _Seen) -> None:
    """End what outlasts its place on the host: a mark at the next one, and what began in a mark at that mark's end.

    A gradient's node ends where the next node of its thread begins.
    """
    marks = np.array([(mark.since_s, mark.until_s) for mark in trace.marked_steps]).reshape(-1, 2)
    seen.cut += int((marks[:-1, 1] > marks[1:, 0] + ROUNDING_S).sum())
    marks[:-1, 1] = np.minimum(marks[:-1, 1], marks[1:, 0])
    seen.cut += _end(marks, seen.last_s)
    trace.marked_steps = [
        replace(mark, until_s=float(until_s))
        for mark, until_s in zip(trace.marked_steps, marks[:, 1], strict=True)
        if until_s > mark.since_s
    ]
    nodes = np.array([(node.start_s, node.end_s) for node in trace.nodes]).reshape(-1, 2)
    following: dict[int, float] = {}
    for place in range(len(trace.nodes) - 1, -1, -1):
        node = trace.nodes[place]
        if node.is_gradient:
            nodes[place, 1] = min(node.end_s, following.get(node.thread, math.inf))
        following[node.thread] = node.start_s
    spans = np.frombuffer(seen.spans, dtype=np.float64).reshape(-1, 4)
    ours = np.isin(spans[:, 2], [*following, *seen.forward_threads])  # a loader's thread prefetches across steps
    ended = spans[ours, :2]
    seen.cut += _end(ended, seen.last_s, marks)  # nodes and forward operators are among them
    spans[ours, :2] = ended
    _end(nodes, seen.last_s, marks)
    forward = np.array(list(trace.forward_s.values())).reshape(-1, 2)
    _end(forward, seen.last_s, marks)
    trace.forward_s = {number: (float(a), float(b)) for number, (a, b) in zip(trace.forward_s, forward, strict=True)}
    trace.nodes = [
        node if end_s == node.end_s else replace(node, end_s=float(end_s))
        for node, end_s in zip(trace.nodes, nodes[:, 1], strict=True)
    ]
    for one, _, _ in seen.host_collectives:
        if one.end_s > seen.last_s + MAX_GAP_US / 1e6:
            one.end_s = seen.last_s
            seen.cut += 1


def _end(times: FloatArray, last_s: float, marks: FloatArray | None = None) -> int:
    """End each span with the mark that it began in, and one that goes on without end at `last_s`. Returns how many."""
    until = np.full(len(times), last_s)
    latest = until + MAX_GAP_US / 1e6
    if marks is not None and len(marks):
        place = np.searchsorted(marks[:, 0], times[:, 0], side="right") - 1
        is_within = (place >= 0) & (times[:, 0] < marks[place, 1])
        until[is_within] = marks[place[is_within], 1]
        latest[is_within] = until[is_within] + ROUNDING_S
    long = times[:, 1] > latest
    times[long, 1] = until[long]
    return int(long.sum())


def _drop_undefined(trace: RankTrace, seen: _Seen) -> None:
    """Drop the nodes that were given no gradient to accumulate, as those of weights with an update of their own."""
    undefined = np.sort(np.array(seen.undefined_s))
    bounds = [np.searchsorted(undefined, [node.start_s, node.end_s]) for node in trace.nodes if len(undefined)]
    if bounds:
        trace.nodes = [
            node for node, (low, high) in zip(trace.nodes, bounds, strict=True) if not node.is_gradient or low == high
        ]


def _tell_others(trace: RankTrace) -> None:
    """Mark the collectives that carry no gradients of all workers."""
    groups = [one.group_size for one in trace.collectives if one.kind in GRADIENT_KINDS and one.group_size is not None]
    trace.world_size = trace.world_size if trace.world_size is not None else max(groups, default=None)
    statistics = [node for node in trace.nodes if node.name.startswith("SyncBatchNorm")]
    for one in trace.collectives:
        one.is_other = one.group_size not in (None, trace.world_size) or any(
            node.start_s <= one.launched_s < node.end_s for node in statistics
        )


def _finish_device(trace: RankTrace, seen: _Seen) -> None:
    launches = np.frombuffer(seen.launches, dtype=np.float64).reshape(-1, 4)
    launches = launches[np.argsort(launches[:, 0], kind="stable")]
    kernels = np.frombuffer(seen.kernels, dtype=np.float64).reshape(-1, 6).copy()
    kernels = kernels[~repeated(launches, kernels)]
    seen.repeated += len(seen.kernels) // 6 - len(kernels)
    kernels = kernels[np.lexsort((kernels[:, 1], kernels[:, 4]))]
    seen.cut += cut(kernels)
    seen.cut += _end(kernels[:, 1:3], seen.last_s)
    seen.disordered = disordered(launches, kernels)
    of_kernels, ran = launches[:, 3] == 1, np.isin(launches[:, 0], kernels[:, 0])
    if np.any(of_kernels & ran):  # else nothing links the two
        trace.lost_s = np.sort(launches[of_kernels & ~ran, 1])
    calls = sorted(seen.host_collectives, key=lambda call: call[0].start_s)
    of_collectives = kernels[:, 3] < 0
    is_launched = launch_of(launches, kernels[of_collectives, 0]) >= 0
    seen.foreign = int((~is_launched).sum()) if is_launched.any() else 0
    for row in kernels[of_collectives]:
        found = seen.device_collectives[-1 - int(row[3])]
        place = launch_of(launches, row[:1])[0]
        found.end_s = float(row[2])
        found.launched_s = float(launches[place, 1]) if place >= 0 else found.start_s
        if found.kind == UNKNOWN and place >= 0:
            _name(found, calls, int(launches[place, 2]))
        trace.collectives.append(found)
    kernels = kernels[~of_collectives]
    computing = np.unique(kernels[kernels[:, 5] == 0, 4])
    kernels = kernels[np.isin(kernels[:, 4], computing)]  # copies on another stream fetch input beside the work
    kernels = kernels[np.argsort(kernels[:, 1], kind="stable")]
    trace.work_start_s, trace.work_end_s = kernels[:, 1], kernels[:, 2]
    place = launch_of(launches, kernels[:, 0])
    trace.work_launched_s = kernels[:, 1].copy()
    trace.work_launched_s[place >= 0] = launches[place[place >= 0], 1]
    trace.compute_slowdown = _slowdown(kernels, trace.collectives)


def _name(kernel: Collective, calls: Sequence[tuple[Collective, str, int]], thread: int) -> None:
    """Give a kernel without a name what the host's calls tell that were open when it was launched, innermost last."""
    until = bisect.bisect_right(calls, kernel.launched_s, key=lambda call: call[0].start_s)
    for call, _, of in calls[max(0, until - NEAR_CALLS) : until]:
        if of == thread and kernel.launched_s <= call.end_s:
            kernel.kind = call.kind
            kernel.group_size = call.group_size or kernel.group_size
            if call.nbytes is not None and call.dtype is not None:
                kernel.nbytes, kernel.dtype = call.nbytes, call.dtype


def _slowdown(kernels: FloatArray, collectives: Iterable[Collective]) -> float | None:
    """Time of all kernels that ran within a collective, over the median times of the same kernels outside of any.

    Kernels are the same if they have one name, grid and block. Those at the edge of a collective are left out.
    """
    spans = sorted((one.start_s, one.end_s) for one in collectives)
    if not spans or not len(kernels):
        return None
    starts, ends = np.array(spans).T
    ends = np.maximum.accumulate(ends)
    place = np.searchsorted(starts, kernels[:, 1], side="right") - 1
    inside = (place >= 0) & (kernels[:, 2] <= ends[np.maximum(place, 0)])
    following = np.minimum(place + 1, len(starts) - 1)
    outside = ((place < 0) | (kernels[:, 1] >= ends[np.maximum(place, 0)])) & (
        (place + 1 >= len(starts)) | (kernels[:, 2] <= starts[following])
    )
    lengths, shapes = kernels[:, 2] - kernels[:, 1], kernels[:, 3]
    beside_s = alone_s = 0.0
    for shape in np.intersect1d(shapes[inside], shapes[outside]):
        beside = lengths[inside & (shapes == shape)]
        beside_s += float(beside.sum())
        alone_s += len(beside) * float(np.median(lengths[outside & (shapes == shape)]))
    return beside_s / alone_s if alone_s > 0 else None


def _finish_host(trace: RankTrace, seen: _Seen) -> None:
    """Operators of the thread that runs backward are the work; the library's spans are the collectives.

    DDP's copies of averaged gradients are no work: the wait for the next bucket hides them.
    """
    spans = np.frombuffer(seen.spans, dtype=np.float64).reshape(-1, 4)
    if trace.nodes:
        spans = spans[spans[:, 2] == trace.nodes[0].thread]
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    before = np.concatenate([[-math.inf], np.maximum.accumulate(spans[:, 1])[:-1]]) if len(spans) else spans[:, 1]
    spans = spans[spans[:, 0] >= before]  # an operator inside another one adds nothing
    spans = spans[spans[:, 3] == 0]
    trace.work_start_s, trace.work_end_s, trace.work_launched_s = spans[:, 0], spans[:, 1], spans[:, 0]
    own = [one for one, teller, _ in seen.host_collectives if teller == "library"]
    called = [one for one, teller, _ in seen.host_collectives if teller == "call"]
    if not any(one.kind == "all_reduce" for one in called) and any(one.kind == "reduce_scatter" for one in called):
        for one in own:  # Gloo reduce-scatters by an all-reduce
            one.kind = "reduce_scatter" if one.kind == "all_reduce" else one.kind
    _join(own, called)
    trace.collectives = own or called


def _join(own: list[Collective], called: list[Collective]) -> None:
    """Give each span of the library the time and the size of the call that launched it, kind by kind, in order."""
    for kind in {one.kind for one in own}:
        spans = sorted((one for one in own if one.kind == kind), key=lambda one: one.start_s)
        calls = sorted((one for one in called if one.kind == kind), key=lambda one: one.start_s)
        if len(spans) == len(calls):
            for span, call in zip(spans, calls, strict=True):
                span.launched_s = min(call.start_s, span.start_s)
                span.nbytes = span.nbytes if span.nbytes is not None else call.nbytes


def _kind(name: str) -> str | None:
    """Kind of the collective that some layer of torch calls `name`; None for anything else."""
    bare = name.lower().replace("_", "")
    return next((kind for prefix, kind in _KINDS.items() if bare.startswith(prefix)), None)
