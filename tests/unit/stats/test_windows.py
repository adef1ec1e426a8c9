"""Steps of jobs that share devices, counted in the window that they share."""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from xbench.stats import Window, overlap_rates, weighted_progress

STAMPS = st.builds(
    lambda start, steps: [start + sum(steps[:end]) for end in range(len(steps) + 1)],
    st.floats(0.0, 5.0),
    st.lists(st.floats(0.1, 2.0), min_size=1, max_size=20),
)


def test_fractions_of_steps_count_at_the_edges() -> None:
    window = overlap_rates([[0.0, 2.0, 4.0, 6.0], [1.0, 2.0, 3.0, 4.0, 5.0]])
    assert window == Window(start_s=1.0, end_s=5.0, rates_per_s=(0.5, 1.0), steps=(2.0, 4.0))
    assert window.length_s == 4.0


def test_a_window_inside_one_step() -> None:
    window = overlap_rates([[0.0, 10.0], [4.0, 5.0, 6.0]])
    assert window.steps == (pytest.approx(0.2), 2.0)


def test_one_job_alone_is_its_own_window() -> None:
    assert overlap_rates([[1.0, 1.5, 2.0]]) == Window(1.0, 2.0, (2.0,), (2.0,))


@pytest.mark.parametrize(
    ("boundaries_s", "message"),
    [
        ([], "at least one job"),
        ([[0.0, 1.0], [1.0, 2.0]], "never ran together"),
        ([[0.0, 1.0], [3.0, 4.0]], "never ran together"),
        ([[0.0, 1.0], [0.5]], "job 1 has 1 step boundaries"),
        ([[0.0, 1.0, 1.0]], "of job 0 do not increase"),
        ([[0.0, math.nan, 1.0]], "of job 0 do not increase"),
        ([[0.0, math.inf]], "of job 0 do not increase"),
    ],
)
def test_no_window_is_refused(boundaries_s: list[list[float]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        overlap_rates(boundaries_s)


@given(STAMPS, st.lists(STAMPS, max_size=3), st.floats(-100.0, 100.0))
def test_steps_are_bounded_and_the_clocks_zero_does_not_matter(
    first: list[float], others: list[list[float]], shift_s: float
) -> None:
    jobs = [first, *others]
    assume(min(job[-1] for job in jobs) - max(job[0] for job in jobs) > 0.01)
    window = overlap_rates(jobs)
    assert all(0 < steps <= len(job) - 1 + 1e-9 for steps, job in zip(window.steps, jobs, strict=True))
    moved = overlap_rates([[stamp + shift_s for stamp in job] for job in jobs])
    assert moved.steps == pytest.approx(window.steps, abs=1e-6)


def test_turns_without_overlap_are_worth_one_whatever_the_proportion() -> None:
    alone_step_s = (0.3, 0.1)
    fair = overlap_rates([[0.0, 0.4, 0.8, 1.2], [0.0, 0.4, 0.8, 1.2]])
    assert weighted_progress(fair.rates_per_s, alone_step_s) == pytest.approx(1.0)
    favours_the_short = overlap_rates([[0.0, 0.6, 1.2], [0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2]])
    assert weighted_progress(favours_the_short.rates_per_s, alone_step_s) == pytest.approx(1.0)
    assert sum(favours_the_short.rates_per_s) > sum(fair.rates_per_s)  # what counting steps would have rewarded


def test_jobs_that_do_not_disturb_each_other_are_worth_two() -> None:
    assert weighted_progress((2.0, 5.0), (0.5, 0.2)) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("rates_per_s", "alone_step_s"),
    [((), ()), ((1.0,), (1.0, 2.0)), ((-1.0,), (1.0,)), ((1.0,), (0.0,)), ((math.nan,), (1.0,))],
)
def test_progress_of_nonsense_is_refused(rates_per_s: tuple[float, ...], alone_step_s: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="rates"):
        weighted_progress(rates_per_s, alone_step_s)
