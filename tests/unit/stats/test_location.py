"""Locations with intervals that respect launches: by hand, and under noise that six rounds cannot show."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xbench.stats.location import MOST_CORRELATED, RESOLUTION, located, middle_mean, student_quantile, whole_launches
from xbench.stats.summary import grouped_estimate


def autoregressive(generator: np.random.Generator, runs: int, rounds: int, correlation: float) -> np.ndarray:
    values = generator.normal(size=(runs, rounds))
    for turn in range(1, rounds):
        fresh = math.sqrt(1 - correlation**2) * values[:, turn]
        values[:, turn] = correlation * values[:, turn - 1] + fresh
    return values


def test_the_middle_of_values() -> None:
    assert middle_mean([5.0, 1.0, 3.0]) == 3.0
    assert middle_mean([9.0, 1.0, 3.0, 2.0]) == 2.5
    assert middle_mean([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 99.0]) == 4.5


def test_launches_that_were_cut_short_are_left_out() -> None:
    sizes = [len(launch) for launch in whole_launches([[1.0] * 6, [1.0] * 2, [], [1.0] * 3])]
    assert sizes == [6, 3]
    assert whole_launches([]) == []


def test_three_launches_by_hand() -> None:
    """Centers 0, 1 and 2: mean 1, standard deviation 1, t(2) = 4.303, and rounds inside do not count."""
    location = located([[0.0, -9.0, 9.0, 0.0], [1.0] * 4, [2.0] * 4])
    assert (location.center, location.launches) == (1.0, 3)
    assert location.half_width(0.95) == pytest.approx(4.30265 / math.sqrt(3), rel=1e-5)
    # t = √3 at two degrees of freedom: p = 1 − √3/√(2 + 3)
    assert location.p_zero == pytest.approx(1 - math.sqrt(3 / 5))


def test_launches_that_agree_to_the_last_digit_are_as_good_as_a_clock() -> None:
    location = located([[0.5] * 4, [0.5] * 4])
    assert location.half_width(0.95) == pytest.approx(12.7062 * RESOLUTION / math.sqrt(2), rel=1e-4)


def test_one_launch_is_wider_than_independent_rounds_would_be() -> None:
    values = [-0.02, 0.02, -0.01, 0.0, 0.01, 0.0]
    location = located([values])
    independent = student_quantile(0.975, 5) * float(np.std(values, ddof=1)) / math.sqrt(6)
    assert location.launches == 1
    assert independent < location.half_width(0.95) < 6 * independent


@pytest.mark.parametrize("rounds", [4, 6, 24])
@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.8])
def test_one_launch_covers_correlated_rounds(rounds: int, correlation: float) -> None:
    generator = np.random.default_rng(rounds)
    values = autoregressive(generator, 400, rounds, correlation)
    covers = [located([row]).p_zero >= 0.05 for row in 0.01 * values]
    assert sum(covers) >= 0.91 * 400  # Student's interval for independent rounds: 56 to 62 % at 0.8


@pytest.mark.parametrize(("launches", "correlation"), [(1, 0.8), (2, 0.8), (4, 0.5)])
def test_the_interval_of_a_step_covers_correlated_rounds(launches: int, correlation: float) -> None:
    generator = np.random.default_rng(launches)
    values = np.exp(0.02 * autoregressive(generator, 400 * launches, 6, correlation)).reshape(400, launches, 6)
    found = [grouped_estimate(run) for run in values]
    assert sum(one.ci95[0] <= 1.0 <= one.ci95[1] for one in found) >= 0.91 * 400


def test_a_round_counts_up_to_six_robust_standard_deviations() -> None:
    """The median is 0, and half of the other six are within 0.02 of it: a deviation of 1.4826 · 0.02 = 0.029652."""
    clean = [-0.03, 0.02, -0.01, 0.0, -0.02, 0.01]
    inside, at, far = (located([[*clean, last]]).center for last in (0.17, 6 * 0.029652, 9.0))
    assert far == pytest.approx(at, rel=1e-12)
    assert inside < at * (1 - 1e-3)


def test_a_lone_launch_is_the_mean_over_correlations_by_how_well_they_explain_it() -> None:
    """As in the module, with rounds made independent: the first, and (x(t) − ρ·x(t−1))/√(1 − ρ²) of the others."""
    rounds = [0.03] + [0.0, 0.01] * 6
    centers, logs = [], []
    for correlation in np.linspace(0.1, MOST_CORRELATED, 81):
        root = math.sqrt(1 - correlation**2)
        values = np.array([rounds[0], *((after - correlation * before) / root for before, after in pairwise(rounds))])
        ones = np.array([1.0] + [(1 - correlation) / root] * 12)
        precision = float(ones @ ones)
        centers.append(float(values @ ones) / precision)
        squares = float(np.sum((values - centers[-1] * ones) ** 2))
        logs.append(2 * math.log(correlation) - 12 * math.log(root) - math.log(precision) / 2 - 6 * math.log(squares))
    weights = np.exp(np.array(logs) - max(logs))
    assert located([rounds]).center == pytest.approx(float(weights @ centers / weights.sum()), rel=0.05)


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=12), st.floats(-5, 5), st.booleans())
def test_shifting_and_reversing_change_nothing_else(values: list[float], shift: float, split: bool) -> None:
    launches = [values[: len(values) // 2], values[len(values) // 2 :]] if split else [values]
    moved = [[value + shift for value in reversed(launch)] for launch in launches]
    one, other = located(launches), located(moved)
    assert other.center == pytest.approx(one.center + shift, abs=1e-6)
    assert other.half_width(0.95) == pytest.approx(one.half_width(0.95), rel=1e-3, abs=1e-6)


@given(st.lists(st.floats(-1, 1), min_size=4, max_size=8))
def test_the_p_and_the_interval_agree(values: list[float]) -> None:
    location = located([values])
    half = location.half_width(0.95)
    assert location.p_zero <= 0.05 or half >= abs(location.center) * (1 - 1e-6)
    assert location.p_zero >= 0.05 or half <= abs(location.center) * (1 + 1e-6)


def test_one_value_shows_no_noise() -> None:
    with pytest.raises(ValueError, match="at least two values, and there are 1"):
        located([[1.0]])
