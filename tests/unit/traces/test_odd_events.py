"""Events that other events contradict: left out, cut, named or refused, and never believed."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from kineto import STEP, event, gpu_events, header, write

from xbench.errors import UsageError
from xbench.traces.events import RankTrace, collect
from xbench.traces.profile import traced_profile
from xbench.traces.record import read_traces
from xbench.traces.steps import TracedStep, ranks_of, steps_of

Events = list[dict[str, Any]]
HOUR = 3600e6


def traced(events: Events) -> RankTrace:
    return collect(events, header())


def parts(events: Events) -> list[tuple[float, ...]]:
    """Times of each step to 1 ns, and what it sent."""
    return [
        tuple(
            round(time_s, 9) for time_s in (step.period_s, step.forward_s, step.waited_s, step.exposed_s, *step.ready_s)
        )
        + tuple(sent.gradients for sent in step.sent)
        for step in steps_of(traced(events))
    ]


def of(events: Events, category: str, name: str = "", number: int = 0) -> dict[str, Any]:
    """One event of that category whose name begins so."""
    return [one for one in events if one["cat"] == category and one["name"].startswith(name)][number]


@pytest.mark.parametrize("at", [0, 5e9 - 2 * HOUR, 5e9 + 2 * HOUR, -HOUR, 1.7e15])
@pytest.mark.parametrize("is_first", [True, False])
def test_an_event_far_from_all_others_is_left_out(at: float, is_first: bool) -> None:
    events = gpu_events()
    for odd in (
        event("cpu_op", "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 0, 3, 2),
        event("user_annotation", "ProfilerStep#99", 0, STEP),
        event("kernel", "conv", 0, 8, 7),
        event("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 0, 8, 7),
    ):
        odd["ts"] = at
        both = [odd, *events] if is_first else [*events, odd]
        assert parts(both) == parts(events)
        assert traced(both).remarks == ["left out 1 event far from all others"]
    assert traced(events).remarks == []


def test_far_events_of_a_file_are_left_out_as_it_is_read_again(tmp_path: Path) -> None:
    events = gpu_events()
    plain = read_traces([write(tmp_path / "rank0.json", events)], "xbench profile")
    file = write(tmp_path / "odd.json", [event("kernel", "conv", -5e9, 0, 7), *events])
    record = read_traces([file], "xbench profile")
    assert (record.layers, record.step, record.traced and record.traced.exposed_s) == (
        plain.layers, plain.step, plain.traced and plain.traced.exposed_s,
    )  # fmt: skip
    assert record.warnings[0] == "odd.json: left out 1 event far from all others."


def test_a_trace_in_two_large_parts_keeps_both() -> None:
    events = gpu_events(steps=6)
    for one in events:
        if one["ts"] >= 5e9 + 3 * STEP:
            one["ts"] += HOUR
    assert len(steps_of(traced(events))) == 6


@pytest.mark.parametrize("length", [60, 50e3, 1e9, 1e13])
def test_a_kernel_ends_where_the_next_of_its_stream_begins(length: float) -> None:
    events = gpu_events()
    plain = parts(events)
    for number in range(3):
        one = of(events, "kernel", "conv_backward", 4 * number)
        one["dur"] = length  # the next kernel of the stream begins 10 us later
    assert parts(events) == plain
    assert traced(events).remarks == ["cut 3 events that outlasted the next one of its stream, its step or all others"]


@pytest.mark.parametrize("length", [STEP + 50, 2 * STEP, 1e6, 1e13])
@pytest.mark.parametrize("name", ["ProfilerStep#4", "autograd::engine::evaluate_function: torch", "aten::conv2d"])
@pytest.mark.parametrize("is_gpu", [True, False])
def test_an_event_of_the_host_ends_with_its_step(is_gpu: bool, name: str, length: float) -> None:
    events = [one for one in gpu_events(shapes=True) if is_gpu or one["cat"] in ("cpu_op", "user_annotation")]
    for step in range(3 if not is_gpu else 0):
        events.append(event("cpu_op", "c10d::allreduce_", step * STEP + 368.5, 1, 2))
        events.append(event("user_annotation", "gloo:all_reduce", step * STEP + 370, 100, 9))
    plain = parts(events)
    [first, *_] = [one for one in events if one["name"].startswith(name)]
    first["dur"] = length
    found = parts(events)
    assert found[1:] == plain[1:]
    assert found[0][0] == plain[0][0]
    assert is_gpu is False or found == plain
    assert [remark[:11] for remark in traced(events).remarks] == ["cut 1 event"]


def test_an_operator_of_a_loaders_thread_may_outlast_a_step() -> None:
    assert traced([*gpu_events(), event("cpu_op", "aten::stack", 500, 2 * STEP, 77)]).remarks == []


def test_a_collective_ends_where_the_next_of_its_stream_begins() -> None:
    events = gpu_events()
    of(events, "kernel", "nccl")["dur"] = 1e6  # 343 to 383 in place of 373: nothing computes from 382 on
    found, plain = steps_of(traced(events)), steps_of(traced(gpu_events()))
    assert found[0].sent[0].duration_s == pytest.approx(40e-6)
    assert found[0].exposed_s - plain[0].exposed_s == pytest.approx(1e-6)
    assert [step.period_s for step in found] == pytest.approx([step.period_s for step in plain])


def test_kernels_of_one_launch_may_run_side_by_side() -> None:
    """The branches of a CUDA graph, of which one outlasts the other."""
    events = gpu_events()
    long, short = of(events, "kernel", "sgd"), copy.deepcopy(of(events, "kernel", "sgd"))
    long["dur"], short["ts"] = 5e3, short["ts"] + 1
    found = traced([*[one for one in events if one["ts"] < 5e9 + STEP], short])
    assert found.work_end_s.max() - found.work_start_s.min() == pytest.approx(5e-3, rel=0.2)
    assert found.remarks == []


def test_times_may_be_text() -> None:
    events = gpu_events()
    for one in events:
        one["ts"], one["dur"] = str(one["ts"]), f" {one['dur']}"
    assert parts(events) == parts(gpu_events())


@pytest.mark.parametrize(("key", "value"), [("dur", -5), ("dur", None), ("ts", "soon"), ("ts", float("nan"))])
def test_an_event_without_a_time_is_counted(key: str, value: object) -> None:
    events = gpu_events()
    odd = event("kernel", "conv", 400, 8, 7)
    odd[key] = value
    assert parts([*events, odd]) == parts(events)
    assert traced([*events, odd]).remarks == ["left out 1 event without a time, or with a negative one"]


def called(events: Events, name: str, **told: Any) -> Events:
    """The events with RCCL's generic kernels: the host's calls of this name launched them."""
    found = copy.deepcopy(events)
    launches = {one["args"]["correlation"]: one for one in found if one["cat"] == "cuda_runtime"}
    for one in list(found):
        if one["name"].startswith("nccl"):
            correlation = one["args"]["correlation"]
            one["name"], one["args"] = "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", {
                "correlation": correlation}  # fmt: skip
            at = launches[correlation]["ts"] - 5e9
            category = "user_annotation" if ":" in name and "c10d" not in name else "cpu_op"
            found.append(event(category, name, at - 0.2, 0.6, 2, **told))
            found.append(event(category, "nccl:broadcast", at - 0.2, 0.6, 3))  # of another thread
    return found


@pytest.mark.parametrize("name", ["nccl:all_reduce", "nccl:_all_reduce", "c10d::allreduce_"])
def test_a_kernel_without_a_name_is_what_the_host_called(name: str) -> None:
    events = gpu_events(shapes=True)
    generic = called(events, name)
    assert parts(generic) == parts(events)
    assert {one.kind for one in traced(generic).collectives} == {"all_reduce"}


def test_the_hosts_parameters_tell_bytes_and_ranks() -> None:
    told = {"Collective name": "allreduce", "In msg nelems": 2000, "Out msg nelems": 2000, "dtype": "BFloat16",
            "Group size": 2}  # fmt: skip
    [one, *_] = traced(called(gpu_events(), "record_param_comms", **told)).collectives
    assert (one.kind, one.nbytes, one.dtype, one.group_size) == ("all_reduce", 4000, "bfloat16", 2)


def test_kernels_that_nothing_names_are_no_computation() -> None:
    events = called(gpu_events(), "something else")
    found = traced(events)
    assert {one.kind for one in found.collectives} == {"unknown"}
    assert len(found.work_start_s) == len(traced(gpu_events()).work_start_s)
    with pytest.raises(UsageError, match="neither the kernels of its collectives nor the host's calls") as caught:
        ranks_of([("t.json", found)])
    assert "CPU" in str(caught.value.hint)
    both = traced([*called(gpu_events(), "something else"), *gpu_events()])
    assert "6 kernels of collectives that nothing names" in both.remarks


def merged(shift: float, pid: object) -> Events:
    other = [{**one, "ts": one["ts"] + shift, "pid": one["pid"] if pid is None else pid} for one in gpu_events()]
    return [*gpu_events(), *other]


@pytest.mark.parametrize("shift", [0, 13, 5 * STEP])
@pytest.mark.parametrize("pid", [77, "rank 1"])
def test_two_ranks_in_one_file_are_refused_by_their_processes(shift: float, pid: object) -> None:
    with pytest.raises(UsageError, match=f"t.json holds backward passes of processes 1 and {pid}"):
        ranks_of([("t.json", traced(merged(shift, pid)))])


@pytest.mark.parametrize("mark", ["ProfilerStep", "Optimizer"])
def test_two_ranks_of_one_process_number_are_refused_by_their_steps(mark: str) -> None:
    """In containers, processes of several hosts have the same number."""
    events = [one for one in merged(13, None) if one["cat"] != "user_annotation" or one["name"].startswith(mark)]
    with pytest.raises(UsageError, match="holds steps that overlap") as caught:
        ranks_of([("t.json", traced(events))])
    assert "rank0.json rank1.json" in str(caught.value.hint)


def lost(events: Events, number: int, name: str) -> Events:
    """The events without the kernels of that name in a step. Their launches stay."""
    return [
        one
        for one in events
        if one["cat"] != "kernel" or not one["name"].startswith(name) or (one["ts"] - 5e9) // STEP != number
    ]


@pytest.mark.parametrize("name", ["conv", "nccl"])
def test_a_step_without_its_kernels_is_left_out(name: str) -> None:
    def numbers(events: Events) -> list[int | None]:
        return [step.number for step in steps_of(traced(events))]

    events = gpu_events()
    assert numbers(lost(events, 2, name)) == [4, 5]
    assert traced(lost(events, 2, "nccl")).remarks == ["2 kernels missing that the host launched"]
    for step in range(3):
        events = lost(events, step, "conv")
    with pytest.raises(UsageError, match="its steps lack kernels that the host launched"):
        ranks_of([("t.json", traced(events))])


def test_a_kernel_of_many_may_be_missing() -> None:
    many = [
        one
        for step in range(3)
        for place in range(400)
        for one in (
            event("cuda_runtime", "cudaLaunchKernel", step * STEP + 700, 0.1, correlation=5000 + 400 * step + place),
            event("kernel", "tiny", step * STEP + 700 + place / 2, 0.2, 7, correlation=5000 + 400 * step + place),
        )
    ]
    events = [*gpu_events(), *many]
    assert len(steps_of(traced([one for one in events if one is not many[201]]))) == 3


def test_launches_that_nothing_links_to_kernels_tell_nothing() -> None:
    events = gpu_events()
    for one in events:
        if one["cat"] == "cuda_runtime":
            one["args"]["correlation"] += 10**6
    assert len(steps_of(traced(events))) == 3


def test_collectives_without_gradients_are_exposed_communication_too() -> None:
    """An all-to-all of 100 us at the start of each step, while nothing computes."""
    events = gpu_events()
    swaps = [
        event("kernel", "ncclDevKernel_SendRecv", step * STEP + 100, 100, 9, **{"Collective name": "all_to_allv"})
        for step in range(3)
    ]
    plain, found = steps_of(traced(events)), steps_of(traced([*events, *swaps]))

    def exposed(steps: list[TracedStep]) -> list[float]:
        return [step.exposed_s for step in steps]

    assert exposed(found) == pytest.approx([exposed_s + 100e-6 for exposed_s in exposed(plain)])
    assert [step.waited_s for step in found] == [step.waited_s for step in plain]
    told = traced_profile(ranks_of([("t.json", traced([*events, *swaps]))])).cautions
    assert any("carry no gradients (all_to_all)" in caution for caution in told)
    assert not any("carry no" in one for one in traced_profile(ranks_of([("t.json", traced(events))])).cautions)


def test_a_node_that_was_given_no_gradient_is_none() -> None:
    """Weights with an update of their own get an undefined gradient, whose shape and dtype are empty."""
    events = gpu_events(shapes=True)
    for step in range(3):
        at = step * STEP + 290
        name = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
        empty = {"Input Dims": [[]], "Input type": [""]}
        events += [event("cpu_op", name, at, 3, 2), event("cpu_op", name[37:], at + 0.5, 1, 2, **empty)]
    assert [len(step.gradients) for step in steps_of(traced(events))] == [4] * 3
    found = traced_profile(ranks_of([("t.json", traced(events))]))
    assert {tensor.dtype for layer in found.layers for tensor in layer.tensors} == {"float32"}


def test_a_record_names_no_empty_dtype(tmp_path: Path) -> None:
    events = gpu_events(shapes=True)
    for one in events:
        if one["args"].get("Input type") and (one["ts"] - 5e9) % STEP < 320:
            one["args"]["Input type"] = [""]
    record = read_traces([write(tmp_path / "t.json", events)], "xbench profile")
    assert record.workload.parameter_dtypes is None


def test_complex_gradients_have_their_size() -> None:
    events = gpu_events(shapes=True)
    for one in events:
        if one["args"].get("Input type"):
            one["args"]["Input type"] = ["c10::complex<float>"]
    found = traced_profile(ranks_of([("t.json", traced(events))]))
    assert {(one.dtype, one.bytes) for layer in found.layers for one in layer.tensors} == {("complex64", 8000)}


def test_what_a_file_holds_twice_counts_once() -> None:
    events = gpu_events()
    for odd in (events, [one for one in events if one["cat"] == "kernel"], [of(events, "cpu_op", "autograd")]):
        twice = [*events, *copy.deepcopy(odd)]
        assert parts(twice) == parts(events)
        assert traced(twice).remarks[0].endswith("that the file holds twice")


@pytest.mark.parametrize("change", [{"ts": 1}, {"tid": 9}, {"pid": 2}])
def test_a_launch_runs_one_collective(change: dict[str, float]) -> None:
    events = gpu_events()
    again = copy.deepcopy([one for one in events if "nccl" in one["name"]])
    for one in again:
        one.update({key: value + one["ts"] * (key == "ts") for key, value in change.items()})
    assert parts([*events, *again]) == parts(events)
    assert traced([*events, *again]).remarks == ["left out 6 events that the file holds twice"]
    for one in events:
        if one["name"] == "cudaLaunchKernel":
            one["name"] = "cudaGraphLaunch"
    assert traced([*events, *again]).remarks == []


def test_collectives_of_another_rank_are_told() -> None:
    events = gpu_events()
    others = copy.deepcopy([one for one in events if "nccl" in one["name"]])
    for one in others:
        one["pid"], one["args"]["correlation"] = 2, one["args"]["correlation"] + 1000
    assert traced([*events, *others]).remarks == [
        "6 kernels of collectives launched before the trace or by another rank"
    ]


def test_a_collective_of_no_length_is_missing() -> None:
    events = gpu_events(steps=6)
    of(events, "kernel", "nccl")["dur"] = 0
    found = traced(events)
    assert [remark[:10] for remark in found.remarks] == ["left out 1", "1 kernel m"]
    assert len(steps_of(found)) == 5


@pytest.mark.parametrize("shift", [-5e3, 5e3])
def test_a_kernel_out_of_the_order_of_launches_is_told(shift: float) -> None:
    events = gpu_events(steps=20)
    of(events, "kernel", "conv", 40)["ts"] += shift
    assert traced(events).remarks[0] == "1 kernel out of the order of launches: times are wrong"


@pytest.mark.parametrize("shift", [-5e6, -5e3, 5e3, 5e6])
def test_a_device_may_have_a_clock_of_its_own(shift: float) -> None:
    events = gpu_events(steps=20)
    for one in events:
        one["ts"] += shift * (one["cat"] == "kernel")
    assert traced(events).remarks == []
    assert parts(events)[1:] == parts(gpu_events(steps=20))[1:]


def test_a_step_marked_again_later_is_told() -> None:
    events = gpu_events()
    later = copy.deepcopy(events)
    for one in later:
        one["ts"] += 10 * STEP
        if "correlation" in one["args"]:
            one["args"]["correlation"] += 1000
    assert traced([*events, *later]).remarks == ["3 steps marked again later, as in a file of several runs"]


def test_a_step_with_another_number_of_collectives_is_left_out() -> None:
    events = gpu_events()
    lacking = of(events, "kernel", "nccl", 5)["args"]["correlation"]
    events = [one for one in events if one["args"].get("correlation") != lacking]
    assert parts(events) == parts(gpu_events())[:2]


@pytest.mark.parametrize("scale", [1e-6, 1e-4])
def test_times_in_another_unit_are_refused(scale: float) -> None:
    events = gpu_events(elements=2**20)
    for one in events:
        one["ts"], one["dur"] = one["ts"] * scale, one["dur"] * scale
    with pytest.raises(UsageError, match="no device is so fast"):
        traced_profile(ranks_of([("rank0.json", traced(events))]))


def test_steps_without_forward_are_told() -> None:
    events = [one for one in gpu_events() if one["ts"] % STEP >= 300 or one["cat"] == "user_annotation"]
    found = traced_profile(ranks_of([("rank0.json", traced(events))]))
    assert any("before backward" in caution for caution in found.cautions)
