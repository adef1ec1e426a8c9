"""`xbench cluster` from outside: its answer, its files, its lists, and every bad input in one sentence."""

from __future__ import annotations

import csv
import io
import json
from functools import partial
from pathlib import Path

import pytest
from outcome import Run

from xbench.commands.cluster import RESTART_COST_S
from xbench.records import ClusterComparison, LiveRun, load, of_kind

FEW = "generated:jobs=20,gpus=8,load=1.5"


@pytest.fixture
def run(xbench: Run) -> Run:
    """Run `xbench cluster` on words."""
    return partial(xbench, "cluster")


def test_a_comparison_answers_first_and_is_kept(run: Run, tmp_path: Path) -> None:
    kept = tmp_path / "cluster.json"
    words = f"--trace {FEW} --gpus 8 --policies fifo,gittins:learn=on,thresholds=600,doubling --seeds 6".split()
    code, out, err = run("compare", *words, "--restart-cost", "0,30", "--json", str(kept))
    assert code == 0
    record = load(kept)
    assert isinstance(record, ClusterComparison)
    assert record.policies == ["fifo", "gittins:learn=on,thresholds=600", "doubling"]
    assert len(record.runs) == 3 * 2 * 6
    assert " ".join(out.split()).startswith(record.findings[0])
    assert "8 GPUs, restarts of 30 s (simulated)" in out
    assert max(len(line) for line in out.partition("made by")[0].splitlines()) <= 100
    assert "6 of 6: doubling, restarts of 30 s" in err


def test_placements_are_a_column(run: Run, tmp_path: Path) -> None:
    kept = tmp_path / "cluster.json"
    words = f"--trace {FEW} --gpus 8 --policies fifo,doubling --gpus-per-host 2 --seeds 1 --restart-cost 0".split()
    code, out, err = run("compare", *words, "--placement", "packed,spread", "--json", str(kept), "--csv", "-")
    assert code == 0
    found = [(row["policy"], row["placement"], row["gpus_per_host"]) for row in csv.DictReader(io.StringIO(out))]
    assert found == [(name, rule, "2") for name in ("fifo", "doubling") for rule in ("packed", "spread")]
    assert "8 GPUs on hosts of 2, restarts for nothing (simulated)" in err
    assert "1 of 4: fifo, restarts of 0 s, packed" in err
    assert "Spread over hosts, jobs take" in " ".join(err.split())
    record = load(kept)
    assert isinstance(record, ClusterComparison)
    assert record.placements == ["packed", "spread"]


def test_json_and_csv_have_stdout_alone(run: Run) -> None:
    _, out, _ = run("compare", "--trace", FEW, "--gpus", "8", "--json", "-")
    assert json.loads(out)["kind"] == "cluster"
    _, out, _ = run("compare", "--trace", FEW, "--gpus", "8", "--csv", "-")
    assert [(row["policy"], row["seed"], row["restart_s"]) for row in csv.DictReader(io.StringIO(out))] == [
        (policy, str(seed), RESTART_COST_S) for policy in ("fifo-backfill", "sjf", "srtf", "las") for seed in range(6)
    ]
    _, out, _ = run("compare", "--trace", FEW + ",seed=3", "--gpus", "8", "--policies", "fifo", "--csv", "-")
    assert [row["policy"] for row in csv.DictReader(io.StringIO(out))] == ["fifo"]


def test_the_default_cost_of_a_restart_is_the_measured_one() -> None:
    kept = of_kind(load(Path(__file__).parents[3] / "results" / "cluster-restarts.json"), LiveRun)
    assert kept is not None
    assert kept.overhead_s is not None
    assert round(kept.overhead_s, 2) == float(RESTART_COST_S)
    assert kept.jobs[0].restarts == 6


@pytest.mark.parametrize(
    ("jobs", "words", "told"),
    [
        ("a,0,3,100\nb,0,3,100\nc,0,2,100\n", "--gpus 8 --gpus-per-host 4 --policies fifo --across-hosts 0.5",
         ["The mean job completion time under fifo: 2.22 min. fifo is at most"]),
        ("a,0,1,100\nb,0,1,10\nc,5,1,10\n", "--gpus 1 --policies fifo --window 2-3",
         ["The mean job completion time under fifo: 112 s.", "jobs 2 to 3 by arrival count"]),
        ("a,0,1,100\nb,0,1,10\nc,5,0,10\n", "--gpus 1 --policies fifo,srtf",
         ["srtf has the shortest mean job completion time: 60.0 s, 42.9 % less than fifo's.",
          "1 row of the trace made no job and was left out"]),
    ],
    ids=["a rigid job over hosts", "a window by arrival", "rows left out"],
)  # fmt: skip
def test_a_trace_of_one_s_own(run: Run, tmp_path: Path, jobs: str, words: str, told: list[str]) -> None:
    (tmp_path / "jobs.csv").write_text(f"name,arrival_s,gpus,duration_s\n{jobs}")
    code, out, _ = run("compare", "--trace", f"plain:{tmp_path / 'jobs.csv'},rows=skip", *words.split())
    assert code == 0
    assert all(part in " ".join(out.split()) for part in told)
