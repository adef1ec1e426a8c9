from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xbench.planning import turns
from xbench.planning.turns import JobTimes, Turn, best_pattern, predict_concurrent, round_s, run_turns, sequential_s


def played_round_s(jobs: Sequence[JobTimes], pattern: Sequence[int], rounds: int = 4000) -> float:
    """Turn by turn, event by event: the mean round of a long run's second half."""
    device = link = 0.0
    arrival = [0.0] * len(jobs)
    began = []
    for _ in range(rounds):
        began.append(max(device, arrival[pattern[0]]))
        for job in pattern:
            start = max(device, arrival[job])
            device = start + jobs[job].compute_s
            last_gradient = device + jobs[job].communication_s
            if jobs[job].busy_s:
                on_wire = max(last_gradient - jobs[job].busy_s, link)
                link = arrival[job] = on_wire + jobs[job].busy_s
            else:
                arrival[job] = last_gradient
    half = rounds // 2
    return (began[-1] - began[half - 1]) / (rounds - half)


TIMES = st.integers(1, 12).map(float)
JOBS = st.lists(
    st.builds(
        JobTimes,
        compute_s=TIMES,
        communication_s=st.integers(0, 12).map(float),
        samples=TIMES,
        link_s=st.none() | st.integers(0, 15).map(float),
    ),
    min_size=1,
    max_size=3,
)


@given(JOBS, st.data())
def test_a_round_takes_what_playing_it_takes(jobs: list[JobTimes], data: st.DataObject) -> None:
    pattern = data.draw(st.lists(st.integers(0, len(jobs) - 1), min_size=1, max_size=7))
    played = played_round_s(jobs, pattern, rounds=1000)
    assert round_s(jobs, pattern) == pytest.approx(played, rel=2e-2)


@settings.get_profile("fewest")
@given(JOBS)
def test_the_best_pattern_is_the_best_of_all(jobs: list[JobTimes]) -> None:
    best = best_pattern(jobs, max_length=4)
    assert set(best.pattern) == set(range(len(jobs)))
    for length in range(len(jobs), 5):
        for pattern in itertools.product(range(len(jobs)), repeat=length):
            if set(pattern) == set(range(len(jobs))):
                took = round_s(jobs, pattern)
                speedup = sequential_s(jobs, pattern) / took
                assert speedup <= best.speedup * (1 + 1e-6)
    assert best.pattern == min(best.pattern[n:] + best.pattern[:n] for n in range(len(best.pattern)))
    assert best.speedup == pytest.approx(sequential_s(jobs, best.pattern) / best.round_s)
    assert best.samples_per_s == pytest.approx(sum(jobs[job].samples for job in best.pattern) / best.round_s)


@given(st.floats(0.01, 10), st.floats(0, 1))
def test_equal_jobs_take_turns_and_gain_what_the_paper_says(compute: float, ratio: float) -> None:
    communication = compute * ratio
    job = JobTimes(compute, communication, samples=8)
    found = best_pattern([job, job], max_length=5)
    assert found.pattern == (0, 1)
    assert found.text == "AB"
    assert found.round_s == pytest.approx(max(2 * compute, compute + communication))
    assert found.speedup == pytest.approx(1 + ratio)
    assert found.samples_per_s == pytest.approx(16 / found.round_s)


@given(st.floats(0.01, 10), st.floats(0, 5))
def test_a_round_of_equal_jobs_that_do_not_queue_for_the_link(compute: float, ratio: float) -> None:
    job = JobTimes(compute, compute * ratio, link_s=0.0)
    assert round_s([job, job], (0, 1)) == pytest.approx(max(2 * compute, compute + compute * ratio))


@given(st.floats(0.01, 10), st.floats(0, 5), st.floats(0, 5))
def test_a_round_of_equal_jobs_on_a_saturated_link(compute: float, exposed: float, hidden: float) -> None:
    job = JobTimes(compute, exposed, link_s=exposed + hidden)
    assert round_s([job, job], (0, 1)) == pytest.approx(
        max(2 * compute, compute + exposed, 2 * (exposed + hidden) if exposed + hidden > 0 else 0.0)
    )


@given(JOBS, st.data())
def test_turns_one_by_one_take_a_round_s_time(jobs: list[JobTimes], data: st.DataObject) -> None:
    pattern = data.draw(st.lists(st.integers(0, len(jobs) - 1), min_size=1, max_size=7))
    taken = run_turns(jobs, pattern, rounds=200)
    began = [turn.start_s for turn in taken[:: len(pattern)]]
    assert round_s(jobs, pattern) == pytest.approx((began[-1] - began[99]) / 100, rel=5e-2)
    assert all(turn.computed_s - turn.start_s == jobs[turn.job].compute_s for turn in taken)
    assert all(later.start_s >= turn.computed_s for turn, later in itertools.pairwise(taken))


def test_two_equal_jobs_in_turns() -> None:
    job = JobTimes(2.0, 1.0)
    assert run_turns([job, job], (0, 1), rounds=2) == [
        Turn(0, 0.0, 2.0, 3.0),
        Turn(1, 2.0, 4.0, 5.0),
        Turn(0, 4.0, 6.0, 7.0),
        Turn(1, 6.0, 8.0, 9.0),
    ]


def test_one_job_alone() -> None:
    found = best_pattern([JobTimes(2.0, 1.0)])
    assert (found.pattern, found.round_s, found.speedup) == ((0,), 3.0, 1.0)


def test_unequal_jobs_get_an_unequal_pattern() -> None:
    # A computes 4 and needs no wire; B computes 1 and is 11 on it: three turns of A fit while B's gradients travel.
    long, short = JobTimes(4.0, 0.0), JobTimes(1.0, 11.0)
    found = best_pattern([long, short])
    assert found.pattern == (0, 0, 0, 1)
    assert found.text == "AAAB"
    assert found.round_s == pytest.approx(13.0)
    assert found.speedup == pytest.approx((12 + 12) / 13)


def test_many_jobs_get_one_turn_each() -> None:
    jobs = [JobTimes(1.0, 0.5)] * 5
    found = best_pattern(jobs)
    assert found.pattern == (0, 1, 2, 3, 4)
    assert found.round_s == pytest.approx(5.0)
    assert turns.TurnPlan((0, 1, 2, 3, 4), 5.0, 1.0, 1.5).text == "ABCDE"


def test_patterns_are_each_tried_once() -> None:
    found = list(turns.patterns(2, 4))
    assert found == [(0, 1), (0, 0, 1), (0, 1, 1), (0, 0, 0, 1), (0, 0, 1, 1), (0, 1, 1, 1)]
    assert list(turns.patterns(3, 3)) == [(0, 1, 2), (0, 2, 1)]


def test_sequential() -> None:
    jobs = [JobTimes(2.0, 1.0), JobTimes(5.0, 0.5)]
    assert sequential_s(jobs) == 8.5
    assert sequential_s(jobs, (0, 0, 1)) == 11.5


def test_concurrent_jobs_share_the_device_and_the_link() -> None:
    alone = predict_concurrent([JobTimes(2.0, 1.0, samples=6)])
    assert alone.steps_per_s == pytest.approx((1 / 3,))
    assert (alone.samples_per_s, alone.speedup) == (pytest.approx(2.0), pytest.approx(1.0))
    no_wire = predict_concurrent([JobTimes(2.0, 0.0), JobTimes(1.0, 0.0)])
    assert no_wire.speedup == pytest.approx(1.0, rel=0.02)
    assert no_wire.steps_per_s[1] == pytest.approx(2 * no_wire.steps_per_s[0], rel=0.02)
    all_wire = predict_concurrent([JobTimes(0.1, 3.0), JobTimes(0.1, 3.0)])
    assert sum(all_wire.steps_per_s) == pytest.approx(1 / 3, rel=0.02)


@given(JOBS)
def test_concurrent_jobs_use_no_more_than_one_device_and_one_link(jobs: list[JobTimes]) -> None:
    found = predict_concurrent(jobs)
    assert sum(rate * job.compute_s for rate, job in zip(found.steps_per_s, jobs, strict=True)) <= 1.1
    assert sum(rate * job.busy_s for rate, job in zip(found.steps_per_s, jobs, strict=True)) <= 1.1
    assert all(rate * job.alone_s <= 1 + 1e-9 for rate, job in zip(found.steps_per_s, jobs, strict=True))
    assert found.speedup == pytest.approx(
        sum(rate * job.alone_s for rate, job in zip(found.steps_per_s, jobs, strict=True))
    )


def test_jobs_of_very_different_length_end_too() -> None:
    found = predict_concurrent([JobTimes(1.0, 0.0), JobTimes(0.01, 0.01)])
    assert 0 < found.steps_per_s[0] < 1


@pytest.mark.parametrize(
    ("compute", "communication", "samples", "link"),
    [
        (0.0, 1.0, 1.0, None),
        (-1.0, 1.0, 1.0, None),
        (1.0, -0.1, 1.0, None),
        (1.0, 1.0, 0.0, None),
        (math.nan, 1.0, 1.0, None),
        (1.0, math.inf, 1.0, None),
        (1.0, 1.0, 1.0, -1.0),
    ],
)
def test_times_that_cannot_be_are_refused(
    compute: float, communication: float, samples: float, link: float | None
) -> None:
    with pytest.raises(ValueError, match="a job's"):
        JobTimes(compute, communication, samples, link)


def test_patterns_that_cannot_be_are_refused() -> None:
    jobs = [JobTimes(1.0, 1.0)] * 3
    with pytest.raises(ValueError, match="cannot hold 3 jobs"):
        best_pattern(jobs, max_length=2)
    with pytest.raises(ValueError, match="cannot hold 0 jobs"):
        best_pattern([])
    for pattern in [(), (3,), (-1,)]:
        with pytest.raises(ValueError, match="does not name jobs 0 to 2"):
            round_s(jobs, pattern)
    with pytest.raises(ValueError, match="no jobs"):
        predict_concurrent([])
