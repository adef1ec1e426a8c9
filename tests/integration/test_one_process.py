"""Two jobs in one process on real ranks: turns, parity, random numbers, processes, and errors of one job."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from typed_commands import TINY, compare, left_behind, only_record, xbench

from xbench.rank.events import Event, RankStarted
from xbench.rank.journal import JournalReader
from xbench.records import Comparison

pytestmark = pytest.mark.integration
SHORT = ("--fabric", "local:ranks=2", "--quick", "--rounds", "2", "--launches", "1")

FACTORIES = """
import traceback

import torch
from torch import nn


class Fails(nn.Linear):
    "A layer that fails in turns of two jobs in one process."

    def forward(self, x):
        if any(frame.name == "steps_in_turns" for frame in traceback.extract_stack()):
            raise ValueError("no turns")
        return super().forward(x)


def dropping():
    model = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5), nn.Linear(64, 64), nn.Dropout(0.5), nn.Linear(64, 8))
    return model, (torch.randn(16, 64), torch.randn(16, 8)), nn.functional.mse_loss


def dropping_less():
    layers = [layer for _ in range(12) for layer in (nn.Linear(64, 64), nn.Dropout(0.2))]
    return nn.Sequential(*layers), (torch.randn(8, 64), torch.randn(8, 64)), nn.functional.mse_loss


def failing():
    model = nn.Sequential(nn.Linear(64, 64), Fails(64, 8))
    return model, (torch.randn(4, 64), torch.randn(4, 8)), nn.functional.mse_loss
"""


def compared(tmp_path: Path, *words: str) -> Comparison:
    record, _ = compare(*words, *SHORT, results=tmp_path / "runs")
    assert record.complete
    for name, mode in record.modes.items():
        assert mode.status == "ok", (name, mode.error)
        assert mode.parity.ok
        assert mode.parity.bitwise_across_ranks
    return record


def journals(tmp_path: Path) -> dict[tuple[int, int], list[Event]]:
    """The events of all processes of the first launch, by the job and rank of the process."""
    (folder,) = (tmp_path / "runs").glob("*/launch0")
    there = [(job, rank) for job in (0, 1) for rank in (0, 1) if (folder / f"job{job}-rank{rank}.jsonl").exists()]
    return {(job, rank): JournalReader(folder, job, rank).poll() for job, rank in there}


def test_both_jobs_in_one_process_a_rank_and_each_draws_the_random_numbers_of_its_reference(tmp_path: Path) -> None:
    script = tmp_path / "nets.py"
    script.write_text(FACTORIES)
    modes = ("sequential", "crossover", "crossover:wfbp")
    record = compared(tmp_path, f"{script}:dropping", f"{script}:dropping_less", "--modes", ",".join(modes))
    assert record.spec.processes == 1
    samples = {(sample.mode, sample.job, sample.round) for sample in record.samples}
    assert samples == {(mode, job, round_) for mode in modes for job in (0, 1) for round_ in (0, 1)}
    for name in modes[1:]:
        mode = record.modes[name]
        assert set(mode.pattern) == {"A", "B"}
        assert {turn.job for turn in mode.turns} == {0, 1}
        assert all(before.computed_s <= after.start_s for before, after in pairwise(mode.turns))
        arrived = [turn.arrived_s for turn in mode.turns]
        assert all(at_s is not None for at_s in arrived)
        assert mode.predicted_step_s is not None
        assert mode.parity.shown, mode.parity.message
        assert mode.parity.max_relative_difference == 0.0  # two ranks: equal sums, and equal masks of the dropout
    found = journals(tmp_path)
    assert set(found) == {(0, 0), (0, 1)}
    assert all(sum(isinstance(event, RankStarted) for event in events) == 1 for events in found.values())
    assert left_behind() == ""


def test_turns_and_jobs_at_once_in_one_comparison(tmp_path: Path) -> None:
    modes = ("crossover", "sequential", "concurrent")
    record = compared(tmp_path, TINY, "--modes", ",".join(modes))
    assert record.spec.processes == 2
    samples = {(sample.mode, sample.job) for sample in record.samples}
    assert samples == {(mode, job) for mode in modes for job in (0, 1)}
    assert {turn.job for turn in record.modes["crossover"].turns} == {0, 1}
    found = journals(tmp_path)
    assert set(found) == {(job, rank) for job in (0, 1) for rank in (0, 1)}
    assert left_behind() == ""


def test_an_error_of_the_second_job_names_its_turn(tmp_path: Path) -> None:
    script = tmp_path / "nets.py"
    script.write_text(FACTORIES)
    words = ("compare", TINY, f"{script}:failing", "--modes", "crossover,sequential", *SHORT)
    done = xbench(*words, results=tmp_path / "runs")
    assert done.returncode == 1
    assert "(gate crossover, job 1: computing): nets.py:" in done.stderr
    assert "raised ValueError: no turns" in done.stderr
    record = only_record(tmp_path / "runs")
    assert not record.complete
    assert left_behind() == ""
