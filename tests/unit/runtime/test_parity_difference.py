"""How far two trained networks are apart, in units of how far training moved them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from xbench.runtime.parity import TOLERANCE, largest_difference

START = {"weight": torch.zeros(3), "bias": torch.zeros(1)}


def moved(weight: float, bias: float) -> dict[str, Tensor]:
    return {"weight": torch.full((3,), weight), "bias": torch.full((1,), bias)}


def test_equal_networks_do_not_differ() -> None:
    assert largest_difference(moved(0.1, 0.01), moved(0.1, 0.01), START) == (0.0, None)
    assert largest_difference({}, {}, {}) == (0.0, None)
    assert largest_difference({"empty": torch.zeros(0)}, {"empty": torch.zeros(0)}, {"empty": torch.zeros(0)})[0] == 0.0


@pytest.mark.parametrize("bias", [0.1, 1e-3, 1e-5])
def test_a_small_layer_that_was_forgotten_is_seen(bias: float) -> None:
    difference, name = largest_difference(moved(0.1, 0.0), moved(0.1, bias), START)
    assert name == "bias"
    assert difference == pytest.approx(bias / (bias + 1e-4), rel=1e-3)
    assert difference > TOLERANCE


def test_a_gradient_that_is_zero_but_for_rounding_may_differ_altogether() -> None:
    difference, name = largest_difference(moved(0.1, -1e-7), moved(0.1, 1e-7), START)
    assert name == "bias"
    assert difference == pytest.approx(2e-7 / 1e-4, rel=0.01)
    assert difference < TOLERANCE


def test_what_did_not_move_at_all_must_be_equal() -> None:
    still = moved(0.0, 0.0)
    assert largest_difference(still, still, START) == (0.0, None)
    assert largest_difference(moved(0.0, 1e-30), still, START) == (1.0, "bias")


def test_no_number_is_the_worst() -> None:
    difference, name = largest_difference(moved(math.nan, 0.01), moved(0.1, 0.01), START)
    assert math.isnan(difference)
    assert name == "weight"
