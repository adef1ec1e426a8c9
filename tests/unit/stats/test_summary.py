"""Medians, intervals, outliers and warm-up, on series whose answer is known."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xbench.records import Estimate
from xbench.stats.summary import detect_warmup, flag_outliers, grouped_estimate, median_estimate

FINITE = st.floats(min_value=-1e6, max_value=1e6)


@pytest.mark.parametrize(
    ("count", "rank"),
    [(6, 1), (8, 1), (9, 2), (12, 3), (15, 4), (20, 6), (25, 8), (50, 18)],  # the published table of sign-test ranks
)
def test_the_interval_of_the_median_is_the_sign_tests(count: int, rank: int) -> None:
    values = [float(value) for value in range(1, count + 1)]
    assert median_estimate(values[::-1]).ci95 == (rank, count + 1 - rank)


def test_one_value_is_its_own_interval() -> None:
    assert median_estimate([0.25]) == Estimate(median=0.25, ci95=(0.25, 0.25))


def test_few_values_get_students_interval_that_holds_them_all() -> None:
    estimate = median_estimate([1.0, 2.0, 3.0])
    assert estimate.median == 2.0
    assert estimate.ci95 == (0.0, pytest.approx(2.0 + 4.302653 / math.sqrt(3), rel=1e-6))  # 2 − 2.48, cut at 0
    assert median_estimate([-1.0, 0.0, 1.0]).ci95[0] == pytest.approx(-4.302653 / math.sqrt(3), rel=1e-6)


@given(st.lists(FINITE, min_size=1, max_size=40))
def test_the_median_lies_in_its_interval_in_any_order(values: list[float]) -> None:
    estimate = median_estimate(values)
    assert estimate.ci95[0] <= estimate.median <= estimate.ci95[1]
    assert estimate == median_estimate(sorted(values))


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf]])
def test_what_is_no_measurement_is_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match=r"at least one value|is not a measurement"):
        median_estimate(values)


def test_launches_that_agree_leave_the_interval_alone() -> None:
    launch = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5]
    assert grouped_estimate([launch, launch]) == median_estimate(launch + launch)


def test_launches_that_disagree_widen_the_interval_past_both() -> None:
    launches = [[1.0] * 20, [1.1] * 20]
    estimate = grouped_estimate(launches)
    half = 12.7062 * 0.05  # t(1) times the standard error of two centers that are 0.1 apart
    assert estimate.median == pytest.approx(1.05)
    assert estimate.ci95 == (pytest.approx(1.05 - half), pytest.approx(1.05 + half))


def test_a_single_launch_and_empty_ones() -> None:
    launch = [3.0, 1.0, 2.0, 5.0, 4.0, 6.0, 7.0]
    estimate, independent = grouped_estimate([[], launch, []]), median_estimate(launch)
    assert estimate == grouped_estimate([launch])
    assert estimate.median == independent.median
    assert estimate.ci95[0] < independent.ci95[0] < independent.ci95[1] < estimate.ci95[1]  # rounds may be correlated
    assert grouped_estimate([[2.0]]) == median_estimate([2.0])
    with pytest.raises(ValueError, match="at least one value"):
        grouped_estimate([[], []])


@pytest.mark.parametrize("launches", [[[37.3, 37.4, 37.3, 37.35]], [[37.3, 37.4], [37.1, 37.2], [37.3, 37.3]]])
def test_an_interval_does_not_depend_on_the_unit(launches: list[list[float]]) -> None:
    whole = grouped_estimate(launches)
    milli = grouped_estimate([[value * 2**-16 for value in launch] for launch in launches])
    assert [bound * 2**-16 for bound in whole.ci95] == pytest.approx(milli.ci95, rel=1e-12)
    assert whole.ci95[1] - whole.ci95[0] < 1.0


@given(st.lists(st.lists(FINITE, max_size=8), min_size=1, max_size=5).filter(any))
def test_respecting_launches_never_narrows(launches: list[list[float]]) -> None:
    grouped, pooled = grouped_estimate(launches), median_estimate([value for launch in launches for value in launch])
    assert grouped.median == pooled.median
    assert grouped.ci95[0] <= pooled.ci95[0] <= pooled.ci95[1] <= grouped.ci95[1]


def test_outliers_are_flagged_in_place() -> None:
    values = [1.0, 1.01, 1.6, 0.99, 1.02, 0.98, 1.0, 0.5]
    assert flag_outliers(values) == [False, False, True, False, False, False, False, True]


def test_the_threshold_is_in_robust_standard_deviations() -> None:
    # The median is 5, the MAD of nine values 2; corrected by 1.4826 · 1.107 it is a deviation of 3.28248.
    values = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 5.0 + 3.5 * 3.28248 - 0.005]
    assert flag_outliers(values)[-1] is False
    values[-1] += 0.01
    assert flag_outliers(values) == [False] * 8 + [True]


@pytest.mark.parametrize(
    ("values", "median", "correction"),
    [
        ([2.0, 3.0, 4.0], 3.5, 1.363),
        ([1.0, 2.0, 3.0, 4.0], 3.0, 1.206),
        ([1.0, 2.0, 4.0, 4.0, 4.0], 4.0, 1.200),
        ([1.0, 2.0, 3.0, 4.0, 4.0, 4.0], 4.0, 1.140),
    ],
)
def test_the_deviation_of_few_values_is_corrected(values: list[float], median: float, correction: float) -> None:
    """Croux & Rousseeuw 1992 for 4 to 7 values, whose MAD is 1 with a far one among them."""
    far = median + 3.5 * 1.4826 * correction
    assert flag_outliers([*values, far - 0.005])[-1] is False
    assert flag_outliers([*values, far + 0.005])[-1] is True


def test_constant_series_have_no_outliers() -> None:
    assert not any(flag_outliers([0.125] * 10))
    assert not any(flag_outliers([0.0] * 10))
    assert not any(flag_outliers([1.0] * 9 + [1.0001]))  # MAD 0, and a difference that is nothing
    assert flag_outliers([1.0] * 9 + [1.01])[-1] is True
    assert flag_outliers([0.0] * 9 + [1.0])[-1] is True


def test_three_values_have_no_majority() -> None:
    assert flag_outliers([1.0, 1.0, 9.0]) == [False, False, False]
    assert flag_outliers([]) == []


@given(st.lists(st.floats(min_value=1e-3, max_value=1e3), min_size=4, max_size=30))
def test_a_majority_is_never_flagged(values: list[float]) -> None:
    flags = flag_outliers(values)
    assert len(flags) == len(values)
    assert sum(flags) * 2 <= len(values)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([5.0, 3.0, 2.0] + [1.0] * 9, 3),
        ([1.0] * 12, 0),
        ([9.0] + [1.0] * 11, 1),
        ([0.5, 0.5] + [1.0] * 10, 2),  # faster before the clock throttles
        ([5.0, 1.0, 5.0] + [1.0] * 9, 3),  # one lucky step between two compilations
        ([1.0, 1.0, 5.0] + [1.0] * 9, 0),  # a disturbed step, not warm-up
        ([5.0] * 5 + [1.0] * 7, 5),
        ([5.0] * 6 + [1.0] * 6, 6),  # never more than half
        ([5.0, 1.0, 1.0, 1.0, 1.0, 1.0], 1),
        ([5.0, 1.0, 1.0, 1.0, 1.0], 0),  # five values cannot tell
        ([], 0),
        ([0.0] * 8, 0),
        ([1.009, 1.009] + [1.0] * 10, 0),  # less than the 1 % that matters
        ([1.011, 1.011] + [1.0] * 10, 2),
        ([2.0, 1.0, 1.005, 0.995, 1.0, 1.005, 0.995, 1.0, 1.0, 1.005], 1),
        ([4.0, 2.0] + [1.0] * 8 + [7.0] + [1.0] * 5, 2),  # an outlier in the steady half
        ([1.0 + 0.01 * step for step in range(20)], 0),  # a slow drift
    ],
)
def test_warmup_of_known_series(values: list[float], expected: int) -> None:
    assert detect_warmup(values) == expected


def test_four_deviations_are_warmup_in_a_long_series_and_not_in_a_short_one() -> None:
    """The MAD of either steady half is 0.02; corrected, 0.03013 of fifty values and 0.04433 of three."""
    steady = [1.0] * 48 + [0.98, 1.02] * 25
    assert detect_warmup([1 + 4.0 * 0.03013] * 2 + steady) == 2
    assert detect_warmup([1 + 3.4 * 0.03013] * 2 + steady) == 0
    assert detect_warmup([1 + 4.0 * 0.04433] * 2 + [1.0, 0.98, 1.0, 1.02]) == 0


def test_noise_is_rarely_warmup_and_steps_in_noise_are_found() -> None:
    generator = np.random.default_rng(7)
    noise = [1.0 + 0.03 * generator.normal(size=16) for _ in range(300)]
    assert sum(detect_warmup(series.tolist()) > 0 for series in noise) <= 0.05 * 300
    assert sum(detect_warmup([3.0, 1.5, *series[2:]]) == 2 for series in noise) >= 0.9 * 300


@given(st.lists(st.floats(min_value=1e-3, max_value=1e3), max_size=40))
def test_warmup_is_at_most_half(values: list[float]) -> None:
    assert 0 <= detect_warmup(values) <= len(values) // 2
