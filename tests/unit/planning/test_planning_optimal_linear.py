from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning_cases import gradients_of, partitions

from xbench.planning.cost import CostCurve, CostFunction, FloatArray
from xbench.planning.gradients import Gradient
from xbench.planning.merge import optimal_contiguous
from xbench.planning.optimal_linear import optimal_line
from xbench.planning.simulate import Buckets, transfers


def last_end_s(gradients: list[Gradient], buckets: Buckets, alpha_s: float, beta: float) -> float:
    return transfers(gradients, buckets, CostCurve.line(alpha_s, beta))[-1].end_s


@st.composite
def nets(draw: st.DrawFn, largest: int = 10, dtypes: tuple[str, ...] = ("float32",)) -> list[Gradient]:
    count = draw(st.integers(1, largest))

    def of_each(values: st.SearchStrategy) -> list:  # type: ignore[type-arg]
        return draw(st.lists(values, min_size=count, max_size=count))

    return gradients_of(of_each(st.floats(0, 20)), of_each(st.integers(0, 40)), of_each(st.sampled_from(dtypes)))


ALPHA = st.one_of(st.just(0.0), st.floats(0, 5))
BETA = st.one_of(st.just(0.0), st.floats(0, 2))


def test_buckets_that_end_alike_are_few() -> None:
    # the last ready time decides: whatever came before has long arrived, in one bucket as well as in two
    assert optimal_line(gradients_of([0.0, 0.0, 9.0], [1, 1, 1]), 0.0, 1.0) == [[0, 1], [2]]


def test_no_bucket_holds_two_dtypes_unless_allowed() -> None:
    gradients = gradients_of([0.0, 0.0, 0.0], [1, 1, 1], ["float32", "bfloat16", "bfloat16"])
    assert optimal_line(gradients, 1.0, 1.0) == [[0], [1, 2]]
    assert optimal_line(gradients, 1.0, 1.0, across_dtypes=True) == [[0, 1, 2]]


@given(nets(), ALPHA, BETA)
def test_no_contiguous_plan_ends_earlier(gradients: list[Gradient], alpha_s: float, beta: float) -> None:
    buckets = optimal_line(gradients, alpha_s, beta)
    assert list(itertools.chain(*buckets)) == list(range(len(gradients)))
    best_s = min(_end_s(gradients, buckets, alpha_s, beta) for buckets in partitions(len(gradients)))
    assert last_end_s(gradients, buckets, alpha_s, beta) == pytest.approx(best_s, rel=1e-9, abs=1e-12)


def _end_s(gradients: list[Gradient], buckets: Buckets, alpha_s: float, beta: float) -> float:
    """As `transfers`, which checks each plan and would take a minute for all of them."""
    end_s = 0.0
    for bucket in buckets:
        nbytes = sum(gradients[index].nbytes for index in bucket)
        end_s = max(end_s, gradients[bucket[-1]].ready_s) + (alpha_s + beta * nbytes if nbytes else 0.0)
    return end_s


def any_curve(alpha_s: float, beta: float) -> CostFunction:
    """The same T as `CostCurve.line`, which the planner does not see to be a line."""
    line = CostCurve.line(alpha_s, beta)

    def seconds(nbytes: FloatArray, /) -> FloatArray:
        return line(nbytes)

    return seconds


@given(nets(largest=60), ALPHA, BETA)
def test_the_optimum_of_a_line_is_found_by_the_pass(gradients: list[Gradient], alpha_s: float, beta: float) -> None:
    assert optimal_contiguous(gradients, CostCurve.line(alpha_s, beta)) == optimal_line(gradients, alpha_s, beta)


@given(nets(largest=60, dtypes=("float32", "bfloat16")), ALPHA, BETA, st.booleans())
def test_it_ends_when_the_plan_for_any_curve_ends(
    gradients: list[Gradient], alpha_s: float, beta: float, across_dtypes: bool
) -> None:
    ours = optimal_line(gradients, alpha_s, beta, across_dtypes=across_dtypes)
    theirs = optimal_contiguous(gradients, any_curve(alpha_s, beta), across_dtypes=across_dtypes)
    assert last_end_s(gradients, ours, alpha_s, beta) == pytest.approx(
        last_end_s(gradients, theirs, alpha_s, beta), rel=1e-9, abs=1e-12
    )
    if not across_dtypes:
        assert all(len({gradients[index].dtype for index in bucket}) == 1 for bucket in ours)


@pytest.mark.parametrize(("alpha_s", "beta"), [(-1.0, 0.0), (0.0, -1.0), (math.nan, 0.0), (0.0, math.inf)])
def test_lines_that_are_none_are_refused(alpha_s: float, beta: float) -> None:
    with pytest.raises(ValueError, match="finite numbers that are not below zero"):
        optimal_line(gradients_of([0.0], [1]), alpha_s, beta)


def test_gradients_out_of_order_are_refused() -> None:
    with pytest.raises(ValueError, match="not in ready order"):
        optimal_line([Gradient("a", 1, 1.0), Gradient("b", 1, 0.0)], 1.0, 1.0)
    with pytest.raises(ValueError, match="no gradients"):
        optimal_line([], 1.0, 1.0)
