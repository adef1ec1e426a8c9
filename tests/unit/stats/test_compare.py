"""Ratios, intervals and verdicts: exact on clean blocks, honest on simulated noise."""

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xbench.stats.compare import (
    REFERENCE_RATIO,
    BlockValue,
    Location,
    merge_small_groups,
    paired_ratio,
    removed_interval,
    removed_share,
    robust_location,
    student_quantile,
    verdict,
)  # fmt: skip

Blocks = list[BlockValue]


def simulate(
    generator: np.random.Generator, launches: int, rounds: int, noise: float, log_ratio: float = 0.0
) -> tuple[Blocks, Blocks]:
    """Blocks of a mode and the reference on a machine with everything that goes wrong on machines.

    Lognormal noise a block; 5 % of blocks disturbed 1.3–2×; a drift over rounds (AR(1), 5 %) and an offset of the
    launch (5 %), which both share; an offset of each mode in each launch (0.5 %).
    """
    mode: Blocks = []
    reference: Blocks = []
    for launch in range(launches):
        own = 0.005 * generator.normal(size=2)
        offset, drift = 0.05 * generator.normal(size=2)
        for turn in range(rounds):
            drift = 0.8 * drift + 0.6 * 0.05 * generator.normal()
            logs = offset + drift + own + noise * generator.normal(size=2)
            logs += (generator.random(2) < 0.05) * np.log(generator.uniform(1.3, 2.0, size=2))
            mode.append(BlockValue(launch, turn, math.exp(logs[0] + log_ratio)))
            reference.append(BlockValue(launch, turn, math.exp(logs[1])))
    return mode, reference


def blocks(*launches: list[float]) -> Blocks:
    return [BlockValue(*at, value) for at, value in (
        ((launch, turn), value) for launch, values in enumerate(launches) for turn, value in enumerate(values)
    )]  # fmt: skip


def ones(mode: Blocks) -> Blocks:
    return [block._replace(value=1.0) for block in mode]


NOISE = [1.0, 1.02, 0.98, 1.01, 0.99, 1.005]


@pytest.mark.parametrize(("launches", "rounds"), [(1, 6), (2, 6)])
def test_false_alarms_are_rare(launches: int, rounds: int, thorough: bool) -> None:
    generator = np.random.default_rng(20)
    verdicts = [
        paired_ratio(*simulate(generator, launches, rounds, noise)).verdict
        for noise in (0.01, 0.02, 0.04, 0.08)
        for _ in range(500 if thorough else 100)
    ]
    alarms = verdicts.count("faster") + verdicts.count("slower")
    assert alarms <= 0.025 * len(verdicts)
    assert alarms > 0  # an interval that is never wrong is too wide to be of use


def test_a_difference_of_8_percent_is_found() -> None:
    generator = np.random.default_rng(21)
    found = [paired_ratio(*simulate(generator, 2, 6, 0.02, math.log(0.92))).verdict for _ in range(500)]
    assert found.count("faster") >= 0.95 * 500
    assert found.count("slower") == 0


def test_more_rounds_narrow_the_interval_and_launches_narrow_it_more() -> None:
    def width(launches: int, rounds: int) -> float:
        generator = np.random.default_rng(22)
        ratios = [paired_ratio(*simulate(generator, launches, rounds, 0.02)) for _ in range(100)]
        return float(np.median([ratio.ci95[1] - ratio.ci95[0] for ratio in ratios]))

    assert width(4, 6) < width(1, 24) < width(1, 6)


def test_exact_blocks_give_the_exact_ratio() -> None:
    mode = blocks([0.9] * 6, [0.9] * 6)
    ratio = paired_ratio(mode, ones(mode))
    assert ratio.value == pytest.approx(0.9, rel=1e-12)
    assert ratio.verdict == "faster"
    assert 0.9 * 0.97 < ratio.ci95[0] < 0.9 < ratio.ci95[1] < 0.9 * 1.03


def test_identical_blocks_are_equivalent() -> None:
    mode = blocks([1.0] * 6, [1.0] * 6)
    ratio = paired_ratio(mode, mode)
    assert (ratio.value, ratio.verdict) == (1.0, "equivalent")


def test_what_both_suffer_divides_out() -> None:
    drift = [1.0, 3.0, 0.2, 7.0, 2.0, 5.0]
    mode = blocks(NOISE)
    drifting = [block._replace(value=block.value * drift[block.round]) for block in mode]
    reference = [block._replace(value=drift[block.round]) for block in mode]
    assert paired_ratio(drifting, reference).ci95 == pytest.approx(paired_ratio(mode, ones(mode)).ci95)


def test_an_outlier_moves_nothing_however_far_out() -> None:
    mode = blocks(NOISE, NOISE)
    clean = paired_ratio(mode, ones(mode))
    far, farther = ([*mode[:-1], mode[-1]._replace(value=value)] for value in (2.0, 2000.0))
    spoilt = paired_ratio(far, ones(mode))
    assert spoilt == paired_ratio(farther, ones(mode))
    assert spoilt.value == pytest.approx(clean.value, abs=0.003)
    assert spoilt.ci95[1] - spoilt.ci95[0] < 1.5 * (clean.ci95[1] - clean.ci95[0])


def test_launches_that_disagree_widen_the_interval_past_both() -> None:
    agreeing = blocks([value * 0.95 for value in NOISE], [value * 0.95 for value in NOISE])
    disagreeing = blocks([value * 0.90 for value in NOISE], [value * 1.00 for value in NOISE])
    narrow, wide = paired_ratio(agreeing, ones(agreeing)), paired_ratio(disagreeing, ones(disagreeing))
    assert narrow.verdict == "faster"
    assert wide.verdict == "inconclusive"
    assert wide.ci95[0] < 0.90 < 1.00 < wide.ci95[1]
    assert wide.ci95[1] - wide.ci95[0] < 0.6  # Student's t with one degree of freedom would make it 1.4


def test_a_launch_much_noisier_than_the_others_is_still_located() -> None:
    noisy = [0.5, 0.5, 2.0, 2.0]
    mode = blocks([1.0, 1.001, 0.999, 1.0, 1.001, 0.999] * 2, noisy)
    ratio = paired_ratio(mode, ones(mode))
    assert ratio.ci95[0] < 1 < ratio.ci95[1]
    assert ratio.value == pytest.approx(1.0, abs=0.05)


def test_only_blocks_of_the_same_launch_and_round_are_paired() -> None:
    mode = blocks(NOISE)
    strays = [BlockValue(0, 9, 50.0), BlockValue(7, 0, 50.0)]
    reference = ones(mode)
    assert paired_ratio(mode + strays, reference) == paired_ratio(mode, reference)
    assert paired_ratio(mode, reference + strays) == paired_ratio(mode, reference)


def test_several_blocks_of_a_round_count_by_their_median() -> None:
    mode = blocks(NOISE)
    more = [mode[0]._replace(value=0.5), *mode, mode[0]._replace(value=9.0)]
    assert paired_ratio(more, ones(mode)) == paired_ratio(mode, ones(mode))


def test_plain_tuples_will_do_and_their_order_does_not_matter() -> None:
    mode = blocks(NOISE, NOISE[::-1])
    plain = [tuple(block) for block in reversed(mode)]
    assert paired_ratio(plain, ones(mode)) == paired_ratio(mode, ones(mode))


@pytest.mark.parametrize("shape", [(6,), (6, 1), (6, 2), (2, 2), (1, 1, 1, 1, 1, 1), (3, 3), (1, 4)])
def test_cut_short_launches_are_put_together(shape: tuple[int, ...]) -> None:
    mode = blocks(*(NOISE[:rounds] for rounds in shape))
    ratio = paired_ratio([block._replace(value=block.value * 0.5) for block in mode], ones(mode))
    assert ratio.verdict == "faster"
    assert ratio.value == pytest.approx(0.5, abs=0.02)
    assert ratio.ci95[1] < 0.75


def test_a_lone_round_of_a_second_launch_cannot_spoil_the_first() -> None:
    mode = blocks([value * 0.8 for value in NOISE], [3.0])
    assert paired_ratio(mode, ones(mode)).verdict == "faster"


@pytest.mark.parametrize("values", [[0.5], [0.5, 0.5], [0.5, 0.5, 0.5]])
def test_fewer_than_four_pairs_decide_nothing(values: list[float]) -> None:
    mode = blocks(values)
    ratio = paired_ratio(mode, ones(mode))
    assert ratio.value == pytest.approx(0.5)
    assert ratio.ci95 == pytest.approx((0.25, 1.0))
    assert ratio.verdict == "inconclusive"


def test_few_pairs_far_apart_are_all_inside_the_interval() -> None:
    mode = blocks([0.1, 10.0])
    assert paired_ratio(mode, ones(mode)).ci95 == pytest.approx((0.1, 10.0))


def test_four_equal_pairs_decide() -> None:
    mode = blocks([0.8, 0.79, 0.81, 0.8])
    assert paired_ratio(mode, ones(mode)).verdict == "faster"


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ([], "holds a block of both"),
        ([BlockValue(1, 0, 1.0)], "holds a block of both"),
        ([BlockValue(0, 0, 0.0)], "which has no ratio"),
        ([BlockValue(0, 0, -1.0)], "which has no ratio"),
        ([BlockValue(0, 0, math.nan)], "which has no ratio"),
        ([BlockValue(0, 0, math.inf)], "which has no ratio"),
    ],
)
def test_no_ratio_is_refused(mode: Blocks, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        paired_ratio(mode, [BlockValue(0, 0, 1.0)])


@pytest.mark.parametrize(
    ("value", "interval", "expected"),
    [
        (1.0, (0.985, 1.015), "equivalent"),
        (0.99, (0.981, 0.999), "equivalent"),  # different, and not worth a word
        (0.9, (0.85, 0.95), "faster"),
        (0.97, (0.95, 0.99), "faster"),
        (1.1, (1.05, 1.15), "slower"),
        (0.9, (0.75, 1.05), "inconclusive"),
        (1.0, (0.97, 1.03), "inconclusive"),
        (0.9, (0.8, 1.0), "inconclusive"),
        (0.991, (0.979, 0.999), "inconclusive"),  # excludes 1, by less than matters
        (1.009, (1.001, 1.021), "inconclusive"),
        (1.0, (0.98, 1.02), "inconclusive"),  # the margin itself is outside
    ],
)
def test_the_verdict(value: float, interval: tuple[float, float], expected: str) -> None:
    assert verdict(value, interval, margin=0.02) == expected


def test_margin_and_confidence_are_the_callers() -> None:
    mode = blocks([0.97 * value for value in NOISE], [0.97 * value for value in NOISE])
    assert paired_ratio(mode, ones(mode), margin=0.2).verdict == "equivalent"
    narrow, wide = (paired_ratio(mode, ones(mode), confidence=level).ci95 for level in (0.5, 0.99))
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


def test_the_reference_is_one() -> None:
    assert (REFERENCE_RATIO.value, REFERENCE_RATIO.ci95, REFERENCE_RATIO.verdict) == (1.0, (1.0, 1.0), "reference")


@given(
    st.lists(st.lists(st.floats(1e-200, 1e200), min_size=1, max_size=8), min_size=1, max_size=4),
    st.lists(st.floats(1e-200, 1e200), min_size=8, max_size=8),
)
def test_any_positive_blocks_give_a_ratio_inside_its_interval(mode: list[list[float]], reference: list[float]) -> None:
    ours = blocks(*mode)
    theirs = [block._replace(value=reference[block.round]) for block in ours]
    ratio = paired_ratio(ours, theirs)
    assert 0 < ratio.ci95[0] <= ratio.value <= ratio.ci95[1] < math.inf


@given(st.lists(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=8), min_size=1, max_size=4))
def test_swapping_mode_and_reference_inverts_the_ratio(values: list[list[float]]) -> None:
    mode = blocks(*values)
    there, back = paired_ratio(mode, ones(mode)), paired_ratio(ones(mode), mode)
    assert back.value == pytest.approx(1 / there.value, rel=1e-6)
    assert back.ci95 == pytest.approx((1 / there.ci95[1], 1 / there.ci95[0]), rel=1e-6)


def test_importing_stats_imports_neither_scipy_nor_torch() -> None:
    code = "import sys, xbench.stats; sys.exit(bool({'scipy', 'torch'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_removed_share() -> None:
    assert removed_share(12.0, 12.0, 10.0) == 0.0
    assert removed_share(10.0, 12.0, 10.0) == 1.0
    assert removed_share(11.5, 12.0, 10.0) == 0.25
    assert removed_share(13.0, 12.0, 10.0) == -0.5
    assert removed_share(9.0, 10.0, 10.0) is None
    assert removed_share(9.0, 9.5, 10.0) is None
    assert removed_share(9.0, 10.001, 10.0) is None


def test_interval_of_a_removed_share() -> None:
    # 0.9 to 1.0 of a step of 10 to 12 s, of which 2 to 4 s can go: at least nothing, at most 1 s of 2
    low, high = removed_interval((0.9, 1.0), (10.0, 12.0), 8.0) or (None, None)
    assert (low, high) == (pytest.approx(0.0), pytest.approx(0.5))
    low, high = removed_interval((0.9, 1.1), (10.0, 12.0), 8.0) or (None, None)
    assert (low, high) == (pytest.approx(-0.5), pytest.approx(0.5))
    assert removed_interval((0.9, 1.0), (8.0, 12.0), 8.0) is None


def test_nothing_is_shown_to_be_removable_where_the_reference_s_interval_holds_the_bound() -> None:
    assert removed_share(9.5, 11.0, 10.0, 10.0) is None
    assert removed_share(9.5, 11.0, 10.0, 9.0) is None
    assert removed_share(10.5, 11.0, 10.0, 10.1) == 0.5


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
