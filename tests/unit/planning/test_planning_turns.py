from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xbench.planning import turns
from xbench.planning.turns import (
    JobTimes,
    Loads,
    SpatialJob,
    Turn,
    best_pattern,
    loads,
    pack,
    round_on_s,
    round_s,
    run_turns,
)  # fmt: skip


def played_round_s(jobs: Sequence[SpatialJob], on_gpu: Loads, pattern: Sequence[int], rounds: int) -> float:
    """The recurrence of the module, turn by turn, from a standing start: the mean over the later half of the rounds."""
    free = [0.0] * len(on_gpu)
    link = 0.0
    arrival = [0.0] * len(jobs)
    ends = []
    for _ in range(rounds):
        for job in pattern:
            free = [max(at_s, arrival[job]) + turns_s[job] for at_s, turns_s in zip(free, on_gpu, strict=True)]
            arrival[job] = max(free) + jobs[job].communication_s
            if jobs[job].busy_s:
                arrival[job] = link = max(arrival[job], link + jobs[job].busy_s)
        ends.append(max(*free, link))
    return (ends[-1] - ends[rounds // 2 - 1]) / (rounds - rounds // 2)


TIMES = st.integers(1, 12).map(float)
JOBS = st.lists(
    st.builds(
        JobTimes,
        compute_s=TIMES,
        communication_s=st.integers(0, 12).map(float),
        link_s=st.none() | st.integers(0, 15).map(float),
    ),
    min_size=1,
    max_size=3,
)


@settings.get_profile("fewest")
@given(JOBS)
def test_the_best_pattern_is_the_best_of_all(jobs: list[JobTimes]) -> None:
    best = best_pattern(jobs, max_length=4)
    assert set(best.pattern) == set(range(len(jobs)))
    for length in range(len(jobs), 5):
        for pattern in itertools.product(range(len(jobs)), repeat=length):
            if set(pattern) == set(range(len(jobs))):
                took = round_s(jobs, pattern)
                speedup = sum(jobs[job].alone_s for job in pattern) / took
                assert speedup <= best.speedup * (1 + 1e-6)
    assert best.pattern == min(best.pattern[n:] + best.pattern[:n] for n in range(len(best.pattern)))
    assert best.speedup == pytest.approx(sum(jobs[job].alone_s for job in best.pattern) / best.round_s)


@given(st.floats(0.01, 10), st.floats(0, 1))
def test_equal_jobs_take_turns_and_gain_what_the_paper_says(compute: float, ratio: float) -> None:
    communication = compute * ratio
    job = JobTimes(compute, communication)
    found = best_pattern([job, job], max_length=5)
    assert found.pattern == (0, 1)
    assert found.text == "AB"
    assert found.round_s == pytest.approx(max(2 * compute, compute + communication))
    assert found.speedup == pytest.approx(1 + ratio)


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


def test_patterns_are_each_tried_once() -> None:
    found = list(turns.patterns(2, 4))
    assert found == [(0, 1), (0, 0, 1), (0, 1, 1), (0, 0, 0, 1), (0, 0, 1, 1), (0, 1, 1, 1)]
    assert list(turns.patterns(3, 3)) == [(0, 1, 2), (0, 2, 1)]


def test_more_than_four_jobs_get_patterns_of_one_turn_each_alone() -> None:
    """One of the 4 jobs has two of the 5 turns: 4 · 5!/2 orders, and every pattern is 5 of them."""
    lengths = {jobs: Counter(map(len, turns.patterns(jobs, jobs + 1))) for jobs in (4, 5)}
    assert lengths == {4: {4: 6, 5: 48}, 5: {5: 24}}


# --- partial backpropagation ------------------------------------------------------------------------------------------

ONE = SpatialJob(1 / 3, 2 / 3)
"""A second of computation, a third of it forward, and nothing to send."""

seconds = st.integers(0, 20).map(lambda tenths: tenths / 4)
jobs = st.builds(SpatialJob, st.integers(1, 20).map(lambda tenths: tenths / 4), seconds, seconds)


def test_a_job_alone_gains_nothing() -> None:
    for levels in (1, 2, 4):
        found = pack([SpatialJob(1.0, 2.0, 0.5)], 4, levels)
        assert (found.round_s, found.rates) == (pytest.approx(3.5), (pytest.approx(1.0),))


@pytest.mark.parametrize(
    ("levels", "speedup"), [(1, 1.0), (2, 6 / 5), (3, 9 / 7), (4, 4 / 3), (6, 18 / 13), (12, 36 / 25)]
)
def test_two_equal_jobs_without_communication_fill_every_gpu(levels: int, speedup: float) -> None:
    """A GPU has 2F + (k+1)/k·B to do a round: 2/3 + 2/3·(k+1)/k."""
    found = pack([ONE, ONE], 12, levels)
    assert found.text == "AB"
    assert found.round_s == pytest.approx(2 / 3 + 2 / 3 * (levels + 1) / levels)
    assert found.speedup == pytest.approx(speedup)
    assert found.rates[0] == found.rates[1]


def test_a_link_can_be_what_decides() -> None:
    found = pack([SpatialJob(1, 1, 4)] * 2, 2, 2)
    assert found.round_s == pytest.approx(8.0)
    assert found.speedup == pytest.approx(12 / 8)


def test_the_second_job_s_levels_descend() -> None:
    """Six workers of four levels: two of the first, two of the second, and one each of the others."""
    found = loads([SpatialJob(0, 4), SpatialJob(1, 4)], 6, 4)
    assert found == ((1, 4), (1, 5), (2, 3), (3, 2), (4, 2))


def test_a_third_goes_deepest_where_least_is_to_do() -> None:
    found = loads([SpatialJob(0, 4), SpatialJob(0, 8), SpatialJob(0, 4)], 4, 4)
    assert found == ((1, 8, 1), (2, 6, 2), (3, 4, 3), (4, 2, 4))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: JobTimes(0.0, 1.0), "a job's"),
        (lambda: JobTimes(1.0, -0.1), "a job's"),
        (lambda: JobTimes(math.nan, 1.0), "a job's"),
        (lambda: JobTimes(1.0, 1.0, -1.0), "a job's"),
        (lambda: SpatialJob(1, 1, math.inf), "communication_s is inf"),
        (lambda: SpatialJob(0, 0, 1), "computes nothing"),
        (lambda: best_pattern([JobTimes(1.0, 1.0)] * 3, max_length=2), "cannot hold 3 jobs"),
        (lambda: best_pattern([]), "cannot hold 0 jobs"),
        (lambda: round_s([JobTimes(1.0, 1.0)] * 3, ()), "does not name jobs 0 to 2"),
        (lambda: round_s([JobTimes(1.0, 1.0)] * 3, (3,)), "does not name jobs 0 to 2"),
        (lambda: round_s([JobTimes(1.0, 1.0)] * 3, (-1,)), "does not name jobs 0 to 2"),
        (lambda: loads([ONE], 2, 3), "do not go onto 2 GPUs"),
        (lambda: loads([], 2, 2), "do not go onto 2 GPUs"),
    ],
)
def test_what_cannot_be_is_refused(call: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        call()


@given(st.lists(jobs, min_size=1, max_size=3), st.integers(1, 5))
def test_one_level_is_crossover(packed: list[SpatialJob], workers: int) -> None:
    times = [JobTimes(job.forward_s + job.backward_s, job.communication_s) for job in packed]
    on_gpu = loads(packed, workers, 1)
    for pattern in itertools.islice(turns.patterns(len(packed), 4), 6):
        assert round_on_s(packed, on_gpu, pattern) == pytest.approx(round_s(times, pattern))


@given(st.lists(jobs, min_size=1, max_size=3), st.integers(1, 4), st.integers(0, 3))
def test_a_round_on_several_gpus_takes_what_playing_it_takes(packed: list[SpatialJob], levels: int, more: int) -> None:
    on_gpu = loads(packed, levels + more, levels)
    for pattern in itertools.islice(turns.patterns(len(packed), 4), 6):
        played_s = played_round_s(packed, on_gpu, pattern, 240)
        assert round_on_s(packed, on_gpu, pattern) == pytest.approx(played_s, rel=1e-6)
