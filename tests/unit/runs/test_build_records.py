"""From what was collected to a comparison, exactly."""

from __future__ import annotations

from dataclasses import replace

import pytest
from samples_of_runs import LOCAL, A, B, block, collector_of, frame, run_of, timed

from xbench.config import RunConfig
from xbench.errors import SpecError
from xbench.rank.events import ParityChecked, Remarked, StragglersSought
from xbench.records import Bounds, Comparison, CostModel, CostPoint, Parity, Plan, SlowRank, Stragglers, dump, loads
from xbench.report.answer import answer, references, verdict, winners
from xbench.report.charts.bars import time_per_sample
from xbench.report.formats import markdown, terminal
from xbench.report.kinds import view_of
from xbench.report.kinds.comparison import own_steps
from xbench.report.sentences import columns_line
from xbench.runs.build_records import comparison_record, profile_record
from xbench.runs.prepare import added_mode_notes, check_request, default_reference
from xbench.schedules import parse_modes
from xbench.spec import WorkloadSpec
from xbench.stats.compare import removed_interval


def compare(modes: str, workloads: tuple[WorkloadSpec, ...], steps: dict[str, list[float]]) -> Comparison:
    collector = collector_of(run_of(modes, *workloads))
    for mode, per_job in steps.items():
        for job, step_s in enumerate(per_job):
            timed(collector, mode, step_s, job=job)
    record = comparison_record(frame(collector.run), collector)
    assert loads(dump(record)) == record
    return record


def per_sample(record: Comparison, mode: str) -> float:
    return record.modes[mode].seconds_per_sample.median


def test_one_job_is_its_step_over_the_batch_of_all_ranks() -> None:
    record = compare("ddp,optimal", (A,), {"ddp": [0.8], "optimal": [0.4]})
    assert per_sample(record, "ddp") == pytest.approx(0.1)
    ratio = record.modes["optimal"].ratio
    assert ratio.value == pytest.approx(0.5)
    assert ratio.verdict == "faster"
    assert record.modes["ddp"].ratio.verdict == "reference"


def test_twins_at_once_are_plain_time_over_samples() -> None:
    record = compare("sequential,crossover", (A, A), {"sequential": [0.8, 0.8], "crossover": [1.0, 1.0]})
    assert per_sample(record, "sequential") == pytest.approx(0.1)
    assert per_sample(record, "crossover") == pytest.approx(1.0 / 16)
    assert record.modes["crossover"].step_s.median == pytest.approx(0.5)  # two steps a second


MIXED = {"ddp": [1.0], "wfbp": [0.9], "crossover": [1.6, 1.6], "sequential": [1.0, 1.0]}


def test_one_job_and_two_have_an_answer_each() -> None:
    record = compare("ddp,wfbp,crossover,sequential", (A, A), MIXED)
    assert record.reference == "ddp"
    to = {name: (mode.ratio_to, mode.ratio and round(mode.ratio.value, 3)) for name, mode in record.modes.items()}
    assert to == {
        "ddp": (None, 1.0), "wfbp": (None, 0.9), "crossover": ("sequential", 0.8), "sequential": ("sequential", 1.0)
    }  # fmt: skip
    two, _, one, _ = answer(record)
    assert two.startswith("Two jobs in turns (crossover) take 20.0 % less time")
    assert one.startswith("Of one job alone: wfbp is fastest: 10.0 % less time")
    assert winners(record) == {"crossover", "wfbp"}
    assert references(record) == "ddp (of two jobs sequential)"
    assert [verdict(record, mode) for mode in record.modes.values()] == ["reference", "faster", "faster", "reference"]


def test_a_question_without_a_winner_says_which_it_is() -> None:
    same = {**MIXED, "crossover": [2.0, 2.0], "wfbp": [1.2]}
    two, _, _, one, _ = answer(compare("ddp,wfbp,crossover,sequential", (A, A), same))
    assert two.startswith("Of two jobs: inconclusive: crossover looks fastest")
    assert one.startswith("Of one job alone: ddp, the reference, is fastest of 2")


def test_the_jobs_of_a_mode_and_their_own_steps_are_said() -> None:
    record = compare("ddp,wfbp,crossover,sequential", (A, A), MIXED)
    assert {row["mode"]: (row["jobs"], row["reference"]) for row in view_of(record).tables()["modes"]} == {
        "ddp": (1, "ddp"), "wfbp": (1, "ddp"), "crossover": (2, "sequential"), "sequential": (2, "sequential")
    }  # fmt: skip
    (own,) = own_steps(record)
    assert "a step every 1.60 s; its step of 800 ms is the device's" in own
    drawn = terminal.render(record, width=120)
    assert own in drawn
    rows = [line.split()[:2] for line in drawn.splitlines()]
    assert [row for row in rows if row[:1] in (["wfbp"], ["crossover"])][:2] == [["wfbp", "1"], ["crossover", "2"]]
    text = markdown.render(record)
    figure = time_per_sample(record)
    assert figure.table is not None
    for mode, jobs in (("crossover", "2"), ("sequential", "2"), ("wfbp", "1"), ("ddp", "1")):
        assert f"| `{mode}` | {jobs} |" in text
        assert [row[1] for row in figure.table.rows if row[0] == mode] == [jobs]
    other = compare("sequential,crossover", (A, B), {"sequential": [1.0, 3.0], "crossover": [2.0, 4.0]})
    (own,) = own_steps(other)
    assert "every 2.00 s and every 4.00 s; its step of 3.20 s" in own


def test_different_jobs_at_once_are_compared_through_weighted_progress() -> None:
    record = compare("sequential,crossover", (A, B), {"sequential": [1.0, 3.0], "crossover": [2.0, 4.0]})
    # One step of each takes 4 s alone and makes 8 + 4 samples; together they progress at 1/2 + 3/4 of a device.
    assert per_sample(record, "sequential") == pytest.approx(4.0 / 12)
    assert per_sample(record, "crossover") == pytest.approx(4.0 / 12 / 1.25)
    assert record.modes["crossover"].ratio.value == pytest.approx(0.8)


def test_exposed_communication_is_the_step_beyond_the_control() -> None:
    record = compare("compute,ddp", (A,), {"compute": [0.5], "ddp": [0.8]})
    assert record.modes["ddp"].exposed_s == pytest.approx(0.3)
    assert record.modes["compute"].exposed_s == pytest.approx(0.0)


def test_what_a_mode_removed_is_a_share_of_what_it_may_overlap() -> None:
    """DDP takes 1 s; 0.6 s is the bound while forward waits, and 0.4 s where it does not."""
    run = run_of("compute,ddp,optimal,dear,auto", reference="ddp")
    collector = collector_of(run)
    for mode, step_s in (("compute", 0.3), ("ddp", 1.0), ("optimal", 0.8), ("dear", 0.7), ("auto", 0.7)):
        timed(collector, mode, step_s)
    plan = Plan(mode="dear", buckets=[["a"]], bucket_bytes=[4], predicted_step_s=0.7, predicted_exposed_s=0.4)
    carried = plan.model_copy(update={"mode": "auto", "carrier": "dear"})
    job = collector.jobs[0]
    job.plans = {"dear": plan, "auto": carried}
    job.bounds = Bounds(compute_s=0.3, communication_s=0.4, overlap_bound_s=0.4, backward_overlap_bound_s=0.6)
    job.cost_model = CostModel(
        backend="gloo", world_size=2, alpha_s=0.0, beta_s_per_byte=1e-6, alpha_ci95=(0, 0), beta_ci95=(1e-6, 1e-6),
        max_relative_residual=0.0, points=[],
    )  # fmt: skip
    record = comparison_record(frame(run), collector)
    shares = {name: mode.removed_share for name, mode in record.modes.items()}
    assert shares["optimal"] == pytest.approx(0.2 / 0.4)
    assert shares["dear"] == shares["auto"] == pytest.approx(0.3 / 0.6)
    optimal, ends = record.modes["optimal"], record.modes["ddp"].step_s
    assert optimal.removed_ci95 == removed_interval(optimal.ratio.ci95, ends.ci95, 0.6)
    assert optimal.removed_ci95[0] < 0.5 < optimal.removed_ci95[1]
    assert "(of dear and auto the one for a next forward that may start before" in columns_line(record)
    waits = record.model_copy(update={"modes": {"optimal": record.modes["optimal"]}})
    assert "100 % is the bound; same network" in columns_line(waits)


def test_a_mode_that_fails_the_gate_shows_no_time() -> None:
    run = run_of("ddp,wfbp")
    collector = collector_of(run)
    timed(collector, "ddp", 1.0)
    timed(collector, "wfbp", 0.1)
    verdict = Parity(
        ok=False, max_relative_difference=0.5, tolerance=0.02, bitwise_across_ranks=True, steps=3,
        worst_parameter="fc.weight", message="'fc.weight' differs from DDP's",
    )  # fmt: skip
    collector.take(0, 0, ParityChecked(mode="wfbp", verdict=verdict))
    record = comparison_record(frame(run), collector)
    failed = record.modes["wfbp"]
    assert failed.status == "failed"
    assert failed.step_s is None
    assert failed.ratio is None
    assert "fc.weight" in (failed.error or "")


def test_a_mode_whose_turn_never_came_is_not_measured_and_has_not_failed() -> None:
    run = run_of("ddp,wfbp")
    record = comparison_record(frame(run), collector_of(run), "rank 1 was killed")
    assert not record.complete
    assert record.error == "rank 1 was killed"
    assert {(mode.status, mode.error) for mode in record.modes.values()} == {("not measured", None)}
    whole = comparison_record(frame(run), collector_of(run))
    assert {(mode.status, mode.error) for mode in whole.modes.values()} == {("failed", "nothing was measured")}


def test_a_disturbed_block_is_flagged_and_kept() -> None:
    run = run_of("ddp")
    collector = collector_of(run)
    timed(collector, "ddp", 1.0, rounds=8)
    stamps = [1000.0 + i * 5.0 for i in range(5)]
    for rank in range(2):
        collector.take(0, rank, block("ddp", stamps, 9))
    record = comparison_record(frame(run), collector)
    assert [sample.outlier for sample in record.samples] == [False] * 8 + [True]
    assert record.modes["ddp"].blocks == 9


MAKERS = {"ddp": comparison_record, "": profile_record}
"""The builder of the record of a run of these modes."""


@pytest.mark.parametrize("modes", MAKERS, ids=["comparison", "profile"])
def test_either_kind_of_record_says_how_it_was_made_and_what_ranks_saw(modes: str) -> None:
    run = run_of(modes)
    said, collector = frame(run, warnings=["the machine is busy"]), collector_of(run)
    slow = SlowRank(rank=1, parts=["backward"], layer="fc", lag_s=0.1, share=0.2, chance=1e-6)
    for launch in range(2):
        collector.begin_launch(launch)
        collector.take(0, 0, Remarked(message="threads run first"))
    collector.take(0, 0, StragglersSought(found=Stragglers(ranks=[slow])))
    record = MAKERS[modes](said, collector, "interrupted")
    assert (record.created, record.command, record.spec) == (said.created, "xbench compare", run)
    assert record.environment == said.environment
    assert record.fabric.notes == [*said.fabric.notes, "threads run first"]
    assert (record.complete, record.error, record.warnings) == (False, "interrupted", ["the machine is busy"])
    (job,) = record.profiled
    assert job.stragglers == Stragglers(ranks=[slow])


def request(modes: str, *workloads: WorkloadSpec) -> RunConfig:
    return RunConfig(workloads=workloads, modes=parse_modes(modes), fabric=LOCAL)


@pytest.mark.parametrize(
    ("asked", "jobs", "taken"),
    [
        (request("ddp,crossover,concurrent", A), (A, A), "ddp,crossover,concurrent,sequential"),
        (request("crossover", A, B), (A, B), "crossover,sequential"),
        (request("sequential:wfbp,crossover", A), (A, A), "sequential:wfbp,crossover"),
        (replace(request("ddp,crossover", A), judged=False), (A, A), "ddp,crossover"),
    ],
)
def test_two_jobs_at_once_bring_the_two_one_after_the_other_along(
    asked: RunConfig, jobs: tuple[WorkloadSpec, ...], taken: str
) -> None:
    workloads, modes = check_request(asked)
    assert workloads == jobs
    assert ",".join(mode.text for mode in modes) == taken
    added = len(modes) - len(asked.modes)
    assert [note.partition(" ")[0] for note in added_mode_notes(asked.modes, modes)] == ["sequential"] * added


@pytest.mark.parametrize(
    ("modes", "reference"),
    [
        ("wfbp,ddp,crossover,sequential", "ddp"),
        ("crossover,compute,wfbp,sequential", "wfbp"),
        ("crossover,compute,sequential", "sequential"),
        ("concurrent,sequential", "sequential"),
        ("compute,wfbp,optimal", "wfbp"),
        ("compute,spb", "compute"),
    ],
)
def test_the_reference_is_ddp_else_of_the_first_question(modes: str, reference: str) -> None:
    assert default_reference(parse_modes(modes)) == reference


@pytest.mark.parametrize(
    ("reference", "to"),
    [
        ("ddp", ["ddp", "ddp", "ddp", "sequential", "sequential"]),
        ("wfbp", ["wfbp", "wfbp", "wfbp", "sequential", "sequential"]),
        ("sequential", ["ddp", "ddp", "ddp", "sequential", "sequential"]),
        ("crossover", ["ddp", "ddp", "ddp", "crossover", "crossover"]),
    ],
)
def test_one_job_is_compared_with_one_and_two_with_two(reference: str, to: list[str]) -> None:
    run = run_of("compute,ddp,wfbp,crossover,sequential", A, A, reference=reference)
    assert [run.reference_of(mode) for mode in run.modes] == to


def test_a_request_without_a_workload_cannot_work() -> None:
    with pytest.raises(SpecError, match="no workload was named"):
        check_request(request("ddp"))


def test_turns_and_gradients_that_travel_on_exclude_each_other() -> None:
    check_request(request("ddp,crossover:auto", A))
    with pytest.raises(SpecError, match="waits for a job's gradients before its next turn") as caught:
        request("ddp,crossover:auto:forward", A)
    assert caught.value.hint == "write crossover:optimal"


@pytest.mark.parametrize(("compress", "bits_per_s"), [(None, 8e6), ("bf16", 4e6)])
def test_bus_bandwidth_is_of_the_bytes_that_travelled(compress: str | None, bits_per_s: float) -> None:
    """Sizes of collectives are those before compression: 1 MB in a second between two ranks."""
    run = run_of(compress=compress)
    collector = collector_of(run)
    collector.jobs[0].cost_model = CostModel(
        backend="gloo", world_size=2, alpha_s=0.0, beta_s_per_byte=1e-6, alpha_ci95=(0, 0), beta_ci95=(1e-6, 1e-6),
        max_relative_residual=0.0,
        points=[CostPoint(nbytes=10**6, transfer_s=1.0, ci95=(1, 1), wait_s=0.0, repetitions=1)],
    )  # fmt: skip
    assert profile_record(frame(run), collector).fabric.allreduce_bps == pytest.approx(bits_per_s)
