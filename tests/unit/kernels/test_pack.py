"""Packing and unpacking by torch operations against arithmetic on bits, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from xbench.kernels.pack import Layout, describe_pack_backend, pack, slices, unpack

PAIRS = (
    (torch.float32, torch.float32),
    (torch.float32, torch.bfloat16),
    (torch.bfloat16, torch.bfloat16),
    (torch.float16, torch.float16),
    (torch.float64, torch.float64),
)
"""Of tensors, and of the buffer that they travel in."""

SPECIAL = (0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-45, -1e-40, 3.4e38, -3.4e38, 65504.0, 1.0 + 2**-8)


def bf16_bits(values: np.ndarray) -> np.ndarray:
    """The 16 bits of each fp32 number rounded to bf16, to nearest even; any NaN is 0x7fc0."""
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


def bits_of(tensor: Tensor) -> np.ndarray:
    """A bf16 tensor's bits, with one for all NaN."""
    bits = tensor.contiguous().view(torch.int16).numpy().view(np.uint16)
    return np.where(torch.isnan(tensor).numpy(), np.uint16(0x7FC0), bits)


def numbers(count: int, dtype: torch.dtype, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    found = torch.randn(count, generator=generator, dtype=torch.float64)
    for place, value in enumerate(SPECIAL[:count]):
        found[place] = value
    return found.to(dtype)


def test_a_layout_puts_slices_one_after_the_other() -> None:
    assert Layout.of([3, 1, 0, 5]) == Layout((3, 1, 0, 5), (0, 3, 4, 4), 9)
    assert Layout.of([3, 1, 0, 5], align=4) == Layout((3, 1, 0, 5), (0, 4, 8, 8), 13)
    assert Layout.of([4, 8], align=4) == Layout((4, 8), (0, 4), 12)
    assert Layout.of([]) == Layout((), (), 0)
    with pytest.raises(ValueError, match="aligned to 0"):
        Layout.of([1], align=0)


@pytest.mark.parametrize("scale", [1.0, 0.5, 1 / 3, 1 / 7])
def test_fp32_becomes_bf16_by_two_roundings_to_nearest_even(scale: float) -> None:
    every = np.arange(0, 2**32, 2**32 // 65537, dtype=np.uint64).astype(np.uint32).view(np.float32)
    ties = (np.arange(0, 2**16, dtype=np.uint64) * 2**16 + 2**15).astype(np.uint32).view(np.float32)
    values = np.concatenate([every, ties, np.array(SPECIAL, dtype=np.float32)])
    tensor, flat = torch.from_numpy(values), torch.empty(len(values), dtype=torch.bfloat16)
    pack([tensor], flat, Layout.of([len(values)]), scale)
    with np.errstate(all="ignore"):
        expected = bf16_bits(values * np.float32(scale))
    assert np.array_equal(bits_of(flat), expected)


@pytest.mark.parametrize("scale", [1.0, 3.0, 1 / 3])
def test_every_bf16_number_becomes_fp32(scale: float) -> None:
    bits = np.arange(2**16, dtype=np.uint16)
    flat = torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)
    found = torch.empty(2**16)
    unpack(flat, [found], Layout.of([2**16]), scale)
    wide = (bits.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(all="ignore"):
        expected = wide * np.float32(scale)
    number = ~np.isnan(expected)
    assert np.array_equal(np.isnan(found.numpy()), ~number)
    assert np.array_equal(found.numpy()[number].view(np.uint32), expected[number].view(np.uint32))


@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=8),
    offsets=st.lists(st.integers(0, 7), min_size=8, max_size=8),
    pair=st.sampled_from(PAIRS),
    align=st.sampled_from([1, 4, 8]),
    scale=st.sampled_from([1.0, 0.5, 1 / 3]),
)
def test_all_sizes_and_places(
    sizes: list[int], offsets: list[int], pair: tuple[torch.dtype, torch.dtype], align: int, scale: float
) -> None:
    """Tensors that begin anywhere: each slice is its tensor times the scale, nothing between slices is written."""
    dtype, wire = pair
    tensors = [numbers(size + offsets[place], dtype, place)[offsets[place] :] for place, size in enumerate(sizes)]
    layout = Layout.of(sizes, align)
    flat = torch.full((layout.length + 3,), 7.0, dtype=wire)
    pack(tensors, flat, layout, scale)
    untouched = torch.ones(len(flat), dtype=torch.bool)
    for tensor, at, count in zip(tensors, layout.offsets, layout.elements, strict=True):
        torch.testing.assert_close(flat[at : at + count], (tensor * scale).to(wire), rtol=0, atol=0, equal_nan=True)
        untouched[at : at + count] = False
    assert bool((flat[untouched] == 7).all())
    back = [torch.zeros_like(tensor) for tensor in tensors]
    unpack(flat, back, layout, scale)
    for tensor, at, count in zip(back, layout.offsets, layout.elements, strict=True):
        expected = flat[at : at + count].to(dtype) * scale
        torch.testing.assert_close(tensor, expected, rtol=0, atol=0, equal_nan=True)


def test_memory_order_is_kept() -> None:
    """A channels-last tensor travels as it lies, beside one that is transposed."""
    image = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    turned = torch.randn(6, 7).t()
    layout = Layout.of([image.numel(), turned.numel()])
    flat = torch.empty(layout.length)
    pack([image, turned], flat, layout)
    assert torch.equal(flat[:120], image.permute(0, 2, 3, 1).flatten())
    assert torch.equal(flat[120:], turned.t().flatten())
    views = slices(flat, layout, [image, turned])
    assert all(map(torch.equal, views, [image, turned]))
    back = [torch.zeros_like(image), torch.zeros_like(turned)]
    unpack(flat, back, layout, 2.0)
    assert all(map(torch.equal, back, [2 * image, 2 * turned]))


def test_a_tensor_may_be_its_slice() -> None:
    layout = Layout.of([5, 6])
    flat = torch.arange(11.0)
    pack(slices(flat, layout, [torch.empty(5), torch.empty(2, 3)]), flat, layout, 0.5)
    assert torch.equal(flat, torch.arange(11.0) / 2)


def test_on_a_cpu_torch_does_it() -> None:
    assert describe_pack_backend(torch.device("cpu")) == "gradients are packed by torch operations"


@pytest.mark.parametrize(
    ("tensors", "flat", "sentence"),
    [
        ([torch.zeros(3)], torch.zeros(9), "1 tensors do not fit a layout of 2"),
        ([torch.zeros(3), torch.zeros(4)], torch.zeros(6), r"must be flat and hold 7 elements: it is \(6,\)"),
        ([torch.zeros(3), torch.zeros(4)], torch.zeros(2, 7), r"must be flat and hold 7 elements: it is \(2, 7\)"),
        ([torch.zeros(3), torch.zeros(4)], torch.zeros(14)[::2], "must be flat"),
        ([torch.zeros(3), torch.zeros(5)], torch.zeros(9), "of 5 torch.float32 elements on cpu is no slice of 4"),
        ([torch.zeros(3), torch.zeros(4).double()], torch.zeros(9), "of 4 torch.float64 elements on cpu is no slice"),
        ([torch.zeros(6)[::2], torch.zeros(4)], torch.zeros(9), r"of shape \(3,\) and strides \(2,\) is not dense"),
        ([torch.zeros(3).half(), torch.zeros(4).half()], torch.zeros(9), "torch.float16 tensors do not travel in a"),
        ([torch.zeros(3), torch.zeros(4)], torch.zeros(9).half(), "torch.float32 tensors do not travel in a torch.fl"),
        ([torch.zeros(3).int(), torch.zeros(4).int()], torch.zeros(9).int(), "torch.int32 tensors do not travel"),
    ],
)
def test_what_does_not_fit_is_refused(tensors: list[Tensor], flat: Tensor, sentence: str) -> None:
    layout = Layout.of([3, 4])
    with pytest.raises(ValueError, match=sentence):
        pack(tensors, flat, layout)
    with pytest.raises(ValueError, match=sentence):
        unpack(flat, tensors, layout)


def test_nothing_is_packed_from_nothing() -> None:
    pack([], torch.zeros(0), Layout.of([]))
    unpack(torch.zeros(0), [], Layout.of([]))
