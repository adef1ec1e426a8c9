"""The robust location behind a ratio: grouping, weights and degrees of freedom, where they can be said exactly."""

import pytest

from xbench.stats.location import Location, merge_small_groups, robust_location, student_quantile

SPREAD = [-0.02, -0.01, 0.0, 0.0, 0.01, 0.02]


def test_students_quantiles_are_the_tables() -> None:
    assert student_quantile(0.975, 1) == pytest.approx(12.706, abs=1e-3)
    assert student_quantile(0.975, 10) == pytest.approx(2.228, abs=1e-3)
    assert Location(0.0, 0.5, 10).half_width(0.95) == pytest.approx(1.114, abs=1e-3)


@pytest.mark.parametrize(
    ("sizes", "merged"),
    [((6, 6), [6, 6]), ((6, 1), [7]), ((6, 5, 2), [6, 7]), ((6, 2, 2), [6, 4]), ((1, 1), [2]), ((0, 4), [4]), ((), [])],
)
def test_groups_too_small_to_be_located_are_merged(sizes: tuple[int, ...], merged: list[int]) -> None:
    assert [len(group) for group in merge_small_groups([[1.0] * size for size in sizes])] == merged


def test_without_noise_one_launch_is_as_uncertain_as_the_floor() -> None:
    location = robust_location([[0.5] * 6], floor=0.1)
    assert location.center == pytest.approx(0.5)
    assert location.standard_error == pytest.approx(0.1)
    assert location.df == pytest.approx(3.0)


def test_without_noise_agreeing_launches_wear_the_assumption_down() -> None:
    # Three assumed degrees of freedom at 0.1², and two that were seen at 0: the variance is 3/5 of the assumed.
    location = robust_location([[0.5] * 6] * 3, floor=0.1)
    assert location.standard_error == pytest.approx(0.1 * (3 / 5 / 3) ** 0.5)
    assert location.df == pytest.approx(5.0)


def test_launches_that_contradict_the_assumption_replace_it() -> None:
    location = robust_location([[0.0] * 6, [1.0] * 6], floor=0.01)
    assert location.center == pytest.approx(0.5)
    assert location.standard_error == pytest.approx(0.5)
    assert location.df == pytest.approx(2.0, abs=1e-6)


def test_symmetric_values_are_centred_and_an_outlier_weighs_nothing() -> None:
    assert robust_location([SPREAD], floor=0.0).center == pytest.approx(0.0, abs=1e-12)
    spoilt = [robust_location([[*SPREAD, outlier]], floor=0.0) for outlier in (1.0, 1000.0)]
    assert spoilt[0] == spoilt[1]
    assert abs(spoilt[0].center) < 0.005


def test_the_value_that_each_median_fits_does_not_lower_the_scale() -> None:
    # Deviations 0, 0.01, 0.2: without the median itself the scale is 0.156, and 0.2 lies well inside six of them.
    # With it the scale would be 0.0148, and 0.2 an outlier of weight zero.
    location = robust_location([[0.0, 0.01, 0.2]], floor=0.0)
    assert location.center == pytest.approx(0.07, abs=0.005)


def test_a_longer_launch_weighs_more() -> None:
    long, short = [value for value in SPREAD for _ in range(5)], [0.1 + value for value in SPREAD[1:5]]
    assert 0.0 < robust_location([long, short], floor=0.0).center < 0.05


def test_one_value_shows_no_noise() -> None:
    with pytest.raises(ValueError, match="at least two values, and there are 1"):
        robust_location([[1.0]], floor=0.0)
