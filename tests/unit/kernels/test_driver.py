"""Building the CUDA source: what NVRTC makes of it, and sentences for what fails."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from xbench.errors import KernelError
from xbench.kernels import driver, wait

ROOT = Path(__file__).parents[3]


class Driver:
    """A driver that loads only machine code of `runs`, and notes what it loads and launches."""

    def __init__(self, runs: bytes) -> None:
        self.runs = runs
        self.loaded: list[bytes] = []
        self.launched: list[tuple[object, ...]] = []
        self.contexts = 0  # pushed and not popped

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *arguments: 0

    def cuCtxPushCurrent_v2(self, context: object) -> int:
        self.contexts += 1
        return 0

    def cuCtxPopCurrent_v2(self, context: object) -> int:
        self.contexts -= 1
        return 0

    def cuModuleLoadData(self, module: object, code: bytes) -> int:
        self.loaded.append(code)
        return 0 if code == self.runs else 209

    def cuLaunchKernel(self, kernel: object, *rest: Any) -> int:
        *numbers, addresses, extra = rest
        values = [ctypes.cast(address, ctypes.POINTER(ctypes.c_int)).contents.value for address in addresses]
        self.launched.append((*numbers, values, extra))
        return 0 if self.contexts == 1 else 201

    def cuGetErrorString(self, code: int, text: Any) -> int:
        text._obj.value = {209: b"no kernel image", 201: b"invalid context"}[code]
        return 0


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Driver]]:
    """A GPU whose driver runs some machine code, and a compiler that writes b"code"."""

    def given(runs: bytes) -> Driver:
        found = Driver(runs)
        monkeypatch.setattr(driver, "driver", lambda: found)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
        monkeypatch.setattr(wait, "find_nvrtc", lambda: object())
        monkeypatch.setattr(wait, "compiled", lambda library, source, options: b"code")
        wait._for_gpu.cache_clear()
        return found

    yield given
    wait._for_gpu.cache_clear()


def test_the_source_is_found_in_a_checkout_and_its_absence_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert wait.source() == ROOT / "cuda" / "wait.cu"
    monkeypatch.setattr(wait, "_PACKAGE", tmp_path / "xbench")
    with pytest.raises(KernelError, match="not installed"):
        wait.source()


def test_where_nothing_can_build_or_run_it_the_reason_is_said(
    gpu: Callable[..., Driver], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu(b"other")
    said = wait.for_gpu(torch.device("cuda", 0))
    assert str(said) == "the CUDA kernels do not run here: no kernel image (CUDA error 209)"
    wait._for_gpu.cache_clear()
    monkeypatch.setattr(wait, "find_nvrtc", lambda: None)
    assert "no NVRTC" in str(wait.for_gpu(torch.device("cuda", 0)))


def test_a_launch_passes_on_addresses_of_its_arguments(gpu: Callable[..., Driver]) -> None:
    found = gpu(b"code")
    kernels = wait.for_gpu(torch.device("cuda", 0))
    assert isinstance(kernels, driver.Kernels)
    assert wait.for_gpu(torch.device("cuda", 0)) is kernels
    kernels.launch("any", 5, 32, 77, ctypes.c_int(3), ctypes.c_int(4))
    assert found.launched == [(5, 1, 1, 32, 1, 1, 0, 77, [3, 4], None)]
    assert found.contexts == 0


@pytest.fixture
def library() -> ctypes.CDLL:
    found = driver.find_nvrtc() if torch.version.cuda else None
    if found is None:
        pytest.skip("there is no NVRTC here")
    return found


def test_the_kernels_compile_for_every_architecture(library: ctypes.CDLL) -> None:
    """Without a GPU: machine code for each, with the kernels that Python launches."""
    assert set(wait.SUPPORTED) == {"80", "90", "100"}
    for architecture in wait.SUPPORTED:
        code = driver.compiled(library, wait.source(), ("-std=c++17", f"-arch=sm_{architecture}"))
        assert code.startswith(b"\x7fELF")
        found = re.findall(rb"\0\.text\.(\w+)\0", code.replace(b"\0", b"\0\0"))
        assert set(found) == set(map(str.encode, wait.KERNELS))
        assert f"sm_{architecture}".encode() in code


def test_nvrtc_names_its_first_error(library: ctypes.CDLL, tmp_path: Path) -> None:
    source = tmp_path / "wrong.cu"
    source.write_text("#warning mind this\n__global__ void wrong() { expected }\n")
    with pytest.raises(
        KernelError, match=r'^NVRTC cannot build the CUDA kernels: wrong.cu\(2\): error: identifier "exp'
    ):
        driver.compiled(library, source, ("-arch=sm_90",))
