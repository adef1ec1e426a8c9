"""The record of `xbench cluster run`: what a run comes to."""

from __future__ import annotations

from pathlib import Path

import pytest
from golden_file import GOLDEN
from live_cases import Played, began, entry, played

from xbench.cluster.compare import parse_costs
from xbench.cluster.live.outcome import again, forecast, outcome, overhead_s
from xbench.errors import RecordError
from xbench.records import dump, loads, save


def test_a_played_run_is_simulated_exactly(tmp_path: Path) -> None:
    """Nothing is between the two that the simulator does not know of: an overhead of 4 s, and speeds as declared."""
    jobs = [entry("a", steps=64, gpus=2), entry("b", steps=24, arrival_s=6.25), entry("c", steps=96, arrival_s=8.5)]
    state, _ = played(began(jobs, "doubling", 2), tmp_path)
    assert overhead_s(state) == 4.0
    record = outcome(state)
    assert [job.error for job in record.jobs] == [0.0, 0.0, 0.0]
    assert [job.restarts for job in record.jobs] == [job.simulated_restarts for job in record.jobs]
    assert record.complete
    assert record.warnings == []
    assert record.findings[0].startswith("Every job finished under doubling; the mean job completion time is ")
    assert record.findings[1].startswith(
        "Forecast from declared speeds and starts of 4.00 s, completion times are off by"
    )
    assert "within 10 % of the live ones: off by 0.0 % on average" in record.findings[2]
    assert [job.forecast_error for job in record.jobs] == [0.0, 0.0, 0.0]
    assert len(record.spans) == sum(job.restarts + 1 for job in record.jobs)
    assert loads(dump(record)) == record


def test_a_job_that_alternates_measures_what_a_restart_costs(tmp_path: Path) -> None:
    """Every start of the played engine takes 7 s, and the policy was told 4."""
    jobs = [entry("a", steps=70, most=2)]
    state, _ = played(began(jobs, "alternate:times=3", 2), tmp_path, Played(2, 7.0))
    record = outcome(state)
    assert [len(span.slots) for span in record.spans] == [1, 2, 1, 2]
    assert record.overhead_s == pytest.approx(7.0)
    assert "A restart costs 7.00 s of training, the mean over 4 attempts" in record.findings[1]
    assert record.jobs[0].lost_steps == 0
    path = save(record, tmp_path / "run.json")
    assert parse_costs(f"0,{path},30") == (0.0, 7.0, 30.0)


def test_a_record_of_the_former_command_names_the_new_one() -> None:
    with pytest.raises(RecordError, match="is gone: xbench cluster run"):
        loads('{"schema_version": 1, "kind": "restart"}')


def test_other_files_are_no_costs(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="is a cluster record, which measured no restart"):
        parse_costs(str(GOLDEN / "cluster-v1.json"))
    with pytest.raises(RecordError, match="there is no result file"):
        parse_costs(str(tmp_path / "run.json"))


def test_the_simulator_is_fed_what_was_measured_and_the_forecast_is_not(tmp_path: Path) -> None:
    """Jobs are half as fast as declared, and a start costs 7 s where the policy was told 4.

    As declared, 64 and 24 steps take 64 and 24 s.
    """
    jobs = [entry("a", steps=64), entry("b", steps=24, arrival_s=6.25)]
    half = {1: 0.5, 2: 1.0}
    state, _ = played(began(jobs, "fifo", 2), tmp_path, Played(2, 7.0, speeds={"a": half, "b": half}))
    assert {name: found.jct_s for name, found in again(state).items()} == {"a": 135.0, "b": 55.0}
    assert {name: found.jct_s for name, found in forecast(state).items()} == {"a": 68.0, "b": 28.0}
    record = outcome(state)
    assert record.jobs[0].speeds == {1: 0.5}
    assert [job.forecast_jct_s for job in record.jobs] == [68.0, 28.0]
    assert [job.forecast_error for job in record.jobs] == [
        pytest.approx(68 / 135 - 1), pytest.approx(28 / 55 - 1)
    ]  # fmt: skip
    assert record.findings[1] == (
        "Forecast from declared speeds and starts of 4.00 s, completion times are off by 49.4 % on average, by 49.6 % "
        "at most (a)."
    )


def test_without_declared_speeds_nothing_is_forecast(tmp_path: Path) -> None:
    state, _ = played(began([entry("a", speeds=None)]), tmp_path)
    assert forecast(state) == {}
    assert outcome(state).jobs[0].forecast_jct_s is None


def test_waiting_for_others_to_stop_is_what_the_simulator_does_not_know(tmp_path: Path) -> None:
    jobs = [entry("a", steps=200, gpus=2), entry("b", steps=20, arrival_s=20.0)]
    record = outcome(played(began(jobs, "srtf", 2), tmp_path, Played(2, stop_s=5.0))[0])
    assert all(job.error is not None for job in record.jobs)
    late = record.jobs[1]
    assert late.jct_s == 5.0 + 4.0 + 20.0
    assert late.error < 0


def test_a_run_that_failed_says_so(tmp_path: Path) -> None:
    world = Played(1, crash_at={"a": [5.0, 6.0]})
    record = outcome(played(began([entry("a"), entry("b")], slots=1), tmp_path, world)[0])
    assert [job.status for job in record.jobs] == ["failed", "finished"]
    assert record.findings[:2] == [
        "1 of 2 jobs finished under fifo; the mean job completion time is 63.0 s.", "Given up: a."
    ]  # fmt: skip
    assert record.jobs[0].lost_steps == 5 + 6


def test_too_few_steps_to_measure(tmp_path: Path) -> None:
    record = outcome(played(began([entry("a", steps=2)]), tmp_path)[0])
    assert record.jobs[0].simulated_jct_s is None
    assert record.warnings == ["too few steps were seen to measure every speed, so nothing is simulated"]
