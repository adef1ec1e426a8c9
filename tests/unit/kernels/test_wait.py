"""The wait's wrapper, with a library that only notes how it is called: what is passed on, and what is refused."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from xbench.errors import KernelError
from xbench.kernels import build
from xbench.kernels.wait import head_start, scratch_of, timer_step_ns, wait, why_not

CUDA = torch.device("cuda", 0)
CPU = torch.device("cpu")


class Library:
    """Notes each wait; answers with `code`."""

    def __init__(self, code: int = 0) -> None:
        self.code = code
        self.calls: list[tuple[Any, ...]] = []

    def xbench_wait(self, *arguments: Any) -> int:
        self.calls.append(arguments)
        return self.code

    def xbench_error_text(self, code: int) -> bytes:
        return b"out of order"


def stream(device: torch.device = CUDA) -> Any:
    return SimpleNamespace(device=device, cuda_stream=77)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    found = Library()
    monkeypatch.setattr(build, "for_gpu", lambda device: found)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    return found


def test_a_plain_wait_takes_the_stream_alone(library: Library) -> None:
    wait(1500, stream())
    assert library.calls == [(1500, 0, None, 0, 77)]
    assert why_not(CUDA) is None


def test_a_head_start_is_a_plain_wait_of_200_us(library: Library) -> None:
    head_start(stream())
    assert library.calls == [(200_000, 0, None, 0, 77)]


def test_a_head_start_without_the_kernel_spins_as_many_cycles(monkeypatch: pytest.MonkeyPatch) -> None:
    spun: list[int] = []
    monkeypatch.setattr(build, "for_gpu", lambda device: KernelError("there is no nvcc"))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "_sleep", spun.append)
    monkeypatch.setattr("xbench.kernels.wait._cycles_per_ns", lambda device: 1.5)
    head_start(stream())
    assert spun == [300_000]


def test_a_wait_with_load_takes_its_scratch(library: Library) -> None:
    scratch = scratch_of(4096, CPU)
    assert scratch.nbytes == 4096 + 128
    assert not scratch.any()
    aligned = SimpleNamespace(device=CPU, nbytes=scratch.nbytes, data_ptr=lambda: 1 << 20)
    wait(10, stream(CPU), blocks=3, scratch=aligned)  # type: ignore[arg-type]
    assert library.calls == [(10, 3, 1 << 20, 4224, 77)]


def test_what_cannot_be_is_refused(library: Library) -> None:
    for ns, blocks in ((-1, 0), (1, -1)):
        with pytest.raises(ValueError, match="cannot be"):
            wait(ns, stream(), blocks=blocks)
    for scratch in (None, scratch_of(4096, CPU)):
        with pytest.raises(ValueError, match="needs a scratch of its stream's device"):
            wait(1, stream(), blocks=1, scratch=scratch)
    with pytest.raises(ValueError, match="4096 are the least"):
        scratch_of(4095, CPU)
    assert library.calls == []


def test_a_failed_launch_is_an_error(library: Library) -> None:
    library.code = 9
    with pytest.raises(KernelError, match=r"a wait of 5 ns: out of order \(CUDA error 9\)"):
        wait(5, stream())


def test_without_the_kernel_load_and_clock_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    reason = KernelError("there is no nvcc")
    monkeypatch.setattr(build, "for_gpu", lambda device: reason)
    scratch = SimpleNamespace(device=CUDA, nbytes=8192, data_ptr=lambda: 1 << 20)
    with pytest.raises(KernelError, match="there is no nvcc"):
        wait(5, stream(), blocks=1, scratch=scratch)  # type: ignore[arg-type]
    with pytest.raises(KernelError, match="there is no nvcc"):
        timer_step_ns(CUDA)
    assert why_not(CUDA) == "there is no nvcc"
