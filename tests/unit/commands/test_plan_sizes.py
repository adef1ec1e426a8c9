"""`xbench plan --workers 2..2048`: tables, files, and every bad input in one sentence with exit code 2."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from xbench import cli
from xbench.records import Scaling, load, loads

GOLDEN = Path(__file__).parents[2] / "golden"
PROFILE = GOLDEN / "profile-v1.json"
Outcome = tuple[int, str, str]


@pytest.fixture
def run(xbench: Callable[..., Outcome]) -> Callable[..., Outcome]:
    """Run `xbench plan` on the profile."""
    return partial(xbench, "plan", PROFILE)


def test_tables_go_to_stdout_and_say_simulated(run: Callable[..., Outcome]) -> None:
    code, out, err = run("--workers", "2,64", "--modes", "ddp,optimal", "-v")
    assert (code, err) == (0, "")
    for title in ("Step", "Scaling efficiency", "Samples/s, all workers", "Exposed communication", "Buckets"):
        assert f"\n{title} (simulated)" in out
    assert "optimal is fastest at every size." in out
    assert "Error band:" in out
    assert "2 workers were measured." in out
    assert max(len(line) for line in out.splitlines()) <= 100


def test_a_narrow_terminal_gets_blocks(run: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    code, out, _ = run("--workers", "2..2048")
    assert code == 0
    assert "2048 workers (simulated)" in out
    assert max(len(line) for line in out.splitlines()) <= 60


def test_csv_is_tidy(run: Callable[..., Outcome]) -> None:
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


def test_the_record_can_be_shown_again(run: Callable[..., Outcome], tmp_path: Path) -> None:
    target = tmp_path / "scaling.json"
    code, out, err = run("--workers", "2..2048", "--topology", "hierarchical:gpus=8", "--json", target)
    record = load(target)
    assert (code, err) == (0, "")
    assert isinstance(record, Scaling)
    assert record.topology == "hierarchical:gpus=8,rate=1600gbit,latency=5us"
    assert cli.main(["report", str(target)]) == 0
    assert "Inside a host of 8" in " ".join(out.split())


def test_json_has_stdout_alone(run: Callable[..., Outcome]) -> None:
    code, out, _ = run("--workers", "4..4", "--json", "-")
    assert code == 0
    assert loads(out).kind == "scaling"


def test_a_comparison_is_a_source_too(xbench: Callable[..., Outcome], tmp_path: Path) -> None:
    whole = json.loads((GOLDEN / "comparison-v1.json").read_text(encoding="utf-8"))
    whole["jobs"][0]["layers"] = json.loads(PROFILE.read_text(encoding="utf-8"))["layers"]
    (tmp_path / "record.json").write_text(json.dumps(whole), encoding="utf-8")
    code, out, _ = xbench("plan", tmp_path, "--workers", "2..2")
    assert code == 0
    assert "the largest error of this record's own predictions" in " ".join(out.split())


def test_no_torch_is_imported() -> None:
    code = (
        f"import sys; from xbench.cli import main; assert main(['plan', {str(PROFILE)!r}, '--workers', '2..2']) == 0; "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=True)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--workers", "1..8"], "--workers: 1 is below 2, and one worker has nobody to share with"),
        (["--topology", "tre"], "unknown topology 'tre'\n  hint: did you mean 'tree'?"),
        (["--modes", "wfpb"], "unknown mode 'wfpb'\n  hint: did you mean 'wfbp'?"),
        (["--error-band", "1"], "--error-band: 1 is not a share from 0 to 0.95"),
        (["--error-band", "nan"], "--error-band: nan is not a share from 0 to 0.95"),
        (["--compute-scale", "0"], "--compute-scale: 0 is "),
        (["--rate", "fast"], "--rate: 'fast' is not a rate"),
        (["--json", "-", "--csv", "-"], "--json and --csv both want stdout"),
        (["--json", "s", "--csv", "./s"], "--json and --csv both want './s'"),
        (["--json", PROFILE], f"--json: '{PROFILE}' is a result, and would be written over"),
        (["--csv", PROFILE], f"--csv: '{PROFILE}' is a result, and would be written over"),
        (["--csv", "/none/x.csv"], "--csv: the folder of '/none/x.csv' does not exist"),
        (["--csv", "/"], "--csv: '/' is a folder\n  hint: name a FILE in it"),
    ],
)
def test_bad_options(refused: Callable[..., str], words: list[str], sentence: str) -> None:
    assert refused("plan", PROFILE, "--workers", "2..2048", *words).startswith(f"error: {sentence}")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--workers", "2,4", "--emit", "ddp"], "--emit is of one plan"),
        (["--workers", "2,4", "--mode", "ddp"], "--mode is of one plan"),
        (["--workers", "2..4", "--fabric", "shaped:hosts=2,rate=1gbit"], "--fabric is of one plan"),
        (["--workers", "4", "--topology", "ring"], "--topology goes with several numbers of workers"),
        (["--error-band", "0.1"], "--error-band goes with several numbers of workers"),
        (["--csv", "-"], "--csv goes with several numbers of workers"),
        (["--workers", "many"], "--workers: 'many' is not a whole number"),
    ],
)
def test_one_number_and_several_take_their_own_options(
    refused: Callable[..., str], words: list[str], told: str
) -> None:
    assert told in refused("plan", PROFILE, *words)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"cost_model": None}, "has no cost model"),
        ({"layers": []}, "has no layers with gradients: nothing to plan"),
        ({"step": None}, "says nothing of how long a step takes"),
        ({"schema_version": 9}, "has schema version 9, and this xbench reads up to 1"),
        ({"kind": "scaling"}, "is not a valid xbench result"),
    ],
)
def test_bad_records(refused: Callable[..., str], tmp_path: Path, changes: dict[str, object], sentence: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps(json.loads(PROFILE.read_text(encoding="utf-8")) | changes), encoding="utf-8")
    assert sentence in refused("plan", path, "--workers", "2..2048")


def test_a_time_that_is_none(refused: Callable[..., str], tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(PROFILE.read_text(encoding="utf-8").replace('"alpha_s": 0.00043', '"alpha_s": NaN', 1), "utf-8")
    assert "is not a valid xbench result: profile.cost_model.alpha_s" in refused("plan", path, "--workers", "2..2048")


def test_a_scaling_is_no_source(refused: Callable[..., str]) -> None:
    assert "scaling-v1.json' " in refused("plan", GOLDEN / "scaling-v1.json", "--workers", "2..2048")
