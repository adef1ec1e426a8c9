"""Ratios, intervals and verdicts: exact on clean blocks, honest on simulated noise."""

import math
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from xbench.records import Ratio
from xbench.stats.compare import (
    BlockValue,
    launches_needed,
    paired_ratio,
    ratios_to,
    removed_interval,
    removed_share,
    verdict,
)  # fmt: skip

Blocks = list[BlockValue]


def simulate(
    generator: np.random.Generator, modes: int, launches: int, rounds: int, *, noise: float = 0.01, offset: float = 0.0
) -> dict[str, Blocks]:
    """Blocks of equal modes: an offset and a drift of the launch for all (5 %), and an offset of each mode in each."""
    found: dict[str, Blocks] = {str(mode): [] for mode in range(modes)}
    for launch in range(launches):
        own = offset * generator.normal(size=modes)
        common, drift = 0.05 * generator.normal(size=2)
        for turn in range(rounds):
            drift = 0.8 * drift + 0.6 * 0.05 * generator.normal()
            logs = common + drift + own + noise * generator.normal(size=modes)
            for name, log in zip(found, logs, strict=True):
                found[name].append(BlockValue(launch, turn, math.exp(log)))
    return found


def blocks(*launches: list[float]) -> Blocks:
    return [BlockValue(*at, value) for at, value in (
        ((launch, turn), value) for launch, values in enumerate(launches) for turn, value in enumerate(values)
    )]  # fmt: skip


def ones(mode: Blocks) -> Blocks:
    return [block._replace(value=1.0) for block in mode]


NOISE = [1.0, 1.02, 0.98, 1.01, 0.99, 1.005]


def test_of_eight_equal_modes_few_runs_call_any_different() -> None:
    """With offsets of 2 % the words were wrong in 38 of 100 runs of two launches while each had its own 5 %."""
    generator = np.random.default_rng(20)
    wrong = 0
    for _ in range(200):
        reference, *_ = modes = simulate(generator, 8, 2, 6, offset=0.02)
        ratios = ratios_to(modes.pop(reference), modes)
        wrong += any(ratio.verdict in ("faster", "slower") for ratio in ratios.values())
    assert wrong <= 0.08 * 200


def test_a_difference_of_5_percent_is_found_by_four_launches() -> None:
    generator = np.random.default_rng(21)
    found = []
    for _ in range(200):
        modes = simulate(generator, 2, 4, 4, offset=0.005)
        faster = [block._replace(value=0.95 * block.value) for block in modes["1"]]
        found.append(paired_ratio(faster, modes["0"]).verdict)
    assert found.count("faster") >= 0.9 * 200
    assert found.count("slower") == 0


def test_words_hold_for_all_modes_together() -> None:
    """Holm: of five modes the smallest p is multiplied by five. The interval is that of the mode by itself."""
    close = blocks([0.988] * 4, [0.968] * 4, [0.980] * 4, [0.988] * 4)
    others = {name: blocks(*([value] * 4 for value in (1.0, 1.02, 0.99, 1.01))) for name in "abcd"}
    alone = paired_ratio(close, ones(close))
    beside = ratios_to(ones(close), {"close": close, **others})["close"]
    assert (alone.verdict, beside.verdict) == ("faster", "inconclusive")
    assert alone.ci95 == beside.ci95
    assert alone.ci95[1] < 1


def test_modes_without_a_common_round_are_left_out() -> None:
    mode = blocks([1.0] * 4)
    assert list(ratios_to(mode, {"a": mode, "b": [BlockValue(7, 0, 1.0)], "c": []})) == ["a"]


def test_an_outlier_in_a_launch_moves_little_however_far_out() -> None:
    mode = blocks(NOISE, NOISE, NOISE)
    clean = paired_ratio(mode, ones(mode))
    far, farther = ([*mode[:-1], mode[-1]._replace(value=value)] for value in (2.0, 2000.0))
    spoilt = paired_ratio(far, ones(mode))
    assert spoilt == paired_ratio(farther, ones(mode))
    assert spoilt.value == pytest.approx(clean.value, abs=0.003)


def test_launches_that_disagree_widen_the_interval_past_all_of_them() -> None:
    agreeing = blocks(*([value * center for value in NOISE] for center in (0.949, 0.950, 0.951)))
    disagreeing = blocks(*([value * center for value in NOISE] for center in (0.90, 0.95, 1.00)))
    narrow, wide = paired_ratio(agreeing, ones(agreeing)), paired_ratio(disagreeing, ones(disagreeing))
    assert narrow.verdict == "faster"
    assert wide.verdict == "inconclusive"
    assert wide.ci95[0] < 0.90 < 1.00 < wide.ci95[1]


def test_launches_for_a_precision_by_hand() -> None:
    """Four launches, half 3.182 s/2: s = 0.02 is ±3.18 %. Of seven 2.447 · 0.02/√7 = 1.85 %, of six 2.1 %."""
    ratio = Ratio(value=1.0, ci95=(math.exp(-0.03182), math.exp(0.03182)), verdict="inconclusive", launches=4)
    assert launches_needed(ratio, 0.02) == 7
    assert launches_needed(ratio, 0.0001) is None
    assert launches_needed(ratio.model_copy(update={"launches": 1}), 0.02) is None
    assert launches_needed(ratio.model_copy(update={"launches": None}), 0.02) is None


def test_at_most_a_hundred_launches_are_said_to_be_needed() -> None:
    """Student's quantiles for 99 and 100 launches are 1.9845 and 1.9842, those for 4 are 3.1824.

    A deviation of 5.03 times the wanted width is ±1.0033 of it in 99 launches and ±0.9981 in 100; one of 5.05 is
    ±1.0020 in 100.
    """

    def of_four(deviation: float) -> Ratio:
        half = 3.182446 * deviation * math.log(1.02) / math.sqrt(4)
        return Ratio(value=1.0, ci95=(math.exp(-half), math.exp(half)), verdict="inconclusive", launches=4)

    assert launches_needed(of_four(5.03), 0.02) == 100
    assert launches_needed(of_four(5.05), 0.02) is None


@pytest.mark.parametrize(
    ("launches", "verdict"),
    [
        ([[0.9] * 6, [0.9] * 6], "faster"),
        ([[1.0] * 6, [1.0] * 6], "equivalent"),
        ([[1.0] * 6], "inconclusive"),  # one launch never says equivalent
        ([[0.8, 0.79, 0.81, 0.8]], "faster"),  # four equal pairs decide
        ([[0.8 * value for value in NOISE], [3.0]], "faster"),  # a lone round of a second launch does not count
    ],
)
def test_exact_blocks_give_the_exact_ratio(launches: list[list[float]], verdict: str) -> None:
    mode = blocks(*launches)
    ratio = paired_ratio(mode, ones(mode))
    assert ratio.verdict == verdict
    assert ratio.value == pytest.approx(launches[0][0], rel=0.005)
    assert ratio.ci95[0] < ratio.value < ratio.ci95[1]


def test_what_both_suffer_divides_out() -> None:
    drift = [1.0, 3.0, 0.2, 7.0, 2.0, 5.0]
    mode = blocks(NOISE)
    drifting = [block._replace(value=block.value * drift[block.round]) for block in mode]
    reference = [block._replace(value=drift[block.round]) for block in mode]
    assert paired_ratio(drifting, reference).ci95 == pytest.approx(paired_ratio(mode, ones(mode)).ci95)


STRAYS = [BlockValue(0, 9, 50.0), BlockValue(7, 0, 50.0)]


@pytest.mark.parametrize(
    "change",
    [
        lambda mode: [tuple(block) for block in reversed(mode)],  # plain tuples, in any order
        lambda mode: mode + STRAYS,  # only blocks of the same launch and round are paired
        lambda mode: [mode[0]._replace(value=0.5), *mode, mode[0]._replace(value=9.0)],  # the median of a round counts
    ],
)
def test_what_changes_no_ratio(change: Callable[[Blocks], Blocks]) -> None:
    mode = blocks(NOISE, NOISE[::-1])
    assert paired_ratio(change(mode), ones(mode)) == paired_ratio(mode, ones(mode))
    assert paired_ratio(mode, ones(mode) + STRAYS) == paired_ratio(mode, ones(mode))


@pytest.mark.parametrize("values", [[0.5], [0.5, 0.5], [0.5, 0.5, 0.5]])
def test_fewer_than_four_pairs_decide_nothing(values: list[float]) -> None:
    mode = blocks(values)
    ratio = paired_ratio(mode, ones(mode))
    assert ratio.value == pytest.approx(0.5)
    assert ratio.ci95 == pytest.approx((0.25, 1.0))
    assert (ratio.verdict, ratio.launches) == ("inconclusive", 1)
    far_apart = blocks([0.1, 10.0])
    assert paired_ratio(far_apart, ones(far_apart)).ci95 == pytest.approx((0.1, 10.0))


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


def test_the_margin_is_the_callers() -> None:
    mode = blocks([0.97 * value for value in NOISE], [0.97 * value for value in NOISE])
    assert paired_ratio(mode, ones(mode), margin=0.2).verdict == "equivalent"
    assert paired_ratio(mode, ones(mode)).verdict == "faster"
    assert paired_ratio(mode, ones(mode)).launches == 2


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
    # the interval of the reference holds the bound
    assert removed_share(9.5, 11.0, 10.0, 10.0) is None
    assert removed_share(9.5, 11.0, 10.0, 9.0) is None
    assert removed_share(10.5, 11.0, 10.0, 10.1) == 0.5


def test_interval_of_a_removed_share() -> None:
    # 0.9 to 1.0 of a step of 10 to 12 s, of which 2 to 4 s can go: at least nothing, at most 1 s of 2
    low, high = removed_interval((0.9, 1.0), (10.0, 12.0), 8.0) or (None, None)
    assert (low, high) == (pytest.approx(0.0), pytest.approx(0.5))
    low, high = removed_interval((0.9, 1.1), (10.0, 12.0), 8.0) or (None, None)
    assert (low, high) == (pytest.approx(-0.5), pytest.approx(0.5))
    assert removed_interval((0.9, 1.0), (8.0, 12.0), 8.0) is None
