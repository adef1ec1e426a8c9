"""From journal events to samples, exactly."""

from __future__ import annotations

import pytest
from samples_of_runs import A, block, collector_of, run_of

from xbench.rank.events import LinkCalibrated, ModeFailed, StragglersSought, parse
from xbench.rank.program import phases, steps_in_block, whole_cycles
from xbench.records import CalibrationPoint, SlowRank, Stragglers
from xbench.runs.event_collector import Collector, block_step_s, step_times
from xbench.spec import Effort, FabricSpec


def test_a_step_is_over_when_its_last_rank_is_done() -> None:
    stamps = [[0.0, 1.0, 3.0], [90.5, 92.0, 93.5]]  # clocks of two machines, and a block that began on both at once
    assert step_times(stamps) == [1.5, 1.5]


def test_without_communication_a_step_takes_as_long_as_its_slowest_rank() -> None:
    stamps = [[0.0, 1.0, 3.0, 4.0], [0.5, 2.0, 3.5, 4.5]]
    assert step_times(stamps, communicates=False) == [1.5, 2.0, 1.0]
    for mode, steps_s in (("compute", [2.0, 1.0]), ("ddp", [1.5, 1.0])):
        collector = collector_of(run_of(mode))
        for rank, own in enumerate(stamps):
            collector.take(0, rank, block(mode, own))
        (sample,) = collector.samples()
        assert sample.steps_s == steps_s


def test_a_block_is_the_median_of_its_steps_and_its_warmup_is_kept_apart() -> None:
    collector = collector_of(run_of("ddp"))
    collector.take(0, 0, block("ddp", [10.0, 19.0, 20.0, 22.0, 25.0]))
    collector.take(0, 1, block("ddp", [10.0, 12.0, 13.0, 15.0, 18.0]))
    (sample,) = collector.samples()
    assert sample.warmup_s == [9.0]
    assert sample.steps_s == [1.0, 2.0, 3.0]
    assert sample.step_s == 2.0
    assert sample.samples_per_step == 8
    assert sample.started_s == 0.0


def test_steps_whose_batches_come_together_are_averaged() -> None:
    found = Collector(run_of("ddp"), [8], [3])
    for rank in range(2):  # a warm-up, then three batches every six seconds
        found.take(0, rank, block("ddp", [0.0, 1.0, 5.0, 6.0, 7.0, 11.0, 12.0, 13.0]))
    (sample,) = found.samples()
    assert sample.steps_s == [4.0, 1.0, 1.0, 4.0, 1.0, 1.0]
    assert sample.step_s == 2.0


@pytest.mark.parametrize(("mode", "finished"), [("ddp", [(0, 0)]), ("concurrent", [(0, 0), (0, 1)])])
def test_a_block_that_a_rank_or_a_job_has_not_finished_is_not_a_sample(
    mode: str, finished: list[tuple[int, int]]
) -> None:
    collector = collector_of(run_of(mode, A, A))
    for job, rank in finished:
        collector.take(job, rank, block(mode, [0.0, 1.0, 2.0, 3.0]))
    assert collector.samples() == []


def test_sequential_is_a_mean_like_its_rivals() -> None:
    assert block_step_s("sequential", [1.0, 2.0, 6.0]) == 3.0
    assert block_step_s("ddp", [1.0, 2.0, 6.0]) == 2.0


def test_two_jobs_at_once_are_cut_to_their_common_window() -> None:
    collector = collector_of(run_of("concurrent", A, A))
    for rank in range(2):
        collector.take(0, rank, block("concurrent", [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]))
        collector.take(1, rank, block("concurrent", [0.0, 2.0, 4.0, 6.0]))
    first, second = collector.samples()
    # Job 0 is timed from 1 to 5, job 1 from 2 to 6: in [2, 5] they make 3 steps and 1.5.
    assert first.step_s == pytest.approx(1.0)
    assert second.step_s == pytest.approx(2.0)


def test_samples_come_in_the_order_in_which_they_were_timed_over_launches() -> None:
    collector = collector_of(run_of("ddp,single"))
    for launch in (0, 1):
        collector.begin_launch(launch)
        for position, mode in enumerate(("single", "ddp")):
            for rank in range(2):
                start = 100.0 * launch + 10.0 * position
                collector.take(0, rank, block(mode, [start, start + 1, start + 2], position=position))
    order = [(s.launch, s.mode, s.started_s) for s in collector.samples()]
    assert order == [(0, "single", 0.0), (0, "ddp", 10.0), (1, "single", 0.0), (1, "ddp", 10.0)]


def test_the_first_failure_of_a_mode_and_its_turn_pattern_are_kept() -> None:
    collector = collector_of(run_of("crossover", A, A))
    collector.take(0, 0, ModeFailed(mode="crossover", message="first"))
    collector.take(0, 1, ModeFailed(mode="crossover", message="second"))
    collector.take(0, 0, block("crossover", [0.0, 1.0], pattern=(0, 0, 1)))
    assert collector.failed == {"crossover": "first"}
    assert collector.patterns == {"crossover": "AAB"}


def test_jobs_that_were_never_at_work_together_make_no_sample_and_a_warning() -> None:
    collector = collector_of(run_of("concurrent", A, A))
    for rank in range(2):
        collector.take(0, rank, block("concurrent", [0.0, 1.0, 2.0]))
        collector.take(1, rank, block("concurrent", [5.0, 6.0, 7.0]))
    assert collector.samples() == collector.samples() == []
    (warning,) = collector.warnings
    assert warning.startswith("concurrent, round 1: the jobs never ran together")
    assert warning.endswith("longer blocks (without --quick) would overlap")


def test_a_rank_that_stands_for_many_workers_makes_their_samples() -> None:
    collector = collector_of(run_of("ddp", fabric=FabricSpec(name="emulated", workers=64, ranks=1)))
    collector.take(0, 0, block("ddp", [0.0, 1.0, 2.0, 3.0]))
    (sample,) = collector.samples()
    assert sample.samples_per_step == 256


def test_a_calibration_is_kept_from_the_first_who_tells_it() -> None:
    collector = collector_of(run_of("ddp"))
    for rank, got_s in ((0, 0.0011), (1, 0.0012)):
        point = CalibrationPoint(asked_s=0.001, got_s=got_s, ci95=(got_s, got_s))
        collector.take(0, rank, LinkCalibrated(points=[point]))
    assert [point.got_s for point in collector.calibration] == [0.0011]


# --- modes whose steps differ and repeat ----------------------------------------------------------------------------


def test_a_block_is_the_median_of_whole_cycles() -> None:
    assert block_step_s("spb", [1.0, 3.0, 1.0, 3.0, 2.0, 6.0], 2) == 2.0
    assert block_step_s("spb", [1.0, 3.0, 50.0], 2) == 2.0
    assert block_step_s("ddp", [1.0, 3.0, 50.0]) == 3.0
    assert block_step_s("spb", [1.0, 2.0], 4) == pytest.approx(1.5)


def test_steps_are_rounded_up_to_whole_cycles() -> None:
    assert [whole_cycles(steps, 4) for steps in (1, 4, 5)] == [4, 4, 8]
    assert whole_cycles(7, 1) == 7


def test_partial_modes_are_held_to_one_network() -> None:
    run = run_of("compute,ddp,spb", effort=Effort(rounds=1))
    assert [phase.mode for phase in phases(run, 0) if phase.kind == "parity"] == ["ddp", "spb"]


@pytest.mark.parametrize(
    ("step_s", "steps"), [(0.001, 400), (0.008, 375), (0.5, 6), (2.0, 4), (0.0, 50)], ids=lambda value: f"{value:g}"
)
def test_a_block_fills_three_seconds_within_reason(step_s: float, steps: int) -> None:
    assert steps_in_block(run_of("compute,ddp"), step_s) == steps
    assert steps_in_block(run_of("compute,ddp", effort=Effort(steps=7)), step_s) == 7


def test_what_holds_the_others_back_is_of_the_job_that_looked() -> None:
    collector = collector_of(run_of("ddp", A, A))
    slow = SlowRank(rank=1, parts=["input"], lag_s=0.1, share=0.2, chance=1e-6)
    collector.take(0, 0, parse(StragglersSought(found=Stragglers(ranks=[slow])).line()))
    assert collector.jobs[0].stragglers == Stragglers(ranks=[slow])
    assert collector.jobs[1].stragglers is None
    collector.take(0, 0, StragglersSought(found=Stragglers(), of_job=1))
    assert collector.jobs[1].stragglers == Stragglers()
