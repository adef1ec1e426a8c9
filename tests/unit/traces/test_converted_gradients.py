"""Gradients that were sent in another dtype than their own: T(M) is by bytes of gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kineto import LAYERS, STEP, event, gpu_events, header

from xbench.traces.events import collect
from xbench.traces.profile import TracedProfile, traced_profile
from xbench.traces.sizes import Parameter
from xbench.traces.steps import ranks_of

US = 1e-6
MODEL = [Parameter(f"layer{index}.weight", (1000,)) for index in range(LAYERS)]
AS_BF16 = "Gradients of float32 were sent as bfloat16; all sizes, and those of T(M), are in float32."


def profiled(events: list[dict[str, Any]], **options: Any) -> TracedProfile:
    return traced_profile(ranks_of([("t.json", collect(events, header()))]), **options)


def points(found: TracedProfile) -> list[tuple[int, float]]:
    return [(point.nbytes, round(point.transfer_s / US, 3)) for point in found.cost.points]


@pytest.mark.parametrize("known", [{"shapes": True}, {"parameters": MODEL}])
def test_compressed_gradients_cost_by_their_own_bytes(known: dict[str, Any]) -> None:
    options = {"parameters": known["parameters"]} if "parameters" in known else {}
    events = gpu_events(buckets=(1, 4), dtype="BFloat16", shapes=bool(known.get("shapes")))
    found = profiled(events, **options)
    assert points(found) == [(4000, 30), (12000, 30)]
    assert [bucket.nbytes for bucket in found.traced.buckets] == [4000, 12000]
    assert [layer.grad_bytes for layer in found.layers] == [4000] * LAYERS
    assert AS_BF16 in found.cautions
    assert not any("add up" in caution or "were sent for them" in caution for caution in found.cautions)


def test_without_sizes_all_bytes_are_those_that_were_sent() -> None:
    found = profiled(gpu_events(dtype="BFloat16"))
    assert points(found) == [(4000, 30)]
    assert [layer.grad_bytes for layer in found.layers] == [2000] * LAYERS
    assert AS_BF16 not in found.cautions


def test_gradients_that_were_widened_cost_by_their_own_bytes() -> None:
    events = gpu_events(shapes=True)
    for one in events:
        if one["name"] == "torch::autograd::AccumulateGrad":
            one["args"]["Input type"] = ["c10::BFloat16"]
    assert points(profiled(events)) == [(4000, 30)]


def test_a_links_file_counts_what_is_sent(tmp_path: Path) -> None:
    link = tmp_path / "link.csv"
    link.write_text("bytes,time_us\n1000,20\n100000,120\n", encoding="utf-8")
    compressed = profiled(gpu_events(dtype="BFloat16", shapes=True), links=[link])
    assert points(compressed) == [(2000, 20), (200000, 120)]
    assert points(profiled(gpu_events(shapes=True), links=[link])) == [(1000, 20), (100000, 120)]


def test_gradients_that_were_not_sent_whole_are_told() -> None:
    events = gpu_events(dtype="BFloat16", shapes=True)
    for one in events:
        if one["name"].startswith("nccl"):
            one["args"].update({"In msg nelems": 500, "Out msg nelems": 500})
    found = profiled(events)
    assert points(found) == [(1000, 30)]
    assert AS_BF16 not in found.cautions
    assert any(caution.startswith("The gradients have 15.6 KiB, and 1.95 KiB were sent") for caution in found.cautions)
    assert not any("were sent for them" in caution for caution in profiled(gpu_events(shapes=True)).cautions)


@pytest.mark.parametrize(("dtype", "gathered_us"), [("Float", 25), ("BFloat16", 25), ("Half", 30)])
def test_an_all_gather_has_the_bytes_of_the_parameters_or_of_what_was_sent(dtype: str, gathered_us: float) -> None:
    """Parameters are gathered as fp32 or bf16; those gathered as fp16 are not found, and cost the reduce-scatter."""
    events = gpu_events(kind="ReduceScatter", dtype="BFloat16", shapes=True)
    elements = 2000 if dtype != "Half" else 1500
    for step in range(3):
        args = {"Collective name": "all_gather", "Out msg nelems": elements, "dtype": dtype}
        events.append(event("kernel", "ncclDevKernel_AllGather", step * STEP + 30, 25, 7, **args))
    assert points(profiled(events)) == [(8000, 30 + gathered_us)]
