"""Two jobs in one process: what is recorded of their turns, and who draws which random numbers."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from xbench.rank.pair import TurnRecorder, _judged
from xbench.rank.snapshot import RandomState
from xbench.schedules.job_turns import JobTurns, steps_in_turns


class Ticks:
    """A clock whose marks are the seconds of a test."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def mark(self) -> float:
        return self.now_s

    def elapsed_s(self, start: float, end: float) -> float:
        return end - start

    def flush(self) -> None:
        pass

    def reset(self) -> None:
        pass


class Sent:
    """A collective that ends when the test says so."""

    def __init__(self) -> None:
        self.call: Callable[[Any], None] = lambda _: None

    def get_future(self) -> Sent:
        return self

    def add_done_callback(self, call: Callable[[Any], None]) -> None:
        self.call = call


def test_a_recorded_turn_begins_after_the_wait_and_knows_the_last_arrival() -> None:
    clock, flying = Ticks(), list[Sent]()
    recorder = TurnRecorder(clock)

    def compute() -> None:
        clock.now_s += 1.0
        for _ in range(2):
            flying.append(Sent())
            recorder.watch(4, lambda: cast(Any, flying[-1]))
        clock.now_s += 1.0

    def update() -> None:
        clock.now_s += 0.5

    def arrive() -> None:
        for sent in flying:
            clock.now_s += 2.0
            sent.call(None)
        flying.clear()

    handle = SimpleNamespace(synchronize=arrive)
    job = recorder.recorded(JobTurns(2, update, compute, lambda: None), cast(Any, handle))
    steps_in_turns([job], (0,))
    assert recorder.taken((100.0, 0.0)) == [(100.0, 102.0, 106.0), (106.0, 108.5, 112.5)]


def test_a_collective_without_a_future_has_no_arrival() -> None:
    clock = Ticks()
    recorder = TurnRecorder(clock)
    work = object()
    seen = []

    def compute() -> None:
        seen.append(recorder.watch(4, lambda: cast(Any, work)))

    handle = SimpleNamespace(synchronize=lambda: None)
    steps_in_turns([recorder.recorded(JobTurns(1, lambda: None, compute, lambda: None), cast(Any, handle))], (0,))
    assert seen == [work]
    assert recorder.taken((0.0, 0.0)) == [(0.0, 0.0, None)]


@pytest.mark.parametrize("pattern", [(0, 1), (1, 1, 0)])
def test_each_job_has_its_own_random_numbers(pattern: tuple[int, ...]) -> None:
    drawn: dict[int, list[float]] = {0: [], 1: []}
    judged: list[int] = []

    def job(number: int) -> JobTurns:
        torch.manual_seed(number)
        session = SimpleNamespace(snapshot=SimpleNamespace(random=RandomState()), loss=None, norm=None)
        checker = SimpleNamespace(step=lambda loss, norm: judged.append(number))
        turns = JobTurns(3, lambda: None, lambda: drawn[number].append(float(torch.rand(()))), lambda: None)
        return _judged(turns, cast(Any, session), checker)

    steps_in_turns([job(0), job(1)], pattern)
    for number, values in drawn.items():
        torch.manual_seed(number)
        assert values == [float(torch.rand(())) for _ in range(3)]
    assert sorted(judged) == [0, 0, 0, 1, 1, 1]
