"""Steps, ready times, buckets and waiting of a traced run whose times are known exactly."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from kineto import LAYERS, READY, STEP, event, gpu_events, header, without

from xbench.traces.events import collect
from xbench.traces.steps import TracedStep, steps_of

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
        assert step.optimizer_s == pytest.approx((STEP - 290 - READY[-1] - 31) * US)
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
    """From facebookresearch/HolisticTraceAnalysis, tests/data/nccl_parser_config, without events that steps ignore."""
    from xbench.traces.json_stream import TraceFile

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
