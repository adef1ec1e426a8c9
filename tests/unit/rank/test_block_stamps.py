"""Step boundaries of a block, by the device's clock."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from xbench.rank.blocks import tell_block
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


def test_stamps_are_read_after_a_flush_and_the_warm_up_is_not_reported() -> None:
    written: list[Any] = []
    reported: list[tuple[float, float]] = []
    session = SimpleNamespace(
        clock=DeviceClock(),
        journal=SimpleNamespace(write=written.append),
        gpu=SimpleNamespace(report=lambda begin_s, end_s, **_: reported.append((begin_s, end_s))),
    )
    (mode,) = parse_modes("ddp")
    stamps = [0.0, 0.5, 1.5]
    tell_block(session, mode, (2, 3), 1, (10.0, stamps[0]), stamps)  # type: ignore[arg-type]
    (block,) = written
    assert isinstance(block, BlockTimed)
    assert (block.stamps, block.warmup, block.round, block.position) == ([10.0, 10.5, 11.5], 1, 2, 3)
    assert reported == [(10.5, 11.5)]
    assert not session.clock.flushed
