"""How `priority` cuts buckets, and what both schedules do without a plan."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import Parameter

from xbench.errors import SpecError
from xbench.schedules.bucket import CommBucket
from xbench.schedules.checks import check_parts, default_buckets
from xbench.schedules.priority import cuts, default_parts


def test_a_part_has_the_plan_s_bytes_and_the_last_one_what_is_left_with_the_flags() -> None:
    bucket = CommBucket([Parameter(torch.zeros(10)), Parameter(torch.zeros(3))], 0.5)
    assert cuts(bucket, 16) == ([0, 4, 8, 12, 15], [16, 16, 16, 4])
    assert cuts(bucket, 52) == ([0, 15], [52])
    assert cuts(bucket, 48) == ([0, 12, 15], [48, 4])


def test_compressed_gradients_are_cut_where_the_others_are() -> None:
    bucket = CommBucket([Parameter(torch.zeros(10)), Parameter(torch.zeros(3))], 0.5, "bf16")
    assert cuts(bucket, 16) == ([0, 4, 8, 12, 15], [16, 16, 16, 4])


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
    parts = default_parts([10, 10, 10, 10, 5])
    assert parts.order == [0, 1, 4, 3, 2]
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
