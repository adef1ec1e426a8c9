"""The kernel against its twin on a GPU: the same bits for every pair of types, for all sizes, places and counts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from pack_cases import COUNTS, PAIRS, check_case, check_in_place
from torch import Tensor

from xbench.errors import KernelError
from xbench.kernels import build
from xbench.kernels.pack import Layout, describe_pack_backend, pack, unpack

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]

CUDA = torch.device("cuda")


def move(name: str, tensors: list[Tensor], flat: Tensor, layout: Layout, scale: float) -> None:
    if name == "pack":
        pack(tensors, flat, layout, scale)
    else:
        unpack(flat, tensors, layout, scale)


@pytest.fixture(params=["nvcc", "NVRTC"])
def compiler(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Each compiler that is there, alone."""
    found = [each for each in build.compilers() if each.name == request.param]
    if not found:
        pytest.skip(f"there is no {request.param}")
    monkeypatch.setattr(build, "compilers", lambda: found)
    build._for_gpu.cache_clear()
    yield request.param
    build._for_gpu.cache_clear()


def test_the_kernel_is_there(compiler: str) -> None:
    found = build.for_gpu("pack", CUDA)
    if isinstance(found, KernelError):
        pytest.fail(f"{found}\n{found.detail}")
    assert describe_pack_backend(CUDA) == "gradients are packed by the CUDA kernel"


@pytest.mark.parametrize("pair", PAIRS, ids=str)
@pytest.mark.parametrize("align", [1, 8])
@pytest.mark.parametrize("scale", [1.0, 0.5, 1 / 3])
@pytest.mark.parametrize("count", COUNTS)
def test_kernel_and_twin_write_the_same_bits(
    pair: tuple[torch.dtype, torch.dtype], align: int, scale: float, count: int
) -> None:
    check_case(move, CUDA, pair, count, align, scale)


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_every_compiler_s_kernel_writes_the_same_bits(compiler: str, pair: tuple[torch.dtype, torch.dtype]) -> None:
    check_case(move, CUDA, pair, 1161, 1, 1 / 3)


def test_a_large_tensor_goes_in_whole() -> None:
    tensor = torch.randn(50_000_003, device=CUDA)
    layout = Layout.of([tensor.numel(), 1], align=8)
    flat = torch.zeros(layout.length, dtype=torch.bfloat16, device=CUDA)
    pack([tensor, tensor[:1]], flat, layout, 0.25)
    assert torch.equal(flat[: tensor.numel()], (tensor * 0.25).bfloat16())
    assert torch.equal(flat[-1:], (tensor[:1] * 0.25).bfloat16())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_a_tensor_may_be_its_slice(dtype: torch.dtype) -> None:
    check_in_place(move, CUDA, dtype)


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
