"""Steps of traced runs whose times are known exactly: parts, waiting, micro-batches, and the same steps of ranks."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from kineto import LAYERS, READY, STEP, event, gpu_events, header, queued, without

from xbench.errors import UsageError
from xbench.traces.events import RankTrace, collect
from xbench.traces.json_stream import TraceFile
from xbench.traces.profile import traced_profile
from xbench.traces.steps import TracedStep, ranks_of, steps_of

US = 1e-6
DATA = Path(__file__).parents[2] / "data"


def steps(events: list[dict[str, object]]) -> list[TracedStep]:
    return steps_of(collect(events, header()))


def test_a_gpu_step_is_split_at_the_devices_times() -> None:
    found = steps(gpu_events(collective_us=30))
    assert len(found) == 3
    for step in found:
        assert step.period_s == pytest.approx(STEP * US)
        assert step.forward_s == pytest.approx((310 - 20) * US)
        assert step.ready_s == pytest.approx([ready * US for ready in READY])
        assert step.backward_s == pytest.approx(READY[-1] * US)
        # The last bucket is launched with the last gradient, 1 us later on the device, and takes 30.
        assert step.waited_s == pytest.approx(31 * US)
        assert [(sent.gradients, sent.collective.nbytes) for sent in step.sent] == [(2, 8000), (4, 8000)]
        assert [(layer.kind, layer.gradients) for layer in step.layers] == [("Convolution", 1)] * LAYERS
        assert [layer.forward_s for layer in step.layers] == pytest.approx([8 * US] * LAYERS)


def test_exposed_time_is_that_in_which_nothing_computes() -> None:
    step = steps(gpu_events(collective_us=30))[0]
    # Bucket 1 runs at 343-373 beside kernels at 350-360 and 360-362 and 370-373; bucket 2 at 383-413 beside none.
    assert step.exposed_s == pytest.approx((30 - 10 - 2 - 3 + 30) * US)


@pytest.mark.parametrize("marked", [True, False])
def test_steps_are_found_without_the_profilers_marks(marked: bool) -> None:
    found = steps(gpu_events(steps=5, marked=marked))
    assert len(found) == (5 if marked else 4)
    assert [step.ready_s for step in found] == [pytest.approx([ready * US for ready in READY])] * len(found)
    assert [step.period_s for step in found] == pytest.approx([STEP * US] * len(found))


def test_steps_are_found_from_backward_alone() -> None:
    events = [one for one in gpu_events(steps=4, marked=False) if not one["name"].startswith("Optimizer")]
    found = steps(events)
    assert len(found) == 3
    assert [step.period_s for step in found] == pytest.approx([STEP * US] * 3)


def test_the_order_of_events_in_the_file_does_not_matter() -> None:
    events = gpu_events()
    shuffled = [events[0], *random.Random(0).sample(events[1:], len(events) - 1)]
    assert steps(shuffled) == steps(events)


def test_a_step_that_was_cut_off_is_left_out() -> None:
    events = gpu_events(steps=4)
    last = 5e9 + 3 * STEP + 335
    assert len(steps([one for one in events if one["ts"] < last])) == 3


def test_a_micro_batch_that_sends_nothing_belongs_to_the_step_that_sends() -> None:
    """Two backward passes a step, of which only the second sends: gradient accumulation under `no_sync`."""
    quiet = [one for one in gpu_events(steps=6, marked=False) if "Optimizer" not in one["name"]]
    events = without(quiet, lambda one: int((one["ts"] - 5e9) // STEP) % 2 == 0 and one["name"].startswith("nccl"))
    marks = [event("user_annotation", f"ProfilerStep#{n}", 2 * n * STEP, 2 * STEP) for n in range(3)]
    found = steps([*marks, *events])
    assert len(found) == 3
    assert [len(step.gradients) for step in found] == [LAYERS] * 3
    assert found[0].forward_s == pytest.approx((STEP + 310 - 20) * US)
    assert found[0].period_s == pytest.approx(2 * STEP * US)


def test_a_trace_of_a100s_closes_its_buckets_at_the_same_gradients_in_every_step() -> None:
    """A trace of facebookresearch/HolisticTraceAnalysis (tests/data/nccl_parser_config), cut to the events of steps."""
    file = TraceFile(DATA / "resnet50-ddp-2gpu-a100.json.gz")
    found = steps_of(collect(file, file.header))
    assert [len(step.ready_s) for step in found] == [161] * 3
    assert [[sent.gradients for sent in step.sent] for step in found] == [[2, 17, 29, 80, 161]] * 3
    assert [step.period_s for step in found] == pytest.approx([0.2221, 0.2197, 0.2249], abs=1e-4)
    assert all(0.0015 < step.waited_s < 0.0021 for step in found)


def gloo_events(*collectives: tuple[float, float]) -> list[dict[str, object]]:
    """Host events of a rank whose two buckets, launched at 329 and 369, run over these spans in two threads."""
    events = [one for one in gpu_events(shapes=True) if one["cat"] in ("cpu_op", "user_annotation")]
    for step in range(3):
        for place, (start, end) in zip((1, 3), collectives, strict=True):
            events.append(event("cpu_op", "c10d::allreduce_", step * STEP + 308.5 + 20 * place, 0.5, 2))
            events.append(event("user_annotation", "gloo:all_reduce", step * STEP + start, end - start, 9 + place))
    return events


def test_collectives_that_overlap_share_the_time_that_the_link_was_busy() -> None:
    apart = steps(gloo_events((330, 370), (370, 400)))[0]
    together = steps(gloo_events((330, 390), (369.5, 400)))[0]
    assert [sent.duration_s for sent in apart.sent] == pytest.approx([40 * US, 30 * US])
    assert [sent.duration_s for sent in together.sent] == pytest.approx([60 * US, 10 * US])


def test_copies_of_averaged_gradients_are_part_of_the_wait() -> None:
    events = gloo_events((330, 370), (370, 400))
    bare = steps(events)[0]
    for step in range(3):
        copy = "torch.distributed.ddp.reducer::copy_bucket_to_grad"
        events.append(event("cpu_op", copy, step * STEP + 375, 20, 2))
        events.append(event("cpu_op", "aten::copy_", step * STEP + 376, 18, 2))
    copied = steps(events)[0]
    assert copied.waited_s == bare.waited_s == pytest.approx((400 - 369.5) * US, abs=2 * US)
    assert copied.exposed_s == bare.exposed_s


def with_copies(stream: int, launched: float = 315, start: float = 340, length: float = 200) -> list[dict[str, object]]:
    """Each step with a copy for the next batch."""
    events = gpu_events(collective_us=30)
    for step in range(3):
        told = {"correlation": 9000 + step}
        events.append(event("cuda_runtime", "cudaMemcpyAsync", step * STEP + launched, 0.5, 3, **told))
        copy = event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", step * STEP + start, length, stream, **told)
        copy["args"]["stream"] = stream
        events.append(copy)
    return events


def test_copies_of_a_prefetcher_delay_no_gradient() -> None:
    plain = steps(gpu_events(collective_us=30))
    for one, other in zip(steps(with_copies(stream=21)), plain, strict=True):
        assert one.ready_s == other.ready_s
        assert (one.backward_s, one.waited_s, one.exposed_s) == (other.backward_s, other.waited_s, other.exposed_s)


def test_copies_among_kernels_are_work() -> None:
    """It is launched before the first gradient is handed over, and ends at 329."""
    found = steps(with_copies(stream=7, launched=307, start=323, length=6))[0]
    assert found.ready_s == pytest.approx([19 * US, *(ready * US for ready in READY[1:])])


Events = list[dict[str, Any]]


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


def trace(rank: int, *, until: int = 5, since: int = 0, marked: bool = True) -> RankTrace:
    """Steps `since` to `until` of a run whose step n takes n extra us for its last bucket."""
    events: list[dict[str, Any]] = gpu_events(steps=until, marked=marked)
    kept = []
    for one in events:
        step = int((one["ts"] - 5e9) // STEP)
        if one["name"].startswith("nccl"):
            one["dur"] += step
        if step >= since:
            kept.append(one)
    return collect(kept, header(rank=rank))


def waits(*traces: RankTrace) -> list[list[float]]:
    """Wait of each step of each rank beyond 31 us [us]."""
    ranks = ranks_of([(f"{index}.json", one) for index, one in enumerate(traces)])
    return [[round(step.waited_s / US - 31, 3) for step in rank.steps] for rank in ranks]


def test_marks_or_the_end_tell_which_steps_are_the_same() -> None:
    assert waits(trace(0, until=4)) == [[0, 1, 2, 3]]
    assert waits(trace(0, until=4), trace(1, since=1)) == [[1, 2, 3]] * 2
    assert waits(trace(0, until=3), trace(1, until=5)) == [[0, 1, 2]] * 2
    assert waits(trace(0, until=5, since=2), trace(1, until=4), trace(2)) == [[2, 3]] * 3
    # Without marks the first step of a trace is cut off, so step 0 is none, and the last steps are the same.
    assert waits(trace(0, since=1, marked=False), trace(1, marked=False)) == [[2, 3, 4]] * 2


def test_without_a_step_in_common_there_is_no_profile() -> None:
    with pytest.raises(UsageError) as caught:
        waits(trace(0, until=1), trace(1, since=2))
    assert str(caught.value) == "no step is in all traces: 0.json has step 4 and 1.json has steps 6 to 8"


@pytest.mark.parametrize(("marked", "count", "is_told"), [(False, 2, True), (False, 1, False), (True, 2, False)])
def test_the_record_says_that_only_order_tells(marked: bool, count: int, is_told: bool) -> None:
    ranks = ranks_of([(f"{rank}.json", trace(rank, marked=marked)) for rank in range(count)])
    told = traced_profile(ranks).cautions
    assert any(caution.startswith("The profiler marked no steps") for caution in told) == is_told
