"""Steps of several ranks are the same steps."""

from __future__ import annotations

from typing import Any

import pytest
from kineto import STEP, gpu_events, header

from xbench.errors import UsageError
from xbench.traces.events import RankTrace, collect
from xbench.traces.profile import traced_profile
from xbench.traces.steps import ranks_of

US = 1e-6


def trace(rank: int, *, until: int = 5, since: int = 0, marked: bool = True) -> RankTrace:
    """Steps `since` to `until` of a run whose step n takes n extra us for its last bucket."""
    events: list[dict[str, Any]] = gpu_events(steps=until, marked=marked)
    kept = []
    for one in events:
        step = int((one["ts"] - 5e9) // STEP)
        if one["name"].startswith("nccl"):
            one["dur"] += step
        if step >= since:
            kept.append(one)
    return collect(kept, header(rank=rank))


def waits(*traces: RankTrace) -> list[list[float]]:
    """Wait of each step of each rank beyond 31 us [us]."""
    ranks = ranks_of([(f"{index}.json", one) for index, one in enumerate(traces)])
    return [[round(step.waited_s / US - 31, 3) for step in rank.steps] for rank in ranks]


def test_marks_tell_which_steps_are_the_same() -> None:
    assert waits(trace(0, until=4), trace(1, since=1)) == [[1, 2, 3]] * 2
    assert waits(trace(0, until=3), trace(1, until=5)) == [[0, 1, 2]] * 2
    assert waits(trace(0, until=5, since=2), trace(1, until=4), trace(2)) == [[2, 3]] * 3


def test_without_a_step_in_common_there_is_no_profile() -> None:
    with pytest.raises(UsageError) as caught:
        waits(trace(0, until=1), trace(1, since=2))
    assert str(caught.value) == "no step is in all traces: 0.json has step 4 and 1.json has steps 6 to 8"


def test_one_rank_keeps_all_its_steps() -> None:
    assert waits(trace(0, until=4)) == [[0, 1, 2, 3]]


def test_without_marks_the_last_steps_are_the_same() -> None:
    """Without marks the first step of a trace is cut off, so step 0 is none."""
    assert waits(trace(0, since=1, marked=False), trace(1, marked=False)) == [[2, 3, 4]] * 2


@pytest.mark.parametrize(("marked", "count", "is_told"), [(False, 2, True), (False, 1, False), (True, 2, False)])
def test_the_record_says_that_only_order_tells(marked: bool, count: int, is_told: bool) -> None:
    ranks = ranks_of([(f"{rank}.json", trace(rank, marked=marked)) for rank in range(count)])
    told = traced_profile(ranks).cautions
    assert any(caution.startswith("The profiler marked no steps") for caution in told) == is_told
