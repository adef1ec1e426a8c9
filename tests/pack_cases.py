"""Random tensors to pack and unpack, for the kernel on a GPU and for the same code on a CPU."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import torch
from torch import Tensor

from xbench.kernels.pack import Layout, pack_twin, slices, unpack_twin

PAIRS = (
    (torch.float32, torch.float32),
    (torch.float32, torch.bfloat16),
    (torch.bfloat16, torch.bfloat16),
    (torch.float16, torch.float16),
    (torch.float64, torch.float64),
)
"""Types of tensors, and of the buffer that they travel in."""

COUNTS = (1, 7, 144, 145, 1160, 1161, 2500)
"""Numbers of tensors around what one launch takes."""

FULL_NAN = struct.unpack("<d", b"\xff" * 7 + b"\x7f")[0]
"""The NaN of a GPU's arithmetic, which becomes -0 in bf16 if it is rounded as a number is."""

SPECIAL = (0.0, -0.0, float("inf"), -float("inf"), float("nan"), FULL_NAN)
SPECIAL += (1e-45, -1e-40, 3.4e38, -3.4e38, 65504.0, 65520.0, 1.0 + 2**-8, 1.0 + 3 * 2**-8)

Move = Callable[[str, list[Tensor], Tensor, Layout, float], None]
"""Pack ('pack') or unpack ('unpack') by the kernel."""


def numbers(count: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Over many orders of magnitude, a tenth of them special values."""
    device = generator.device
    found = torch.randn(count, generator=generator, device=device, dtype=torch.float64)
    found *= 10.0 ** torch.randint(-20, 20, (count,), generator=generator, device=device)
    special = torch.tensor(SPECIAL, dtype=torch.float64).to(device)
    places = torch.randint(count, (count // 10 + len(SPECIAL),), generator=generator, device=device)
    found[places] = special.repeat(len(places) // len(SPECIAL) + 1)[: len(places)]
    return found.to(dtype)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal bits, any NaN equal to any other."""
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    nan = torch.isnan(a)
    return torch.equal(nan, torch.isnan(b)) and torch.equal(a.view(integers)[~nan], b.view(integers)[~nan])


def check_case(
    move: Move, device: torch.device, pair: tuple[torch.dtype, torch.dtype], count: int, align: int, scale: float
) -> None:
    """Kernel and twin write the same bits, and nothing between: no size to several blocks, begun anywhere."""
    dtype, wire = pair
    draw = random.Random(f"{pair} {align} {scale} {count}")
    generator = torch.Generator(device).manual_seed(count)
    sizes = [draw.choice([0, 1, 3, 8, 17, 255, 1000, draw.randrange(5000)]) for _ in range(count)]
    sizes[draw.randrange(count)] = 40_001
    starts, end = [], 0
    for size in sizes:
        starts.append(end + draw.choice([0, 0, 1, 2, 3, 5]))
        end = starts[-1] + size
    given = numbers(end, dtype, generator)
    layout = Layout.of(sizes, align)
    ours, twins = (torch.full((layout.length + 5,), 7.0, dtype=wire, device=device) for _ in range(2))
    move("pack", parts(given, starts, sizes), ours, layout, scale)
    pack_twin(parts(given, starts, sizes), twins, layout, scale)
    assert same_bits(ours, twins)
    back, again = torch.full_like(given, 3.0), torch.full_like(given, 3.0)
    move("unpack", parts(back, starts, sizes), ours, layout, scale)
    unpack_twin(twins, parts(again, starts, sizes), layout, scale)
    assert same_bits(back, again)


def parts(whole: Tensor, starts: list[int], sizes: list[int]) -> list[Tensor]:
    return [whole[start : start + size] for start, size in zip(starts, sizes, strict=True)]


def check_in_place(move: Move, device: torch.device, dtype: torch.dtype) -> None:
    """A tensor may be its slice, and nothing between the slices is written."""
    layout = Layout.of([4097, 30], align=16)
    flat = torch.randn(layout.length, device=device, dtype=torch.float64).to(dtype)
    expected = flat * 0.5
    expected[4097:4112] = flat[4097:4112]
    own = slices(flat, layout, [torch.empty(4097), torch.empty(5, 6)])
    move("pack", own, flat, layout, 0.5)
    assert torch.equal(flat, expected)
