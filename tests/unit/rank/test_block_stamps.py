"""Step boundaries of a block: by the device's clock, or by the host's in turns."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from xbench.profilers.clock import HostClock
from xbench.rank.blocks import boundary_clock, tell_block
from xbench.rank.events import BlockTimed
from xbench.schedules import parse_modes


class DeviceClock:
    """A mark is its own time [s], known after a flush."""

    flushed = False

    def mark(self) -> float:
        return 0.0

    def elapsed_s(self, start: float, end: float) -> float:
        assert self.flushed
        return end - start

    def flush(self) -> None:
        self.flushed = True

    def reset(self) -> None:
        self.flushed = False


@pytest.mark.parametrize(
    ("mode", "by_host"), [("ddp", False), ("sequential", False), ("concurrent", False), ("crossover", True)]
)
def test_a_turn_ends_by_the_host_s_clock(mode: str, by_host: bool) -> None:
    device, (spec,) = DeviceClock(), parse_modes(mode)
    clock = boundary_clock(device, spec)  # type: ignore[arg-type]
    assert isinstance(clock, HostClock) if by_host else clock is device


@pytest.mark.parametrize("by_host", [False, True])
def test_stamps_are_read_by_the_clock_that_made_them(by_host: bool) -> None:
    written: list[Any] = []
    reported: list[tuple[float, float]] = []
    session = SimpleNamespace(
        clock=DeviceClock(),
        journal=SimpleNamespace(write=written.append),
        gpu=SimpleNamespace(report=lambda begin_s, end_s, **_: reported.append((begin_s, end_s))),
    )
    (mode,) = parse_modes("ddp")
    if by_host:
        stamps, clock = [0, 500_000_000, 1_500_000_000], HostClock()
    else:
        stamps, clock = [0.0, 0.5, 1.5], None  # type: ignore[assignment]
    tell_block(session, mode, (2, 3), 1, (10.0, stamps[0]), stamps, None, clock)  # type: ignore[arg-type]
    (block,) = written
    assert isinstance(block, BlockTimed)
    assert (block.stamps, block.warmup, block.round, block.position) == ([10.0, 10.5, 11.5], 1, 2, 3)
    assert reported == [(10.5, 11.5)]
    assert not session.clock.flushed
