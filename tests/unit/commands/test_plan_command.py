"""`xbench plan`: what goes where, and what it refuses. No ranks, and torch only where a test says so."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from outcome import Refused, Run

from xbench import cli
from xbench.modes import waiting_modes
from xbench.records import Profile, Scaling, load, loads

GOLDEN = Path(__file__).parents[2] / "golden" / "profile-v1.json"
COMPARISON = GOLDEN.with_name("comparison-v1.json")


@pytest.fixture
def run(xbench: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run `xbench plan` on words. Tables are not stacked, whatever runs the tests."""
    monkeypatch.setenv("COLUMNS", "120")
    return partial(xbench, "plan")


def test_the_table_is_on_stdout_and_nothing_beside_it(run: Run) -> None:
    code, out, err = run(str(GOLDEN), "--modes", "compute,ddp,single,mgwfbp,optimal")
    assert (code, err) == (0, "")
    rows = {line.split()[0]: line.split() for line in out.splitlines() if line.startswith(" ") and line.strip()}
    assert rows["compute"][1:8] == ["0", "–", "402", "ms", "0", "µs", "control"]
    # 131 ms forward, 259 backward, 0.5 + 8.9e-9 · 46.8e6 s for all in one, 12 for the optimizer
    assert rows["single"][1:8] == ["1", "44.7", "MiB", "820", "ms", "418", "ms"]
    assert "Plans and their predicted steps (simulated)" in out
    assert "mgwfbp: the paper's greedy: predicted step" in out
    assert "no schedule of one job can beat" in " ".join(out.split())


def test_a_what_if_says_what_was_measured_and_what_was_changed(run: Run) -> None:
    words = ("--rate", "10gbit", "--latency", "50us", "--workers", "16", "--compute-scale", "0.25")
    code, out, _ = run(str(GOLDEN), *words)
    assert code == 0
    text = " ".join(out.split())
    assert "measured compute 402 ms a step, all_reduce on shaped:hosts=2,rate=1gbit (real), 2 workers over gloo" in text
    assert text.count("what if ") == 4
    assert "16 workers in place of 2, in a ring" in text
    assert "(simulated)" in text


def comparison(tmp_path: Path, *, second: dict[str, object] | None = None) -> str:
    """The golden comparison with the golden profile's layers; `second` is what another job's workload changes."""
    made = json.loads(COMPARISON.read_text())
    job = made["jobs"][0] | {"layers": json.loads(GOLDEN.read_text())["layers"]}
    other = [job | {"workload": job["workload"] | second}] if second is not None else []
    (tmp_path / "record.json").write_text(json.dumps(made | {"jobs": [job, *other]}))
    return str(tmp_path)


def test_real_steps_do_not_stand_beside_a_what_if(run: Run, tmp_path: Path) -> None:
    _, out, _ = run(comparison(tmp_path), "--workers", "3")
    assert "real step" not in out


def test_of_two_different_jobs_one_is_chosen(run: Run, refused: Refused, tmp_path: Path) -> None:
    path = comparison(tmp_path, second={"title": "vgg11"})
    assert "holds the jobs 1 (resnet18) and 2 (vgg11), and a plan is of one" in refused("plan", path)
    code, out, _ = run(path, "--job", "2", "--modes", "ddp")
    assert code == 0
    assert out.split()[1] == "vgg11:"
    assert "holds 2 jobs" in refused("plan", path, "--job", "3")


def test_twins_are_one_job(run: Run, tmp_path: Path) -> None:
    code, _, _ = run(comparison(tmp_path, second={}))
    assert code == 0


def test_json_is_a_profile_that_has_stdout_alone(run: Run) -> None:
    for words in (("--emit", "json"), ("--json", "-")):
        code, out, err = run(str(GOLDEN), "--modes", "ddp,optimal", "--workers", "4", *words)
        record = loads(out)
        assert code == 0
        assert isinstance(record, Profile)
        assert list(record.plans) == ["ddp", "optimal"]
        assert record.cost_model is not None
        assert record.cost_model.world_size == 4
        assert "4 workers in place of 2" in err


def test_a_snippet_has_stdout_alone_and_names_the_file(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "planned.json"
    code, out, err = run(str(GOLDEN), "--emit", "python", "--mode", "mgwfbp", "--modes", "ddp", "--json", str(path))
    assert code == 0
    compile(out, "snippet", "exec")
    assert f'schedule="mgwfbp", plan={str(path)!r}' in out
    assert list(load(path).plans) == ["ddp", "mgwfbp"]  # type: ignore[union-attr]
    assert "mgwfbp is predicted to take" in err


def test_ddps_buckets_are_verified_with_torchs_own_assignment(run: Run) -> None:
    torch = pytest.importorskip("torch")
    from xbench.schedules.ddp import supported

    if not supported():
        pytest.skip("this torch's DDP takes no list of caps")
    code, out, err = run(str(GOLDEN), "--emit", "ddp", "--mode", "optimal")
    assert code == 0
    assert "bucket_cap_mb_list=[" in out
    assert f"Verified: DDP of torch {torch.__version__} forms exactly the" in err


def test_what_torch_would_form_instead_is_said(run: Run, monkeypatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr("xbench.schedules.ddp.supported", lambda: True)
    monkeypatch.setattr("xbench.schedules.ddp.formed", lambda gradients, caps: [["fc.weight"]])
    _, _, err = run(str(GOLDEN), "--emit", "ddp", "--mode", "optimal")
    assert "forms 1 bucket, not these" in err


def with_contention(tmp_path: Path) -> str:
    """The golden profile with contention, of a run that tried candidates for auto and took DDP's buckets."""
    points = [POINT | {"nbytes": size, "in_flight": n} for size in (4096, 1_048_576) for n in (1, 2)]
    both = {"launch_s": 1e-4, "hook_s": 3e-6, "copy_s_per_byte": 2e-11, "points": points}
    path = tmp_path / "with.json"
    assert cli.main(["plan", str(GOLDEN), "--modes", "ddp", "--json", str(path)]) == 0
    made = json.loads(path.read_text())
    tried = made["plans"]["ddp"] | {"mode": "auto", "note": "the buckets of 'ddp', after 10 steps each"}
    path.write_text(json.dumps(made | {"contention": both, "plans": {"auto": tried}}))
    return str(path)


def test_contention_is_planned_with_and_said(run: Run, tmp_path: Path) -> None:
    path = with_contention(tmp_path)
    _, out, _ = run(path)
    text = " ".join(out.split())
    assert (
        "contention an all-reduce of 4.00 KiB to 1.00 MiB takes 1.5 times as long while the device computes, and "
        "computation 1.3 times as long beside one"
    ) in text
    assert "auto: as the record has it, not searched again: the buckets of 'ddp', after 10 steps each" in text
    _, out, _ = run(path, "--rate", "10gbit", "--compute-scale", "2")
    text = " ".join(out.split())
    assert "as long beside one (simulated)" in text
    assert "auto: found by search in the simulator, not tried on real links" in text
    assert "caution An all-reduce is taken to need as much of the host as it did when it was measured." in text
    assert "caution Communication may slow another device down by more or less" in text


def test_a_record_without_contention_says_that_communication_is_free(run: Run) -> None:
    _, out, _ = run(str(GOLDEN))
    assert "contention not measured: communication is taken as free for compute\n" in out
    assert "not searched again" not in out


def test_the_written_record_is_planned_alike(run: Run, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = str(tmp_path / "what-if.json")
    words = ("--rate", "5gbit", "--workers", "4", "--json", path)
    made = with_contention(tmp_path)
    capfd.readouterr()
    _, first, _ = run(made, *words)
    _, second, _ = run(path)
    tables = [
        {line.split()[0]: line for line in out.splitlines() if line.startswith(" ") and line.strip()}
        for out in (first, second)
    ]
    for mode in waiting_modes():
        assert tables[0][mode] == tables[1][mode]


def test_auto_is_pasted_for_attach_and_for_ddp(run: Run) -> None:
    code, out, _ = run(str(GOLDEN), "--modes", "ddp,auto", "--emit", "python")
    assert code == 0
    assert 'schedule="auto", plan=buckets, wait="step"' in out
    code, out, err = run(str(GOLDEN), "--emit", "ddp", "--mode", "auto")
    assert code == 0
    assert out.startswith("# auto: ")
    assert "bucket_cap_mb_list=[" in out
    step = out.split("predicted ")[1].split(" a step")[0]
    assert f"DistributedDataParallel with the buckets of auto is predicted to take {step} a step, ddp " in err
    assert "auto under xbench.attach " in " ".join(err.split())


WITHOUT_TORCH = (
    "import sys; sys.modules['torch'] = None; sys.modules['torchvision'] = None; "
    "from xbench.cli import main; sys.exit(main(sys.argv[1:]))"
)


@pytest.mark.parametrize("words", ["--emit table", "--emit json", "--emit ddp", "--emit python", "--workers 2..2"])
def test_torch_is_not_needed(words: str) -> None:
    command = [sys.executable, "-c", WITHOUT_TORCH, "plan", str(GOLDEN), *words.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    if words == "--emit ddp":
        assert "Not verified that DDP forms these buckets: torch cannot be imported here" in done.stderr


def test_json_on_stdout_and_in_a_file(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "plan.json"
    code, out, _ = run(str(GOLDEN), "--emit", "json", "--json", str(target))
    assert code == 0
    assert out == target.read_text(encoding="utf-8") != ""


def test_planned_units_are_printed_as_lines_of_torch(run: Run, tmp_path: Path) -> None:
    record = json.loads(COMPARISON.read_text())
    units = [{"name": "a.0, a.1", "parameters": ["w"]}, {"name": "", "parameters": ["v"]}]
    record["modes"]["auto:shard"] = record["modes"]["ddp"] | {"mode": "auto:shard", "units": units, "plan": None}
    path = tmp_path / "record.json"
    path.write_text(json.dumps(record))
    code, out, err = run(str(path), "--emit", "python", "--mode", "auto:shard")
    assert (code, err) == (0, "")
    assert out.startswith("# auto:shard: 2 units")
    assert "units = [\n    ['a.0', 'a.1'],\n]\n" in out
    code, _, err = run(str(path), "--emit", "python", "--mode", "auto:shard,gathered=1k")
    assert code == 2
    assert "holds no units of it" in err


COST = json.loads(GOLDEN.read_text())["cost_model"]
POINT = {"nbytes": 4096, "in_flight": 1, "alone_s": 0.002, "loaded_s": 0.003, "compute_slowdown": 1.3}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"cost_model": None}, "has no cost model"),
        ({"layers": []}, "has no layers with gradients"),
        ({"step": None}, "says nothing of how long a step takes"),
        ({"cost_model": COST | {"world_size": 4}}, "they are not of one measurement"),
        ({"cost_model": COST | {"backend": "nccl"}}, "is of 2 workers over nccl and its fabric has 2 over"),
        ({"cost_model": COST | {"collective": "broadcast"}}, "is of broadcast, and all_reduce is needed"),
        ({"contention": {"launch_s": 0.1, "points": [POINT | {"loaded_s": 0.0}]}}, "its contention is not valid"),
        ({"contention": {"launch_s": 0.1, "points": [POINT | {"nbytes": 0}]}}, "its contention is not valid"),
    ],
)
def test_wrong_records(refused: Refused, tmp_path: Path, change: dict[str, object], sentence: str) -> None:
    path = tmp_path / "record.json"
    path.write_text(json.dumps(json.loads(GOLDEN.read_text()) | change))
    for words in ((), ("--workers", "2..2048")):
        assert sentence in refused("plan", path, *words)


def test_times_that_are_not_finite(refused: Refused, tmp_path: Path) -> None:
    for number in ("NaN", "Infinity", "1e999"):
        (tmp_path / "record.json").write_text(GOLDEN.read_text().replace('"ready_s": 0.018', f'"ready_s": {number}', 1))
        assert "Input should be a finite number" in refused("plan", str(tmp_path))


@pytest.mark.parametrize("words", [("--modes", "ddp,dear"), ("--emit", "python", "--mode", "dear")])
def test_where_gradients_were_clipped_no_update_is_put_off(run: Run, tmp_path: Path, words: tuple[str, ...]) -> None:
    profile = json.loads(GOLDEN.read_text(encoding="utf-8"))
    profile["step"]["updates_together"] = True
    profile["workload"]["spec"]["clip"] = 1.0
    clipped = tmp_path / "record.json"
    clipped.write_text(json.dumps(profile), encoding="utf-8")
    code, _, err = run(str(clipped), *words)
    assert code == 2
    assert "'dear' updates each layer in the next forward pass, and the measured step has --clip" in err
    code, out, err = run(str(clipped))
    assert (code, err) == (0, "")
    assert "were layers of the next forward pass" not in out
    assert "were layers of the next forward pass" in " ".join(run(str(GOLDEN))[1].split())


# --- many numbers of workers ---


def test_tables_of_sizes_go_to_stdout_and_say_simulated(run: Run) -> None:
    code, out, err = run(GOLDEN, "--workers", "2,64", "--modes", "ddp,optimal", "-v")
    assert (code, err) == (0, "")
    for title in ("Step", "Scaling efficiency", "Samples/s, all workers", "Exposed communication", "Buckets"):
        assert f"\n{title} (simulated)" in out
    assert "optimal is fastest at every size." in out
    assert "Error band:" in out
    assert "2 workers were measured." in out


def test_the_csv_of_sizes_is_tidy(run: Run) -> None:
    code, out, err = run(GOLDEN, "--workers", "2..8", "--modes", "wfbp,single", "--csv", "-")
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


def test_the_record_of_sizes_can_be_shown_again(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "scaling.json"
    assert loads(run(GOLDEN, "--workers", "4..4", "--json", "-")[1]).kind == "scaling"
    code, out, err = run(GOLDEN, "--workers", "2..2048", "--topology", "hierarchical:gpus=8", "--json", target)
    record = load(target)
    assert (code, err) == (0, "")
    assert isinstance(record, Scaling)
    assert record.topology == "hierarchical:gpus=8,rate=1600gbit,latency=5us"
    assert cli.main(["report", str(target)]) == 0
    assert "Inside a host of 8" in " ".join(out.split())
