"""Measured contention: the slow-down of collectives and computation by each other on the same host, and launches.

docs/planner.md has the ratios, the cost of a meeting, what a rest of the link saves, and launches on a GPU. Three runs
of the same two activities give the ratios on every rank: `alone` both of them, and `together` steps in the computing
thread and all-reduces from another. Marks at every layer's forward and every gradient tell the progress within a step
(`Progress`). A model with collectives of its own is not run beside others: each rank runs another number of these
steps, and two threads would begin collectives in an order that differs by rank.

`rest` is the first run, soon after T: the load of the others would leave TCP's window too small for a burst for
seconds. Its idle time is a busy loop, because a sleep would slow the processor.

On a GPU each step whose host time is measured begins with an idle device. If a step has more work than a queue holds,
or itself waits for the device (`loss.item()`), its host time is an upper limit.
"""

from __future__ import annotations

import bisect
import itertools
import math
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from xbench.planning.contention import is_launch_bound
from xbench.profilers import SHARE
from xbench.profilers.layers import bare_step
from xbench.profilers.summary import slowest
from xbench.records import Contention, ContentionPoint
from xbench.schedules.bucket import start_all_reduce
from xbench.schedules.groups import workers_of
from xbench.torch_compile import outside_regions
from xbench.workloads.training_step import TrainingStep

SIZES = (4 * 1024, 64 * 1024, 512 * 1024, 2 * 1024 * 1024, 8 * 1024 * 1024)
IN_FLIGHT = (1, 2)
ALONE_S, TOGETHER_S = 0.2, 0.4
MAX_S = 0.15
"""A larger size is left out when one collective of it takes longer: the largest kept size stands for it."""

DEEP = 6
"""Number launched ahead for "two in flight": Gloo works on two, and neither then waits for a launch."""

MEETING_S = 2.5
MIN_MEETINGS, MAX_MEETINGS = 10, 60
QUICK_MEETINGS = 20
FEWEST, MOST = 3, 300
REST_S = 5e-3
RESTS, QUICK_RESTS = 16, 8
AFTER_REST_S = 3e-3
"""Wanted time of the collective that is timed after idle time: longer than the credit of a link."""

TEMPLATE_STEPS = 5
LAUNCHES = 50
LAUNCHED_STEPS = 8


@dataclass
class Stream:
    """All-reduces of one size back to back: their count, and begin and end on this rank's clock."""

    nbytes: int
    in_flight: int
    count: int
    begin_s: float = 0.0
    end_s: float = 0.0

    @property
    def each_s(self) -> float:
        """Seconds per collective."""
        return (self.end_s - self.begin_s) / self.count


@dataclass
class Measured:
    """Results of one rank. `slowdowns` has one entry per stream of `together`; `met_s` and `bare_s` one per step.

    `least_s` is T of the smallest all-reduce. `soon_s` and `rested_s` are times of all-reduces soon after another of
    the same size, and after idle time.
    """

    alone: list[Stream] = field(default_factory=list)
    together: list[Stream] = field(default_factory=list)
    slowdowns: list[float] = field(default_factory=list)
    launch_s: float = 0.0
    met_s: list[float] = field(default_factory=list)
    bare_s: list[float] = field(default_factory=list)
    least_s: float = 0.0
    soon_s: list[float] = field(default_factory=list)
    rested_s: list[float] = field(default_factory=list)


def measure_contention(
    workload: TrainingStep,
    group: dist.ProcessGroup | None,
    transfer_s: Callable[[float], float],
    *,
    most_bytes: int,
    note: Callable[[str], None],
    quick: bool = False,
    wire: torch.dtype = torch.float32,
    model_communicates: bool = False,
) -> Measured:
    """Run all measurements; every rank of `group` must call it together. CPU ranks only.

    `transfer_s` is T [s] of a size [B], equal on every rank. It decides the number of collectives in a stream, on all
    ranks alike. No size above `most_bytes` is tried, and none that takes longer than MAX_S. The call trains the model.
    It takes about 7 s, or 3 s if `quick`. `wire` is the dtype in which an fp32 gradient is sent; sizes are those of the
    gradients. If the `model_communicates` itself, computation and collectives do not run at once. Raises ValueError for
    a group of one, and all errors of the backend.
    """
    if workers_of(group) < 2:
        raise ValueError("contention needs at least two ranks")
    sizes = [size for size in SIZES if size <= most_bytes and transfer_s(size) <= MAX_S] or [SIZES[0]]

    def streams(seconds: float) -> list[Stream]:
        return [
            Stream(size, in_flight, max(FEWEST, min(MOST, int(seconds / max(1e-4, transfer_s(size))))))
            for size in sizes
            for in_flight in IN_FLIGHT
        ]

    share = (0.5 if quick else 1.0) * SHARE
    measuring = _Measuring(workload, group, note, wire)
    rested_bytes = SIZES[0]
    while 2 * rested_bytes <= most_bytes and transfer_s(rested_bytes) < AFTER_REST_S:
        rested_bytes *= 2
    measuring.rest(rested_bytes, QUICK_RESTS if quick else RESTS)
    measuring.alone(streams(ALONE_S * share))
    if not model_communicates:
        again = [] if quick else streams(TOGETHER_S * share)[::-1]
        measuring.together([*streams(TOGETHER_S * share), *again])
    measuring.meet(QUICK_MEETINGS if quick else MAX_MEETINGS)
    measuring.found.least_s = transfer_s(4.0)
    workload.optimizer.zero_grad(set_to_none=True)
    return measuring.found


class Progress:
    """Marks in a training step, and the progress of the computation at any time, in undisturbed seconds.

    `run_step` runs a step and marks it. After `learn`, `at` converts a time into progress since the first step.
    """

    def __init__(self, workload: TrainingStep) -> None:
        self._workload = workload
        self._marks: list[float] = []
        self._starts: list[int] = []
        self._handles: list[Any] = []
        self._template: list[float] = []

    def __enter__(self) -> Progress:
        marks, now = self._marks, time.perf_counter
        for module in outside_regions(self._workload.model):
            if next(module.parameters(recurse=False), None) is not None:
                self._handles.append(module.register_forward_pre_hook(lambda *_: marks.append(now())))
        for parameter in self._workload.model.parameters():
            if parameter.requires_grad:
                hook = parameter.register_post_accumulate_grad_hook(lambda _: marks.append(now()))  # type: ignore[no-untyped-call]
                self._handles.append(hook)
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def run_step(self) -> None:
        """One training step without communication."""
        self._starts.append(len(self._marks))
        self._marks.append(time.perf_counter())
        bare_step(self._workload)

    def learn(self, warmup: int = 1) -> None:
        """Take the earlier steps, except the first `warmup`, as undisturbed, and clear the marks."""
        self._starts.append(len(self._marks))
        self._marks.append(time.perf_counter())
        steps = [[*self._marks[a:b], self._marks[b]] for a, b in itertools.pairwise(self._starts)][warmup:]
        if len({len(step) for step in steps}) > 1:  # a graph that changes from step to step: only whole steps compare
            steps = [[step[0], step[-1]] for step in steps]
            self.__exit__()
        columns = zip(*([mark - step[0] for mark in step] for step in steps), strict=True)
        self._template = list(itertools.accumulate((statistics.median(column) for column in columns), max))
        self._marks.clear()
        self._starts.clear()

    def at(self, when_s: float) -> float:
        """Undisturbed seconds of computation done by `when_s` since `learn`; linear between marks."""
        per_step = len(self._template) - 1
        index = bisect.bisect_right(self._marks, when_s) - 1
        if index < 0:
            return 0.0
        step, place = divmod(index, per_step)
        passed, following = self._marks[index], self._marks[min(index + 1, len(self._marks) - 1)]
        within = (when_s - passed) / (following - passed) if following > passed else 0.0
        here, there = self._template[place], self._template[place + 1]
        return step * self._template[-1] + here + min(1.0, within) * (there - here)

    def drift(self, again_s: Iterable[float]) -> float:
        """Mean drift of a step's time from then to now: √(now / then), of medians. Never 0.

        `again_s`: steps [s] that ran after the measurement. Division by the drift removes changes of the machine's own
        speed.
        """
        return math.sqrt(statistics.median(again_s) / self._template[-1])

    def end(self) -> None:
        """Add a last mark, so that progress in the last step is defined."""
        self._marks.append(time.perf_counter())


@dataclass
class _Measuring:
    """Measurements of one rank, and their inputs."""

    workload: TrainingStep
    group: dist.ProcessGroup | None
    note: Callable[[str], None]
    wire: torch.dtype
    found: Measured = field(default_factory=Measured)

    def rest(self, nbytes: int, pairs: int) -> None:
        """All-reduces of one size in turn: soon after another, and after idle time."""
        token = torch.zeros(1)
        buffer = torch.zeros(nbytes // 4, dtype=self.wire)

        def once() -> float:
            dist.all_reduce(token, group=self.group)  # waits for all ranks
            begin_s = time.perf_counter()
            start_all_reduce(buffer, self.group).wait()
            return time.perf_counter() - begin_s

        once()
        for number in range(pairs):
            self.note(f"after a rest, {number + 1} of {pairs}")
            self.found.soon_s.append(once())
            until_s = time.perf_counter() + REST_S
            while time.perf_counter() < until_s:
                pass
            self.found.rested_s.append(once())

    def alone(self, streams: Sequence[Stream]) -> None:
        """Collectives without computation, and the time of a launch."""
        for position, stream in enumerate(streams, start=1):
            self.note(f"collectives alone, {position} of {len(streams)}: {stream.nbytes} bytes")
            _send(stream, self.group, self.wire)
            self.found.alone.append(stream)
        self.found.launch_s = launch_s(self.group, torch.device("cpu"))

    def together(self, streams: Sequence[Stream]) -> None:
        """Steps in this thread and collectives from another, and the slow-down of the steps by each stream."""
        self.found.together += streams
        failures: list[BaseException] = []

        def send() -> None:
            try:
                for stream in streams:
                    _send(stream, self.group, self.wire)
            except BaseException as error:
                failures.append(error)

        with Progress(self.workload) as progress:
            for number in range(TEMPLATE_STEPS + 1):
                self.note(f"computation alone, step {number + 1} of {TEMPLATE_STEPS + 1}")
                progress.run_step()
            progress.learn()
            sender = threading.Thread(target=send, name="xbench-collectives", daemon=True)
            sender.start()
            while sender.is_alive():
                self.note("computation and collectives at once")
                progress.run_step()
            sender.join()
            progress.end()
            if failures:
                raise failures[0]
            drift = progress.drift(_step_s(self.workload) for _ in range(TEMPLATE_STEPS))
        for stream in streams:
            took_s, done_s = stream.end_s - stream.begin_s, progress.at(stream.end_s) - progress.at(stream.begin_s)
            self.found.slowdowns.append(took_s / done_s / drift if done_s > 0 else float("inf"))

    def meet(self, most: int) -> None:
        """Steps with an all-reduce of one element after backward, and without, in turn; at most `most` of each."""
        token = torch.zeros(1)

        def meeting() -> None:
            dist.all_reduce(token, group=self.group)

        longest = torch.tensor([_step_s(self.workload, meeting)], dtype=torch.float64)
        dist.all_reduce(longest, op=dist.ReduceOp.MAX, group=self.group)
        pairs = min(most, int(MEETING_S * SHARE / (2 * longest.item())))
        for number in range(pairs if pairs >= MIN_MEETINGS else 0):
            self.note(f"meeting, step {number + 1} of {pairs}")
            # Two with a meeting in a row: the first also waits for the earlier drift between the ranks.
            _step_s(self.workload, meeting)
            self.found.met_s.append(_step_s(self.workload, meeting))
            self.found.bare_s.append(_step_s(self.workload))


def unshared_contention(group: dist.ProcessGroup | None, transfer_s: Callable[[float], float]) -> Contention:
    """Contention where collectives take nothing from the computation: an emulated link that shares nothing.

    Launches are measured. Computation during a collective loses the time of its launch, which is all of σ. Every rank
    of `group` must call it together.
    """
    took_to_launch_s = launch_s(group, torch.device("cpu"))
    points = []
    for size, in_flight in itertools.product(SIZES, IN_FLIGHT):
        took_s = transfer_s(size)
        slowdown = 1 / (1 - min(0.5, took_to_launch_s / took_s))
        points.append(
            ContentionPoint(
                nbytes=size, in_flight=in_flight, alone_s=took_s, loaded_s=took_s, compute_slowdown=slowdown
            )
        )
    return Contention(launch_s=took_to_launch_s, points=points)


def _step_s(workload: TrainingStep, before_update: Callable[[], object] = lambda: None) -> float:
    """Time of one training step [s], with `before_update` called between backward and the optimizer."""
    begin_s = time.perf_counter()
    bare_step(workload, before_update)
    return time.perf_counter() - begin_s


def summarise_contention(ranks: Sequence[Measured]) -> Contention:
    """One table from all ranks: times of the slowest rank, mean slow-downs of the ranks, mean over passes.

    A rank without any progress during a size is left out for it; where all are, so is the size. The cost of a meeting
    is the median step with one minus the median step without, minus T. What a rest saves is the median over pairs.
    """
    first = ranks[0]
    points: list[ContentionPoint] = []
    for place, stream in enumerate(first.alone):
        key = (stream.nbytes, stream.in_flight)
        loaded: list[float] = []
        slowdowns: list[float] = []
        for number, again in enumerate(first.together):
            if (again.nbytes, again.in_flight) == key:
                loaded.append(max(rank.together[number].each_s for rank in ranks))
                slowdowns += [r.slowdowns[number] for r in ranks if r.slowdowns[number] != float("inf")]
        if slowdowns:
            points.append(
                ContentionPoint(
                    nbytes=stream.nbytes,
                    in_flight=stream.in_flight,
                    alone_s=max(rank.alone[place].each_s for rank in ranks),
                    loaded_s=statistics.mean(loaded),
                    compute_slowdown=statistics.mean(slowdowns),
                )
            )
    meeting_s = saved_s = 0.0
    if first.met_s:
        met_s, bare_s = slowest(rank.met_s for rank in ranks), slowest(rank.bare_s for rank in ranks)
        meeting_s = statistics.median(met_s) - statistics.median(bare_s) - first.least_s
    if first.soon_s:
        pairs = zip(slowest(rank.soon_s for rank in ranks), slowest(rank.rested_s for rank in ranks), strict=True)
        saved_s = statistics.median(soon_s - rested_s for soon_s, rested_s in pairs)
    return Contention(
        launch_s=max(rank.launch_s for rank in ranks),
        meeting_s=max(0.0, meeting_s),
        rest_s=max(0.0, saved_s),
        points=points,
    )


def _send(stream: Stream, group: dist.ProcessGroup | None, wire: torch.dtype) -> None:
    """Send a stream."""
    depth = 1 if stream.in_flight == 1 else DEEP
    buffers = [torch.zeros(stream.nbytes // 4, dtype=wire) for _ in range(depth)]
    flying: list[dist.Work] = []
    dist.all_reduce(torch.zeros(1), group=group)  # waits for all ranks
    stream.begin_s = time.perf_counter()
    for number in range(stream.count):
        if len(flying) == depth:
            flying.pop(0).wait()
        flying.append(start_all_reduce(buffers[number % depth], group))
    for work in flying:
        work.wait()
    stream.end_s = time.perf_counter()


@dataclass(frozen=True)
class HostCost:
    """Host times [s] of one rank: of a launch, of a gradient's hook, and of a step without communication."""

    launch_s: float
    hook_s: float
    step_s: float


def launch_s(group: dist.ProcessGroup | None, device: torch.device) -> float:
    """Median host time [s] of the launch of an all-reduce. Every rank of `group` must call it together."""
    token = torch.zeros(1, device=device)
    dist.all_reduce(token, group=group)  # waits for all ranks
    took_s: list[float] = []
    for _ in range(LAUNCHES):
        begin_s = time.perf_counter()
        work = start_all_reduce(token, group)
        took_s.append(time.perf_counter() - begin_s)
        work.wait()
    return statistics.median(took_s)


def host_step_s(
    step: Callable[[], object],
    idle: Callable[[], object],
    note: Callable[[str], object],
    now: Callable[[], float] = time.perf_counter,
) -> float:
    """Median time [s] of `step()`, each after `idle()`, which waits for the device. One more step is the warm-up."""
    took_s: list[float] = []
    for number in range(LAUNCHED_STEPS + 1):
        note(f"launching a step, {number + 1} of {LAUNCHED_STEPS + 1}")
        idle()
        begin_s = now()
        step()
        took_s.append(now() - begin_s)
    idle()
    return statistics.median(took_s[1:])


def summarise_launches(ranks: Sequence[HostCost], device_step_s: float) -> Contention:
    """One record of all ranks: the slowest rank's times, and whether the step is launch-bound.

    `device_step_s` [s] is the time of the same step on the device. No slow-down of computation and collectives by each
    other was measured, so there are no points.
    """
    step_s = max(rank.step_s for rank in ranks)
    return Contention(
        launch_s=max(rank.launch_s for rank in ranks),
        hook_s=max(rank.hook_s for rank in ranks),
        host_step_s=step_s,
        device_step_s=device_step_s,
        launch_bound=is_launch_bound(step_s, device_step_s),
        points=[],
    )
