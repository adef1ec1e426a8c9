"""Profiles from traces: sizes, dtypes, T(M), several ranks, plans, and one sentence for a trace that is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kineto import LAYERS, READY, STEP, event, gpu_events, header, queued, write

from xbench.errors import UsageError
from xbench.planning.measured import measured
from xbench.records import Profile, load, save
from xbench.traces.events import RankTrace, collect
from xbench.traces.profile import TracedProfile, traced_profile
from xbench.traces.record import read_traces
from xbench.traces.sizes import Parameter
from xbench.traces.steps import ranks_of

US = 1e-6
MODEL = [Parameter(f"layer{index}.weight", (250 * (index + 1),)) for index in range(LAYERS)]


def trace(events: list[dict[str, Any]], **told: Any) -> RankTrace:
    return collect(events, header(**told))


def profiled(*traces: RankTrace, **options: Any) -> TracedProfile:
    return traced_profile(ranks_of([(f"rank{i}.json", one) for i, one in enumerate(traces)]), **options)


def tensors(found: TracedProfile) -> list[tuple[str, int]]:
    return [(tensor.name, tensor.elements) for layer in found.layers for tensor in layer.tensors]


def test_a_buckets_bytes_are_divided_evenly_where_the_trace_has_no_shapes() -> None:
    found = profiled(trace(gpu_events(buckets=(1, 4), elements=1000)))
    assert [elements for _, elements in tensors(found)] == [1000] * LAYERS
    assert found.traced.sizes_from == "buckets"
    assert any("evenly" in caution for caution in found.cautions)


def test_recorded_shapes_come_first_and_the_model_names_them() -> None:
    found = profiled(trace(gpu_events(elements=500, shapes=True)))
    assert [elements for _, elements in tensors(found)] == [500] * LAYERS
    assert found.traced.sizes_from == "shapes"
    assert not any("evenly" in caution for caution in found.cautions)
    alike = [Parameter(f"layer{index}.weight", (500,)) for index in range(LAYERS)]
    named = profiled(trace(gpu_events(elements=500, shapes=True)), parameters=alike)
    assert [name for name, _ in tensors(named)] == [f"layer{index}.weight" for index in (3, 2, 1, 0)]


def test_without_shapes_the_model_gives_names_and_sizes() -> None:
    found = profiled(trace(gpu_events()), parameters=MODEL)
    assert tensors(found) == [(f"layer{index}.weight", 250 * (index + 1)) for index in (3, 2, 1, 0)]
    assert found.traced.sizes_from == "model"
    assert any("add up" in caution for caution in found.cautions)  # 7000 and 3000 bytes, and 8000 and 8000 were sent


def test_a_trace_of_old_names_without_sizes_needs_the_model() -> None:
    """Before torch 2.1 a collective had only its kernel's name, and categories were once capitalized."""
    old = {"cpu_op": "Operator", "kernel": "Kernel", "cuda_runtime": "Runtime"}
    events = gpu_events()
    for one in events:
        one["cat"] = old.get(one["cat"], one["cat"])
        if one["name"].startswith("nccl"):
            one["name"] = "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)"
            one["args"] = {"correlation": one["args"]["correlation"]}
    with pytest.raises(UsageError, match="neither the shapes of gradients nor the bytes of collectives"):
        profiled(trace(events))
    found = profiled(trace(events), parameters=MODEL)
    assert [bucket.nbytes for bucket in found.traced.buckets] == [7000, 3000]
    assert [step.ready_s for step in ranks_of([("t.json", trace(events))])[0].steps] == [
        pytest.approx([ready * US for ready in READY])
    ] * 3


def test_another_model_is_refused() -> None:
    with pytest.raises(UsageError, match="has 4 gradients a step, and the model has 3 trainable parameters"):
        profiled(trace(gpu_events()), parameters=MODEL[:3])


def test_one_ranks_waiting_is_told_from_its_repetitions_and_from_larger_sizes() -> None:
    events = gpu_events(buckets=(1, 4), collective_us=40, elements=1000)
    for index, one in enumerate([one for one in events if one["name"].startswith("nccl")]):
        one["dur"] = (90, 50, 40, 60, 80, 70)[index]  # step by step: 4 kB, then 12 kB
    cost = profiled(trace(queued(events))).cost
    assert [(point.nbytes, point.transfer_s) for point in cost.points] == [
        (4000, pytest.approx(40 * US)),
        (12000, pytest.approx(50 * US)),
    ]
    events = gpu_events(buckets=(1, 4), collective_us=40)
    for index, one in enumerate([one for one in events if one["name"].startswith("nccl")]):
        one["dur"] = (90, 50)[index % 2]
    assert [point.transfer_s for point in profiled(trace(queued(events))).cost.points] == pytest.approx([50 * US] * 2)


def test_of_several_ranks_the_last_to_come_shows_the_transfer() -> None:
    early, late = gpu_events(collective_us=30, late_us=100), gpu_events(collective_us=30)
    found = profiled(trace(early), trace(late, rank=1))
    assert [point.transfer_s for point in found.cost.points] == pytest.approx([30 * US])
    assert found.cost.points[0].wait_s == pytest.approx(100 * US)
    assert found.traced.waited_s == pytest.approx(31 * US)


def test_one_rank_and_several_alike_agree() -> None:
    one = profiled(trace(gpu_events()))
    two = profiled(trace(gpu_events()), trace(gpu_events(), rank=1))
    assert (one.layers, one.step) == (two.layers, two.step)
    for point, other in zip(one.cost.points, two.cost.points, strict=True):
        assert point.transfer_s == pytest.approx(other.transfer_s)


def test_the_number_of_ranks_is_the_headers_the_groups_the_links_or_assumed(tmp_path: Path) -> None:
    def without_groups(**told: Any) -> RankTrace:
        events = gpu_events()
        for one in events:
            one["args"].pop("Group size", None)
        return collect(events, {"distributedInfo": {"rank": 0, **told}})

    link, bare, wrong = (tmp_path / name for name in ("link.json", "link.csv", "wrong.json"))
    for path, count in ((link, 4), (wrong, 8)):
        devices = [{"rank": rank} for rank in range(count)]
        results = [{"size": size, "in_place": {"time": size / 100}} for size in (1000, 100000)]
        path.write_text(json.dumps({"config": {"devices": devices}, "results": results}), encoding="utf-8")
    bare.write_text("bytes,time_us\n1000,20\n100000,120\n", encoding="utf-8")
    assumed = "No file says how many ranks took part; 2 are assumed."

    told = profiled(without_groups(world_size=4))
    assert (told.world_size, told.cost.world_size, assumed in told.cautions) == (4, 4, False)
    groups = profiled(collect(gpu_events(group=4), {}))
    assert (groups.world_size, groups.cost.world_size, assumed in groups.cautions) == (4, 4, False)
    linked = profiled(without_groups(), links=[link])
    assert (linked.world_size, linked.cost.world_size, assumed in linked.cautions) == (4, 4, False)
    for unknown in (profiled(without_groups()), profiled(without_groups(), links=[bare])):
        assert (unknown.world_size, unknown.cost.world_size, assumed in unknown.cautions) == (2, 2, True)
    with pytest.raises(UsageError, match="--link is of 8 ranks, and the traced run had 4"):
        profiled(collect(gpu_events(group=4), {}), links=[wrong])


def test_sharded_gradients_cost_their_reduce_scatter_and_an_all_gather() -> None:
    events = gpu_events(kind="ReduceScatter", collective_us=30)
    for step in range(3):
        args = {"Collective name": "all_gather", "Out msg nelems": 2000, "dtype": "Float"}
        events.append(event("kernel", "ncclDevKernel_AllGather", step * STEP + 30, 25, 7, **args))
    found = profiled(trace(events))
    assert [point.transfer_s for point in found.cost.points] == pytest.approx([55 * US])
    assert found.traced.collective == "reduce_scatter"


def test_gloos_all_reduce_under_a_reduce_scatter_is_a_reduce_scatter() -> None:
    events = [one for one in gpu_events(shapes=True) if one["cat"] in ("cpu_op", "user_annotation")]
    for step in range(3):
        for place in (1, 3):
            at = step * STEP + 308.5 + 20 * place
            events.append(event("cpu_op", "c10d::_reduce_scatter_base_", at, 1, 2))
            events.append(event("user_annotation", "gloo:all_reduce", at + 0.5, 30, 9))
    found = profiled(trace(events))
    assert found.traced.collective == "reduce_scatter"
    assert [bucket.gradients for bucket in found.traced.buckets] == [2, 4]


def test_a_mark_of_the_users_is_no_work() -> None:
    events = [one for one in gpu_events(shapes=True) if one["cat"] in ("cpu_op", "user_annotation")]
    for step in range(3):
        events.append(event("user_annotation", "## step ##", step * STEP, STEP, 2))
        at = step * STEP + 368.5
        events.append(event("cpu_op", "c10d::allreduce_", at, 1, 2))
        events.append(event("user_annotation", "gloo:all_reduce", at, 100, 9))
    assert profiled(trace(events)).traced.waited_s == pytest.approx(100.5 * US)


def test_kernels_beside_a_collective_are_compared_with_the_same_alone() -> None:
    events = gpu_events(collective_us=30)
    for one in events:  # the third backward kernel of a step runs beside bucket 1
        if one["name"] == "conv_backward" and (one["ts"] - 5e9) % STEP == 350:
            one["dur"] = 9.0
    assert trace(events).compute_slowdown == pytest.approx((9 + 2) / (10 + 2))


@pytest.mark.parametrize(
    ("events", "told", "why"),
    [
        ([], {}, "it holds no backward pass"),
        (gpu_events(), {"world_size": 1}, "its run had one rank"),
        ([one for one in gpu_events() if not one["name"].startswith("nccl")], {}, "it holds no collective"),
        (gpu_events(kind="AllToAll"), {}, r"its collectives \(all_to_all\) carry no gradients"),
        (gpu_events(kind="AllToAll"), {"world_size": 1}, "its run had one rank"),
        (gpu_events(), {"world_size": 8}, "reduced in groups of 2 of its 8 ranks"),
        ([one for one in gpu_events(steps=1) if one["ts"] > 5e9 + 200], {}, "no whole step"),
    ],
)
def test_a_trace_that_is_no_profile_is_refused_in_one_sentence(events: Any, told: Any, why: str) -> None:
    with pytest.raises(UsageError, match=f"^t.json: .*{why}"):
        ranks_of([("t.json", trace(events, **told))])


def test_traces_of_one_rank_or_of_different_runs_are_refused_together() -> None:
    one = trace(gpu_events())
    with pytest.raises(UsageError, match=r"a\.json and b.json are both of rank 0"):
        ranks_of([("a.json", one), ("b.json", one)])
    with pytest.raises(UsageError, match=r"a\.json and b.json are of different runs"):
        ranks_of([("a.json", one), ("b.json", trace(gpu_events(group=4), rank=1, world_size=4))])


def test_a_record_is_saved_loaded_and_planned_again(tmp_path: Path) -> None:
    file = write(tmp_path / "rank0.json", gpu_events(buckets=(1, 2, 4)))
    record = read_traces([file], "xbench trace rank0.json")
    path = save(record, tmp_path / "record.json")
    again = load(path)
    assert isinstance(again, Profile)
    assert again == record
    assert [len(bucket) for bucket in record.plans["ddp"].buckets] == [1, 1, 2]
    assert record.step.uninstrumented_step_s == pytest.approx((STEP - 31) * US)
    assert record.plans["ddp"].predicted_step_s == pytest.approx(STEP * US, rel=0.01)
    assert measured(again, "record.json").step.gradients[-1].ready_s == pytest.approx(READY[-1] * US, rel=0.01)
    assert [(bucket.gradients, bucket.nbytes) for bucket in record.traced.buckets] == [(1, 4000), (2, 4000), (4, 8000)]


@pytest.mark.parametrize("cut", [4000, 200000])
def test_a_trace_that_was_cut_is_refused(tmp_path: Path, cut: int) -> None:
    """What is there would be steps without their last kernels."""
    file = write(tmp_path / "rank0.json", gpu_events(steps=30))
    file.write_bytes(file.read_bytes()[:-cut])
    with pytest.raises(UsageError, match="ends in the middle"):
        read_traces([file], "xbench profile")


def test_a_broken_event_is_left_out_with_a_caution(tmp_path: Path) -> None:
    whole = write(tmp_path / "rank0.json", gpu_events())
    mark = event("python_function", "MARK", 0, 9)
    file = write(tmp_path / "odd.json", [mark, *gpu_events()])
    file.write_text(file.read_text(encoding="utf-8").replace("MARK", 'a "b" c'), encoding="utf-8")
    record, plain = read_traces([file], "xbench profile"), read_traces([whole], "xbench profile")
    assert (record.layers, record.step) == (plain.layers, plain.step)
    assert record.warnings[0] == "odd.json: 1 value of it is no JSON and left out; the first is event 1."


ALIKE = [Parameter(f"layer{index}.weight", (1000,)) for index in range(LAYERS)]
AS_BF16 = "Gradients of float32 were sent as bfloat16; all sizes, and those of T(M), are in float32."


def points(found: TracedProfile) -> list[tuple[int, float]]:
    return [(point.nbytes, round(point.transfer_s / US, 3)) for point in found.cost.points]


@pytest.mark.parametrize("known", [{"shapes": True}, {"parameters": ALIKE}])
def test_compressed_gradients_cost_by_their_own_bytes(known: dict[str, Any]) -> None:
    options = {"parameters": known["parameters"]} if "parameters" in known else {}
    events = gpu_events(buckets=(1, 4), dtype="BFloat16", shapes=bool(known.get("shapes")))
    found = profiled(trace(events), **options)
    assert points(found) == [(4000, 30), (12000, 30)]
    assert [bucket.nbytes for bucket in found.traced.buckets] == [4000, 12000]
    assert [layer.grad_bytes for layer in found.layers] == [4000] * LAYERS
    assert AS_BF16 in found.cautions
    assert not any("add up" in caution or "were sent for them" in caution for caution in found.cautions)


def test_without_sizes_all_bytes_are_those_that_were_sent() -> None:
    found = profiled(trace(gpu_events(dtype="BFloat16")))
    assert points(found) == [(4000, 30)]
    assert [layer.grad_bytes for layer in found.layers] == [2000] * LAYERS
    assert AS_BF16 not in found.cautions


def test_gradients_that_were_widened_cost_by_their_own_bytes() -> None:
    events = gpu_events(shapes=True)
    for one in events:
        if one["name"] == "torch::autograd::AccumulateGrad":
            one["args"]["Input type"] = ["c10::BFloat16"]
    assert points(profiled(trace(events))) == [(4000, 30)]


def test_a_links_file_counts_what_is_sent(tmp_path: Path) -> None:
    link = tmp_path / "link.csv"
    link.write_text("bytes,time_us\n1000,20\n100000,120\n", encoding="utf-8")
    compressed = profiled(trace(gpu_events(dtype="BFloat16", shapes=True)), links=[link])
    assert points(compressed) == [(2000, 20), (200000, 120)]
    assert points(profiled(trace(gpu_events(shapes=True)), links=[link])) == [(1000, 20), (100000, 120)]


def test_gradients_that_were_not_sent_whole_are_told() -> None:
    events = gpu_events(dtype="BFloat16", shapes=True)
    for one in events:
        if one["name"].startswith("nccl"):
            one["args"].update({"In msg nelems": 500, "Out msg nelems": 500})
    found = profiled(trace(events))
    assert points(found) == [(1000, 30)]
    assert AS_BF16 not in found.cautions
    assert any(caution.startswith("The gradients have 15.6 KiB, and 1.95 KiB were sent") for caution in found.cautions)
    assert not any("were sent for them" in caution for caution in profiled(trace(gpu_events(shapes=True))).cautions)


@pytest.mark.parametrize(("dtype", "gathered_us"), [("Float", 25), ("BFloat16", 25), ("Half", 30)])
def test_an_all_gather_has_the_bytes_of_the_parameters_or_of_what_was_sent(dtype: str, gathered_us: float) -> None:
    """Parameters are gathered as fp32 or bf16; those gathered as fp16 are not found, and cost the reduce-scatter."""
    events = gpu_events(kind="ReduceScatter", dtype="BFloat16", shapes=True)
    elements = 2000 if dtype != "Half" else 1500
    for step in range(3):
        args = {"Collective name": "all_gather", "Out msg nelems": elements, "dtype": dtype}
        events.append(event("kernel", "ncclDevKernel_AllGather", step * STEP + 30, 25, 7, **args))
    assert points(profiled(trace(events))) == [(8000, 30 + gathered_us)]
