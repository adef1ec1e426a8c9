"""The gate's statistics: exact against enumeration of all signs and against scipy, and the promises they make."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from xbench.stats.regression import (
    LINE,
    MIN_PAIRS,
    agrees,
    holm,
    log_ratios,
    noise_floor,
    pairs_needed,
    signed_rank,
    verdicts,
)

UNEQUAL = st.lists(st.integers(1, 10_000), min_size=6, max_size=9, unique=True)
"""Sizes of differences without ties. Whole numbers, so that their Walsh averages are exact."""

SIGNED = st.lists(st.integers(-50, 50), min_size=1, max_size=30)
P_VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=12)


def every_sign(sizes: list[int]) -> list[list[float]]:
    """The differences that chance could have given where nothing changed: all 2^n alike."""
    return [
        [size * sign for size, sign in zip(sizes, signs, strict=True)]
        for signs in itertools.product((1.0, -1.0), repeat=len(sizes))
    ]


def test_seven_pairs_by_hand() -> None:
    test = signed_rank([1, 2, 3, 4, 5, 6, 7])
    assert (test.p_slower, test.p_faster) == (1 / 128, 1.0)
    assert test.center == 4.0
    # of 28 averages 1, 1.5, 2, 2, ... 7 two lie outside at each end: P(W ≤ 2) = 3/128 is the last below 2.5 %
    assert test.interval == (2.0, 6.0)


def test_one_disturbed_pair_moves_neither_the_estimate_nor_the_interval_far() -> None:
    calm = signed_rank([0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.09])
    disturbed = signed_rank([0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 9.0])
    assert disturbed.center == pytest.approx(calm.center, abs=0.006)
    assert disturbed.interval[0] == pytest.approx(0.025, abs=0.006)


@pytest.mark.parametrize("count", [6, 7, 10, 25, 60])
def test_p_is_scipy_s(count: int) -> None:
    values = np.random.default_rng(count).normal(0.3, 1.0, count)
    test = signed_rank(values.tolist())
    assert test.p_slower == pytest.approx(stats.wilcoxon(values, alternative="greater", method="exact").pvalue)
    assert test.p_faster == pytest.approx(stats.wilcoxon(values, alternative="less", method="exact").pvalue)


def test_p_with_ties_and_zeros_is_scipy_s_permutation_test() -> None:
    values = [0.0, 1.0, 1.0, -1.0, 2.0, 2.0, 3.0, -0.5]
    every = stats.PermutationMethod(n_resamples=10_000)
    asked = {"zero_method": "pratt", "correction": False, "method": every}
    test = signed_rank(values)
    assert test.p_slower == pytest.approx(stats.wilcoxon(values, alternative="greater", **asked).pvalue)
    assert test.p_faster == pytest.approx(stats.wilcoxon(values, alternative="less", **asked).pvalue)


@given(UNEQUAL, st.sampled_from([0.01, 0.025, 0.05, 0.2]))
@settings.get_profile("fewest")
def test_where_nothing_changed_p_is_below_alpha_in_at_most_that_share(sizes: list[int], alpha: float) -> None:
    found = [signed_rank(values) for values in every_sign(sizes)]
    assert sum(test.p_slower <= alpha for test in found) <= alpha * len(found)
    assert sum(test.p_faster <= alpha for test in found) <= alpha * len(found)


@given(UNEQUAL)
@settings.get_profile("fewest")
def test_the_interval_leaves_zero_exactly_where_the_test_does(sizes: list[int]) -> None:
    for values in every_sign(sizes):
        test = signed_rank(values)
        assert (test.interval[0] > 0) == (test.p_slower <= 0.025)
        assert (test.interval[1] < 0) == (test.p_faster <= 0.025)


@given(SIGNED)
def test_swapping_the_sides_turns_everything_round(values: list[int]) -> None:
    one, other = signed_rank(values), signed_rank([-value for value in values])
    assert one.center == -other.center
    assert (one.p_slower, one.p_faster) == (other.p_faster, other.p_slower)
    assert (one.interval is None) == (len(values) < MIN_PAIRS)
    if one.interval is not None and other.interval is not None:
        assert one.interval == (-other.interval[1], -other.interval[0])
        assert one.interval[0] <= one.center <= one.interval[1]


@given(SIGNED)
def test_the_order_of_pairs_does_not_matter(values: list[int]) -> None:
    assert signed_rank(values) == signed_rank(sorted(values))


@pytest.mark.parametrize("values", [[], [math.nan], [math.inf, 1.0]])
def test_what_has_no_rank_is_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="finite differences"):
        signed_rank(values)


def test_a_ratio_and_its_inverse_are_as_far_from_no_change() -> None:
    assert log_ratios([2.0, 0.5, 1.0]) == [math.log(2), -math.log(2), 0.0]


@pytest.mark.parametrize("ratio", [0.0, -1.0, math.nan, math.inf])
def test_what_is_no_ratio_is_refused(ratio: float) -> None:
    with pytest.raises(ValueError, match="not a ratio"):
        log_ratios([1.0, ratio])


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.6]) == [1.0, 1.0]
    assert holm([]) == []


@given(P_VALUES, st.integers(0, 11), st.floats(0, 1))
def test_holm_keeps_the_order_and_never_helps(values: list[float], place: int, smaller: float) -> None:
    adjusted = holm(values)
    assert all(value <= after <= 1 for value, after in zip(values, adjusted, strict=True))
    assert all(
        one <= other
        for (v, one), (w, other) in itertools.product(zip(values, adjusted, strict=True), repeat=2)
        if v < w
    )
    lowered = list(values)
    lowered[place % len(values)] *= smaller
    assert all(after <= before + 1e-15 for after, before in zip(holm(lowered), adjusted, strict=True))


@given(st.floats(1e-6, 0.2), st.integers(1, 100))
def test_pairs_needed_is_the_least_that_can(alpha: float, cases: int) -> None:
    pairs = pairs_needed(alpha, cases)

    def smallest(count: int) -> float:
        return max(holm([signed_rank([1.0] * count).p_slower] + [1.0] * (cases - 1))[:1])

    assert smallest(pairs) < alpha
    assert pairs == MIN_PAIRS or smallest(pairs - 1) >= alpha


@pytest.mark.parametrize(("alpha", "cases"), [(0.0, 1), (1.0, 1), (0.01, 0)])
def test_pairs_needed_refuses_what_no_number_reaches(alpha: float, cases: int) -> None:
    with pytest.raises(ValueError, match="need no number of pairs"):
        pairs_needed(alpha, cases)


SPREAD = [-0.02, 0.01, -0.01, 0.02, 0.0, 0.015, -0.015, 0.005, -0.005]


@pytest.mark.parametrize(
    ("shift", "word"),
    [(0.1, "regressed"), (-0.1, "improved"), (0.0, "equivalent"), (0.055, "regressed"), (0.03, "inconclusive")],
)
def test_the_word_follows_from_the_interval(shift: float, word: str) -> None:
    [found] = verdicts([[shift + value for value in SPREAD]], [0.04], 0.01)
    assert found.word == word


def test_slower_for_sure_but_within_the_threshold_is_equivalent() -> None:
    [found] = verdicts([[0.03 + value / 10 for value in SPREAD]], [0.04], 0.01)
    assert found.p_slower_holm < 0.01
    assert found.test.interval[0] > math.log1p(LINE * 0.04)
    assert found.word == "equivalent"
    assert not agrees(found, 0.04, 0.01)


@pytest.mark.parametrize("pairs", range(1, 7))
def test_too_few_pairs_are_never_no_change(pairs: int) -> None:
    [same] = verdicts([[0.0] * pairs], [0.05], 0.01)
    [slower] = verdicts([[0.5] * pairs], [0.05], 0.01)
    assert (same.word, slower.word) == ("inconclusive", "inconclusive")


def test_more_cases_need_more_pairs() -> None:
    alone = verdicts([[0.2] * 7], [0.05], 0.01)
    among = verdicts([[0.2] * 7, [0.0] * 7], [0.05, 0.05], 0.01)
    assert [found.word for found in alone] == ["regressed"]
    assert [found.word for found in among] == ["inconclusive", "inconclusive"]
    assert [found.word for found in verdicts([[0.2] * 8, [0.0] * 8], [0.05, 0.05], 0.01)] == ["regressed", "equivalent"]


@pytest.mark.parametrize(
    ("shift", "pairs", "agree"),
    [(0.1, 9, True), (0.035, 9, True), (0.1, 6, False), (0.0, 9, False), (0.015, 9, False), (-0.1, 9, False)],
)
def test_fresh_pairs_agree_by_their_p_and_their_estimate(shift: float, pairs: int, agree: bool) -> None:
    [fresh] = verdicts([[shift + value for value in SPREAD[:pairs]]], [0.04], 0.01)
    assert agrees(fresh, 0.04, 0.01) == agree


def test_no_cases_are_no_verdicts_and_no_threshold_is_refused() -> None:
    assert verdicts([], [], 0.01) == []
    with pytest.raises(ValueError, match="leaves no room for noise"):
        verdicts([[0.1] * 9], [0.0], 0.01)


def noise(seed: int, count: int, scale: float = 0.02) -> list[float]:
    found: list[float] = np.random.default_rng(seed).normal(0.0, scale, count).tolist()
    return found


def test_the_floor_scales_with_the_noise_and_falls_with_pairs() -> None:
    few, many = noise_floor(noise(1, 20), 8), noise_floor(noise(1, 20), 32)
    louder = noise_floor(noise(1, 20, 0.04), 8)
    assert louder is not None
    assert 2.5 < few / many < 4.5
    assert math.log1p(louder) == pytest.approx(2 * math.log1p(few))
    assert noise_floor([0.0] * 6, 6) == 0.0
    assert noise_floor(noise(1, 20), 8) == few


def test_the_floor_needs_pairs() -> None:
    assert noise_floor(noise(1, 5), 8) is None
    assert noise_floor(noise(1, 20), 5) is None
    assert noise_floor(noise(1, 20), 0) is None


@pytest.mark.parametrize("measured", [6, 10, 20])
@pytest.mark.parametrize("tails", ["normal", "outliers", "another day"])
def test_the_floor_holds_for_a_check_whatever_it_was_learned_from(measured: int, tails: str) -> None:
    """A quantile of the pairs themselves held in 72 to 90 of 100 checks, and in 63 to 78 with outliers or days."""
    generator = np.random.default_rng(measured)
    within = 0
    for _ in range(400):
        pairs, checked = generator.normal(size=(2, 20))
        if tails == "outliers":
            pairs, checked = (values * np.where(generator.random(20) < 0.05, 5.0, 1.0) for values in (pairs, checked))
        if tails == "another day":
            pairs, checked = pairs * math.exp(0.2 * generator.normal()), checked * math.exp(0.2 * generator.normal())
        floor = noise_floor((0.01 * pairs[:measured]).tolist(), 10)
        interval = signed_rank((0.01 * checked[:10]).tolist()).interval
        assert floor is not None
        within += -math.log1p(floor) < interval[0] and interval[1] < math.log1p(floor)
    assert within >= 0.88 * 400


def test_twice_the_floor_lies_beyond_it() -> None:
    floor = noise_floor(noise(2, 200), 10)
    assert floor is not None
    beyond = 0
    for seed in range(400):
        slower = signed_rank([math.log1p(2 * floor) + value for value in noise(5000 + seed, 10)]).interval
        beyond += slower[0] > math.log1p(LINE * 2 * floor)
    assert beyond >= 0.92 * 400
