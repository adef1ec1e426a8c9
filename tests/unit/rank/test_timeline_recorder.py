"""A recorded step, exactly: a clock that is moved by hand, collectives that complete when the test says."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from profiler_fakes import FakeClock, Layer, Workload
from torch import nn

from xbench.rank.timeline_phase import RESOLUTION_S, RecordedStep, TimelineRecorder
from xbench.records import Slice


class Collective:
    """Takes `takes_s` from when it is waited for; `arrive` completes it earlier."""

    def __init__(self, clock: FakeClock, takes_s: float) -> None:
        self.clock, self.takes_s = clock, takes_s
        self.future: torch.futures.Future[None] = torch.futures.Future()

    def arrive(self) -> None:
        self.future.set_result(None)

    def is_completed(self) -> bool:
        return self.future.done()

    def wait(self) -> bool:
        if not self.is_completed():
            self.clock.advance(self.takes_s)
            self.arrive()
        return True

    def get_future(self) -> torch.futures.Future[None]:
        return self.future


class Step(Workload):
    """Forward of 2 + 1 s, backward of 4 + 8 s; `when_ready` adds what runs after a layer's gradient.

    Layer 0 comes first in forward and so last in backward.
    """

    def __init__(self, clock: FakeClock) -> None:
        model = nn.Sequential(Layer(clock, 2.0, 8.0), Layer(clock, 1.0, 4.0))
        super().__init__(model, clock, zero_s=0.5, step_s=1.0)
        self.before_step: list[Callable[[], None]] = []
        self.optimizer.register_step_pre_hook(self._before_step)

    def _before_step(self, *_: object) -> None:
        # Once a step: an optimizer's step that calls its parent's runs the hooks twice, if the parent was ever made.
        while self.before_step:
            self.before_step.pop(0)()

    def when_ready(self, layer: int, run: Callable[[], object]) -> None:
        self.model[layer].weight.register_post_accumulate_grad_hook(lambda _: _nothing(run()))


def _nothing(_: object) -> None:
    pass


def recorded(prepare: Callable[[Step, TimelineRecorder, FakeClock], None], **options: bool) -> RecordedStep:
    clock = FakeClock()
    step = Step(clock)
    recorder = TimelineRecorder(step.model, clock, **options)
    with recorder:
        prepare(step, recorder, clock)
        recorder.run_step(step)
    clock.flush()
    (found,) = recorder.recorded()
    return found


def spans(slices: list[Slice]) -> list[tuple[str, float, float]]:
    return [(part.name, part.start_s, part.end_s) for part in slices]


def test_a_step_without_communication_is_full_of_computation() -> None:
    found = recorded(lambda *_: None)
    assert found.step_s == 16.5
    assert spans(found.timeline.compute) == [
        ("forward", 0.0, 3.5), ("backward 1", 3.5, 7.5), ("backward 0", 7.5, 15.5), ("optimizer", 15.5, 16.5),
    ]  # fmt: skip
    assert found.timeline.communication == []


@pytest.mark.parametrize("micro_steps", [1, 2])
def test_a_wait_for_a_batch_is_a_slice_of_its_own(micro_steps: int) -> None:
    def prepare(step: Step, recorder: TimelineRecorder, clock: FakeClock) -> None:
        step.is_fed, step.load_s, step.micro_steps = True, 4.0, micro_steps

    found = recorded(prepare)
    assert spans(found.timeline.compute)[: 3 * micro_steps - 1] == (
        [("forward", 0.0, 0.5), ("input", 0.5, 4.5)]
        if micro_steps == 1
        else [
            ("accumulate", 0.0, 0.5), ("input", 0.5, 4.5), ("accumulate", 4.5, 19.5),
            ("input", 19.5, 23.5), ("forward", 23.5, 26.5),
        ]
    )  # fmt: skip


def test_buckets_travel_from_launch_to_completion_and_the_optimizer_is_not_the_wait_for_them() -> None:
    def prepare(step: Step, recorder: TimelineRecorder, clock: FakeClock) -> None:
        flying: list[tuple[Collective, object]] = []

        def launch(nbytes: int, takes_s: float) -> None:
            clock.advance(0.25)  # the copy
            collective = Collective(clock, takes_s)
            flying.append((collective, recorder.watch(nbytes, lambda: collective)))

        def first_arrives_during_backward() -> None:
            flying[0][0].arrive()
            launch(40, 3.0)

        def wait_for_all() -> None:
            for _, watched in flying:
                assert watched.is_completed() is (watched is flying[0][1])
                watched.wait()
                clock.advance(0.5)  # updates what has arrived

        step.when_ready(1, lambda: launch(100, 6.0))
        step.when_ready(0, first_arrives_during_backward)
        step.before_step.append(wait_for_all)

    found = recorded(prepare)
    assert spans(found.timeline.communication) == [("bucket 1", 7.75, 15.75), ("bucket 2", 16.0, 19.5)]
    assert [part.nbytes for part in found.timeline.communication] == [100, 40]
    assert spans(found.timeline.compute) == [
        ("forward", 0.0, 3.5), ("backward 1", 3.5, 7.5), ("backward 0", 7.5, 16.0),
        ("optimizer", 16.0, 16.5), ("optimizer", 19.5, 21.0),
    ]  # fmt: skip
    assert found.step_s == 21.0


def test_collectives_of_a_copy_of_the_model_have_their_kind_and_backward_no_layers() -> None:
    clock = FakeClock()
    step = Step(clock)
    recorder = TimelineRecorder(nn.Sequential(Layer(clock, 0.0, 0.0)), clock)

    def collective(kind: str, takes_s: float) -> None:
        recorder.watch(64, lambda: Collective(clock, takes_s), kind).wait()

    with recorder:
        step.model[0].register_forward_pre_hook(lambda *_: collective("all-gather", 2.0))
        step.when_ready(1, lambda: collective("reduce-scatter", 3.0))
        recorder.run_step(step)
    clock.flush()
    (found,) = recorder.recorded()
    assert spans(found.timeline.communication) == [("all-gather 1", 0.5, 2.5), ("reduce-scatter 2", 9.5, 12.5)]
    assert spans(found.timeline.compute) == [
        ("forward", 0.0, 0.5), ("forward", 2.5, 5.5), ("backward", 5.5, 9.5), ("backward", 12.5, 20.5),
        ("optimizer", 20.5, 21.5),
    ]  # fmt: skip


def test_a_schedule_that_waits_inside_backward_does_not_compute_while_it_waits() -> None:
    def prepare(step: Step, recorder: TimelineRecorder, clock: FakeClock) -> None:
        def all_at_once() -> None:
            clock.advance(0.25)
            recorder.watch(140, lambda: collective)
            collective.wait()

        def broadcast() -> None:
            recorder.watch(7, lambda: Collective(clock, 2.0), "broadcast").wait()

        recorder.hides_waits = True
        collective = Collective(clock, 6.0)
        step.when_ready(0, all_at_once)
        step.before_step.append(broadcast)

    found = recorded(prepare)
    assert spans(found.timeline.communication) == [("bucket 1", 15.75, 21.75), ("broadcast 2", 21.75, 23.75)]
    assert spans(found.timeline.compute)[-2:] == [("backward 0", 7.5, 15.75), ("optimizer", 23.75, 24.75)]


def test_a_forward_pass_does_not_compute_while_its_layers_wait_and_what_travels_on_is_cut_at_the_step() -> None:
    clock = FakeClock()
    step = Step(clock)
    recorder = TimelineRecorder(step.model, clock)
    sent: list[Collective] = []

    def before_second(*_: object) -> None:
        if not sent:
            return
        with recorder.waiting():
            clock.advance(5.0)
            sent.pop().arrive()

    def launch() -> None:
        sent.append(Collective(clock, 9.0))
        recorder.watch(4096, lambda: sent[-1])

    step.model[1].register_forward_pre_hook(before_second)
    with recorder:
        step.when_ready(0, launch)
        recorder.run_step(step)
        recorder.run_step(step)
        sent.pop().arrive()
    clock.flush()
    first, second = (found.timeline for found in recorder.recorded())
    assert spans(first.compute)[0] == ("forward", 0.0, 3.5)
    assert spans(first.communication) == [("bucket 1", 15.5, 16.5)]
    assert spans(second.compute)[:2] == [("forward", 0.0, 2.5), ("forward", 7.5, 8.5)]
    assert spans(second.communication) == [("bucket 1", 0.0, 7.5), ("bucket 1", 20.5, 21.5)]


def test_waits_too_short_to_tell_apart_do_not_cut_the_optimizer() -> None:
    def prepare(step: Step, recorder: TimelineRecorder, clock: FakeClock) -> None:
        collectives = [Collective(clock, RESOLUTION_S / 4) for _ in range(3)]
        watched: list[object] = []

        def launch() -> None:
            watched.extend(recorder.watch(1, lambda c=c: c) for c in collectives)

        step.when_ready(0, launch)
        step.before_step += [lambda place=place: watched[place].wait() for place in range(3)]

    found = recorded(prepare)
    assert [name for name, *_ in spans(found.timeline.compute)] == ["forward", "backward 1", "backward 0", "optimizer"]


def test_steps_between_recorded_ones_go_by_unrecorded() -> None:
    prepared: list[Step] = []

    def prepare(step: Step, recorder: TimelineRecorder, clock: FakeClock) -> None:
        prepared.append(step)
        collective = Collective(clock, 1.0)
        assert recorder.watch(1, lambda: collective) is collective

    assert recorded(prepare).timeline.communication == []
    assert not any(parameter._post_accumulate_grad_hooks for parameter in prepared[0].model.parameters())


def test_a_completion_that_was_not_seen_is_no_timeline() -> None:
    def prepare(step: Step, recorder: TimelineRecorder, clock: FakeClock) -> None:
        step.when_ready(0, lambda: recorder.watch(1, lambda: Collective(clock, 1.0)))

    with pytest.raises(ValueError, match="the completion of bucket 1 was not seen"):
        recorded(prepare)


def test_a_backend_without_futures_is_waited_for_as_ever_and_gives_no_timeline() -> None:
    class Mute(Collective):
        def get_future(self) -> torch.futures.Future[None]:
            raise RuntimeError("not implemented")

    def prepare(step: Step, recorder: TimelineRecorder, clock: FakeClock) -> None:
        collective = Mute(clock, 1.0)

        def launch() -> None:
            assert recorder.watch(1, lambda: collective) is collective

        step.when_ready(0, launch)

    with pytest.raises(ValueError, match="does not say when a collective is complete: not implemented"):
        recorded(prepare)


@pytest.mark.parametrize(("in_order", "begins_s"), [(False, 0.0), (True, 8.0)])
def test_where_the_backend_sends_in_order_a_slice_begins_when_the_one_before_has_ended(
    in_order: bool, begins_s: float
) -> None:
    def prepare(step: Step, recorder: TimelineRecorder, clock: FakeClock) -> None:
        first, second = Collective(clock, 0.0), Collective(clock, 0.0)
        recorder.watch(4, lambda: first)  # between recorded steps: goes by
        step.when_ready(1, lambda: (recorder.watch(4, lambda: first), recorder.watch(4, lambda: second)))
        step.when_ready(0, first.arrive)
        step.before_step.append(lambda: (clock.advance(2.0), second.arrive()))

    found = recorded(prepare, in_order=in_order)
    since = found.timeline.communication[0].start_s
    assert [round(part.start_s - since, 7) for part in found.timeline.communication] == [0.0, begins_s]
    assert [round(part.end_s - since, 7) for part in found.timeline.communication] == [8.0, 10.0]
