"""`xbench plan --workers 2..2048`: tables, files, and every bad input in one sentence with exit code 2."""

from __future__ import annotations

import csv
import io
import json
from functools import partial
from pathlib import Path

import pytest
from outcome import Run

from xbench import cli
from xbench.records import Scaling, load, loads

GOLDEN = Path(__file__).parents[2] / "golden"
PROFILE = GOLDEN / "profile-v1.json"


@pytest.fixture
def run(xbench: Run) -> Run:
    """Run `xbench plan` on the profile."""
    return partial(xbench, "plan", PROFILE)


def test_tables_go_to_stdout_and_say_simulated(run: Run) -> None:
    code, out, err = run("--workers", "2,64", "--modes", "ddp,optimal", "-v")
    assert (code, err) == (0, "")
    for title in ("Step", "Scaling efficiency", "Samples/s, all workers", "Exposed communication", "Buckets"):
        assert f"\n{title} (simulated)" in out
    assert "optimal is fastest at every size." in out
    assert "Error band:" in out
    assert "2 workers were measured." in out
    assert max(len(line) for line in out.splitlines()) <= 100


def test_csv_is_tidy(run: Run) -> None:
    code, out, err = run("--workers", "2..8", "--modes", "wfbp,single", "--csv", "-")
    assert "Step (simulated)" in err
    rows = list(csv.DictReader(io.StringIO(out)))
    assert code == 0
    assert [(row["mode"], row["workers"]) for row in rows] == [
        (mode, size) for mode in ("wfbp", "single") for size in ("2", "4", "8")
    ]
    for row in rows:
        assert (row["label"], row["topology"], row["workload"]) == ("simulated", "ring", "resnet18")
        share = {"2": 0.24, "4": 0.34, "8": 0.44}[row["workers"]]
        ends = [float(row[end]) / float(row["step_s"]) for end in ("step_low_s", "step_high_s")]
        assert ends == pytest.approx([1 / (1 + share), 1 / (1 - share)])
        assert 0 < float(row["efficiency"]) < 1


def test_the_record_can_be_shown_again(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "scaling.json"
    assert loads(run("--workers", "4..4", "--json", "-")[1]).kind == "scaling"
    code, out, err = run("--workers", "2..2048", "--topology", "hierarchical:gpus=8", "--json", target)
    record = load(target)
    assert (code, err) == (0, "")
    assert isinstance(record, Scaling)
    assert record.topology == "hierarchical:gpus=8,rate=1600gbit,latency=5us"
    assert cli.main(["report", str(target)]) == 0
    assert "Inside a host of 8" in " ".join(out.split())


def test_a_comparison_is_a_source_too(xbench: Run, tmp_path: Path) -> None:
    whole = json.loads((GOLDEN / "comparison-v1.json").read_text(encoding="utf-8"))
    whole["jobs"][0]["layers"] = json.loads(PROFILE.read_text(encoding="utf-8"))["layers"]
    (tmp_path / "record.json").write_text(json.dumps(whole), encoding="utf-8")
    code, out, _ = xbench("plan", tmp_path, "--workers", "2..2")
    assert code == 0
    assert "the largest error of this record's own predictions" in " ".join(out.split())
