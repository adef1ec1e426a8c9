"""Timeline phase of a rank: after all blocks of the first launch, a few steps of each mode are recorded.

Every rank records its steps of a mode of one job. The step that took rank 0 the median time is written to the journals
of the first ranks, with its start time by rank 0's clock. A failed recording is a warning and does not end the run.

A timeline has two lanes (docs/compare.md), on this rank's clock, with 0 at the start of the step:

- **compute**: `forward` includes the clearing of the gradients. `accumulate` is all micro-steps but the last. `backward
  LAYER` is one slice per layer in gradient-ready order, from the gradient before to the layer's own last. The copy of a
  gradient into its bucket and the launch of the bucket belong to the next layer; for the last layer, to itself.
- **communication**: one slice per bucket in launch order, from its launch to its completion. Where the backend is known
  to send in order (NCCL runs a group's collectives on one stream), a slice begins after the end of the one before. A
  transfer that continues into the next step (`dear`, `priority`) is cut at the step's end, and the rest begins the next
  step. Torch's sharded modes have `backward` without layers, because their model is a copy with parameters in shards.

Completion is recorded when it happens: the backend's future has a callback. Gloo calls it in its own thread, before a
waiting rank can continue. NCCL's runs with a current stream that follows the collective, so an event recorded there has
the right time. An error of the recorder is kept in `failure`, because all ranks share the training step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from xbench.profilers.clock import Clock, Mark
from xbench.profilers.collectives import clock_offsets
from xbench.profilers.layers import LayerProfiler, StepMarks
from xbench.rank.events import StepRecorded, Warned
from xbench.rank.session import Session
from xbench.records import Label, Slice, Timeline
from xbench.schedules import defers_update
from xbench.schedules.bucket import Work
from xbench.schedules.groups import waits_on_stream
from xbench.spec import ModeSpec
from xbench.workloads.training_step import TrainingStep

STEPS = 3
SLOW_STEP_S = 5.0
"""Limit of the predicted step time above which only one step is recorded [s]."""

TOO_SLOW_STEP_S = 20.0
"""Limit of the predicted step time above which no step is recorded [s]."""

MAX_RANKS = 8
"""Number of ranks whose steps are kept. More ranks add little, and a record should stay small."""

RESOLUTION_S = 5e-5
"""Shortest wait, and shortest stretch of the optimizer between waits, that becomes a separate slice [s]."""


def steps_to_record(predicted_s: float, *, deferred: bool = False) -> int:
    """Return how many steps of this length [s] are recorded: an odd number, so that the median is one of them, or 0.

    `deferred`: whether updates are deferred. Then there is one more, because the first is dropped: it waits for
    gradients that were sent before recording.
    """
    if predicted_s > TOO_SLOW_STEP_S:
        return 0
    return (1 if predicted_s > SLOW_STEP_S else STEPS) + deferred


def record_timeline(session: Session, mode: ModeSpec) -> None:
    """Attach anew, warm up, record, detach, and write the timeline. Collective over the job."""
    plan = session.plans[session.job]
    deferred = defers_update(plan.carrier_of(mode))
    steps = steps_to_record(plan.step_s.get(mode.carrier, plan.compute_s), deferred=deferred)
    if steps == 0:
        return
    what = f"timeline of {mode.text}"
    workload = session.workload
    label: Label = "real" if session.program.emulated is None else "emulated"
    in_order = waits_on_stream(dist.group.WORLD, session.device)
    recording = TimelineRecorder(workload.model, session.clock, in_order=in_order, label=label)
    ahead_s = clock_offsets(None, session.device).offset_s[session.rank]
    with recording as recorder, session.attach(mode) as handle:
        attached = workload.under(handle.model, handle.no_sync, handle.synchronize)
        watched = _agreed(session, mode, lambda: handle.watch(recorder.watch))
        handle.watch_waits(recorder.waiting)
        recorder.hides_waits = handle.waits_in_backward
        if watched:
            session.device_idle()
            origin_s, origin = time.perf_counter() - ahead_s, session.clock.mark()
            # The first step of an attached schedule differs from the others: DDP rebuilds its buckets after it.
            session.train(handle, session.run.effort.warmup_steps if steps > 1 else 1, f"{what}, warm-up", lambda: None)
            for step in range(steps):
                session.note(f"{what}, step {step + 1}")
                recorder.run_step(attached)
            session.device_idle()
            session.clock.flush()
    workload.optimizer.zero_grad(set_to_none=True)
    if watched:
        _write(session, mode, recorder, origin_s, origin)
    session.clock.reset()


def _agreed(session: Session, mode: ModeSpec, begin: Callable[[], bool]) -> bool:
    """True if all ranks could begin. A rank that trained alone would wait for the others for ever."""
    watched = False
    try:
        watched = begin()
    except Exception as error:
        _warn(session, mode, error)
    everyone = torch.tensor([float(watched)], device=session.device)
    dist.all_reduce(everyone, op=dist.ReduceOp.MIN)
    return bool(everyone.item())


def _write(session: Session, mode: ModeSpec, recorder: TimelineRecorder, origin_s: float, origin: Mark) -> None:
    """Write the step that rank 0 chose. `origin` is the instant at which rank 0's clock showed `origin_s` [s]."""
    recorded: list[RecordedStep] = []
    try:
        recorded = recorder.recorded()
        if defers_update(session.plans[session.job].carrier_of(mode)):
            recorded = recorded[1:]
    except Exception as error:
        _warn(session, mode, error)
    chosen = torch.tensor([_median(recorded)], device=session.device)
    dist.broadcast(chosen, src=0)
    place = int(chosen.item())
    if session.rank >= MAX_RANKS or not 0 <= place < len(recorded):
        return
    step = recorded[place]
    began_s = round(origin_s + session.clock.elapsed_s(origin, step.began), 7)
    session.journal.write(StepRecorded(mode=mode.text, began_s=began_s, timeline=step.timeline))


def _median(recorded: list[RecordedStep]) -> int:
    """Return the index of the step that took the median time; -1 if there are none."""
    by_length = sorted(range(len(recorded)), key=lambda place: recorded[place].step_s)
    return by_length[len(by_length) // 2] if by_length else -1


def _warn(session: Session, mode: ModeSpec, error: Exception) -> None:
    session.journal.write(Warned(message=f"no measured timeline of {mode.text}: {error}"))


class RecordedStep(NamedTuple):
    """One step of `step_s` [s] since `began`. The slices of both lanes are in order of time."""

    step_s: float
    timeline: Timeline
    began: Mark


@dataclass
class BucketTrace:
    """Transfer of one bucket, or of another collective; `kind` names it."""

    kind: str
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
        self.hides_waits = False
        """True if backward waits for all gradients, and the waits are not recorded, as in DDP."""
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

    def watch(self, nbytes: int, start: Callable[[], Work], kind: str = "bucket") -> Work:
        """Start a collective and mark its launch, the waits for it, and its completion. For `Handle.watch`."""
        step = self._current
        if step is None:
            return start()
        sent = BucketTrace(kind, nbytes, self._clock.mark())
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
                raise ValueError(f"the completion of {sent.kind} {number} was not seen")
            begin_s, end_s = max(begin_s, at(sent.launched)), at(sent.arrived)
            if end_s > 0.0:
                communication.append(_slice(f"{sent.kind} {number}", begin_s, min(end_s, step_s), sent.nbytes))
            begin_s = end_s if self._in_order else 0.0
        waits = [(at(since), at(until)) for since, until in step.waits]
        ahead = [wait for wait in waits if wait[0] < backward_s]  # of layers of a forward pass, for their updates
        forward_s = at(marks.forward) if marks.forward is not marks.cleared else 0.0
        loads = [(at(since), at(until)) for since, until in marks.loads]
        loads = [load for load in loads if load[1] - load[0] >= RESOLUTION_S]
        compute = [_slice("input", *load) for load in loads]
        ahead += loads
        compute += _between("accumulate", 0.0, forward_s, [wait for wait in ahead if wait[0] < forward_s])
        compute += _between("forward", forward_s, backward_s, ahead)
        compute.sort(key=lambda one: one.start_s)
        returned_s = at(marks.update)
        launched = [sent_s for sent in step.sent if (sent_s := at(sent.launched)) < returned_s]
        seen = any(backward_s <= since_s < returned_s for since_s, _ in waits)
        if launched and self.hides_waits and not seen:
            returned_s = max(launched)
        layers = self._backward(marks, backward_s, returned_s)
        compute += layers or _between("backward", backward_s, returned_s, waits)
        compute += _between("optimizer", at(marks.update), step_s, waits)
        timeline = Timeline(label=self._label, compute=compute, communication=communication)
        return RecordedStep(step_s, timeline, marks.begin)

    def _backward(self, marks: StepMarks, begin_s: float, end_s: float) -> list[Slice]:
        """One slice per layer whose gradient was seen; the last one ends at `end_s`."""
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
