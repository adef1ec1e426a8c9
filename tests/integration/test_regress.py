"""The gate on real revisions of a real repository: what it finds, what it says in CI, and that nothing is left."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typed_commands import command, ran

from xbench.records import Regression, load
from xbench.regress.protocol import JobResult

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]
SUITE = """
[[regress.check]]
name = "planned"
workload = "resnet18:batch-size=2,image-size=32"
modes = ["optimal"]
metrics = ["buckets", "planned_step"]
plan_from = "measured.json"

[[regress.check]]
name = "timed"
workload = "transformer-tiny:batch-size=1,seq-len=16"
modes = ["ddp", "spb"]
metrics = ["step_time"]
"""
OTHER_PLAN = """
from xbench.planning import merge

found = merge.optimal


def optimal(*arguments):
    first, second, *rest = found(*arguments)
    return [[*first, *second], *rest]


merge.optimal = optimal
"""


def git(folder: Path, *words: str) -> str:
    settings = ("user.name=a", "user.email=a@b", "commit.gpgsign=false")
    done = subprocess.run(
        ["git", *(word for one in settings for word in ("-c", one)), *words],
        cwd=folder, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """One commit of a project that xbench is installed beside."""
    shutil.copy(ROOT / "results" / "resnet18-b14-1gbit.json", tmp_path / "measured.json")
    (tmp_path / "xbench.toml").write_text(SUITE)
    (tmp_path / ".gitignore").write_text("/results/\n/out/\n__pycache__/\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "--quiet", "-m", "the base")
    return tmp_path


def bases(temporary: Path) -> list[Path]:
    return list(temporary.glob("xb*base-*"))


def only_regression(folder: Path) -> Regression:
    (path,) = (folder / "results" / "runs").glob("*-regression/record.json")
    record = load(path)
    return record


def test_a_changed_number_of_buckets_is_found_and_said_to_ci(
    repository: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = repository / "out" / "summary.md"
    summary.parent.mkdir()
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    (repository / "sitecustomize.py").write_text(OTHER_PLAN)  # a planner of its own, in head's tree alone, uncommitted
    words = ["regress", "check", "--base", "HEAD", "--layer", "deterministic", "--check", "planned"]
    done = ran(command(*words, "--junit", "out/cases.xml"), cwd=repository)
    assert done.returncode == 3, done.stderr[-3000:]
    record = only_regression(repository)
    verdicts = {case.metric: (case.verdict, case.base, case.head) for case in record.cases}
    verdict, base, head = verdicts["buckets"]
    assert (verdict, head) == ("regressed", (base or 0) - 1)
    assert record.complete
    assert record.against == "revision"
    assert record.base.revision == git(repository, "rev-parse", "HEAD")
    assert done.stderr.count("::error") == 1
    assert summary.read_text().startswith("before\n")
    assert "buckets" in summary.read_text()
    cases = ElementTree.parse(repository / "out" / "cases.xml").getroot().iter("testcase")
    assert [case.find("failure") is not None for case in cases] == [True, False]
    assert bases(temporary) == []
    assert git(repository, "worktree", "list").count("\n") == 0


def test_an_unchanged_tree_takes_turns_with_itself_and_passes(repository: Path, temporary: Path) -> None:
    done = ran(command("regress", "check", "--base", "HEAD", "--check", "timed", "--pairs", "1"), cwd=repository)
    assert done.returncode == 0, done.stderr[-3000:]
    record = only_regression(repository)
    assert record.complete
    assert record.failures == []
    (pair,) = record.pairs
    assert (pair.first, pair.in_turns) == ("base", ("timed",))
    for side in (pair.base, pair.head):
        assert [one.mode for one in side] == ["ddp", "spb"]
        for one in side:
            assert (one.metric, one.label, one.unit) == ("step_time", "real", "s")
            assert len(one.samples) >= 8
            assert min(one.samples) > 0
    assert [case.verdict for case in record.cases] == ["inconclusive"] * 2  # one pair can show nothing
    assert bases(temporary) == []


@pytest.mark.usefixtures("on_one_core")
def test_on_an_emulated_link_collectives_are_counted_too(tmp_path: Path) -> None:
    order = {"kind": "look", "workload": "transformer-tiny:batch-size=1,seq-len=16", "modes": ["ddp", "wfbp"],
             "fabric": "emulated:workers=8,rate=10gbit"}  # fmt: skip
    (tmp_path / "order.json").write_text(json.dumps(order))
    done = ran(command("regress", "launch", "order.json", "answer.json"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    answer = JobResult.model_validate_json((tmp_path / "answer.json").read_text())
    assert (answer.error, answer.failed, answer.label) == (None, {}, "emulated")
    assert {mode: seen.collectives for mode, seen in answer.counted.items()} == {
        "ddp": 1, "wfbp": answer.workload.tensors
    }  # fmt: skip
    for seen in answer.counted.values():
        assert seen.wire_bytes == pytest.approx(answer.workload.grad_bytes, rel=0.01)
        assert seen.peak_bytes > 3 * answer.workload.grad_bytes  # parameters, gradients, momentum


# --- a model that grew: the gate fails before anything is timed ------------------------------------------------------

MODEL = """
import torch
from torch import nn


def make():
    blocks = [layer for _ in range({blocks}) for layer in (nn.Linear(64, 64), nn.ReLU())]
    model = nn.Sequential(*blocks, nn.Linear(64, 10))
    return model, (torch.randn(8, 64), torch.randint(0, 10, (8,))), nn.CrossEntropyLoss()
"""


@pytest.fixture
def growing(tmp_path: Path) -> Path:
    """Two commits, of which the second has one more block."""
    git(tmp_path, "init", "--quiet")
    (tmp_path / "models.py").write_text(MODEL.format(blocks=6))
    (tmp_path / ".gitignore").write_text("__pycache__/\n")
    done = ran(command("regress", "init", "models.py:make"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for blocks in (6, 7):
        (tmp_path / "models.py").write_text(MODEL.format(blocks=blocks))
        git(tmp_path, "add", "-A")
        git(tmp_path, "commit", "--quiet", "-m", f"{blocks} blocks")
    return tmp_path


@pytest.mark.smoke
def test_a_larger_model_fails_untimed_until_the_suite_expects_it(growing: Path, temporary: Path) -> None:
    words = ["regress", "check", "--base", "HEAD~1", "--junit", "cases.xml", "--markdown", "told.md"]
    done = ran(command(*words), cwd=growing)
    assert done.returncode == 3, done.stderr[-3000:]
    change = "the model changed: 25.6 k -> 29.8 k parameters"
    assert f"In make {change}; 3 of 3 cases fail." in " ".join((done.stdout + done.stderr).split())
    record = only_regression(growing)
    assert {case.verdict for case in record.cases} == {"changed"}
    assert "not counted, because the model changed" in record.cases[0].reason
    assert (record.pairs, record.confirmation, record.complete) == ([], [], True)
    assert "launch" not in done.stderr + done.stdout
    cases = list(ElementTree.parse(growing / "cases.xml").getroot().iter("testcase"))
    assert [case.find("failure") is not None for case in cases] == [True] * 3
    assert (growing / "told.md").read_text().count("| ❌ ") == 3
    assert bases(temporary) == []
    assert "?? results/" not in git(growing, "status", "--porcelain")

    exact = "parameters 25610 -> 29770, tensors 14 -> 16, grad bytes 102440 -> 119080"
    assert f'write expect_change = "{exact}" into check' in record.cases[0].reason
    with (growing / "xbench.toml").open("a") as suite:  # which ends in its one check
        suite.write(f'expect_change = "{exact}"\n')
    done = ran(command(*words, "--strict"), cwd=growing, results=Path("expected"))
    assert done.returncode == 0, done.stderr[-3000:]
    assert "No regression in 3 cases: 3 expected." in " ".join((done.stdout + done.stderr).split())
    assert "launch" not in done.stderr + done.stdout


def test_a_larger_model_fails_against_a_stored_baseline(growing: Path) -> None:
    (growing / "models.py").write_text(MODEL.format(blocks=6))
    done = ran(command("regress", "baseline", "--layer", "deterministic"), cwd=growing)
    assert done.returncode == 0, done.stderr[-3000:]
    assert ran(command("regress", "check", "--layer", "deterministic"), cwd=growing).returncode == 0
    (growing / "models.py").write_text(MODEL.format(blocks=7))
    done = ran(command("regress", "check"), cwd=growing, results=Path("larger"))
    assert done.returncode == 3, done.stderr[-3000:]
    assert "In make the model changed: 25.6 k -> 29.8 k parameters; 3 of 3 cases fail." in " ".join(
        (done.stdout + done.stderr).split()
    )
    assert "launch" not in done.stderr + done.stdout
