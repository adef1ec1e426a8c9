"""Buckets of two ranks in one process: what they send, and what they hand back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import Parameter

import xbench
from xbench.errors import SpecError, UsageError
from xbench.schedules import bucket as bucket_module
from xbench.schedules.bucket import Bucket, CommBucket, finish
from xbench.schedules.checks import check_cover, check_parts, default_buckets
from xbench.schedules.priority import cuts, default_parts


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


def reduce(buckets: list[CommBucket]) -> None:
    """The collective: every rank's buffer becomes the sum; then all finish."""
    total = torch.stack([bucket.flat for bucket in buckets]).sum(0)
    for bucket in buckets:
        bucket.flat.copy_(total)
        bucket.work = Arrived()
        assert bucket.has_arrived()
    finish(buckets)
    assert all(bucket.work is None for bucket in buckets)


def ranks(filled: list[set[int]], compress: Any = None) -> list[CommBucket]:
    """A bucket a rank, with gradients of those that are filled, after the collective."""
    buckets = []
    for rank, indices in enumerate(filled):
        bucket = CommBucket(parameters(), 0.5, compress)
        for index, gradient in enumerate(gradients(bucket.parameters, rank)):
            if index in indices:
                bucket.parameters[index].grad = gradient
                bucket.fill(index)
        assert bucket.waiting == len(bucket.parameters) - len(indices)
        bucket.complete()
        buckets.append(bucket)
    reduce(buckets)
    return buckets


def mean(of: Sequence[Tensor], compress: str | None) -> Tensor:
    """Half of the sum of what ranks have: rounded once by each rank, and once by the sum, where it is compressed."""
    if compress is None:
        return torch.stack([gradient * 0.5 for gradient in of]).sum(0)
    return sum((gradient / 2).bfloat16() for gradient in of).float()  # type: ignore[union-attr]


@pytest.mark.parametrize("compress", [None, "bf16"])
def test_gradients_become_the_mean(compress: str | None) -> None:
    for bucket in ranks([{0, 1, 2, 3}, {0, 1, 2, 3}], compress):
        assert bucket.grad_bytes == 4 * (3 + 24 + 20 + 12)
        if compress:
            assert bucket.flat.dtype == torch.bfloat16
        both = [gradients(bucket.parameters, rank) for rank in (0, 1)]
        for parameter, *of in zip(bucket.parameters, *both, strict=True):
            assert torch.equal(parameter.grad, mean(of, compress))
            assert parameter.grad.dtype == torch.float32
            assert not (compress and parameter.grad._is_view())
        assert bucket.waiting == 4
        assert bucket.filled == [False] * 4


@pytest.mark.parametrize("compress", [None, "bf16"])
def test_a_gradient_that_one_rank_lacks_counts_as_zero_and_one_that_all_lack_stays_none(
    compress: str | None,
) -> None:
    for bucket in ranks([{0, 1}, {0, 2}], compress):
        ours, theirs = gradients(bucket.parameters, 0), gradients(bucket.parameters, 1)
        found = [parameter.grad for parameter in bucket.parameters]
        for grad, of in zip(found, ([ours[0], theirs[0]], [ours[1]], [theirs[2]]), strict=False):
            assert torch.equal(grad, mean(of, compress))  # type: ignore[arg-type]
        assert found[3] is None


def test_a_second_step_starts_afresh() -> None:
    """Into gradients that were zeroed in place, or were set to None."""
    buckets = ranks([{0, 1, 2, 3}, {0, 1}])
    for rank, bucket in enumerate(buckets):
        for index, parameter in enumerate(bucket.parameters):
            if index % 2:
                parameter.grad = torch.full_like(parameter, rank + 1.0)
            else:
                parameter.grad.fill_(rank + 1.0)
            bucket.fill(index)
        bucket.complete()
    reduce(buckets)
    for bucket in buckets:
        for parameter in bucket.parameters:
            assert torch.equal(parameter.grad, torch.full_like(parameter, 1.5))  # type: ignore[arg-type]


def test_slices_lie_close_and_gradients_are_slices_after_the_collective() -> None:
    bucket = ranks([{0, 1, 2, 3}] * 2)[0]
    assert bucket.offsets == [0, 3, 27, 47, 59]
    assert bucket.flat.numel() == 59 + 4
    for parameter, view in zip(bucket.parameters, bucket.views, strict=True):
        assert parameter.grad.data_ptr() == view.data_ptr()
        if parameter.is_contiguous() or parameter.dim() == 4:
            assert parameter.grad.stride() == parameter.stride()


def close_together(at_once: bool, monkeypatch: pytest.MonkeyPatch) -> CommBucket:
    """A bucket of contiguous gradients."""
    monkeypatch.setattr(bucket_module, "AT_ONCE_BYTES", 4 * 27 if at_once else 4 * 27 - 1)
    torch.manual_seed(0)
    return CommBucket([Parameter(torch.randn(3)), Parameter(torch.randn(2, 3, 4))], 1 / 3)


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


def test_buckets_have_the_dtype_of_gradients() -> None:
    model = torch.nn.Linear(2, 3).bfloat16()
    model.weight.grad_dtype = torch.float32
    named = dict(model.named_parameters())
    assert default_buckets(named) == [["bias"], ["weight"]]
    with pytest.raises(SpecError, match="mixes dtypes"):
        check_cover([["bias", "weight"]], named)
    bucket = CommBucket([model.weight], 0.5)
    assert (bucket.grad_bytes, bucket.flags.dtype) == (24, torch.float32)
    assert not bucket.narrowed
    assert CommBucket([model.weight], 0.5, "bf16").narrowed


def test_a_gradient_that_is_removed_before_it_is_copied_is_named() -> None:
    both = [Parameter(torch.ones(2)), Parameter(torch.ones(3))]
    bucket = CommBucket(both, 0.5)
    for index, parameter in enumerate(both):
        parameter.grad = torch.ones_like(parameter)
        bucket.fill(index)
    both[1].grad = None
    with pytest.raises(UsageError, match=r"a gradient of shape \(3,\) was removed"):
        bucket.complete()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes_travel_as_they_are(dtype: torch.dtype) -> None:
    bucket = CommBucket([Parameter(torch.zeros(3, dtype=dtype))], 0.5, "bf16")
    assert bucket.flat.dtype == dtype
    assert not bucket.narrowed


def test_a_model_with_nothing_to_compress_is_told_so() -> None:
    with pytest.warns(UserWarning, match="there is nothing to compress to bf16: no gradient of this model is fp32"):
        xbench.attach(torch.nn.Linear(2, 2).bfloat16(), compress="bf16")


def test_a_part_has_the_plan_s_bytes_and_the_last_one_what_is_left_with_the_flags() -> None:
    for compress in (None, "bf16"):  # compressed gradients are cut where the others are
        bucket = CommBucket([Parameter(torch.zeros(10)), Parameter(torch.zeros(3))], 0.5, compress)
        assert cuts(bucket, 16) == ([0, 4, 8, 12, 15], [16, 16, 16, 4])
        assert cuts(bucket, 52) == ([0, 15], [52])
        assert cuts(bucket, 48) == ([0, 12, 15], [48, 4])


@given(st.lists(st.integers(1, 50), min_size=1, max_size=5), st.integers(1, 20))
def test_every_part_holds_gradients(elements: list[int], sixteens: int) -> None:
    bucket = CommBucket([Parameter(torch.zeros(count)) for count in elements], 0.5)
    bounds, sizes = cuts(bucket, 16 * sixteens)
    assert sum(sizes) == bucket.grad_bytes
    assert all(0 < size <= 16 * sixteens for size in sizes)
    assert bounds == sorted(set(bounds))
    assert (bounds[0], bounds[-1], len(bounds)) == (0, bucket.flat.numel(), len(sizes) + 1)


def test_a_buffer_can_be_cut_into_equal_pieces_of_whole_words() -> None:
    bucket = CommBucket([Parameter(torch.zeros(10))], 1 / 3, pieces=3)
    assert bucket.flat.numel() == 11
    assert bucket.whole.numel() == 12
    assert bucket.whole.data_ptr() == bucket.flat.data_ptr()
    half = CommBucket([Parameter(torch.zeros(10, dtype=torch.bfloat16))], 1 / 3, pieces=3)
    assert half.whole.numel() == 24


def test_without_a_plan_half_goes_as_it_gets_ready_and_half_as_it_is_needed() -> None:
    assert default_parts([10, 10, 10, 10, 5]).order == [0, 1, 4, 3, 2]
    assert default_parts([100, 1]).order == [1, 0]
    assert default_parts([]).order == []


def test_without_a_plan_buckets_are_filled_backwards_and_have_one_dtype() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False), nn.Linear(4, 4).bfloat16())
    assert default_buckets(dict(model.named_parameters()), 128) == [["2.bias", "2.weight"], ["1.weight", "0.weight"]]
    assert default_buckets(dict(model.named_parameters()), 64) == [["2.bias", "2.weight"], ["1.weight"], ["0.weight"]]
    assert default_buckets(dict(model.named_parameters()), 1) == [["2.bias"], ["2.weight"], ["1.weight"], ["0.weight"]]


@pytest.mark.parametrize("order", [[0, 1], [0, 1, 1], [0, 1, 3], [2, 1, 0, 3]])
def test_an_order_that_does_not_fit_is_refused(order: list[int]) -> None:
    with pytest.raises(SpecError, match="each of the 3 parts"):
        check_parts(order, 3)
