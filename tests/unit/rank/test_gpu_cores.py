"""Cores next to a GPU: which are taken, and when a rank is left where it is."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from xbench.profilers.gpu import NotAvailable
from xbench.rank.gpu import bind_to_gpu, near_cores, spans

CUDA = torch.device("cuda", 1)
NEAR = {*range(32, 64), *range(96, 128)}


class Nvml:
    """Two processors of 32 cores with two threads each; the GPU is beside the second."""

    NVMLError = type("NVMLError", (Exception,), {})

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        assert uuid == "GPU-1"
        return "handle"

    def nvmlDeviceGetCpuAffinity(self, handle: str, words: int) -> list[int]:
        assert (handle, words) == ("handle", 2)
        return [0xFFFFFFFF << 32] * 2


@pytest.fixture
def bound(monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """Cores that a rank was bound to, on a machine of 128 cores where nobody has bound it before."""
    calls: list[set[int]] = []
    monkeypatch.setattr(os, "cpu_count", lambda: 128)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(128)))
    monkeypatch.setattr(os, "sched_setaffinity", lambda process, cores: calls.append(cores))
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="1"))
    return calls


def test_a_rank_is_bound_to_the_cores_next_to_its_gpu(bound: list[set[int]]) -> None:
    assert bind_to_gpu(CUDA, Nvml) == "ranks whose GPU is nearest to cores 32-63,96-127 are bound to these"
    assert bound == [NEAR]


def test_the_affinity_that_a_launcher_gave_is_kept(bound: list[set[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(16)))
    assert bind_to_gpu(CUDA, lambda: pytest.fail("NVML was asked")) is None
    assert bound == []


def _missing() -> Any:
    raise NotAvailable("no NVML")


def test_without_an_answer_of_nvml_nothing_is_bound(bound: list[set[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    assert bind_to_gpu(CUDA, _missing) is None
    for answer in ([0, 0], [2**64 - 1] * 2):  # none, and all: every core is as near
        monkeypatch.setattr(Nvml, "nvmlDeviceGetCpuAffinity", lambda self, handle, words, answer=answer: answer)
        assert bind_to_gpu(CUDA, Nvml) is None
    monkeypatch.delattr(Nvml, "nvmlDeviceGetCpuAffinity")
    assert bind_to_gpu(CUDA, Nvml) is None
    assert bound == []


def test_a_kernel_that_refuses_ends_nothing(bound: list[set[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(process: int, cores: set[int]) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    assert bind_to_gpu(CUDA, Nvml) is None


def test_the_mask_is_read_word_by_word() -> None:
    nvml = SimpleNamespace(nvmlDeviceGetCpuAffinity=lambda handle, words: [0b1001, 0b10, 0][:words])
    assert near_cores(nvml, None, 66) == {0, 3, 65}
    assert near_cores(nvml, None, 65) == {0, 3}


@pytest.mark.parametrize(
    ("cores", "text"), [({5}, "5"), ({0, 1, 2, 8}, "0-2,8"), (range(4), "0-3"), ({7, 3, 5}, "3,5,7")]
)
def test_spans_are_short(cores: Any, text: str) -> None:
    assert spans(cores) == text
