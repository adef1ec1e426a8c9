"""Order of what an emulated link gives to the streams of a GPU that does not exist."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from xbench.emulation import cuda
from xbench.records import CostModel, EmulatedLink

CUDA = torch.device("cuda", 0)
LINE = CostModel(
    backend="formula", world_size=8, alpha_s=1e-3, beta_s_per_byte=0.0, alpha_ci95=(1e-3, 1e-3),
    beta_ci95=(0.0, 0.0), max_relative_residual=0.0, points=[],
)  # fmt: skip


class FakeGpu:
    """A host and a device with two streams; both clocks only move by what is given to them [µs].

    Each call of the host takes `call_us`. A stream begins an item when the host has queued it and the item before it is
    done.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, call_us: float) -> None:
        self.call_us = call_us
        self.host_us = 0.0
        self.log: list[tuple[str, str]] = []
        self.computes = FakeStream(self, "compute")
        monkeypatch.setattr(torch.cuda, "Stream", lambda device: FakeStream(self, "link"))
        monkeypatch.setattr(torch.cuda, "Event", lambda **_: FakeEvent(self))
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device=CUDA: self.computes)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
        monkeypatch.setattr(torch.cuda, "stream", self.stream)
        monkeypatch.setattr(cuda, "wait", lambda ns, stream, *_: stream.run("wait", ns / 1e3))
        monkeypatch.setattr(cuda, "head_start", lambda stream: stream.run("head start", 200.0))
        monkeypatch.setattr(cuda, "why_not", lambda device: None)

    @contextlib.contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        yield

    def queued_us(self, stream: FakeStream, what: str) -> float:
        """Let the host queue something, and return when it was queued."""
        self.host_us += self.call_us
        self.log.append((stream.name, what))
        return self.host_us


class FakeEvent:
    """An event; `at_us` is its time on the device."""

    at_us = 0.0

    def __init__(self, gpu: FakeGpu) -> None:
        self.gpu = gpu

    def record(self, stream: FakeStream) -> None:
        stream.end_us = self.at_us = max(stream.end_us, stream.gpu.queued_us(stream, "event"))

    def synchronize(self) -> None:
        self.gpu.log.append(("host", "waits for an event"))

    def elapsed_time(self, end: FakeEvent) -> float:
        return (end.at_us - self.at_us) / 1e3


class FakeStream:
    """A stream; `end_us` is the end of its last item."""

    device = CUDA

    def __init__(self, gpu: FakeGpu, name: str) -> None:
        self.gpu, self.name, self.end_us = gpu, name, 0.0

    def run(self, what: str, took_us: float) -> None:
        self.end_us = max(self.end_us, self.gpu.queued_us(self, what)) + took_us

    def wait_stream(self, other: FakeStream) -> None:
        self.end_us = max(self.end_us, other.end_us, self.gpu.queued_us(self, f"waits for {other.name}"))

    def wait_event(self, event: Any) -> None:
        self.end_us = max(self.end_us, event.at_us, self.gpu.queued_us(self, "waits for an event"))


def test_a_timed_wait_is_queued_before_the_device_gets_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(monkeypatch, call_us=5.0)
    link = cuda.StreamLink(EmulatedLink(model=LINE), CUDA)
    took_s = link.took_s(20e-6)
    assert gpu.log == [
        ("compute", "head start"),
        ("compute", "event"),
        ("link", "waits for compute"),
        ("link", "wait"),
        ("link", "event"),
        ("compute", "waits for an event"),
        ("compute", "event"),
        ("host", "waits for an event"),
    ]
    assert took_s == pytest.approx(20e-6, abs=1e-12)


def test_contention_copies_more_than_the_cache_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeGpu(monkeypatch, call_us=5.0)
    waits: list[tuple[Any, ...]] = []
    monkeypatch.setattr(cuda, "wait", lambda ns, stream, *load: waits.append(load))
    monkeypatch.setattr(cuda, "scratch_of", lambda nbytes, device: ("scratch", nbytes))
    h100 = SimpleNamespace(multi_processor_count=132, L2_cache_size=50 * 2**20)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: h100)
    link = cuda.StreamLink(EmulatedLink(model=LINE, slowdown=1.2), CUDA)
    link.took_s(1e-3)
    assert waits == [(22, ("scratch", 200 * 2**20))]  # 1/1.2 of 132 multiprocessors are left
