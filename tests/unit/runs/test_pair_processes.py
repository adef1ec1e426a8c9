"""Processes that hold two jobs: their number, the memory that is checked, the prediction, remarks and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from samples_of_runs import A, B, block, collector_of, frame, record_of, run_of, timed

from xbench.config import RunConfig
from xbench.errors import SpecError
from xbench.rank.events import GpuMissing, ParityChecked, SchedulesPlanned, StepProfiled
from xbench.rank.journal import Journal, JournalReader
from xbench.records import Bounds, CostModel, CostPoint, Parity, Plan, StepTimes
from xbench.runs import prepare as preparing
from xbench.runs.build_records import comparison_record, sharing_remarks
from xbench.runs.prepare import check_fabric, prepare
from xbench.schedules import parse_modes
from xbench.spec import FabricSpec, RunSpec, WorkloadSpec
from xbench.workloads.probe import Preflight, Probed

COMPUTE_S, EXPOSED_S = 0.1, 0.04


def test_jobs_at_once_have_two_processes_and_turns_have_one() -> None:
    for modes, expected in (
        ("ddp", 1),
        ("sequential,crossover", 1),
        ("crossover:horovod", 1),
        ("crossover,concurrent", 2),
    ):
        assert run_of(modes, A, A).processes == expected


@pytest.mark.parametrize(
    ("modes", "checked"),
    [("crossover", [A, B]), ("concurrent", [A, B]), ("crossover,concurrent", [A, B, B])],
)
def test_memory_is_checked_for_every_copy_of_a_job(
    monkeypatch: pytest.MonkeyPatch, modes: str, checked: list[WorkloadSpec]
) -> None:
    asked: list[WorkloadSpec] = []

    def probe(specs: list[WorkloadSpec], device: str, ranks: int, local_rank: int | None) -> Preflight:
        asked.extend(specs)
        each = [Probed(record=record_of(spec)) for spec in specs]
        return Preflight(device="cpu", gpus=0, torch="2", torchvision=None, nccl=None, cuda=None, workloads=each)

    monkeypatch.setattr(preparing, "probe", probe)
    fabric = FabricSpec(name="local", ranks=2)
    run, found, _ = prepare(RunConfig(workloads=[A, B], fabric=fabric, modes=parse_modes(modes)))
    assert asked == checked
    assert run.workloads == (A, B)
    assert len(found.workloads) == 2


def predicted_step_s(run: RunSpec) -> float | None:
    """The predicted step of `crossover` with equal jobs of COMPUTE_S and EXPOSED_S."""
    plan = Plan(mode="optimal", buckets=[["w"]], bucket_bytes=[8], predicted_step_s=COMPUTE_S + EXPOSED_S,
                predicted_exposed_s=EXPOSED_S)  # fmt: skip
    points = [CostPoint(nbytes=nbytes, transfer_s=EXPOSED_S, ci95=(EXPOSED_S, EXPOSED_S), wait_s=0.0, repetitions=1)
              for nbytes in (8, 16)]  # fmt: skip
    model = CostModel(backend="gloo", world_size=2, alpha_s=EXPOSED_S, beta_s_per_byte=0.0, points=points,
                      alpha_ci95=(EXPOSED_S, EXPOSED_S), beta_ci95=(0.0, 0.0), max_relative_residual=0.0)  # fmt: skip
    step = StepTimes(forward_s=0.04, backward_s=0.06, optimizer_s=0.0, step_s=COMPUTE_S, steps=1, warmup_steps=0,
                     step_ci95=(COMPUTE_S, COMPUTE_S), uninstrumented_step_s=COMPUTE_S, overhead_ratio=0.0,
                     uninstrumented_ci95=(COMPUTE_S, COMPUTE_S), overhead_ci95=(0.0, 0.0))  # fmt: skip
    bounds = Bounds(compute_s=COMPUTE_S, communication_s=EXPOSED_S, overlap_bound_s=COMPUTE_S,
                    backward_overlap_bound_s=COMPUTE_S)  # fmt: skip
    collector = collector_of(run)
    collector.take(0, 0, StepProfiled(workload=record_of(A), layers=[], step=step, series={}))
    collector.take(0, 0, SchedulesPlanned(cost_model=model, plans={"optimal": plan}, bounds=bounds))
    for job in (0, 1):
        timed(collector, "sequential", 0.2, job=job)
        timed(collector, "crossover", 0.2, job=job)
    collector.patterns["crossover"] = "AB"
    return comparison_record(frame(run), collector).modes["crossover"].predicted_step_s


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_turns_are_predicted_to_hide_what_travels(device: str) -> None:
    run = run_of("sequential,crossover", A, A, device=device)
    assert predicted_step_s(run) == pytest.approx(COMPUTE_S)  # a step of a twin


def test_two_processes_on_a_gpu_are_remarked() -> None:
    run = run_of("sequential,crossover,concurrent", A, A, device="cuda")
    (remark,) = sharing_remarks(run)
    assert remark.startswith("concurrent: two processes share each GPU by time slices")
    assert comparison_record(frame(run), collector_of(run)).fabric.notes == [remark]
    assert sharing_remarks(run_of("sequential,crossover", A, A, device="cuda")) == []
    assert sharing_remarks(run_of("concurrent", A, A)) == []  # CPUs


@pytest.mark.parametrize("name", ["cluster", "emulated"])
def test_jobs_at_once_are_refused_where_there_is_one_set_of_ranks(name: Any) -> None:
    with pytest.raises(SpecError, match="mode 'concurrent' needs two sets of ranks"):
        check_fabric(FabricSpec(name=name, ranks=2), parse_modes("ddp,concurrent"))
    check_fabric(FabricSpec(name=name, ranks=2), parse_modes("sequential,crossover"))


def test_a_journal_tells_the_jobs_of_its_process_apart(tmp_path: Path) -> None:
    heard: list[int | None] = []
    journal = Journal(tmp_path, 0, 0, listener=lambda job, rank, event: heard.append(event.of_job))
    journal.write(block("crossover", [0.0, 1.0, 2.0], pattern=(0, 1)))
    other = journal.of_job(1)
    other.write(block("crossover", [0.5, 1.5, 2.5], pattern=(0, 1)))
    verdict = Parity(ok=True, max_relative_difference=0.0, tolerance=1.0, steps=1, bitwise_across_ranks=True)
    other.write(ParityChecked(mode="crossover", verdict=verdict))
    other.note("gate")
    journal.write(GpuMissing(reason="none"))
    reader = JournalReader(tmp_path, 0, 0)
    assert reader.state()[1] == "gate"
    assert heard == [None, 1, 1, None]
    collector = collector_of(run_of("crossover", A, A))
    for event in reader.poll():
        collector.take(0, 0, event)
    (blocks,) = collector.raw_blocks.values()
    assert {job: one.stamps[0] for (job, _), one in blocks.items()} == {0: 0.0, 1: 0.5}
    assert collector.parity["crossover"] == [verdict]
