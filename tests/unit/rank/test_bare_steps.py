"""Bare steps that a loader of several workers feeds: its batches come in bursts, so single steps say little."""

from __future__ import annotations

from xbench.rank.profile_phase import loader_cycles, with_loader
from xbench.records import StepTimes

STEP = StepTimes(
    forward_s=0.25, backward_s=0.5, optimizer_s=0.25, step_s=1.0, step_ci95=(1.0, 1.0), uninstrumented_step_s=1.0,
    uninstrumented_ci95=(1.0, 1.0), overhead_ratio=0.0, overhead_ci95=(0.0, 0.0), steps=4, warmup_steps=0,
    input_ahead=True,
)  # fmt: skip


def test_a_burst_counts_as_one_step_and_what_was_prepared_does_not() -> None:
    prepared, bursts = [1.0] * 4, [5.0, 1.0] * 5
    found = with_loader(STEP, [loader_cycles([*prepared, *bursts], 2)])
    assert (found.uninstrumented_step_s, found.uninstrumented_ci95, found.input_s) == (3.0, (3.0, 3.0), 2.0)


def test_the_slowest_rank_counts_and_bursts_of_ranks_need_not_meet() -> None:
    ranks = [[1.0] * 4 + [5.0, 1.0] * 5, [1.0] * 4 + [1.0, 7.0] * 5]
    found = with_loader(STEP, [loader_cycles(own, 2) for own in ranks])
    assert (found.uninstrumented_step_s, found.input_s) == (4.0, 3.0)


def test_a_loader_that_is_ready_in_time_changes_nothing() -> None:
    assert with_loader(STEP, [loader_cycles([0.9] * 8, 1)]) is STEP
