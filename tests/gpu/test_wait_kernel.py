"""Waits on a GPU's streams: none is shorter than asked for, they follow each other, load leaves its scratch ready."""

from __future__ import annotations

import pytest
import torch

from xbench.kernels.wait import HEADER_BYTES, scratch_of, timer_step_ns, wait, why_not

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]

MS = 1_000_000


def took_ns(waits: list[int], blocks: int = 0, scratch: torch.Tensor | None = None) -> float:
    """Time of these waits, one after the other on a stream of their own, between two events."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        wait(1000, stream)
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for ns in waits:
            wait(ns, stream, blocks, scratch)
        end.record()
    end.synchronize()
    return begin.elapsed_time(end) * MS


def test_the_clock_moves_in_steps() -> None:
    assert why_not(torch.device("cuda")) is None
    assert 0 < timer_step_ns(torch.device("cuda")) <= 2 * MS


@pytest.mark.parametrize("waits", [[5 * MS], [2 * MS] * 4, [0]])
def test_a_wait_is_as_long_as_asked_for_or_longer(waits: list[int]) -> None:
    step_ns = timer_step_ns(torch.device("cuda"))
    assert took_ns(waits) >= sum(waits) - len(waits) * (step_ns + 1000)


def test_a_wait_with_load_too_and_its_scratch_can_be_used_again() -> None:
    scratch = scratch_of(8 * 1024 * 1024 + 40, torch.device("cuda"))
    step_ns = timer_step_ns(torch.device("cuda"))
    for blocks in (1, 8, 64):
        assert took_ns([2 * MS, 2 * MS], blocks, scratch) >= 4 * MS - 2 * (step_ns + 1000)
        torch.cuda.synchronize()
        assert not scratch[:HEADER_BYTES].any()


def test_what_the_load_copies_stays_what_it_was() -> None:
    """Each block copies the first half of its part to the second and back: halves that were equal stay so."""
    scratch = scratch_of(1 << 20, torch.device("cuda"))
    half = torch.randint(0, 256, (1 << 17,), dtype=torch.uint8, device="cuda")
    scratch[HEADER_BYTES:] = half.repeat(8)  # four blocks of two halves
    before = scratch.clone()
    took_ns([3 * MS], 4, scratch)
    assert torch.equal(scratch, before)


def test_streams_wait_beside_each_other() -> None:
    """What is queued behind a wait comes after it; what is on another stream need not."""
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    value = torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    wait(200 * MS, first)
    with torch.cuda.stream(second):
        value.fill_(1.0)
    second.synchronize()
    assert not first.query()
    first.synchronize()
    assert value.item() == 1.0
