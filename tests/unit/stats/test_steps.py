"""Length of a step of several ranks."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xbench.stats import longest_steps, steps_of_all

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


def test_one_rank_has_its_own_steps() -> None:
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
