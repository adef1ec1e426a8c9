"""`xbench tune` on real ranks, and what it keeps put under a training loop again."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from shares import drawn
from typed_commands import TINY, comparison, left_behind, said_by_ranks, xbench

from xbench.rank.program import JobPlan
from xbench.records import Comparison, load, save
from xbench.runs.tune import choice_of, tuned_record

pytestmark = pytest.mark.integration
RANK = Path(__file__).parent / "ranks" / "paste_tuned.py"


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Comparison, subprocess.CompletedProcess[str], Path]:
    folder = tmp_path_factory.mktemp("tuned")
    done = xbench(
        "tune", TINY, "--fabric", "local:ranks=2", "--minutes", "0.25", "--modes", "optimal,ddp-tuned,single",
        "--keep", str(folder / "kept.json"), results=folder / "runs",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    record = comparison(folder / "runs")
    return record, done, folder


def test_ddp_and_a_candidate_are_timed_beside_each_other_however_short_the_minutes(
    tuned: tuple[Comparison, subprocess.CompletedProcess[str], Path],
) -> None:
    record, done, _ = tuned
    assert record.complete
    assert record.reference == "ddp"
    candidates = set(record.modes) - {"compute", "ddp"}
    assert candidates
    assert candidates <= {"optimal", "ddp-tuned", "single"}
    assert {sample.launch for sample in record.samples} >= {1}  # the first launch only profiles
    for name, mode in record.modes.items():
        assert mode.status == "ok", mode.error
        assert mode.blocks >= 4
        assert (mode.parity is None) == (name == "compute")
    assert "launch 1: profile" in done.stderr
    assert left_behind() == ""


def test_the_answer_the_files_and_the_line_to_paste_agree(
    tuned: tuple[Comparison, subprocess.CompletedProcess[str], Path],
) -> None:
    record, done, folder = tuned
    choice = choice_of(record, 0.02)
    assert choice.best in record.modes
    assert f"record: {folder / 'runs'}" in done.stderr
    if choice.winner is None and choice.kind == "open":
        assert "No clear answer in 0.25 minutes" in done.stderr
        assert (done.stdout, (folder / "kept.json").exists()) == ("", False)
        return
    kept = load(folder / "kept.json")
    assert kept.schedule == (choice.winner or "ddp")
    assert ("DDP's default is already best here" in done.stderr) == (choice.winner is None)
    compile(done.stdout, "pasted", "exec")
    assert f"keep:   {folder / 'kept.json'}" in done.stderr


@pytest.mark.parametrize("mode", drawn("tuned", ["optimal", "ddp-tuned"]))
def test_what_is_kept_trains_what_ddp_trains(
    tuned: tuple[Comparison, subprocess.CompletedProcess[str], Path], tmp_path: Path, mode: str
) -> None:
    """Which mode wins is for the machine to say, so each is made to win here, with the plan that the run made."""
    record, _, folder = tuned
    (plan_file,) = (folder / "runs").glob("*/launch0/plan0.json")
    plans = [JobPlan.model_validate_json(plan_file.read_text())]
    choice = choice_of(record, 0.02)
    forced = choice.ratios[choice.best].model_copy(update={"value": 0.9, "ci95": (0.85, 0.95)})
    made_to_win = type(choice)("faster", mode, {mode: forced}, (), frozenset(), settled=True)
    result = record.modes.get(mode) or record.modes["ddp"]
    shown = record.model_copy(update={"modes": record.modes | {mode: result}})
    kept = tuned_record(shown, made_to_win, 0.02, plans, "record.json")
    path = save(kept, tmp_path / "kept.json")
    assert load(path) == kept
    assert kept.buckets == plans[0].buckets[mode]
    outputs = said_by_ranks(2, RANK, str(path), TINY, store=tmp_path / "store")
    buckets = len(kept.buckets or []) if mode == "optimal" else 0  # DDP's own are not ours to see
    for output in outputs:
        assert f"backward: ok, buckets {buckets}" in output, output[-3000:]
        assert f"step: ok, buckets {buckets}" in output, output[-3000:]
        assert f"refused: the plan, made for {TINY}, names " in output
