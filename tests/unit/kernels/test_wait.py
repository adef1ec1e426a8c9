"""The wait's wrapper, with kernels that only note how they are launched: what is passed on, and what is refused."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from xbench.errors import KernelError
from xbench.kernels.wait import head_start, scratch_of, timer_step_ns, wait, why_not

CUDA = torch.device("cuda", 0)
CPU = torch.device("cpu")


class Noted:
    """Notes each launch, and fails with `error` if there is one."""

    def __init__(self) -> None:
        self.error: KernelError | None = None
        self.calls: list[tuple[Any, ...]] = []

    def launch(self, name: str, blocks: int, threads: int, stream: int, *arguments: Any) -> None:
        self.calls.append((name, blocks, threads, stream, *(argument.value for argument in arguments)))
        if self.error is not None:
            raise self.error


def stream(device: torch.device = CUDA) -> Any:
    return SimpleNamespace(device=device, cuda_stream=77)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Noted:
    found = Noted()
    monkeypatch.setattr("xbench.kernels.wait.for_gpu", lambda device: found)
    return found


def test_a_plain_wait_takes_the_stream_alone(kernels: Noted) -> None:
    wait(1500, stream())
    assert kernels.calls == [("wait_alone", 1, 32, 77, 1500)]
    assert why_not(CUDA) is None


def test_a_head_start_is_a_plain_wait_of_2_ms(kernels: Noted) -> None:
    head_start(stream())
    assert kernels.calls == [("wait_alone", 1, 32, 77, 2_000_000)]


def test_a_head_start_without_the_kernel_spins_as_many_cycles(monkeypatch: pytest.MonkeyPatch) -> None:
    spun: list[int] = []
    monkeypatch.setattr("xbench.kernels.wait.for_gpu", lambda device: KernelError("there is no compiler"))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "_sleep", spun.append)
    monkeypatch.setattr("xbench.kernels.wait._cycles_per_ns", lambda device: 1.5)
    head_start(stream())
    assert spun == [3_000_000]


def test_a_wait_with_load_takes_its_scratch(kernels: Noted) -> None:
    scratch = scratch_of(4096, CPU)
    assert scratch.nbytes == 4096 + 128
    assert not scratch.any()
    aligned = SimpleNamespace(device=CPU, nbytes=scratch.nbytes, data_ptr=lambda: 1 << 20)
    wait(10, stream(CPU), blocks=3, scratch=aligned)  # type: ignore[arg-type]
    assert kernels.calls == [("wait_with_load", 4, 256, 77, 10, 1 << 20, 256)]


def test_what_cannot_be_is_refused(kernels: Noted) -> None:
    for ns, blocks in ((-1, 0), (1, -1)):
        with pytest.raises(ValueError, match="cannot be"):
            wait(ns, stream(), blocks=blocks)
    for scratch in (None, scratch_of(4096, CPU)):
        with pytest.raises(ValueError, match="needs a scratch of its stream's device"):
            wait(1, stream(), blocks=1, scratch=scratch)
    small = SimpleNamespace(device=CPU, nbytes=4096 + 128, data_ptr=lambda: 1 << 20)
    with pytest.raises(ValueError, match="a scratch of 4224 bytes is too small for 129 blocks"):
        wait(1, stream(CPU), blocks=129, scratch=small)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="4096 are the least"):
        scratch_of(4095, CPU)
    assert kernels.calls == []


def test_a_failed_launch_is_an_error(kernels: Noted) -> None:
    kernels.error = KernelError("out of order")
    with pytest.raises(KernelError, match="out of order"):
        wait(5, stream())


def test_without_the_kernel_load_and_clock_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    reason = KernelError("there is no NVRTC")
    monkeypatch.setattr("xbench.kernels.wait.for_gpu", lambda device: reason)
    scratch = SimpleNamespace(device=CUDA, nbytes=8192, data_ptr=lambda: 1 << 20)
    with pytest.raises(KernelError, match="there is no NVRTC"):
        wait(5, stream(), blocks=1, scratch=scratch)  # type: ignore[arg-type]
    with pytest.raises(KernelError, match="there is no NVRTC"):
        timer_step_ns(CUDA)
    assert why_not(CUDA) == "there is no NVRTC"
