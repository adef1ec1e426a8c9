"""Timeline of a real step: the work of the device, and the transfer of each bucket of gradients.

It has two lanes, on this rank's clock, with 0 at the start of the step:

- **compute** has three kinds of slices. `forward` includes the clearing of the gradients and leaves out waits of its
  layers for updates. Where a step has several micro-steps, `accumulate` is all of them but the last, and includes the
  clearing. `backward LAYER` is one slice per layer in gradient-ready order, from the gradient before to the
  layer's own last. `optimizer` leaves out its waits. The copy of a gradient into its bucket and the launch of the
  bucket belong to the next layer; for the last layer, to itself. Where the lane is empty before the step's end, the
  device waits for gradients: exposed communication.
- **communication** has one slice per bucket in launch order, from its launch to its completion. A bucket launched while
  others were in flight may have waited for them first, so slices can overlap. Where the backend is known to send in
  order (NCCL runs a group's collectives on one stream), a slice begins after the end of the one before. A transfer that
  continues into the next step (`dear`, `priority`) is cut at the step's end, and the rest begins the next step.

Completion is recorded when it happens, not at a later wait: the backend's future has a callback. Gloo calls it in its
own thread, before a waiting rank can continue. NCCL's future is complete once the collective is enqueued. Its callback
runs with a current stream that follows the collective, so an event recorded there has the right time.

Recording must never break the training step, which all ranks share: an error here is kept in `failure`, and the step
continues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import torch.distributed as dist
from torch import nn

from xbench.profilers.clock import Clock, Mark
from xbench.profilers.layers import LayerProfiler, StepMarks
from xbench.records import Label, Slice, Timeline
from xbench.schedules.bucket import Work
from xbench.workloads.training_step import TrainingStep

RESOLUTION_S = 5e-5
"""Shortest wait, and shortest stretch of the optimizer between waits, that becomes a separate slice [s]."""


class RecordedStep(NamedTuple):
    """One step of `step_s` [s] since `began`. The slices of both lanes are in order of time."""

    step_s: float
    timeline: Timeline
    began: Mark


@dataclass
class BucketTrace:
    """Transfer of one bucket."""

    nbytes: int
    launched: Mark
    arrived: Mark | None = None


@dataclass
class _Marks:
    """One step: the marks of its parts, its buckets in launch order, and the waits for them."""

    marks: StepMarks | None = None
    sent: list[BucketTrace] = field(default_factory=list)
    waits: list[tuple[Mark, Mark]] = field(default_factory=list)


class _Watched:
    """A collective that marks the waits for it."""

    def __init__(self, work: dist.Work, clock: Clock, waits: list[tuple[Mark, Mark]]) -> None:
        self._work, self._clock, self._waits = work, clock, waits
        self.is_completed, self.get_future = work.is_completed, work.get_future

    def wait(self) -> bool:
        """Wait for the collective and mark the wait."""
        since = self._clock.mark()
        done = self._work.wait()
        self._waits.append((since, self._clock.mark()))
        return done


class TimelineRecorder(LayerProfiler):
    """Recorder of steps of `model`. Enter it before attaching a schedule, so that it marks a gradient before its
    launch.

        with TimelineRecorder(model, clock) as recorder, attach(model) as handle:
            handle.watch(recorder.watch)
            recorder.run_step(workload)
            clock.flush()
        step = recorder.recorded()[0]

    `in_order`: collectives begin one after the other, in the order of their launches. `label` is that of the links.
    Raises WorkloadError for a model without trainable parameters.
    """

    def __init__(self, model: nn.Module, clock: Clock, *, in_order: bool = False, label: Label = "real") -> None:
        super().__init__(model, clock)
        self.failure: str | None = None
        self._in_order, self._label = in_order, label
        self._steps: list[_Marks] = []
        self._current: _Marks | None = None

    def run_step(self, workload: TrainingStep) -> StepMarks:
        """Run one recorded training step. Other steps may run unrecorded in between."""
        self._current = step = _Marks()
        self._steps.append(step)
        try:
            step.marks = marks = super().run_step(workload)
        finally:
            self._current = None
        return marks

    def watch(self, nbytes: int, start: Callable[[], Work]) -> Work:
        """Start a bucket's collective and mark its launch, the waits for it, and its completion. For `Handle.watch`."""
        step = self._current
        if step is None:
            return start()
        sent = BucketTrace(nbytes, self._clock.mark())
        step.sent.append(sent)
        work: Any = start()
        try:
            work.get_future().add_done_callback(lambda _: setattr(sent, "arrived", self._clock.mark()))
        except Exception as error:  # a backend without futures: the step needs none
            self.failure = f"this backend does not say when a collective is complete: {error}"
            started: Work = work
            return started
        return _Watched(work, self._clock, step.waits)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Context around a wait that no collective marks itself. For `Handle.watch_waits`."""
        step = self._current
        if step is None:
            yield
            return
        since = self._clock.mark()
        yield
        step.waits.append((since, self._clock.mark()))

    def recorded(self) -> list[RecordedStep]:
        """Every recorded step, valid only after the clock's `flush()`.

        Raises ValueError when a part was not recorded.
        """
        if self.failure is not None:
            raise ValueError(self.failure)
        return [self._recorded(*pair) for pair in pairwise([_Marks(), *self._steps])]

    def _recorded(self, before: _Marks, step: _Marks) -> RecordedStep:
        """One step. Transfers of the recorded step `before` it may end in this one."""
        marks = step.marks
        if marks is None:
            raise ValueError("a recorded step did not end")

        def at(mark: Mark) -> float:
            return self._clock.elapsed_s(marks.begin, mark)

        communication: list[Slice] = []
        begin_s = 0.0
        step_s, backward_s = at(marks.end), at(marks.backward)
        for number, sent in [*enumerate(before.sent, start=1), *enumerate(step.sent, start=1)]:
            if sent.arrived is None:
                raise ValueError(f"the completion of bucket {number} was not seen")
            begin_s, end_s = max(begin_s, at(sent.launched)), at(sent.arrived)
            if end_s > 0.0:
                communication.append(_slice(f"bucket {number}", begin_s, min(end_s, step_s), sent.nbytes))
            begin_s = end_s if self._in_order else 0.0
        waits = [(at(since), at(until)) for since, until in step.waits]
        ahead = [wait for wait in waits if wait[0] < backward_s]  # of layers of a forward pass, for their updates
        forward_s = at(marks.forward) if marks.forward is not marks.cleared else 0.0
        compute = _between("accumulate", 0.0, forward_s, [wait for wait in ahead if wait[0] < forward_s])
        compute += _between("forward", forward_s, backward_s, ahead)
        returned_s = at(marks.update)
        if step.sent and not step.waits:  # without recorded waits, the waits were inside backward, as in DDP
            returned_s = min(returned_s, max(at(sent.launched) for sent in step.sent))
        compute += self._backward(marks, backward_s, returned_s)
        compute += _between("optimizer", at(marks.update), step_s, waits)
        timeline = Timeline(label=self._label, compute=compute, communication=communication)
        return RecordedStep(step_s, timeline, marks.begin)

    def _backward(self, marks: StepMarks, begin_s: float, end_s: float) -> list[Slice]:
        """One slice per layer with a gradient; the last one ends at `end_s`."""
        ready_s = self.layer_times(marks).ready_s
        done: list[tuple[float, str]] = []
        for layer in self.layers:
            seen = [time_s for time_s in (ready_s[tensor] for tensor in layer.tensors) if time_s is not None]
            if seen:
                done.append((begin_s + max(seen), layer.name))
        done.sort()
        if done:
            done[-1] = (max(done[-1][0], end_s), done[-1][1])
        slices: list[Slice] = []
        since_s = begin_s
        for until_s, name in done:
            slices.append(_slice(f"backward {name}", since_s, until_s))
            since_s = until_s
        return slices


def _between(name: str, begin_s: float, end_s: float, waits_s: list[tuple[float, float]]) -> list[Slice]:
    """Slices of the device's work from `begin_s` to `end_s`, without the waits."""
    slices: list[Slice] = []
    since_s = begin_s
    for wait_s, until_s in sorted(waits_s):
        if until_s - wait_s < RESOLUTION_S or until_s <= since_s:
            continue
        if wait_s - since_s >= RESOLUTION_S:
            slices.append(_slice(name, since_s, wait_s))
        since_s = until_s
    if end_s > since_s:
        slices.append(_slice(name, since_s, end_s))
    return slices


def _slice(name: str, start_s: float, end_s: float, nbytes: int | None = None) -> Slice:
    """A slice with times rounded to a tenth of a microsecond, as in blocks."""
    return Slice(name=name, start_s=round(start_s, 7), end_s=round(end_s, 7), nbytes=nbytes)
