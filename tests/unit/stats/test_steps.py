"""Length of a step of several ranks; steps that are far from their block, and the sentence that says so."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xbench.records import Sample
from xbench.stats.steps import (
    MAX_TOLD,
    longest_steps,
    odd_sample_sentences,
    odd_step_sentences,
    odd_steps,
    short_step_caution,
    steps_of_all,
)

STEPS = st.integers(1, 8).flatmap(
    lambda count: st.lists(st.lists(st.integers(1, 50), min_size=count, max_size=count), min_size=1, max_size=4)
)


def test_a_step_is_over_when_the_last_rank_has_done_it() -> None:
    assert steps_of_all([[1.0, 2.0, 4.0], [2.0, 2.0, 2.0]]) == [2.0, 2.0, 3.0]


def test_ranks_that_take_turns_at_being_ahead_keep_their_pace() -> None:
    # a step is over every eight seconds, though one of the two took ten for each
    turned = [[8.0, 10.0, 6.0, 10.0, 6.0], [10.0, 6.0, 10.0, 6.0, 10.0]]
    assert steps_of_all(turned) == [10.0, 8.0, 8.0, 8.0, 8.0]
    assert longest_steps(turned) == [10.0] * 5
    # one rank has its own steps
    assert steps_of_all([[3.0, 1.0]]) == longest_steps([[3.0, 1.0]]) == [3.0, 1.0]


@given(STEPS)
def test_steps_add_up_to_what_the_slowest_rank_took(per_rank: list[list[int]]) -> None:
    found = steps_of_all(per_rank)
    assert sum(found) == max(map(sum, per_rank))
    assert all(step > 0 for step in found)
    assert sum(found) <= sum(longest_steps(per_rank))


@pytest.mark.parametrize("found", [steps_of_all, longest_steps])
def test_ranks_took_as_many_steps(found: Callable[[list[list[float]]], list[float]]) -> None:
    with pytest.raises(ValueError, match=r"shorter|longer"):
        found([[1.0], [1.0, 2.0]])


@pytest.mark.parametrize(
    ("steps_s", "cycle", "odd"),
    [
        ([0.02, 0.021, 3.014, 0.022, 0.02], 1, {2: 0.021}),  # a rank was stopped for 3 s
        ([0.02, 0.021, 0.5, 0.022, 0.02], 1, {}),  # within half a second: a busy machine
        ([5.1, 8.1], 1, {1: 5.1}),  # of two steps the shorter is the typical one
        ([5.1, 7.6], 1, {}),
        ([1.0, 1.49, 1.0], 1, {}),
        ([1.0, 1.51, 1.0], 1, {1: 1.0}),
        ([3.0], 1, {}),
        ([], 1, {}),
        ([0.1, 2.0, 0.1, 2.0, 0.1, 2.0], 2, {}),  # steps differ by design
        ([0.1, 2.0, 0.1, 5.2, 0.1, 2.0], 2, {3: 2.0}),
        ([0.1, 2.0], 2, {}),
    ],
)
def test_a_step_is_odd_that_is_far_from_those_like_it(steps_s: list[float], cycle: int, odd: dict[int, float]) -> None:
    assert odd_steps(steps_s, cycle) == odd


def sample(mode: str, round_: int, steps_s: list[float], *, launch: int = 0, job: int = 0) -> Sample:
    return Sample(
        launch=launch, round=round_, position=0, mode=mode, job=job, steps_s=steps_s, step_s=1.0, warmup_s=[],
        samples_per_step=8, started_s=0.0,
    )  # fmt: skip


def test_the_sentence_names_mode_round_step_and_how_long() -> None:
    found = odd_sample_sentences([sample("ddp", 0, [0.02] * 3), sample("wfbp", 1, [0.02, 0.02, 0.02, 3.014])], {})
    assert found == [
        "wfbp, round 2: step 4 took 3.01 s where a step takes 20.0 ms: a rank, a link or the machine stood still "
        "meanwhile"
    ]


def test_launch_and_job_are_named_where_there_are_several_and_the_longest_comes_first() -> None:
    found = odd_sample_sentences(
        [
            sample("ddp", 0, [0.02, 0.02, 0.02, 1.6, 0.02, 1.5], launch=1),
            sample("spb:variant=temporal,k=2", 0, [0.1, 2.0, 0.1, 9.0, 0.1, 2.0], job=1),
        ],
        {"spb:variant=temporal,k=2": 2},
    )
    assert found == [
        "spb:variant=temporal,k=2, launch 1, round 1, job 1: step 4 took 9.00 s where a step takes 2.00 s: a rank, a "
        "link or the machine stood still meanwhile",
        "ddp, launch 2, round 1, job 0: step 4 took 1.60 s where a step takes 20.0 ms (2 of the 6 steps were that "
        "odd): a rank, a link or the machine stood still meanwhile",
    ]


def test_many_blocks_are_counted() -> None:
    found = odd_step_sentences((f"ddp, round {turn}", [0.02, 0.02, 1.0 + turn], 1) for turn in range(MAX_TOLD + 2))
    assert len(found) == MAX_TOLD + 1
    assert found[-1] == "steps of 2 more blocks took far longer than the others of their block"


def test_predictions_of_steps_below_30_ms_are_not_reliable() -> None:
    assert short_step_caution([0.03, None, 1.0]) == []
    assert short_step_caution([1.0, 0.0299]) == ["Predictions of steps below 30 ms are not reliable here."]
