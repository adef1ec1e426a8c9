"""Buckets of two ranks in one process: what each way of carrying gradients sends, and what it hands back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

import xbench
from xbench.errors import SpecError, UsageError
from xbench.schedules import bucket as bucket_module
from xbench.schedules import chosen_copies
from xbench.schedules.bucket import Bucket, FlatBucket, FusedBucket, finish
from xbench.schedules.bucket_kinds import CoalescedBucket, bucket_of
from xbench.schedules.checks import check_cover, default_buckets

WAYS = ("views", "coalesced", "fused")
COMPRESSING = ("views", "fused")


class Arrived:
    """A collective that has ended."""

    def wait(self) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


def parameters() -> list[Parameter]:
    """A small one, a channels-last one, a transposed one that is dense, and one that is not."""
    torch.manual_seed(0)
    return [
        Parameter(torch.randn(3)),
        Parameter(torch.randn(2, 3, 2, 2).contiguous(memory_format=torch.channels_last)),
        Parameter(torch.randn(5, 4).t()),
        Parameter(torch.randn(4, 6)[:, ::2]),
    ]


def gradients(parameters: list[Parameter], rank: int) -> list[Tensor]:
    torch.manual_seed(10 + rank)
    return [torch.randn(p.shape) for p in parameters]


def sent(bucket: Any) -> list[Tensor]:
    """What a bucket's collective takes."""
    return [*bucket.tensors, bucket.flags] if isinstance(bucket, CoalescedBucket) else [bucket.flat]


def reduce(buckets: list[Bucket]) -> None:
    """The collective: every rank's tensors become the sum; then all finish."""
    for together in zip(*map(sent, buckets), strict=True):
        total = torch.stack([tensor.clone() for tensor in together]).sum(0)
        for tensor in together:
            tensor.copy_(total)
    for bucket in buckets:
        bucket.work = Arrived()
        assert bucket.has_arrived()
    finish(buckets)
    assert all(bucket.work is None for bucket in buckets)


def ranks(copies: Any, filled: list[set[int]], compress: Any = None) -> list[Bucket]:
    """A bucket a rank, with gradients of those that are filled, after the collective."""
    buckets = []
    for rank, indices in enumerate(filled):
        bucket = bucket_of(parameters(), 0.5, copies, compress=compress)
        for index, gradient in enumerate(gradients(bucket.parameters, rank)):
            if index in indices:
                bucket.parameters[index].grad = gradient
                bucket.fill(index)
        assert bucket.waiting == len(bucket.parameters) - len(indices)
        bucket.complete()
        buckets.append(bucket)
    reduce(buckets)
    return buckets


SENT = [*((copies, None) for copies in WAYS), *((copies, "bf16") for copies in COMPRESSING)]


def mean(of: Sequence[Tensor], compress: str | None) -> Tensor:
    """Half of the sum of what ranks have: rounded once by each rank, and once by the sum, where it is compressed."""
    if compress is None:
        return torch.stack([gradient * 0.5 for gradient in of]).sum(0)
    return sum((gradient / 2).bfloat16() for gradient in of).float()  # type: ignore[union-attr]


@pytest.mark.parametrize(("copies", "compress"), SENT)
def test_gradients_become_the_mean(copies: Any, compress: str | None) -> None:
    for bucket in ranks(copies, [{0, 1, 2, 3}, {0, 1, 2, 3}], compress):
        assert bucket.grad_bytes == 4 * (3 + 24 + 20 + 12)
        if compress:
            assert bucket.flat.dtype == torch.bfloat16
        both = [gradients(bucket.parameters, rank) for rank in (0, 1)]
        for parameter, *of in zip(bucket.parameters, *both, strict=True):
            assert parameter.grad is not None
            assert torch.equal(parameter.grad, mean(of, compress))
            assert parameter.grad.dtype == torch.float32
            assert not (compress and parameter.grad._is_view())
        assert bucket.waiting == 4
        assert bucket.filled == [False] * 4


@pytest.mark.parametrize(("copies", "compress"), SENT)
def test_a_gradient_that_one_rank_lacks_counts_as_zero_and_one_that_all_lack_stays_none(
    copies: Any, compress: str | None
) -> None:
    for bucket in ranks(copies, [{0, 1}, {0, 2}], compress):
        ours, theirs = gradients(bucket.parameters, 0), gradients(bucket.parameters, 1)
        found = [parameter.grad for parameter in bucket.parameters]
        for grad, of in zip(found, ([ours[0], theirs[0]], [ours[1]], [theirs[2]]), strict=False):
            assert torch.equal(grad, mean(of, compress))  # type: ignore[arg-type]
        assert found[3] is None


@pytest.mark.parametrize("copies", WAYS)
def test_a_second_step_starts_afresh(copies: Any) -> None:
    """Into gradients that were zeroed in place, or were set to None."""
    buckets = ranks(copies, [{0, 1, 2, 3}, {0, 1}])
    for rank, bucket in enumerate(buckets):
        for index, parameter in enumerate(bucket.parameters):
            if index % 2:
                parameter.grad = torch.full_like(parameter, rank + 1.0)
            else:
                assert parameter.grad is not None
                parameter.grad.fill_(rank + 1.0)
            bucket.fill(index)
        bucket.complete()
    reduce(buckets)
    for bucket in buckets:
        for parameter in bucket.parameters:
            assert torch.equal(parameter.grad, torch.full_like(parameter, 1.5))  # type: ignore[arg-type]


def test_views_lie_close_and_fused_slices_where_16_bytes_begin() -> None:
    views, fused = bucket_of(parameters(), 1.0, "views"), bucket_of(parameters(), 1.0, "fused")
    assert isinstance(views, FlatBucket)
    assert isinstance(fused, FusedBucket)
    assert views.layout.offsets == (0, 3, 27, 47, 59)
    assert views.flat.numel() == 59 + 4
    assert fused.layout.offsets == (0, 4, 28, 48, 60)
    half = bucket_of([Parameter(torch.zeros(3, dtype=torch.bfloat16))] * 2, 1.0, "fused")
    assert isinstance(half, FusedBucket)
    assert half.layout.offsets == (0, 8, 16)


def test_after_the_collective_gradients_are_slices_but_for_coalesced() -> None:
    for copies in ("views", "fused"):
        bucket = ranks(copies, [{0, 1, 2, 3}] * 2)[0]
        assert isinstance(bucket, FlatBucket)
        for parameter, view in zip(bucket.parameters, bucket.views, strict=True):
            assert parameter.grad is not None
            assert parameter.grad.data_ptr() == view.data_ptr()
            if parameter.is_contiguous() or parameter.dim() == 4:
                assert parameter.grad.stride() == parameter.stride()


def close_together(at_once: bool, monkeypatch: pytest.MonkeyPatch) -> FlatBucket:
    """A bucket of contiguous gradients."""
    monkeypatch.setattr(bucket_module, "AT_ONCE_BYTES", 4 * 27 if at_once else 4 * 27 - 1)
    torch.manual_seed(0)
    bucket = bucket_of([Parameter(torch.randn(3)), Parameter(torch.randn(2, 3, 4))], 1 / 3, "views")
    assert isinstance(bucket, FlatBucket)
    return bucket


def test_a_small_bucket_is_copied_before_it_goes_and_a_large_one_as_gradients_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flats = []
    for at_once in (True, False):
        bucket = close_together(at_once, monkeypatch)
        for index, gradient in enumerate(gradients(bucket.parameters, 0)):
            bucket.parameters[index].grad = gradient
            bucket.fill(index)
        assert bool(bucket.flat.any()) != at_once
        bucket.complete()
        for parameter, view in zip(bucket.parameters, bucket.views, strict=True):
            assert parameter.grad is view or parameter.grad.data_ptr() == view.data_ptr()  # type: ignore[union-attr]
        flats.append(bucket.flat)
    assert torch.equal(*flats)


@pytest.mark.parametrize("odd", ["missing", "a slice already", "other strides", "zeroed in place"])
def test_what_one_call_cannot_copy_is_copied_one_by_one(odd: str, monkeypatch: pytest.MonkeyPatch) -> None:
    flats = []
    for at_once in (True, False):
        bucket = close_together(at_once, monkeypatch)
        first, second = gradients(bucket.parameters, 0)
        if odd == "a slice already":
            first = bucket.views[0].copy_(first)
        if odd == "other strides":
            second = second.permute(2, 0, 1).contiguous().permute(1, 2, 0)
        given = [first, second]
        if odd == "zeroed in place":
            given = [view.copy_(gradient) for view, gradient in zip(bucket.views, given, strict=True)]
        for index, gradient in enumerate(given):
            if odd == "missing" and index == 1:
                bucket.views[1].fill_(7.0)  # of the step before
                continue
            bucket.parameters[index].grad = gradient
            bucket.fill(index)
        bucket.complete()
        flats.append(bucket.flat.clone())
        expected = [gradient * (1 / 3) for gradient in gradients(bucket.parameters, 0)]
        assert torch.equal(bucket.views[0], expected[0])
        assert torch.equal(bucket.views[1], torch.zeros_like(expected[1]) if odd == "missing" else expected[1])
    assert torch.equal(*flats)


def test_a_world_of_one_has_buckets_that_do_not_travel() -> None:
    model = torch.nn.Linear(2, 2)
    with xbench.attach(model) as handle:
        assert [type(one) for one in handle.engine.buckets] == [Bucket, Bucket]
    bucket = Bucket(parameters(), 1.0)
    bucket.fill(2)
    assert bucket.waiting == 3
    bucket.empty()
    assert bucket.waiting == 4
    assert bucket.parameters[2].grad is None


def test_gradients_are_views_unless_another_way_is_asked_for() -> None:
    assert chosen_copies(None) == chosen_copies(None, "bf16") == "views"
    assert chosen_copies("coalesced") == "coalesced"
    assert chosen_copies("fused", "bf16") == "fused"


def test_what_is_sent_where_it_lies_cannot_be_compressed() -> None:
    with pytest.raises(SpecError, match="copies 'coalesced' sends gradients where they lie") as caught:
        chosen_copies("coalesced", "bf16")
    assert caught.value.hint == "copies 'fused' compresses while it copies"
    with pytest.raises(SpecError, match="copies 'coalesced'"):
        xbench.attach(torch.nn.Linear(2, 2), copies="coalesced", compress="bf16")


def test_buckets_have_the_dtype_of_gradients() -> None:
    model = torch.nn.Linear(2, 3).bfloat16()
    model.weight.grad_dtype = torch.float32
    named = dict(model.named_parameters())
    assert default_buckets(named) == [["bias"], ["weight"]]
    with pytest.raises(SpecError, match="mixes dtypes"):
        check_cover([["bias", "weight"]], named)
    bucket = bucket_of([model.weight], 0.5, "views")
    assert (bucket.grad_bytes, bucket.flags.dtype) == (24, torch.float32)
    assert not bucket.narrowed  # type: ignore[attr-defined]
    assert bucket_of([model.weight], 0.5, "views", compress="bf16").narrowed  # type: ignore[attr-defined]


def test_a_gradient_that_is_removed_before_it_is_copied_is_named() -> None:
    both = [Parameter(torch.ones(2)), Parameter(torch.ones(3))]
    bucket = bucket_of(both, 0.5, "views")
    for index, parameter in enumerate(both):
        parameter.grad = torch.ones_like(parameter)
        bucket.fill(index)
    both[1].grad = None
    with pytest.raises(UsageError, match=r"a gradient of shape \(3,\) was removed"):
        bucket.complete()


@pytest.mark.parametrize("copies", COMPRESSING)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes_travel_as_they_are(copies: Any, dtype: torch.dtype) -> None:
    bucket = bucket_of([Parameter(torch.zeros(3, dtype=dtype))], 0.5, copies, compress="bf16")
    assert isinstance(bucket, FlatBucket)
    assert bucket.flat.dtype == dtype
    assert not bucket.narrowed


def test_a_model_with_nothing_to_compress_is_told_so() -> None:
    with pytest.warns(UserWarning, match="there is nothing to compress to bf16: no gradient of this model is fp32"):
        xbench.attach(torch.nn.Linear(2, 2).bfloat16(), compress="bf16")
