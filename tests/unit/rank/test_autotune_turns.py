"""Candidates that take turns: how steps are timed, and which candidates go on to the second half."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from autotune_planner import PLANNER, candidates

from xbench.planning.auto import Candidate
from xbench.rank import autotune
from xbench.rank.autotune import CandidateTiming, Trial


class TimedRank:
    """Steps of the given times, one after the other, on a device that is behind its host until the clock is flushed.

    Keeps what happened, in order.
    """

    def __init__(self, times: Sequence[float]) -> None:
        self.device = torch.device("cpu")
        optimizer = SimpleNamespace(zero_grad=lambda set_to_none: None)
        self.workload = SimpleNamespace(model=torch.nn.Identity(), optimizer=optimizer, without_waits=nullcontext)
        self.happened: list[str] = []
        self.clock = self
        self._times = iter(times)
        self._now_s = 0.0
        self._flushed_s = 0.0

    def train(self, handle: Any, steps: int, what: str, mark: Callable[[], None]) -> None:
        for _ in range(steps):
            self.happened.append("step")
            self._now_s += next(self._times)
            mark()

    def device_idle(self) -> None:
        self.happened.append("idle")

    def mark(self) -> float:
        return self._now_s

    def flush(self) -> None:
        self.happened.append("flush")
        self._flushed_s = self._now_s

    def elapsed_s(self, start: float, end: float) -> float:
        assert end <= self._flushed_s
        return end - start

    def reset(self) -> None:
        self.happened.append("reset")


def test_a_turn_is_timed_from_its_start_to_the_last_rank_s_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another rank takes turns with this one at being ahead, which costs neither any time."""
    other = torch.tensor([[[5.0, 2.0, 4.0, 2.0]] * 2] * 2, dtype=torch.float64)

    def all_reduce(tensor: torch.Tensor, op: Any = None, group: Any = None) -> None:
        if tensor.dim() == 3:
            assert op is dist.ReduceOp.MAX
            tensor.copy_(torch.maximum(tensor, other.cumsum(-1)))

    monkeypatch.setattr(autotune.dist, "all_reduce", all_reduce)
    attached: list[str] = []

    def attach(trial: Trial, candidate: Candidate) -> Any:
        attached.append(candidate.name)
        return nullcontext()

    monkeypatch.setattr(Trial, "attach", attach)
    rank: Any = TimedRank([3.0, 4.0, 2.0, 4.0] * 4)
    found = Trial(rank, PLANNER, {}).run(candidates(1.0, 1.0), 2, 3)
    # ends 3 7 9 13 here and 5 7 11 13 there: steps of 2, 4 and 2 after a warm-up of 5
    assert found == [CandidateTiming(2.0, 6), CandidateTiming(2.0, 6)]
    assert attached == ["c0", "c1", "c1", "c0"]
    # the host waits for the device before the first step of a turn and after its last one, and not in between
    assert rank.happened == ["idle", "step", "step", "step", "step", "flush", "reset"] * 4


def test_ddp_itself_rebuilds_its_buckets_before_it_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autotune.dist, "all_reduce", lambda *_, **__: None)
    monkeypatch.setattr(Trial, "attach", lambda trial, candidate: nullcontext())
    rank: Any = TimedRank([5.0, 4.0, 1.0, 2.0])
    assert Trial(rank, PLANNER, {}).turn(Candidate("DDP itself", [[0]], 1.0, "ddp"), 2, "") == [9.0, 1.0, 2.0]


class Turns:
    """In the place of the turns: a candidate's step by its name and the round. Keeps who took how many rounds."""

    def __init__(self, step_s: Callable[[str, int], float]) -> None:
        self.step_s = step_s
        self.taken: list[tuple[list[str], int]] = []

    def __call__(self, shortlist: Sequence[Candidate], rounds: int, steps: int) -> list[list[float]]:
        begun = sum(before for _, before in self.taken)
        self.taken.append(([candidate.name for candidate in shortlist], rounds))
        return [
            [self.step_s(candidate.name, begun + number) for number in range(rounds) for _ in range(steps)]
            for candidate in shortlist
        ]


def run(monkeypatch: pytest.MonkeyPatch, turns: Turns, count: int, rounds: int) -> list[CandidateTiming]:
    monkeypatch.setattr(Trial, "in_turns", turns)
    rank: Any = TimedRank([])
    return Trial(rank, PLANNER, {}).run(candidates(*[1.0] * count), rounds, 2)


def test_half_of_the_turns_are_for_the_favourite_and_the_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"c0": 1.0, "c1": 1.2, "c2": 0.9, "c3": 1.1, "c4": 0.8, "c5": 0.95, "c6": 1.3}
    found = run(monkeypatch, turns := Turns(lambda name, number: seconds[name] * (1 + number)), 7, 9)
    # 63 turns: four rounds of seven, and in place of five more of them eight of four
    assert turns.taken == [(list(seconds), 4), (["c0", "c4", "c2", "c5"], 8)]
    assert [one.steps for one in found] == [24, 8, 24, 8, 24, 24, 8]
    assert [one.in_final for one in found] == [True, False, True, False, True, True, False]
    # at the pace of the machine's median round, whatever became of those that left before it
    assert [one.step_s for one in found] == pytest.approx([6.5 * step_s for step_s in seconds.values()])


def test_what_looked_fast_in_the_first_half_alone_is_not_the_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    def step_s(name: str, number: int) -> float:
        return {"c1": 0.7 if number < 2 else 1.2, "c2": 0.9}.get(name, 1.0)

    found = run(monkeypatch, Turns(step_s), 5, 4)
    assert autotune._fastest(found) == 2
    # one that left looks better than it, and knows less
    assert autotune._fastest([*found, CandidateTiming(0.8, 4, in_final=False)]) == 2


@pytest.mark.parametrize(("count", "rounds"), [(4, 10), (9, 3)])
def test_few_candidates_or_rounds_are_not_halved(monkeypatch: pytest.MonkeyPatch, count: int, rounds: int) -> None:
    found = run(monkeypatch, turns := Turns(lambda name, number: 1.0), count, rounds)
    assert [took for _, took in turns.taken] == [rounds]
    assert {(one.steps, one.in_final) for one in found} == {(2 * rounds, True)}
