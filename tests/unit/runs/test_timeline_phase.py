"""Recorded steps from the program over the journal to the record."""

from __future__ import annotations

from pathlib import Path

import pytest
from samples_of_runs import A, collector_of, frame, run_of, timed

from xbench.rank.events import Event, StepRecorded, TurnsRecorded, Warned
from xbench.rank.journal import Journal, JournalReader
from xbench.rank.program import phases
from xbench.rank.timeline_phase import SLOW_STEP_S, STEPS, TOO_SLOW_STEP_S, steps_to_record
from xbench.records import Comparison, Label, Slice, Timeline, TurnTaken, dump, loads
from xbench.runs.build_records import comparison_record
from xbench.runs.event_collector import Collector
from xbench.runs.launch_policy import FixedLaunches
from xbench.spec import Effort, FabricSpec

COMPUTE = [
    Slice(name="forward", start_s=0.0, end_s=0.25),
    Slice(name="backward fc", start_s=0.25, end_s=0.5),
    Slice(name="optimizer", start_s=0.75, end_s=1.0),
]
LINK = [Slice(name="bucket 1", start_s=0.5, end_s=0.75, nbytes=4)]


def journaled(folder: Path, *events: Event) -> list[Event]:
    """What the parent reads of what a rank wrote."""
    folder.mkdir(exist_ok=True)
    journal = Journal(folder, 0, 0)
    for event in events:
        journal.write(event)
    journal.close()
    return JournalReader(folder, 0, 0).poll()


def recorded(mode: str, began_s: float = 100.0, label: Label = "real") -> Event:
    timeline = Timeline(label=label, compute=COMPUTE, communication=LINK)
    return StepRecorded(mode=mode, began_s=began_s, timeline=timeline)


def kept(collector: Collector) -> Comparison:
    record = comparison_record(frame(collector.run, warnings=["the machine is busy"]), collector)
    assert loads(dump(record)) == record
    return record


@pytest.mark.parametrize("label", ["real", "emulated"])
def test_a_recorded_step_comes_over_the_journal_into_the_record_with_its_label(tmp_path: Path, label: Label) -> None:
    collector = collector_of(run_of("ddp,wfbp,single"))
    for mode in ("ddp", "wfbp", "single"):
        timed(collector, mode, 1.0)
    for rank, mode, began_s in ((1, "wfbp", 99.875), (0, "wfbp", 100.0), (1, "single", 100.0)):
        (event,) = journaled(tmp_path / f"{rank}-{mode}", recorded(mode, began_s, label))
        collector.take(0, rank, event)
    modes = kept(collector).modes
    timeline = modes["wfbp"].timeline
    assert (timeline.label, timeline.compute, timeline.communication) == (label, COMPUTE, LINK)
    (other,) = modes["wfbp"].other_ranks  # the same step, beside it
    assert (other.rank, other.starts_s, other.label, other.compute) == (1, -0.125, label, COMPUTE)
    for mode in ("ddp", "single"):  # no event, as of a run that was killed; a step that rank 0 does not have
        assert (modes[mode].timeline, modes[mode].other_ranks) == (None, [])


def test_turns_of_all_jobs_come_in_order_of_time(tmp_path: Path) -> None:
    collector = collector_of(run_of("sequential,crossover", A, A))
    timed(collector, "sequential", 1.0)
    for job in (0, 1):
        timed(collector, "crossover", 1.0, job=job)
    said = {0: [(50.0, 50.5, 51.25), (51.25, 51.75, None)], 1: [(50.5, 51.0, None)]}
    for job, turns in said.items():
        (event,) = journaled(tmp_path / str(job), TurnsRecorded(mode="crossover", turns=turns))
        collector.take(job, 0, event)
    assert kept(collector).modes["crossover"].turns == [
        TurnTaken(job=0, start_s=0.0, computed_s=0.5, arrived_s=1.25),
        TurnTaken(job=1, start_s=0.5, computed_s=1.0, arrived_s=None),
        TurnTaken(job=0, start_s=1.25, computed_s=1.75, arrived_s=None),
    ]


def test_a_mode_that_fails_shows_no_timeline(tmp_path: Path) -> None:
    collector = collector_of(run_of("ddp,wfbp"))
    timed(collector, "ddp", 1.0)
    for event in journaled(tmp_path, recorded("wfbp")):
        collector.take(0, 0, event)
    record = kept(collector)
    assert record.modes["wfbp"].status == "failed"
    assert record.modes["wfbp"].timeline is None


def test_what_ranks_warn_of_is_in_the_record_once_and_fails_nothing(tmp_path: Path) -> None:
    collector = collector_of(run_of("ddp"))
    timed(collector, "ddp", 1.0)
    (event,) = journaled(tmp_path, Warned(message="no measured timeline of ddp: no hook"))
    for rank in range(2):
        collector.take(0, rank, event)
    record = kept(collector)
    assert record.warnings == ["the machine is busy", "no measured timeline of ddp: no hook"]
    assert record.modes["ddp"].status == "ok"


def test_timelines_and_turns_come_after_all_blocks_of_the_first_launch_alone() -> None:
    run = run_of("compute,ddp,crossover,optimal,sequential", A, A, effort=Effort(launches=2, rounds=2))
    first = [phase.kind for phase in phases(run, 0)]
    assert first[-4:] == ["timeline"] * 4
    assert set(first[:-4]) == {"profile", "parity", "block"}
    assert [phase.mode for phase in phases(run, 0)[-4:]] == ["compute", "ddp", "crossover", "optimal"]
    assert {phase.kind for phase in phases(run, 1)} == {"block"}


def test_ranks_without_host_tuning_time_nothing_where_they_have_profiled() -> None:
    run = run_of("compute,ddp", effort=Effort(launches=2, rounds=2)).model_copy(update={"host_tuning": False})
    policy = FixedLaunches(run)
    launches = [policy.next_launch(number, collector_of(run), []) for number in range(4)]
    kinds = [{phase.kind for phase in launch.phases} if launch is not None else None for launch in launches]
    assert kinds == [{"profile", "parity", "timeline"}, {"block"}, {"block"}, None]
    assert policy.launches == 3
    given = run.model_copy(update={"fabric": FabricSpec(name="cluster")})
    assert "block" in {phase.kind for phase in phases(given, 0)}  # these ranks are started once


@pytest.mark.parametrize(
    ("predicted_s", "steps"),
    [(0.0, STEPS), (SLOW_STEP_S, STEPS), (SLOW_STEP_S + 0.1, 1), (TOO_SLOW_STEP_S, 1), (TOO_SLOW_STEP_S + 0.1, 0)],
)
def test_long_steps_are_recorded_once_or_not_at_all(predicted_s: float, steps: int) -> None:
    assert steps_to_record(predicted_s) == steps
    assert steps_to_record(predicted_s, deferred=True) == (steps + 1 if steps else 0)
