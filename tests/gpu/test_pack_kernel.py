"""The kernel against its twin on a GPU: the same bits for every pair of types, for all sizes, places and counts."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from xbench.errors import KernelError
from xbench.kernels import build
from xbench.kernels.pack import Layout, describe_pack_backend, pack, pack_twin, slices, unpack, unpack_twin

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
    pytest.mark.skipif(build.find_nvcc() is None, reason="there is no nvcc"),
]

CUDA = torch.device("cuda")
PAIRS = (
    (torch.float32, torch.float32),
    (torch.float32, torch.bfloat16),
    (torch.bfloat16, torch.bfloat16),
    (torch.float16, torch.float16),
    (torch.float64, torch.float64),
)
SPECIAL = (0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-45, -1e-40, 3.4e38, -3.4e38, 65504.0, 1.0 + 2**-8)


def numbers(count: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Over many orders of magnitude, with special values at the start."""
    found = torch.randn(count, generator=generator, device=CUDA, dtype=torch.float64)
    found *= 10.0 ** torch.randint(-20, 20, (count,), generator=generator, device=CUDA)
    special = torch.tensor(SPECIAL[:count], dtype=torch.float64)
    found[: len(special)] = special.to(CUDA)
    return found.to(dtype)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal bits, any NaN equal to any other."""
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    nan = torch.isnan(a)
    return torch.equal(nan, torch.isnan(b)) and torch.equal(a.view(integers)[~nan], b.view(integers)[~nan])


def test_the_kernel_is_there() -> None:
    found = build.for_gpu(CUDA)
    if isinstance(found, KernelError):
        pytest.fail(f"{found}\n{found.detail}")
    assert describe_pack_backend(CUDA) == "gradients are packed by the CUDA kernel"


@pytest.mark.parametrize("pair", PAIRS, ids=str)
@pytest.mark.parametrize("align", [1, 8])
@pytest.mark.parametrize("scale", [1.0, 0.5, 1 / 3])
@pytest.mark.parametrize("count", [1, 7, 144, 145, 1160, 1161, 3000])
def test_kernel_and_twin_write_the_same_bits(
    pair: tuple[torch.dtype, torch.dtype], align: int, scale: float, count: int
) -> None:
    """Sizes from none to several blocks, tensors that begin anywhere, counts around what one launch takes."""
    dtype, wire = pair
    draw = random.Random(f"{pair} {align} {scale} {count}")
    generator = torch.Generator(CUDA).manual_seed(count)
    sizes = [draw.choice([0, 1, 3, 8, 17, 255, 1000, draw.randrange(5000)]) for _ in range(count)]
    sizes[draw.randrange(count)] = 40_001
    tensors = []
    for size in sizes:
        offset = draw.choice([0, 0, 1, 2, 3, 5])
        tensors.append(numbers(size + offset, dtype, generator)[offset:])
    layout = Layout.of(sizes, align)
    ours, twins = (torch.full((layout.length + 5,), 7.0, dtype=wire, device=CUDA) for _ in range(2))
    pack(tensors, ours, layout, scale)
    pack_twin(tensors, twins, layout, scale)
    assert same_bits(ours, twins)
    assert bool((ours[layout.length :] == 7).all())
    back = [torch.full_like(tensor, 3.0) for tensor in tensors]
    again = [torch.full_like(tensor, 4.0) for tensor in tensors]
    unpack(ours, back, layout, scale)
    unpack_twin(twins, again, layout, scale)
    assert all(same_bits(a, b) for a, b in zip(back, again, strict=True))


def test_a_large_tensor_goes_in_whole() -> None:
    tensor = torch.randn(50_000_003, device=CUDA)
    layout = Layout.of([tensor.numel(), 1], align=8)
    flat = torch.zeros(layout.length, dtype=torch.bfloat16, device=CUDA)
    pack([tensor, tensor[:1]], flat, layout, 0.25)
    assert torch.equal(flat[: tensor.numel()], (tensor * 0.25).bfloat16())
    assert torch.equal(flat[-1:], (tensor[:1] * 0.25).bfloat16())


def test_a_tensor_may_be_its_slice() -> None:
    layout = Layout.of([4097, 30], align=4)
    flat = torch.randn(layout.length, device=CUDA)
    expected = flat * 0.5
    expected[4097:4100] = flat[4097:4100]
    pack(slices(flat, layout, [torch.empty(4097), torch.empty(5, 6)]), flat, layout, 0.5)
    assert torch.equal(flat, expected)


def test_it_follows_the_current_stream() -> None:
    side = torch.cuda.Stream()
    tensor, layout = torch.ones(1 << 20, device=CUDA), Layout.of([1 << 20])
    flat = torch.zeros(1 << 20, device=CUDA)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        tensor.fill_(3.0)
        pack([tensor], flat, layout)
    side.synchronize()
    assert bool((flat == 3).all())
