"""Changes that cannot be, and records that no change can be planned from: one sentence each."""

from __future__ import annotations

import math

import pytest
from planning_cases import line
from what_if_cases import LINE, ONE, beside, record

from xbench.errors import RecordError, SpecError
from xbench.planning.change import Change
from xbench.planning.measured import measured
from xbench.records import CostSegment, Layer, Tensor


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"workers": 1}, "--workers: 1 is out of range 2 to 1000000: an all-reduce is of 2 at least"),
        ({"workers": 10**40}, "out of range"),
        ({"compute_scale": -1.0}, "--compute-scale: -1 is out of range 1e-06 to 1e"),
        ({"compute_scale": math.nan}, "--compute-scale: nan is out of range"),
        ({"compute_scale": math.inf}, "--compute-scale: inf is out of range"),
        ({"rate_bps": 0.0}, "--rate: 0 bit/s is out of range"),
        ({"latency_s": -1.0}, "--latency: -1 s is out of range 0 to 1000"),
        ({"latency_s": 2e-309}, "--latency: 2e-309 s is below 1e-12 s, which no clock can tell"),
    ],
)
def test_changes_that_cannot_be(change: dict[str, float], sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence):
        Change(**change)  # type: ignore[arg-type]


def negative_ready() -> list[Layer]:
    tensor = Tensor(name="w", elements=1, bytes=4, dtype="float32", ready_s=-1.0)
    return [record().layers[0].model_copy(update={"tensors": [tensor]})]


def without_bytes() -> list[Layer]:
    tensor = Tensor(name="w", elements=0, bytes=0, dtype="float32", ready_s=0.001)
    return [record().layers[0].model_copy(update={"tensors": [tensor]})]


FALLING = [CostSegment(from_bytes=1, alpha_s=-1.0, beta_s_per_byte=0.0)]


@pytest.mark.parametrize(
    ("update", "sentence"),
    [
        ({"cost_model": None}, "'made' has no cost model: it was measured on shaped:hosts=2,rate=1gbit"),
        ({"layers": []}, "'made' has no layers with gradients: nothing to plan"),
        ({"layers": [record().layers[0].model_copy(update={"tensors": []})]}, "the layers have no gradients"),
        ({"step": None}, "'made' says nothing of how long a step takes"),
        ({"layers": negative_ready()}, "w.ready_s is -1, out of range"),
        ({"cost_model": line(-1.0, 0.0)}, "cost_model.alpha_s is -1, out of range 0 to 1e"),
        ({"cost_model": LINE.model_copy(update={"segments": FALLING})}, r"planned: its cost model: .* not below zero"),
        ({"cost_model": line(1e11, 0.0)}, r"cost_model.alpha_s is 1e\+11, out of range 0 to 1e\+09"),
        ({"cost_model": line(0.0, 0.0, workers=1)}, "has a world size of 1, and an all-reduce needs 2"),
        ({"cost_model": line(0.0, 1e-9, workers=4)}, "of 4 workers over gloo and its fabric has 2 over gloo: they are"),
        ({"cost_model": LINE.model_copy(update={"backend": "nccl"})}, "over nccl and its fabric has 2 over gloo"),
        ({"cost_model": LINE.model_copy(update={"collective": "broadcast"})}, "is of broadcast, and all_reduce is"),
        ({"layers": without_bytes()}, "its gradients have no bytes: nothing to send"),
        ({"contention": beside((4, 1, 1.0, 1.0, 0.0))}, "'made': its contention is not valid: compute_slowdown of 4 b"),
        ({"contention": beside((0, 1, 1.0, 1.0, 1.0))}, "its contention is not valid: a contention point of 0 bytes"),
        ({"contention": beside((4, 1, 1.0, 0.0, 1.0))}, "loaded_s of 4 bytes is 0, out of range 1e-12 to 1e"),
        ({"contention": beside((4, 1, 1e11, 1.0, 1.0))}, r"alone_s of 4 bytes is 1e\+11, out of range"),
        ({"contention": beside(ONE).model_copy(update={"hook_s": -1e-6})}, "hook_s is -1e-06, out of range 0 to"),
        ({"contention": beside(ONE).model_copy(update={"meeting_s": -5.0})}, "meeting_s is -5, out of range 0 to"),
        ({"contention": beside((4, 3, 1.0, 1.0, 1.0))}, "a point of 4 bytes has 3 in flight, and it is 1 or 2"),
        ({"layers": [record().layers[0].model_copy(update={"forward_s": -1.0})]}, "forward_s is -1, out of range"),
        ({"layers": [record().layers[0], record().layers[0]]}, "stands twice"),
    ],
)
def test_records_that_cannot_be_planned(update: dict[str, object], sentence: str) -> None:
    with pytest.raises(RecordError, match=sentence):
        measured(record().model_copy(update=update), "made")


def test_jobs_count_from_one_to_the_last() -> None:
    assert measured(record(), "made", 1) == measured(record(), "made")
    for job in (0, 2):
        with pytest.raises(SpecError, match=f"--job {job}: 'made' holds 1 job"):
            measured(record(), "made", job)


def test_a_record_of_compressed_gradients_is_refused() -> None:
    was = record()
    narrowed = was.model_copy(update={"spec": was.spec.model_copy(update={"compress": "bf16"})})
    with pytest.raises(SpecError, match="'run' was measured with gradients compressed to bf16") as caught:
        measured(narrowed, "run")
    assert caught.value.hint == "profile it again without --compress"
