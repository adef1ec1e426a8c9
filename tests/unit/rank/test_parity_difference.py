"""How far two trained networks are apart, in units of how far training moved them."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from xbench.rank.parity import read_too_early
from xbench.rank.parity_checker import (
    MEAN_TOLERANCE,
    TOLERANCE,
    ParityChecker,
    compressed,
    largest_difference,
    mean,
)
from xbench.records import Parity

START = {"weight": torch.zeros(3), "bias": torch.zeros(1)}


def moved(weight: float, bias: float) -> dict[str, Tensor]:
    return {"weight": torch.full((3,), weight), "bias": torch.full((1,), bias)}


def by_bits(dtype: torch.dtype, value: int) -> dict[str, Tensor]:
    return {"values": torch.full((4,), value, dtype=dtype)}


EMPTY = {"empty": torch.zeros(0)}
STILL = moved(0.0, 0.0)


@pytest.mark.parametrize(
    ("result", "there", "start", "reordered", "difference", "name"),
    [
        (moved(0.1, 0.01), moved(0.1, 0.01), START, True, 0.0, None),
        ({}, {}, {}, True, 0.0, None),
        (EMPTY, EMPTY, EMPTY, True, 0.0, None),
        # a small layer that was forgotten
        *((moved(0.1, 0.0), moved(0.1, bias), START, True, bias / (bias + 1e-4), "bias") for bias in (0.1, 1e-3, 1e-5)),
        # a gradient that is zero but for rounding: its sign depends on the order of the sum
        (moved(0.1, -1e-7), moved(0.1, 1e-7), START, True, 2e-7 / 1e-4, "bias"),
        (moved(0.1, -1e-7), moved(0.1, 1e-7), START, False, 2e-7 / 1e-7, "bias"),
        (moved(0.1, 0.0), moved(0.1, 1e-5), START, False, 1.0, "bias"),
        # what did not move must be equal
        (STILL, STILL, START, True, 0.0, None),
        (moved(0.0, 1e-30), STILL, START, True, 1.0, "bias"),
        (moved(math.nan, 0.01), moved(0.1, 0.01), START, True, math.nan, "weight"),
        *(
            (
                by_bits(dtype, value),
                by_bits(dtype, 0),
                by_bits(dtype, 0),
                True,
                float(value),
                "values" if value else None,
            )
            for dtype in (torch.int8, torch.bool)
            for value in (0, 1)
        ),
    ],
)
def test_a_difference_is_relative_to_the_update(
    result: dict[str, Tensor], there: dict[str, Tensor], start: dict[str, Tensor], reordered: bool, difference: float,
    name: str | None,
) -> None:  # fmt: skip
    found = largest_difference(result, there, start, reordered=reordered)
    assert found == (pytest.approx(difference, rel=0.011, nan_ok=True), name)


def test_a_small_layer_is_refused_and_rounding_is_not() -> None:
    assert largest_difference(moved(0.1, 0.0), moved(0.1, 1e-5), START, reordered=True)[0] > TOLERANCE
    assert largest_difference(moved(0.1, -1e-7), moved(0.1, 1e-7), START, reordered=True)[0] < TOLERANCE


# --- compressed gradients: means in place of maxima -------------------------------------------------------------------


def flipped(count: int, of: int) -> tuple[float, str | None]:
    """A step of 0.1 in each element, of which some went the other way."""
    start, there = {"weight": torch.zeros(of)}, {"weight": torch.full((of,), 0.1)}
    here = {"weight": torch.where(torch.arange(of) < count, -0.1, 0.1)}
    return largest_difference(here, there, start, reordered=False, size=mean)


def test_few_elements_that_went_the_other_way_pass_as_a_mean_alone() -> None:
    difference, name = flipped(2, 64)
    assert name == "weight"
    assert difference == pytest.approx(2 * 2 / 64, rel=1e-3)
    assert difference < MEAN_TOLERANCE
    start, there = {"weight": torch.zeros(2)}, {"weight": torch.full((2,), 0.1)}
    worst, _ = largest_difference({"weight": torch.tensor([0.1, -0.1])}, there, start, reordered=False)
    assert worst == pytest.approx(2, rel=1e-3)


@pytest.mark.parametrize(("wrong", "off"), [(0.0, 1.0), (0.05, 0.5), (0.2, 1.0), (-0.1, 2.0)])
def test_a_wrong_schedule_is_seen_in_the_mean(wrong: float, off: float) -> None:
    """A layer that was forgotten, averaged twice over two ranks, summed and not averaged, and one turned round."""
    difference, name = largest_difference(moved(wrong, 0.01), moved(0.1, 0.01), START, reordered=True, size=mean)
    assert name == "weight"
    assert difference == pytest.approx(off, rel=0.01)
    assert difference > MEAN_TOLERANCE


# --- the gate's steps beside DDP's ------------------------------------------------------------------------------------

DDP = (0.1, 0.01)
"""What each of DDP's steps adds to the weight and the bias."""


class Trained:
    """A workload as far as the gate needs it: a model whose parameters a schedule's step moves."""

    def __init__(self) -> None:
        self.model = nn.Module()
        self.model.weight = nn.Parameter(torch.zeros(3))
        self.model.bias = nn.Parameter(torch.zeros(1))


class Rank(threading.Thread):
    """One rank's side of the gate, whose schedule adds these to the weight and the bias, step by step."""

    def __init__(self, group: Any, updates: Sequence[tuple[float, float]], compressed: bool) -> None:
        super().__init__(daemon=True)
        self.group, self.updates, self.compressed = group, updates, compressed
        self.parity: Parity | None = None

    def run(self) -> None:
        trained: Any = Trained()
        beside = ParityChecker(trained, [moved(DDP[0] * k, DDP[1] * k) for k in range(4)], self.group,
                        compressed=self.compressed)  # fmt: skip
        for weight, bias in self.updates:
            with torch.no_grad():
                trained.model.weight += weight
                trained.model.bias += bias
            beside.step()
        self.parity = beside.verdict()


class Group:
    """Ranks that are threads: gathers what each of them says."""

    def __init__(self, *updates: Sequence[tuple[float, float]], compressed: bool) -> None:
        self.ranks = [Rank(self, each, compressed) for each in updates]
        self.said: dict[int, object] = {}
        self.all_said = threading.Barrier(len(updates), timeout=10)

    def gather(self, found: list[object], said: object, group: Group) -> None:
        assert group is self
        self.said[threading.get_ident()] = said
        self.all_said.wait()
        found[:] = [self.said[rank.ident or 0] for rank in self.ranks]


def verdict(
    monkeypatch: pytest.MonkeyPatch, *updates: Sequence[tuple[float, float]], compressed: bool = False
) -> Parity:
    """What the gate says of a schedule whose ranks make these updates, one sequence a rank."""
    group = Group(*updates, compressed=compressed)
    monkeypatch.setattr(dist, "get_world_size", lambda group: len(group.ranks))
    monkeypatch.setattr(dist, "all_gather_object", lambda found, said, group: group.gather(found, said, group))
    for rank in group.ranks:
        rank.start()
    for rank in group.ranks:
        rank.join(20)
    first, *others = [rank.parity for rank in group.ranks]
    assert all(other == first for other in others)
    return first


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_schedule_that_takes_ddps_steps_passes(monkeypatch: pytest.MonkeyPatch, ranks: int) -> None:
    found = verdict(monkeypatch, *[[DDP] * 3] * ranks)
    assert found.ok
    assert found.steps == 3
    assert (found.max_relative_difference or 0) < 1e-5
    assert found.message is None


FORGOTTEN, NO_NUMBER = (0.1, 0.0), (0.1, math.nan)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("step", [0, 1, 2])
def test_a_layer_forgotten_at_any_one_step_is_refused(monkeypatch: pytest.MonkeyPatch, step: int, ranks: int) -> None:
    found = verdict(monkeypatch, *[[FORGOTTEN if number == step else DDP for number in range(3)]] * ranks)
    assert not found.ok
    assert found.max_relative_difference == pytest.approx(1, rel=0.02)
    assert "bias" in (found.message or "")


@pytest.mark.parametrize(
    ("updates", "said"),
    [
        (([DDP] * 3, [DDP, FORGOTTEN, DDP]), "ranks disagree on 'bias'"),
        (([DDP] * 3, [DDP, (0.1, 0.01 + 1e-8), DDP]), "ranks disagree on 'bias'"),  # in a last place
        (([DDP] * 3, [DDP] * 2), "it took 2 steps in place of 3"),
        (([DDP, NO_NUMBER, DDP],) * 2, "'bias' differs from the reference's by nan"),
        (([NO_NUMBER, DDP, DDP],) * 2, "'bias' differs from the reference's by nan"),  # it stays the worst
    ],
)
def test_a_schedule_that_strays_is_refused(monkeypatch: pytest.MonkeyPatch, updates: Any, said: str) -> None:
    found = verdict(monkeypatch, *updates)
    assert not found.ok
    assert said in (found.message or "")


def test_compressed_gradients_have_a_tolerance_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    near = [[(0.105, 0.0095)] * 3] * 2
    exact, wide = verdict(monkeypatch, *near), verdict(monkeypatch, *near, compressed=True)
    assert (exact.ok, exact.tolerance) == (False, TOLERANCE)
    assert (wide.ok, wide.tolerance) == (True, MEAN_TOLERANCE)
    assert wide.max_relative_difference == pytest.approx(0.05, rel=0.02)
    forgotten = verdict(monkeypatch, *[[(0.1, 0.0)] * 3] * 2, compressed=True)
    assert not forgotten.ok
    assert "(tolerance 0.25)" in (forgotten.message or "")
    assert not verdict(monkeypatch, [DDP] * 3, [(0.1, 0.01 + 1e-8)] * 3, compressed=True).ok
    assert "tolerance 0.25 in place of 0.02" in compressed("bf16")


def judged(monkeypatch: pytest.MonkeyPatch, weight: Tensor, bias: float, *, compiled: bool) -> Parity:
    """The verdict on one step, whose reference moves 64 weights by 0.1 and a bias by 10⁻⁹, which is rounding."""
    monkeypatch.setattr(dist, "get_world_size", lambda group: 2)
    monkeypatch.setattr(
        dist, "all_gather_object", lambda found, said, group: found.__setitem__(slice(None), [said] * 2)
    )
    start = {"weight": torch.zeros(64), "bias": torch.zeros(1)}
    there = {"weight": torch.full((64,), 0.1), "bias": torch.full((1,), 1e-9)}
    trained: Any = Trained()
    trained.model.weight = nn.Parameter(weight)
    trained.model.bias = nn.Parameter(torch.full((1,), bias))
    beside = ParityChecker(trained, [start, there], None, compiled=compiled)
    beside.step()
    return beside.verdict()


def test_a_compiled_step_may_round_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """An activation crossed zero, so one gradient is another; and a bias that gets only rounding got another one."""
    crossed = torch.full((64,), 0.1)
    crossed[0] = -0.1
    assert not judged(monkeypatch, crossed, 1e-9, compiled=False).ok
    assert not judged(monkeypatch, torch.full((64,), 0.1), 3e-9, compiled=False).ok
    found = judged(monkeypatch, crossed, 3e-9, compiled=True)
    assert (found.ok, found.tolerance) == (True, MEAN_TOLERANCE)


@pytest.mark.parametrize("wrong", [0.0, 0.05, 0.2, -0.1])
def test_a_compiled_step_that_is_wrong_is_refused(monkeypatch: pytest.MonkeyPatch, wrong: float) -> None:
    assert not judged(monkeypatch, torch.full((64,), wrong), 1e-9, compiled=True).ok


class Ends:
    """What k steps end in, finished one by one or not, in turn; a value that is missing repeats the last one."""

    def __init__(self, finished: Sequence[float], put_off: Sequence[float]) -> None:
        self.values = {True: list(finished), False: list(put_off)}

    def __call__(self, finish: bool) -> dict[str, Tensor]:
        values = self.values[finish]
        return moved(values.pop(0) if len(values) > 1 else values[0], 0.5)


@pytest.mark.parametrize(
    ("finished", "put_off", "late"),
    [
        ([0.25], [0.25], None),
        ([0.25], [0.2500001], "weight"),
        ([math.nan], [math.nan], None),
        ([0.25], [math.nan], "weight"),
        ([0.25, 0.2500001], [0.2500002], None),  # it is not the same twice either
        ([0.25, 0.2500001], [0.3], "weight"),
    ],
)
def test_steps_that_are_not_finished_end_where_finished_ones_do(
    finished: list[float], put_off: list[float], late: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dist, "get_world_size", lambda group: 1)
    monkeypatch.setattr(dist, "all_gather_object", lambda found, mine, group: found.__setitem__(0, mine))
    assert read_too_early(Ends(finished, put_off), START, None) == late
