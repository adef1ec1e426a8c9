"""The pack kernels, compiled for this CPU by a C++ compiler, against their twins: the same bits.

The launch is the one that a GPU gets: names, grids and tables of `xbench.kernels.pack`. `cuda_on_cpu.h` takes the place
of CUDA.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from pack_cases import COUNTS, PAIRS, Move, check_case, check_in_place, same_bits

from xbench.kernels import build
from xbench.kernels.pack import Layout, launch

COMPILER = shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++")
CPU = torch.device("cpu")

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler here")


class OnCpu:
    """Launches of a library that `cuda_on_cpu.h` made of a .cu file."""

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path))

    def launch(self, name: str, blocks: int, threads: int, stream: int, *arguments: Any) -> None:
        table, flat, number = arguments
        run = self.library.run_double if isinstance(number, ctypes.c_double) else self.library.run_float
        run(getattr(self.library, name), blocks, threads, ctypes.byref(table), flat, number)


@pytest.fixture(scope="module")
def move(tmp_path_factory: pytest.TempPathFactory) -> Move:
    path = tmp_path_factory.mktemp("kernels") / "pack.so"
    words = ["-std=c++17", "-O1", "-shared", "-fPIC", "-ffp-contract=off", "-Wno-unknown-pragmas"]
    shim = Path(__file__).with_name("cuda_on_cpu.h")
    command = [str(COMPILER), *words, "-include", str(shim), "-x", "c++", str(build.source_of("pack")), "-o", str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return partial(launch, OnCpu(path), 0)


@pytest.mark.parametrize("pair", PAIRS, ids=str)
@pytest.mark.parametrize(("align", "scale"), [(1, 1 / 3), (8, 0.5)])
@pytest.mark.parametrize("count", COUNTS)
def test_kernel_and_twin_write_the_same_bits(
    move: Move, pair: tuple[torch.dtype, torch.dtype], align: int, scale: float, count: int
) -> None:
    check_case(move, CPU, pair, count, align, scale)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_a_tensor_may_be_its_slice(move: Move, dtype: torch.dtype) -> None:
    check_in_place(move, CPU, dtype)


def test_every_16_bit_number_comes_back(move: Move) -> None:
    """Conversions there and back: 65,536 bf16 and fp16 numbers, by kernels that multiply by one."""
    for dtype in (torch.bfloat16, torch.float16):
        every = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
        flat = torch.zeros(2**16, dtype=dtype)
        move("pack", [every], flat, Layout.of([2**16]), 1.0)
        assert same_bits(flat, every)
