"""Waits of ranks for each other at units: exact figures of made-up profiles."""

from __future__ import annotations

from typing import Any

import pytest

from xbench.profilers.unit_waits import share_cores, unit_waits

UNITS = {"blocks.0": ["a", "b"], "blocks.1": ["c"], "": ["head"]}


def profile(forward_s: list[float], ready_s: list[float | None]) -> dict[str, Any]:
    """One warm-up step, whose times do not count, and three that are alike."""
    layers = [
        {"name": name, "forward_s": [9.0] + 3 * [ahead_s], "tensors": [{"name": name, "ready_s": [9.0] + 3 * [time_s]}]}
        for name, ahead_s, time_s in zip(["a", "b", "c", "head"], forward_s, ready_s, strict=True)
    ]
    frozen = {"name": "frozen", "forward_s": [9.0] * 4, "tensors": []}
    return {"warmup": 1, "steps": {"step_s": [9.0] * 4}, "layers": [frozen, *layers]}


def test_ranks_wait_where_the_slowest_differs_from_unit_to_unit() -> None:
    # Forward, by unit: 3, 3, 1 and 2, 5, 1. They meet after 3 + 5 + 1, and alone they take 7 and 8.
    # Backward, by unit from the end: 1, 2, 4 and 2, 1, 3. They meet after 2 + 2 + 4, and alone they take 7 and 6.
    ranks = [profile([1.0, 2.0, 3.0, 1.0], [7.0, 5.0, 3.0, 1.0]), profile([1.0, 1.0, 5.0, 1.0], [6.0, 4.0, 3.0, 2.0])]
    assert unit_waits(ranks, UNITS) == pytest.approx((1.0, 1.0))


def test_a_rank_that_is_slow_everywhere_adds_no_wait() -> None:
    ranks = [profile([1.0, 1.0, 1.0, 1.0], [4.0, 3.0, 2.0, 1.0]), profile([2.0, 2.0, 2.0, 2.0], [8.0, 6.0, 4.0, 2.0])]
    assert unit_waits(ranks, UNITS) == pytest.approx((0.0, 0.0))


def test_one_unit_adds_no_wait() -> None:
    ranks = [profile([1.0, 2.0, 3.0, 1.0], [7.0, 5.0, 3.0, 1.0]), profile([1.0, 1.0, 5.0, 1.0], [6.0, 4.0, 3.0, 2.0])]
    assert unit_waits(ranks, {"": ["a", "b", "c", "head"]}) == pytest.approx((0.0, 0.0))


def test_a_unit_without_a_gradient_takes_no_time() -> None:
    ranks = [profile([1.0, 1.0, 1.0, 1.0], [4.0, 3.0, None, 1.0]), profile([1.0, 1.0, 1.0, 1.0], [4.0, 3.0, None, 2.0])]
    assert unit_waits(ranks, UNITS) == pytest.approx((0.0, 1.0))


@pytest.mark.parametrize(
    ("places", "shared"),
    [
        ([("a", {0}), ("a", {1})], False),
        ([("a", {0}), ("b", {0})], False),  # cores of two machines
        ([("a", {0}), ("a", {1}), ("a", {0}), ("a", {1})], True),
        ([("a", {0, 1}), ("a", {0, 1})], False),  # not bound, and enough
        ([("a", {0, 1})] * 3, True),
    ],
)
def test_ranks_share_cores_where_there_are_more_of_them(places: list[tuple[str, set[int]]], shared: bool) -> None:
    assert share_cores((machine, frozenset(cores)) for machine, cores in places) is shared
