"""Whole runs on an emulated link: every mode, crossover, several ranks, and a link as it was measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from cores import one_core
from typed_commands import TINY, compare, xbench

from xbench.planning.cost import CostCurve
from xbench.records import Comparison, load

pytestmark = pytest.mark.integration
SHORT = ("--quick", "--rounds", "1")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Comparison, str]:
    modes = "compute,ddp,ddp-tuned,single,wfbp,mgwfbp,optimal,auto,dear,priority,sequential,crossover"
    words = ("--fabric", "emulated:workers=16,rate=1gbit", *SHORT, "--modes", modes)
    with one_core():
        record, done = compare(TINY, *words, results=tmp_path_factory.mktemp("emulated"))
    return record, done.stdout


def test_every_mode_runs_with_one_process_a_job(alone: tuple[Comparison, str]) -> None:
    record, said = alone
    assert record.complete
    assert record.fabric.label == "emulated"
    assert record.fabric.world_size == 16
    for name, mode in record.modes.items():
        assert mode.status == "ok", (name, mode.error)
        assert mode.label == "emulated"
        assert name == "compute" or (mode.parity is not None and mode.parity.ok)
    assert "emulated" in said
    batch = record.jobs[0].workload.batch_size
    assert {sample.samples_per_step for sample in record.samples} == {16 * batch}


def test_the_link_keeps_to_what_was_asked_of_it(alone: tuple[Comparison, str]) -> None:
    record, said = alone
    assert record.emulated.model.alpha_s == pytest.approx(2 * 15 * 20e-6)
    assert record.emulated.calibration[0].asked_s == 20e-6
    assert all(point.got_s >= point.asked_s for point in record.emulated.calibration)
    assert "asked" in said
    asked = CostCurve.of(record.emulated.model)
    assert record.cost_model.world_size == 16
    assert record.cost_model.backend == "emulated"
    assert all(point.transfer_s >= asked(float(point.nbytes)) - 1e-6 for point in record.cost_model.points)


def test_what_travels_takes_as_long_as_the_link_says(alone: tuple[Comparison, str]) -> None:
    record, _ = alone
    asked = CostCurve.of(record.emulated.model)  # type: ignore[union-attr]
    single = record.modes["single"]
    assert single.step_s.median >= asked(float(record.jobs[0].workload.grad_bytes))
    (bucket,) = single.timeline.communication
    assert bucket.end_s > max(part.end_s for part in single.timeline.compute if part.name.startswith("backward"))
    timeline = record.modes["wfbp"].timeline
    assert timeline.label == "emulated"
    for part in timeline.communication:
        assert part.end_s - part.start_s >= asked(float(part.nbytes)) - 2e-4
    step_s = record.modes["crossover"].step_s  # steps of either job a second: as many as fit on the link, at most
    assert step_s.median >= asked(float(record.jobs[0].workload.grad_bytes)) * 0.98


def test_two_ranks_really_average_what_they_send(tmp_path: Path) -> None:
    record, _ = compare(
        TINY, "--fabric", "emulated:workers=8,rate=1gbit,ranks=2", *SHORT,
        "--modes", "ddp,single,wfbp,optimal,crossover", results=tmp_path,
    )  # fmt: skip
    for name, mode in record.modes.items():
        assert mode.status == "ok", (name, mode.error)
        assert mode.parity.bitwise_across_ranks
    assert {sample.samples_per_step for sample in record.samples} == {8 * record.jobs[0].workload.batch_size}


@pytest.mark.usefixtures("on_one_core")
def test_a_measured_link_is_emulated_from_its_record(tmp_path: Path) -> None:
    source = Path(__file__).parents[2] / "results" / "resnet18-b14-1gbit.json"
    was = load(source)
    modes = "compute,ddp,wfbp,optimal"
    record, _ = compare(TINY, "--fabric", f"emulated:from={source}", *SHORT, "--modes", modes, results=tmp_path)
    assert record.emulated.source == str(source)
    assert record.emulated.model == was.cost_model
    assert record.emulated.contention == was.jobs[0].contention
    assert all(mode.status == "ok" for mode in record.modes.values())


@pytest.mark.usefixtures("on_one_core")
def test_a_profile_of_an_emulated_cluster_can_be_planned_from(tmp_path: Path) -> None:
    done = xbench("profile", TINY, "--fabric", "emulated:workers=4,rate=1gbit", "--quick", results=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    source = next(tmp_path.glob("*/record.json"))
    planned = xbench("plan", str(source), "--workers", "64")
    assert planned.returncode == 0, planned.stderr[-3000:]
    scaled = xbench("plan", str(source), "--workers", "2..64")
    assert scaled.returncode == 0, scaled.stderr[-3000:]
    assert "emulated" in planned.stderr + planned.stdout
