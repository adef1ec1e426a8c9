"""Steps of several micro-batches, and collectives that carry no gradients."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from kineto import LAYERS, READY, STEP, event, gpu_events, header, queued, without

from xbench.traces.events import collect
from xbench.traces.profile import traced_profile
from xbench.traces.steps import TracedStep, ranks_of, steps_of

US = 1e-6
Events = list[dict[str, Any]]


def steps(events: Events) -> list[TracedStep]:
    return steps_of(collect(events, header()))


def batch_of(one: dict[str, Any]) -> int:
    return int((one["ts"] - 5e9) // STEP)


def micro_batches(count: int, *, ends: Callable[[int], bool], sends_all: bool = False, first: int = 0) -> Events:
    """Events of micro-batches, each with a mark of its own. The optimizer steps after those that `ends` names.

    Only these send, unless `sends_all`. Micro-batches before `first` are not in the trace.
    """
    left_out = ("Optimizer", "sgd") if sends_all else ("Optimizer", "sgd", "nccl")
    return without(
        gpu_events(steps=count),
        lambda one: batch_of(one) < first or (not ends(batch_of(one)) and one["name"].startswith(left_out)),
    )


def every(number: int) -> Callable[[int], bool]:
    return lambda batch: batch % number == number - 1


@pytest.mark.parametrize("sends_all", [False, True])
@pytest.mark.parametrize("number", [2, 3])
def test_marks_of_micro_batches_are_joined_to_the_step_that_they_end_in(number: int, sends_all: bool) -> None:
    found = steps(micro_batches(3 * number, ends=every(number), sends_all=sends_all))
    assert [step.period_s for step in found] == pytest.approx([number * STEP * US] * 3)
    assert [step.number for step in found] == [3 + number * (index + 1) for index in range(3)]
    assert [len(step.gradients) for step in found] == [LAYERS] * 3
    assert [step.passes for step in found] == [number if sends_all else 1] * 3
    for step in found:
        assert step.ready_s == pytest.approx([ready * US for ready in READY])


def test_without_an_optimizers_mark_the_micro_batch_that_sends_ends_the_step() -> None:
    events = micro_batches(6, ends=every(2))
    found = steps([one for one in events if not one["name"].startswith("Optimizer")])
    assert [step.period_s for step in found] == pytest.approx([2 * STEP * US] * 3)


def test_a_step_whose_first_micro_batches_are_not_in_the_trace_is_left_out() -> None:
    found = steps(micro_batches(9, ends=every(3), first=1))
    assert [step.period_s for step in found] == pytest.approx([3 * STEP * US] * 2)
    cut = micro_batches(8, ends=lambda batch: batch == 4, first=3)  # two of four, then three of four
    assert steps(cut) == []


def test_one_step_of_another_number_of_micro_batches_is_left_out() -> None:
    found = steps(micro_batches(7, ends=lambda batch: batch in (1, 3, 4, 6)))
    assert [step.period_s for step in found] == pytest.approx([2 * STEP * US] * 3)


@pytest.mark.parametrize("marked", [True, False])
def test_waits_of_earlier_passes_that_sent_are_waits(marked: bool) -> None:
    """The first pass sends at 343-373 beside 15 us of kernels, and at 383-413 beside none."""

    def accumulated(*, sends_all: bool) -> Events:
        events = micro_batches(4, ends=every(2), sends_all=sends_all)
        return [one for one in events if marked or not one["name"].startswith("ProfilerStep")]

    quiet, loud = steps(accumulated(sends_all=False))[0], steps(accumulated(sends_all=True))[0]
    assert (quiet.passes, loud.passes) == (1, 2)
    assert loud.period_s == quiet.period_s == pytest.approx(2 * STEP * US)
    assert loud.waited_s - quiet.waited_s == pytest.approx((30 + 15) * US)
    assert loud.exposed_s - quiet.exposed_s == pytest.approx((30 + 15) * US)
    assert quiet.forward_s - loud.forward_s == pytest.approx((30 + 15) * US)
    assert loud.backward_s == quiet.backward_s == pytest.approx(READY[-1] * US)


def test_the_record_says_that_each_pass_sent() -> None:
    def cautions(*, sends_all: bool) -> list[str]:
        trace = collect(micro_batches(4, ends=every(2), sends_all=sends_all), header())
        return traced_profile(ranks_of([("t.json", trace)])).cautions

    told = "The run sent gradients in each of 2 backward passes of a step."
    assert any(caution.startswith(told) for caution in cautions(sends_all=True))
    assert not any(caution.startswith(told) for caution in cautions(sends_all=False))


def test_passes_of_two_optimizers_do_not_accumulate() -> None:
    """Both passes of each mark send, and an optimizer steps after each, as a GAN's two do."""
    events = gpu_events(steps=4, marked=False)
    marks = [event("user_annotation", f"ProfilerStep#{n}", 2 * n * STEP, 2 * STEP) for n in range(2)]
    assert [step.passes for step in steps([*marks, *events])] == [1, 1]


def all_reduced(at: float, start: float, group: int = 2) -> Events:
    """One small all-reduce for each of three steps, launched `at` and running from `start` for 40 us."""
    found = []
    for step in range(3):
        number = 9000 + 10 * step + group
        found.append(event("cuda_runtime", "cudaLaunchKernel", step * STEP + at, 0.5, correlation=number))
        found.append(
            event("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", step * STEP + start, 40, 7, correlation=number,
                  **{"In msg nelems": 1, "dtype": "Float", "Group size": group})
        )  # fmt: skip
    return found


def test_an_all_reduce_after_the_optimizer_carries_no_gradients() -> None:
    plain = steps(gpu_events())
    logged = steps([*gpu_events(), *all_reduced(620, 700)])
    assert [step.sent for step in logged] == [step.sent for step in plain]
    assert [step.waited_s for step in logged] == [step.waited_s for step in plain]
    assert [len(step.others) for step in logged] == [1] * 3


def test_one_before_the_optimizer_may_carry_them() -> None:
    by_hand = steps([*gpu_events(), *all_reduced(500, 510)])
    assert [len(step.sent) for step in by_hand] == [3] * 3


def test_a_launch_that_is_not_in_the_trace_is_no_launch_after_the_optimizer() -> None:
    late = [one for one in gpu_events(late_us=0) if one["cat"] != "cuda_runtime"]
    for one in late:
        if one["name"].startswith("nccl"):
            one["ts"] += 250
    assert [len(step.sent) for step in steps(queued(late))] == [2] * 3


def test_an_all_reduce_of_some_ranks_carries_no_gradients_of_all() -> None:
    plain = gpu_events(group=4)
    alone = steps_of(collect(plain, header(world_size=4)))
    mixed = steps_of(collect([*plain, *all_reduced(330, 420)], header(world_size=4)))
    assert [step.sent for step in mixed] == [step.sent for step in alone]
    assert [step.waited_s for step in mixed] == [step.waited_s for step in alone]


def test_the_statistics_of_sync_batch_norm_are_no_gradients() -> None:
    """Its backward node all-reduces them, under no_sync() too."""

    def with_statistics(events: Events) -> Events:
        for one in events:
            if one["name"].endswith("ConvolutionBackward0") and (one["ts"] - 5e9) % STEP == 320:
                one["name"] = one["name"].replace("ConvolutionBackward0", "SyncBatchNormBackward")
        return events

    plain = steps(gpu_events())
    found = steps(with_statistics([*gpu_events(), *all_reduced(322, 430)]))
    assert [step.sent for step in found] == [step.sent for step in plain]
    quiet = [one for one in micro_batches(6, ends=every(3)) if not one["name"].startswith("Optimizer")]
    found = steps(with_statistics([*quiet, *all_reduced(322, 430)]))
    assert [step.period_s for step in found] == pytest.approx([3 * STEP * US] * 2)


@pytest.mark.parametrize("marked", [True, False])
def test_a_step_that_a_scaler_skipped_is_a_step(marked: bool) -> None:
    """It has no optimizer's mark, and the update of the scaler ends it."""
    events = without(
        gpu_events(steps=5, marked=marked),
        lambda one: batch_of(one) in (1, 3) and one["name"].startswith(("Optimizer", "sgd")),
    )
    events += [event("cpu_op", "aten::_amp_update_scale_", STEP * batch + 630, 3) for batch in range(5)]
    found = steps(events)
    assert [step.period_s for step in found] == pytest.approx([STEP * US] * (5 if marked else 4))
    assert [step.passes for step in found] == [1] * len(found)


def test_gradients_that_the_optimizer_averages_in_its_own_step_are_gradients() -> None:
    """Next to nothing was sent before it: a number for the log."""
    events = gpu_events(elements=100_000)
    for launch, one in pairwise(events):
        if one["name"].startswith("nccl"):
            launch["ts"], one["ts"] = launch["ts"] + 100, one["ts"] + 100
        elif one["name"].startswith("Optimizer"):
            one["ts"], one["dur"] = one["ts"] - 200, 220
    found = steps(queued(events))
    assert [len(step.sent) for step in found] == [2] * 3
    logged = steps([*events, *all_reduced(390, 395)])
    assert [step.sent for step in logged] == [step.sent for step in found]
    assert [len(step.others) for step in logged] == [1] * 3
