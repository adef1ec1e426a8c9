from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xbench.cluster.loss_curve import LossCurve, fit_loss
from xbench.errors import SpecError

STEPS = tuple(range(0, 3000, 100))


@settings.get_profile("few")
@given(st.floats(1e-4, 1e-1), st.floats(0.05, 2.0), st.floats(0.0, 1.0))
def test_a_fit_to_a_curve_is_that_curve(slope: float, start: float, floor: float) -> None:
    truth = LossCurve((slope, start, floor))
    fit = fit_loss(STEPS, [truth(step) for step in STEPS])
    assert fit.points == len(STEPS)
    assert fit.residual < 1e-3
    assert fit.held_out_error < 2e-2
    for step in (50, 1234, 2900):
        assert fit.curve(step) == pytest.approx(truth(step), rel=5e-3)


def test_the_steps_that_remain() -> None:
    curve = LossCurve((0.001, 0.5, 0.25))
    assert curve(0) == 2.25
    assert curve.steps_to(0.75) == pytest.approx(1500)
    assert curve.remaining_steps(0.75, 500) == pytest.approx(1000)
    assert curve.remaining_steps(0.75, 1600) == 0
    assert curve.steps_to(3.0) == 0


@given(st.floats(1e-6, 1.0), st.floats(0.0, 2.0), st.floats(0.0, 1.0), st.floats(1e-3, 10))
def test_the_curve_is_at_its_target_after_the_steps_to_it(slope: float, start: float, floor: float, up: float) -> None:
    curve = LossCurve((slope, start, floor))
    step = curve.steps_to(floor + up)
    assert curve(step) <= (floor + up) * (1 + 1e-6)
    if step > 0:
        assert curve(step) == pytest.approx(floor + up, rel=1e-5)


@pytest.mark.parametrize("target", [0.25, 0.1, -1.0, math.nan])
def test_a_loss_below_what_the_curve_tends_to_is_never_reached(target: float) -> None:
    with pytest.raises(SpecError, match=r"is never reached: the curve tends to 0\.25"):
        LossCurve((0.001, 0.5, 0.25)).steps_to(target)


def test_a_flat_curve_reaches_nothing_lower() -> None:
    fit = fit_loss(STEPS, [2.0] * len(STEPS))
    assert fit.curve(10**6) == pytest.approx(2.0)
    with pytest.raises(SpecError, match="never reached"):
        fit.curve.steps_to(1.9)


def test_noise_moves_the_end_little_and_is_in_the_residual() -> None:
    truth = LossCurve((0.002, 0.4, 0.3))
    noise = np.random.default_rng(1).normal(1.0, 0.02, len(STEPS))
    fit = fit_loss(STEPS, [truth(step) * share for step, share in zip(STEPS, noise, strict=True)])
    assert 0.005 < fit.residual < 0.03
    assert fit.curve.steps_to(0.5) == pytest.approx(truth.steps_to(0.5), rel=0.2)


def test_a_loss_that_falls_in_steps_shows_in_the_held_out_error() -> None:
    fit = fit_loss(STEPS, [2.0 - 1.5 * (step > 2000) - step * 1e-5 for step in STEPS])
    assert fit.held_out_error > 0.5


def test_order_does_not_matter() -> None:
    losses = [1 / (0.01 * step + 0.5) + 0.2 for step in STEPS]
    assert fit_loss(STEPS[::-1], losses[::-1]) == fit_loss(STEPS, losses)


@pytest.mark.parametrize(
    ("steps", "losses", "said"),
    [
        ([1, 2, 3], [1.0, 1.0], "3 steps and 2 losses"),
        ([1, 2, 3, 4, 5, 5], [1.0] * 6, "5 different steps"),
        ([-1, 2, 3, 4, 5, 6], [1.0] * 6, "after -1 steps"),
        ([1, 2, 3, 4, 5, 6], [1.0, 1.0, 0.0, 1.0, 1.0, 1.0], "after 3 steps is 0.0"),
        ([1, 2, 3, 4, 5, 6], [1.0, math.nan, 1.0, 1.0, 1.0, 1.0], "after 2 steps is nan"),
    ],
)
def test_losses_that_make_no_curve_are_refused(steps: list[float], losses: list[float], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        fit_loss(steps, losses)


@pytest.mark.parametrize("beta", [(-1.0, 1.0, 0.0), (math.inf, 1.0, 0.0), (0.0, 0.0, 1.0)])
def test_what_is_no_curve_is_refused(beta: tuple[float, float, float]) -> None:
    with pytest.raises(SpecError, match="loss curve"):
        LossCurve(beta)
