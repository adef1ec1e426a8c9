"""When tuning has its answer: exact on clean blocks, never against the intervals, and rarely fooled by noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xbench.stats.compare import BlockValue, paired_ratio
from xbench.stats.tuning import MIN_LAUNCHES, Choice, choose

NOISE = [1.0, 1.002, 0.998, 1.001, 0.999, 1.0005]


def steady(factor: float, launches: int = 2, noise: float = 1.0) -> list[BlockValue]:
    """Six blocks a launch around `factor`, `noise` times NOISE's spread; launches lie 0.05 % above and below."""
    return [
        BlockValue(launch, turn, factor * (1 + noise * (NOISE[(turn + launch) % 6] - 1 + (-1) ** launch * 0.0005)))
        for launch in range(launches)
        for turn in range(6)
    ]


def ones(launches: int = 2) -> list[BlockValue]:
    return [BlockValue(launch, turn, 1.0) for launch in range(launches) for turn in range(6)]


def test_a_clear_gain_is_settled_after_two_launches_and_not_after_one() -> None:
    for launches in (1, 2):
        blocks = {"ddp": ones(launches), "auto": steady(0.9, launches), "single": steady(1.3, launches)}
        choice = choose(blocks, "ddp")
        assert (choice.kind, choice.best, choice.winner) == ("faster", "auto", "auto")
        assert choice.out == {"single"}
        assert choice.close == ()
        assert choice.settled is (launches >= MIN_LAUNCHES)
        assert choice.ratios["auto"] == paired_ratio(blocks["auto"], blocks["ddp"])


def test_ddp_is_best_when_every_gain_of_the_margin_is_ruled_out() -> None:
    choice = choose({"ddp": ones(), "auto": steady(1.0), "optimal": steady(1.05)}, "ddp")
    assert (choice.kind, choice.best, choice.winner, choice.settled) == ("reference", "auto", None, True)
    assert choice.out == {"auto", "optimal"}
    narrow = choose({"ddp": ones(), "auto": steady(0.97), "optimal": steady(1.05)}, "ddp", margin=0.05)
    assert narrow.kind == "reference"


def test_a_noisy_candidate_leaves_it_open_and_stays_in() -> None:
    choice = choose({"ddp": ones(), "auto": steady(0.98, noise=30), "optimal": steady(1.05)}, "ddp")
    assert (choice.kind, choice.winner, choice.settled) == ("open", None, False)
    assert choice.out == {"optimal"}


def test_between_the_margin_and_one_there_is_a_winner_but_no_end() -> None:
    choice = choose({"ddp": ones(), "auto": steady(0.985, noise=2)}, "ddp", margin=0.02)
    low, high = choice.ratios["auto"].ci95
    assert low < 0.98 < high < 1
    assert (choice.kind, choice.winner, choice.settled) == ("open", "auto", False)


def test_a_rival_that_may_be_faster_by_the_margin_keeps_it_going() -> None:
    blocks = {"ddp": ones(), "auto": steady(0.9), "optimal": steady(0.91, noise=40)}
    choice = choose(blocks, "ddp")
    assert (choice.best, choice.close, choice.settled) == ("auto", ("optimal",), False)
    assert "optimal" not in choice.out
    equal = choose(blocks | {"optimal": steady(0.9)}, "ddp")
    assert (equal.close, equal.settled) == (("optimal",), True)


def test_a_candidate_that_left_after_one_launch_is_judged_by_the_rounds_that_it_shared() -> None:
    blocks = {"ddp": ones(3), "auto": steady(0.9, 3), "optimal": steady(0.95, 1)}
    choice = choose(blocks, "ddp")
    assert (choice.best, choice.out, choice.settled) == ("auto", {"optimal"}, True)


def test_one_that_is_worth_it_is_taken_before_one_that_looks_faster_and_is_not_sure() -> None:
    choice = choose({"ddp": ones(), "auto": steady(0.95), "mgwfbp": steady(0.94, noise=60)}, "ddp")
    assert choice.ratios["mgwfbp"].value < choice.ratios["auto"].value
    assert (choice.kind, choice.best, choice.settled) == ("faster", "auto", False)


def test_without_pairs_nothing_is_said() -> None:
    nothing = Choice("open", None, {}, (), frozenset(), settled=False)
    assert choose({"ddp": ones()}, "ddp") == nothing
    assert choose({"auto": ones()}, "ddp") == nothing
    assert choose({"ddp": ones(), "auto": [BlockValue(9, 9, 1.0)]}, "ddp") == nothing
    with pytest.raises(ValueError, match=r"a margin of 1\.5"):
        choose({"ddp": ones()}, "ddp", margin=1.5)


@st.composite
def runs(draw: st.DrawFn) -> dict[str, list[BlockValue]]:
    launches, rounds = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    seconds = st.floats(0.7, 1.4)
    modes = ["ddp", "auto", "optimal", "single"][: draw(st.integers(2, 4))]
    return {mode: [BlockValue(i, j, draw(seconds)) for i in range(launches) for j in range(rounds)] for mode in modes}


@given(runs(), st.floats(0, 0.1))
def test_a_choice_never_contradicts_its_intervals(blocks: dict[str, list[BlockValue]], margin: float) -> None:
    choice = choose(blocks, "ddp", margin)
    line = 1 - margin
    worth = {name for name, ratio in choice.ratios.items() if ratio.ci95[1] < line}
    assert set(choice.ratios) == set(blocks) - {"ddp"}
    assert (choice.kind == "faster") == bool(worth)
    if choice.kind == "faster":
        assert choice.best in worth
        assert choice.best not in choice.out
    if choice.kind == "reference":
        assert choice.best is not None
        assert choice.ratios[choice.best].ci95[0] >= line
        assert choice.winner is None
    if choice.winner is not None:
        assert choice.ratios[choice.winner].ci95[1] < 1
    if choice.settled:
        assert choice.kind != "open"
        assert len({block.launch for block in blocks["ddp"]}) >= MIN_LAUNCHES
    else:
        assert choice.kind == "open" or choice.close or len({b.launch for b in blocks["ddp"]}) < MIN_LAUNCHES


def test_of_candidates_as_fast_as_the_reference_few_ever_look_worth_it(thorough: bool) -> None:
    """Five candidates, asked after each of up to four launches of six rounds, on a machine as in `test_compare`."""
    generator = np.random.default_rng(7)
    wrong = 0
    runs = 60 if thorough else 20
    for run in range(runs):
        noise = (0.02, 0.04)[run % 2]
        blocks: dict[str, list[BlockValue]] = {name: [] for name in ("ddp", "a", "b", "c", "d", "e")}
        for launch in range(4):
            own = 0.005 * generator.normal(size=6)
            offset, drift = 0.05 * generator.normal(size=2)
            for turn in range(6):
                drift = 0.8 * drift + 0.6 * 0.05 * generator.normal()
                logs = offset + drift + own + noise * generator.normal(size=6)
                logs += (generator.random(6) < 0.05) * np.log(generator.uniform(1.3, 2.0, size=6))
                for name, log in zip(blocks, logs, strict=True):
                    blocks[name].append(BlockValue(launch, turn, math.exp(log)))
            choice = choose(blocks, "ddp")
            if choice.settled:
                break
        wrong += choice.kind == "faster"
    assert wrong <= 0.05 * runs
