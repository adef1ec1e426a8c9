from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_cases import line

from xbench.planning import cost
from xbench.planning.cost import CostCurve, fit
from xbench.records import CostModel, CostPoint, CostSegment

SIZES = [2**k for k in range(10, 28)]


def point(nbytes: int, transfer_s: float, relative_ci: float = 0.0) -> CostPoint:
    half = relative_ci * transfer_s
    return CostPoint(
        nbytes=nbytes, transfer_s=transfer_s, ci95=(transfer_s - half, transfer_s + half), wait_s=0.0, repetitions=9
    )


def fitted(points: list[CostPoint]) -> CostModel:
    return fit(points, backend="gloo", world_size=2)


@settings.get_profile("few")
@given(
    alpha=st.floats(1e-6, 1e-2),
    beta=st.floats(1e-11, 1e-7),
    sizes=st.lists(st.integers(1024, 10**8), min_size=2, max_size=12, unique=True),
)
def test_an_exact_line_is_found_exactly(alpha: float, beta: float, sizes: list[int]) -> None:
    model = fitted([point(size, alpha + beta * size) for size in sizes])
    assert model.max_relative_residual < 1e-9
    assert model.segments == []
    assert model.segmented_max_relative_residual is None
    assert [p.nbytes for p in model.points] == sorted(sizes)
    asked = np.array(sizes, dtype=float)
    assert CostCurve.of(model)(asked) == pytest.approx(alpha + beta * asked, rel=1e-9)


def test_alpha_and_beta_of_an_exact_line() -> None:
    model = fitted([point(size, 3e-4 + 8e-9 * size) for size in SIZES])
    assert model.alpha_s == pytest.approx(3e-4, rel=1e-9)
    assert model.beta_s_per_byte == pytest.approx(8e-9, rel=1e-9)
    assert model.alpha_ci95 == pytest.approx((3e-4, 3e-4), rel=1e-9)
    assert model.beta_ci95 == pytest.approx((8e-9, 8e-9), rel=1e-9)
    assert (model.backend, model.world_size, model.collective) == ("gloo", 2, "all_reduce")


@pytest.mark.parametrize("place", range(1, len(SIZES) - 1))
@pytest.mark.parametrize("factor", [0.2, 5.0])
def test_one_outlier_moves_nothing_and_makes_no_segments(place: int, factor: float) -> None:
    points = [point(size, 3e-4 + 8e-9 * size) for size in SIZES]
    points[place] = point(SIZES[place], points[place].transfer_s * factor)
    model = fitted(points)
    assert model.alpha_s == pytest.approx(3e-4, rel=1e-9)
    assert model.beta_s_per_byte == pytest.approx(8e-9, rel=1e-9)
    assert model.max_relative_residual == pytest.approx(abs(1 / factor - 1), rel=1e-9)
    assert model.segments == []


def test_a_line_through_the_origin_and_a_flat_line() -> None:
    through = fitted([point(size, 1e-9 * size) for size in SIZES])
    assert (through.alpha_s, through.beta_s_per_byte) == (0.0, pytest.approx(1e-9))
    flat = fitted([point(size, 1e-3) for size in SIZES])
    assert (flat.alpha_s, flat.beta_s_per_byte) == (1e-3, 0.0)


def test_neither_alpha_nor_beta_falls_below_zero() -> None:
    falling = fitted([point(1000, 2.0), point(2000, 1.0)])
    assert falling.alpha_s > 0
    assert falling.beta_s_per_byte == 0
    steep = fitted([point(1000, 1.0), point(2000, 10.0)])
    assert steep.alpha_s == 0
    assert steep.beta_s_per_byte > 0


def two_regimes(size: int) -> float:
    """1 ms + 1 ns a byte up to 1 MiB, three times as steep beyond."""
    knee = 2**20
    return 1e-3 + 1e-9 * min(size, knee) + 3e-9 * max(0, size - knee)


def test_two_regimes_become_two_segments() -> None:
    model = fitted([point(size, two_regimes(size)) for size in SIZES])
    assert model.max_relative_residual > 0.10
    assert len(model.segments) == 2
    assert model.segmented_max_relative_residual <= 0.05
    first, second = model.segments
    assert first.from_bytes == SIZES[0]
    assert first.alpha_s + first.beta_s_per_byte * second.from_bytes == pytest.approx(
        second.alpha_s + second.beta_s_per_byte * second.from_bytes, rel=1e-9
    )
    curve = CostCurve.of(model)
    for size in (3000, 700_000, 5_000_000, 2**27, 2**29):
        assert curve(size) == pytest.approx(two_regimes(size), rel=0.06)


def test_a_curve_no_five_pieces_can_follow_falls_back_to_the_points() -> None:
    times = [1e-3 * 1.6 ** (step // 2) for step in range(len(SIZES))]
    model = fitted([point(size, time_s) for size, time_s in zip(SIZES, times, strict=True)])
    assert len(model.segments) == cost.MAX_SEGMENTS
    assert model.segmented_max_relative_residual > 0.10
    assert CostCurve.of(model)(np.array(SIZES, dtype=float)) == pytest.approx(times, rel=1e-12)


@settings.get_profile("few")
@given(
    st.lists(
        st.tuples(st.integers(1, 10**8), st.floats(1e-6, 10.0)), min_size=2, max_size=12, unique_by=lambda pair: pair[0]
    )
)
def test_any_points_give_a_valid_continuous_monotone_model(pairs: list[tuple[int, float]]) -> None:
    model = fitted([point(nbytes, time_s) for nbytes, time_s in pairs])
    assert model.alpha_s >= 0
    assert model.beta_s_per_byte >= 0
    assert model.alpha_ci95[0] <= model.alpha_s <= model.alpha_ci95[1]
    assert model.beta_ci95[0] <= model.beta_s_per_byte <= model.beta_ci95[1]
    assert all(segment.beta_s_per_byte >= 0 for segment in model.segments)
    for before, after in zip(model.segments, model.segments[1:], strict=False):
        knot = after.from_bytes
        assert before.alpha_s + before.beta_s_per_byte * knot == pytest.approx(
            after.alpha_s + after.beta_s_per_byte * knot, rel=1e-6, abs=1e-12
        )
    if model.segments:
        assert model.max_relative_residual > 0.10
        assert model.segmented_max_relative_residual < model.max_relative_residual
    asked = np.linspace(1, 2e8, 50)
    assert np.all(np.diff(CostCurve.of(model)(asked)) >= -1e-12)


@settings.get_profile("few")
@given(st.lists(st.floats(0.9, 1.1), min_size=6, max_size=10))
def test_no_line_fits_clearly_better(noise: list[float]) -> None:
    sizes = np.array([4.0**place * 1024 for place in range(len(noise))])
    times = (1e-4 + 1e-8 * sizes) * np.array(noise)
    model = fitted([point(int(size), float(time_s)) for size, time_s in zip(sizes, times, strict=True)])
    alphas, betas = np.meshgrid(np.linspace(5e-5, 2e-4, 100), np.linspace(5e-9, 2e-8, 100))
    lines = alphas.ravel()[:, None] + betas.ravel()[:, None] * sizes
    ours = np.abs(np.log((model.alpha_s + model.beta_s_per_byte * sizes) / times)).sum()
    assert ours <= np.abs(np.log(lines / times)).sum(axis=1).min() * 1.05 + 1e-9


def test_intervals_hold_the_truth_about_as_often_as_they_say(thorough: bool) -> None:
    random = np.random.default_rng(3)
    held = np.zeros(2)
    fits = 40 if thorough else 8
    for _ in range(fits):
        noise = 1 + 0.03 * random.standard_normal(len(SIZES))
        model = fitted([point(s, (3e-4 + 8e-9 * s) * n, 0.02) for s, n in zip(SIZES, noise, strict=True)])
        held += [model.alpha_ci95[0] <= 3e-4 <= model.alpha_ci95[1], model.beta_ci95[0] <= 8e-9 <= model.beta_ci95[1]]
    assert held.min() >= 0.8 * fits  # 95 % would be 38 of 40


def test_residuals_widen_the_fits_as_intervals_of_that_size_do() -> None:
    """The spread of n residuals: 1.4826 times their median, times √(n / (n − 2)). A spread's interval is 3.92 wide."""
    sizes = np.array(SIZES[:6], dtype=float)
    residuals = np.array([0.0, 0.01, 0.02, 0.04, 0.08, 0.16])
    spread = 1.4826 * 0.03 * math.sqrt(6 / 4)
    fitted_s = 3e-4 + 8e-9 * sizes
    exact, wide = (
        [point(size, time_s, width) for size, time_s in zip(SIZES, fitted_s, strict=False)]
        for width in (0.0, 1.96 * spread)
    )
    by_residuals = cost._intervals(exact, sizes, 3e-4, 8e-9, residuals)
    by_intervals = cost._intervals(wide, sizes, 3e-4, 8e-9, 0 * residuals)
    assert by_residuals[0] == pytest.approx(by_intervals[0])
    assert by_residuals[1] == pytest.approx(by_intervals[1])
    assert by_residuals[0][0] < 3e-4 < by_residuals[0][1]


def test_where_each_point_sets_one_parameter_its_interval_is_the_points_own() -> None:
    """α is the time of the one byte and β that of the many, each known to ±58.8 %: 400 draws are near that."""
    model = fitted([point(1, 1.0, 0.588), point(10**9, 1000.0, 0.588)])
    assert model.alpha_ci95 == pytest.approx((0.412, 1.588), abs=0.1)
    assert model.beta_ci95 == pytest.approx((0.412e-6, 1.588e-6), abs=0.1e-6)


@pytest.mark.parametrize(
    ("points", "why"),
    [
        ([], "2 distinct sizes"),
        ([point(1024, 1.0), point(1024, 2.0)], "2 distinct sizes"),
        ([point(2048, 1.0), point(0, 1.0)], "above zero"),
        ([point(2048, 1.0), point(1024, 0.0)], "above zero"),
    ],
)
def test_points_have_two_sizes_and_are_above_zero(points: list[CostPoint], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        fitted(points)


def test_line_curve() -> None:
    curve = CostCurve.line(1e-3, 1e-9)
    assert curve(0) == 0.0
    assert curve(1) == pytest.approx(1e-3 + 1e-9)
    assert isinstance(curve(5.0), float)
    asked = np.array([[0.0, 1e6], [2e6, 3e6]])
    assert curve(asked) == pytest.approx(np.array([[0.0, 2e-3], [3e-3, 4e-3]]))


def test_measured_curve_interpolates_extrapolates_and_is_flat_below() -> None:
    curve = CostCurve.measured([point(4000, 9.0), point(1000, 2.0), point(2000, 3.0)])
    assert curve(0) == 0.0
    assert curve(np.array([1.0, 999.0, 1000.0, 1500.0, 2000.0, 3000.0, 4000.0, 6000.0])) == pytest.approx(
        [2.0, 2.0, 2.0, 2.5, 3.0, 6.0, 9.0, 15.0]
    )
    # it is monotone, and takes the median of a size
    curve = CostCurve.measured(
        [point(1000, 2.0), point(2000, 1.0), point(3000, 4.0), point(3000, 5.0), point(3000, 9.0)]
    )
    assert curve(np.array([1000.0, 2000.0, 3000.0])) == pytest.approx([1.5, 1.5, 5.0])
    # of one size it is proportional beyond it
    curve = CostCurve.measured([point(1000, 2.0)])
    assert curve(np.array([1.0, 1000.0, 3000.0])) == pytest.approx([2.0, 2.0, 6.0])


def test_of_takes_the_segments() -> None:
    pieces = [
        CostSegment(from_bytes=10, alpha_s=0.0, beta_s_per_byte=1.0),
        CostSegment(from_bytes=20, alpha_s=-20.0, beta_s_per_byte=2.0),
    ]
    model = line(1.0, 1.0).model_copy(update={"segments": pieces})
    assert CostCurve.of(model)(np.array([1.0, 10.0, 15.0, 20.0, 30.0])) == pytest.approx([10.0, 10.0, 15.0, 20.0, 40.0])


def test_bad_curves_and_sizes_are_refused() -> None:
    for alpha, beta in [(-1.0, 0.0), (0.0, -1.0), (math.nan, 0.0), (0.0, math.inf)]:
        with pytest.raises(ValueError, match="finite and not below zero"):
            CostCurve.line(alpha, beta)
    with pytest.raises(ValueError, match="ascend"):
        CostCurve(np.array([2.0, 1.0]), np.array([1.0, 2.0]), 0.0)
    with pytest.raises(ValueError, match="as many times as sizes"):
        CostCurve(np.array([2.0, 3.0]), np.array([1.0]), 0.0)
    with pytest.raises(ValueError, match="no cost points"):
        CostCurve.measured([])
    with pytest.raises(ValueError, match="not below zero"):
        CostCurve.line(1.0, 1.0)(-1.0)


def test_collective_costs() -> None:
    assert cost.ring(1.0, 10.0, 4) == pytest.approx((6.0, 15.0))
    assert cost.double_binary_trees(1.0, 10.0, 16) == pytest.approx((8.0, 10.0))
    for algorithm in (cost.ring, cost.double_binary_trees):
        with pytest.raises(ValueError, match="at least 2 workers"):
            algorithm(1.0, 1.0, 1)
