"""Jobs of partial backpropagation in turns: exact rounds, and who is where."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xbench.planning import spatial_turns, turns
from xbench.planning.spatial_turns import Loads, SpatialJob, loads, pack
from xbench.planning.turns import JobTimes

ONE = SpatialJob(1 / 3, 2 / 3)
"""A second of computation, a third of it forward, and nothing to send."""

seconds = st.integers(0, 20).map(lambda tenths: tenths / 4)
jobs = st.builds(SpatialJob, st.integers(1, 20).map(lambda tenths: tenths / 4), seconds, seconds)


def played_round_s(played: list[SpatialJob], on_gpu: Loads, pattern: tuple[int, ...], rounds: int) -> float:
    """The recurrence of the module, turn by turn, from a standing start: the mean over the later half of the rounds."""
    free = [0.0] * len(on_gpu)
    link = 0.0
    arrival = [0.0] * len(played)
    ends = []
    for _ in range(rounds):
        for job in pattern:
            free = [max(at_s, arrival[job]) + turns_s[job] for at_s, turns_s in zip(free, on_gpu, strict=True)]
            arrival[job] = max(free) + played[job].communication_s
            if played[job].communication_s:
                arrival[job] = link = max(arrival[job], link + played[job].communication_s)
        ends.append(max(*free, link))
    return (ends[-1] - ends[rounds // 2 - 1]) / (rounds - rounds // 2)


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


def test_with_communication_there_is_more_to_fill() -> None:
    """F = B = M = 1, k = 2: a GPU has 2 + 1.5 to do, a job's own round takes 3, the link is busy for 2."""
    found = pack([SpatialJob(1, 1, 1)] * 2, 2, 2)
    assert found.round_s == pytest.approx(3.5)
    assert found.speedup == pytest.approx(6 / 3.5)


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


def test_what_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="forward_s is -1"):
        SpatialJob(-1, 1)
    with pytest.raises(ValueError, match="communication_s is inf"):
        SpatialJob(1, 1, float("inf"))
    with pytest.raises(ValueError, match="computes nothing"):
        SpatialJob(0, 0, 1)
    with pytest.raises(ValueError, match="do not go onto 2 GPUs"):
        loads([ONE], 2, 3)
    with pytest.raises(ValueError, match="do not go onto 2 GPUs"):
        loads([], 2, 2)
    with pytest.raises(ValueError, match="cannot hold 3 jobs"):
        pack([ONE] * 3, 2, 2, max_length=2)
    with pytest.raises(ValueError, match="does not name jobs 0 to 0"):
        spatial_turns.round_s([ONE], ((1.0,),), (1,))


@given(st.lists(jobs, min_size=1, max_size=3), st.integers(1, 5))
def test_one_level_is_crossover(packed: list[SpatialJob], workers: int) -> None:
    times = [JobTimes(job.forward_s + job.backward_s, job.communication_s) for job in packed]
    on_gpu = loads(packed, workers, 1)
    for pattern in itertools.islice(turns.patterns(len(packed), 4), 6):
        assert spatial_turns.round_s(packed, on_gpu, pattern) == pytest.approx(turns.round_s(times, pattern))


@given(st.lists(jobs, min_size=1, max_size=3), st.integers(1, 4), st.integers(0, 3))
def test_a_round_takes_what_playing_it_takes(packed: list[SpatialJob], levels: int, more: int) -> None:
    on_gpu = loads(packed, levels + more, levels)
    for pattern in itertools.islice(turns.patterns(len(packed), 4), 6):
        played_s = played_round_s(packed, on_gpu, pattern, 240)
        assert spatial_turns.round_s(packed, on_gpu, pattern) == pytest.approx(played_s, rel=1e-6)


@given(st.lists(jobs, min_size=1, max_size=3), st.integers(1, 4), st.integers(0, 3))
def test_no_packing_does_more_than_its_gpus_can(packed: list[SpatialJob], levels: int, more: int) -> None:
    found = pack(packed, levels + more, levels, max_length=4)
    assert all(0 < rate <= 1 + 1e-9 for rate in found.rates)
    for turns_s in loads(packed, levels + more, levels):
        busy = sum(
            rate * busy_s / job.alone_s for rate, busy_s, job in zip(found.rates, turns_s, packed, strict=True)
        )  # fmt: skip
        assert busy <= 1 + 1e-9
