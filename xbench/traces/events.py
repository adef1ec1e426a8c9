"""One rank's trace, reduced to what a profile needs: steps, backward nodes, collectives and device work.

Times are in seconds from the first event of the file. Names follow Kineto's, from torch 1.13 to today's: once,
categories were capitalized, and only a kernel's name told a collective.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from xbench.traces.arguments import integer_of, number_of, shape_of, shaped, size_of

FloatArray = npt.NDArray[np.float64]

NODE = "autograd::engine::evaluate_function: "
ACCUMULATE = "torch::autograd::AccumulateGrad"
_CATEGORIES = {"operator": "cpu_op", "runtime": "cuda_runtime", "memcpy": "gpu_memcpy", "memset": "gpu_memset"}
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCHES = ("cuda_runtime", "cuda_driver")
_NO_WORK = ("ProfilerStep", "Optimizer.", "DistributedDataParallel", "c10d::", "record_param_comms", "nccl:", "gloo:")
"""Host operators that only mark a span or launch a collective; torch 1.13 wrote marks as operators."""
_COPY_BACK = "torch.distributed.ddp.reducer::copy_bucket_to_grad"

GRADIENT_KINDS = ("all_reduce", "reduce_scatter")
"""Collectives that carry gradients."""

_STEP = re.compile(r"ProfilerStep#(\d{1,18})")
_ANNOTATED = re.compile(r"(?:nccl|gloo|mpi|ucc):_?(\w+)")
_OPERATION = re.compile(r"c10d::_?(\w+?)_?$")
_KERNEL = re.compile(r"nccl\w*?(AllReduce|AllGather|ReduceScatter|Broadcast|SendRecv|Reduce)", re.IGNORECASE)
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
    work_start_s: FloatArray = field(default_factory=lambda: np.empty(0))
    work_end_s: FloatArray = field(default_factory=lambda: np.empty(0))
    work_launched_s: FloatArray = field(default_factory=lambda: np.empty(0))
    """When the host launched that work; the work's own start on a CPU."""
    compute_slowdown: float | None = None
    """Time of kernels beside a collective over that of the same kernels alone; None where that cannot be told."""


@dataclass
class _Seen:
    """Compact columns of the events that are too many to keep as objects."""

    spans: array[float] = field(default_factory=lambda: array("d"))  # start, end, thread of host operators; copy back?
    launches: array[float] = field(default_factory=lambda: array("d"))  # correlation, start
    kernels: array[float] = field(default_factory=lambda: array("d"))  # correlation, start, end, shape, stream, a copy?
    streams: dict[str, int] = field(default_factory=dict)
    kernel_shapes: dict[tuple[str, str, str], int] = field(default_factory=dict)  # name, grid and block
    device_collectives: list[tuple[int, Collective]] = field(default_factory=list)
    host_collectives: list[tuple[Collective, bool]] = field(default_factory=list)  # and: the library's own span


def collect(events: Iterable[Mapping[str, Any]], header: Mapping[str, Any]) -> RankTrace:
    """Reduce the events of one rank. `header` is read after the events, when the stream has filled it."""
    trace, seen = RankTrace(), _Seen()
    origin: float | None = None
    for event in events:
        if event.get("ph") != "X":
            continue
        start, length = number_of(event.get("ts")), number_of(event.get("dur"))
        if start is None or length is None or length < 0:
            continue
        origin = start if origin is None else origin
        start_s = (start - origin) / 1e6
        _take(trace, seen, event, start_s, start_s + length / 1e6)
    _take_header(trace, header)
    _finish(trace, seen)
    return trace


def _take(trace: RankTrace, seen: _Seen, event: Mapping[str, Any], start_s: float, end_s: float) -> None:
    category, name = str(event.get("cat", "")).lower(), str(event.get("name", ""))
    category = _CATEGORIES.get(category, category)
    args = event.get("args")
    args = args if isinstance(args, dict) else {}
    if category in _DEVICE:
        _take_device(seen, event, args, category != "kernel", (start_s, end_s))
    elif category in _LAUNCHES:
        correlation = number_of(args.get("correlation"))
        if correlation is not None:
            seen.launches.extend((correlation, start_s))
    elif category in ("cpu_op", "user_annotation"):
        thread = integer_of(event.get("tid")) or 0
        _take_host(trace, seen, name, args, (start_s, end_s), thread)
        if category == "cpu_op" and not name.startswith(_NO_WORK):
            seen.spans.extend((start_s, end_s, thread, name == _COPY_BACK))


def _take_device(
    seen: _Seen, event: Mapping[str, Any], args: Mapping[str, Any], is_copy: bool, span: tuple[float, float]
) -> None:
    name, (start_s, end_s) = str(event.get("name", "")), span
    correlation = integer_of(args.get("correlation"))
    named = _KERNEL.search(name)
    kind = _kind(str(args.get("Collective name", ""))) or (_kind(named.group(1)) if named else None)
    if kind is None:
        shape = (name, str(args.get("grid")), str(args.get("block")))
        number = seen.kernel_shapes.setdefault(shape, len(seen.kernel_shapes))
        stream = seen.streams.setdefault(str(args.get("stream", event.get("tid"))), len(seen.streams))
        seen.kernels.extend((-1.0 if correlation is None else correlation, start_s, end_s, number, stream, is_copy))
        return
    nbytes, dtype = size_of(args)
    size = integer_of(args.get("Group size")) or 0
    found = Collective(kind, start_s, start_s, end_s, nbytes, dtype, size if size > 0 else None)
    seen.device_collectives.append((-1 if correlation is None else correlation, found))


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
    elif (annotated := _ANNOTATED.fullmatch(name)) is not None:
        kind = _kind(annotated.group(1))
        if kind is not None:
            nbytes, dtype = shaped(args)
            seen.host_collectives.append((Collective(kind, start_s, start_s, end_s, nbytes, dtype), True))
        return
    elif (operation := _OPERATION.fullmatch(name)) is not None:
        kind = _kind(operation.group(1))
        if kind is not None:
            nbytes, dtype = shaped(args)
            seen.host_collectives.append((Collective(kind, start_s, start_s, end_s, nbytes, dtype), False))
    elif name == ACCUMULATE:
        shape = shape_of(args)
        if shape is not None:
            trace.gradient_shapes[start_s] = shape
    elif integer_of(args.get("Fwd thread id")) == 0 and (number := integer_of(args.get("Sequence number"))) is not None:
        known = trace.forward_s.get(number)
        if known is None or end_s - start_s > known[1] - known[0]:
            trace.forward_s[number] = span


def _take_header(trace: RankTrace, header: Mapping[str, Any]) -> None:
    info = header.get("distributedInfo")
    if isinstance(info, dict):
        trace.rank, trace.world_size = integer_of(info.get("rank")), integer_of(info.get("world_size"))
        trace.backend = str(info["backend"]) if info.get("backend") else None
    devices = header.get("deviceProperties")
    if isinstance(devices, list) and devices and isinstance(devices[0], dict):
        trace.device = str(devices[0].get("name") or "") or None


def _finish(trace: RankTrace, seen: _Seen) -> None:
    trace.marked_steps.sort()
    trace.optimizer_s.sort()
    trace.step_ends_s = sorted([*trace.optimizer_s, *trace.scaler_s])
    trace.nodes.sort(key=lambda node: node.start_s)
    trace.is_gpu = bool(seen.kernels)
    if trace.is_gpu:
        _finish_device(trace, seen)
    else:
        _finish_host(trace, seen)
    trace.collectives.sort(key=lambda one: one.launched_s)
    _tell_others(trace)


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
    launches = np.frombuffer(seen.launches, dtype=np.float64).reshape(-1, 2)
    launches = launches[np.argsort(launches[:, 0], kind="stable")]
    kernels = np.frombuffer(seen.kernels, dtype=np.float64).reshape(-1, 6)
    computing = np.unique(kernels[kernels[:, 5] == 0, 4])
    kernels = kernels[np.isin(kernels[:, 4], computing)]  # copies on another stream fetch input beside the work
    kernels = kernels[np.argsort(kernels[:, 1], kind="stable")]
    trace.work_start_s, trace.work_end_s = kernels[:, 1], kernels[:, 2]
    trace.work_launched_s = _launched(launches, kernels[:, 0], kernels[:, 1])
    for correlation, found in seen.device_collectives:
        found.launched_s = float(_launched(launches, np.array([correlation]), np.array([found.start_s]))[0])
        trace.collectives.append(found)
    trace.compute_slowdown = _slowdown(kernels, trace.collectives)


def _launched(launches: FloatArray, correlations: FloatArray, otherwise_s: FloatArray) -> FloatArray:
    """Return when each was launched by its correlation; `otherwise_s` where the trace does not have the launch."""
    if not len(launches):
        return otherwise_s
    place = np.minimum(np.searchsorted(launches[:, 0], correlations), len(launches) - 1)
    found: FloatArray = np.where(launches[place, 0] == correlations, launches[place, 1], otherwise_s)
    return found


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
    own = [one for one, is_library in seen.host_collectives if is_library]
    called = [one for one, is_library in seen.host_collectives if not is_library]
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
