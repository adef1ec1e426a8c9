"""Length of a launch, and number of pairs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from regress_fakes import check, suite

from xbench.regress import pairs_for
from xbench.regress.pairs import (
    MAX_STEPS,
    MIN_IN_TURN,
    MIN_STEPS,
    SPARE_PAIRS,
    Shape,
    launch_s,
    pair_messages,
    pair_plan_of,
    shape_of,
)


@pytest.mark.parametrize(("step_s", "steps"), [(0.1, 6), (0.001, MAX_STEPS), (5.0, MIN_STEPS), (0.0, MAX_STEPS)])
def test_a_launch_times_about_a_second_of_the_slowest_mode(step_s: float, steps: int) -> None:
    assert shape_of({"ddp": step_s, "wfbp": step_s / 2}) == Shape(2, steps)


@given(st.floats(1e-4, 30), st.integers(1, 9))
def test_a_block_is_made_of_whole_cycles(step_s: float, cycle: int) -> None:
    for shape, fewest in ((shape_of({"spb": step_s}, cycle), MIN_STEPS),
                          (shape_of({"spb": step_s}, cycle, turns=True), MIN_IN_TURN)):  # fmt: skip
        assert shape.steps % cycle == 0
        assert shape.steps >= fewest


@pytest.mark.parametrize(
    ("step_s", "turns", "steps"), [(0.016, 21, 6), (0.1, 10, 2), (1.0, 2, 2), (0.001, 24, MAX_STEPS), (0.0, 24, 60)]
)
def test_a_turn_is_a_fraction_of_a_second_or_two_steps(step_s: float, turns: int, steps: int) -> None:
    assert shape_of({"ddp": step_s}, turns=True) == Shape(2, steps, turns)
    assert Shape(2, steps, turns).timed_steps == 2 * steps * turns


def test_a_longer_launch_is_longer_by_its_steps() -> None:
    assert launch_s(5.0, Shape(1, 3), Shape(2, 6), {"ddp": 0.1, "wfbp": 0.2}) == pytest.approx(5.0 + 9 * 0.3)


def test_without_a_word_there_are_pairs_to_spare() -> None:
    of = suite()
    plan = pair_plan_of(of, 10.0, pairs=None, left_s=600.0)
    assert (plan.pairs, plan.needed) == (pairs_for(of) + SPARE_PAIRS, pairs_for(of))
    assert plan.pair_s == 10.0
    assert not plan.too_few


def test_the_budget_bounds_them_and_is_named() -> None:
    plan = pair_plan_of(suite(budget_minutes=1), 10.0, pairs=None, left_s=50.0)
    assert (plan.pairs, plan.too_few) == (5, True)
    first, second = pair_messages(plan, 1)
    assert first.startswith(
        "5 pairs of launches for 1 wall-clock case (what the budget of 1 min has room for): about 50 s"
    )
    assert f"--pairs {plan.needed}" in second


@pytest.mark.parametrize(("asked", "own", "expected"), [(9, 3, 9), (None, 3, 3)])
def test_what_was_asked_for_goes_first(asked: int | None, own: int, expected: int) -> None:
    plan = pair_plan_of(suite(pairs=own), 100.0, pairs=asked, left_s=1.0)
    assert (plan.pairs, plan.reason) == (expected, "as asked for")


@given(st.integers(1, 6), st.floats(0.1, 100), st.floats(0, 10_000))
def test_a_course_fits_its_budget_unless_one_pair_does_not(cases: int, pair_s: float, left_s: float) -> None:
    of = suite(*(check(f"check{number}") for number in range(cases)))
    plan = pair_plan_of(of, pair_s, pairs=None, left_s=left_s)
    assert 1 <= plan.pairs <= pairs_for(of) + SPARE_PAIRS
    assert plan.pairs == 1 or plan.pairs * plan.pair_s <= left_s * (1 + 1e-9)


@pytest.mark.parametrize(
    ("quiet_from", "left_s", "pairs"),
    [(1, 600.0, 7), (8, 600.0, 8), (12, 600.0, 12), (13, 600.0, 16), (20, 600.0, 24), (99, 600.0, 40), (99, 150.0, 15)],
)
def test_where_the_noise_is_known_there_are_as_many_as_it_takes(quiet_from: int, left_s: float, pairs: int) -> None:
    plan = pair_plan_of(suite(), 10.0, pairs=None, left_s=left_s, quiet_enough=lambda count: count >= quiet_from)
    assert plan.pairs == pairs
    assert ("budget" in plan.reason) == (pairs == 15)
    assert ("too noisy" in plan.reason) == (pairs == 40)
