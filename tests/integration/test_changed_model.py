"""A model that grew, in somebody's own repository: the gate fails before anything is timed."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from test_regress import bases, git, only_regression
from typed_commands import command, ran

pytestmark = pytest.mark.integration

MODEL = """
import torch
from torch import nn


def make():
    blocks = [layer for _ in range({blocks}) for layer in (nn.Linear(64, 64), nn.ReLU())]
    model = nn.Sequential(*blocks, nn.Linear(64, 10))
    return model, (torch.randn(8, 64), torch.randint(0, 10, (8,))), nn.CrossEntropyLoss()
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
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
def test_a_larger_model_fails_untimed_until_the_suite_expects_it(repository: Path, temporary: Path) -> None:
    words = ["regress", "check", "--base", "HEAD~1", "--junit", "cases.xml", "--markdown", "told.md"]
    done = ran(command(*words), cwd=repository)
    assert done.returncode == 3, done.stderr[-3000:]
    change = "the model changed: 25.6 k -> 29.8 k parameters"
    assert f"In make {change}; 3 of 3 cases fail." in " ".join((done.stdout + done.stderr).split())
    record = only_regression(repository)
    assert {case.verdict for case in record.cases} == {"changed"}
    assert "not counted, because the model changed" in record.cases[0].reason
    assert (record.pairs, record.confirmation, record.complete) == ([], [], True)
    assert "launch" not in done.stderr + done.stdout
    cases = list(ElementTree.parse(repository / "cases.xml").getroot().iter("testcase"))
    assert [case.find("failure") is not None for case in cases] == [True] * 3
    assert (repository / "told.md").read_text().count("| ❌ ") == 3
    assert bases(temporary) == []
    assert "?? results/" not in git(repository, "status", "--porcelain")

    exact = "parameters 25610 -> 29770, tensors 14 -> 16, grad bytes 102440 -> 119080"
    assert f'write expect_change = "{exact}" into check' in record.cases[0].reason
    with (repository / "xbench.toml").open("a") as suite:  # which ends in its one check
        suite.write(f'expect_change = "{exact}"\n')
    done = ran(command(*words, "--strict"), cwd=repository, results=Path("expected"))
    assert done.returncode == 0, done.stderr[-3000:]
    assert "No regression in 3 cases: 3 expected." in " ".join((done.stdout + done.stderr).split())
    assert "launch" not in done.stderr + done.stdout


def test_a_larger_model_fails_against_a_stored_baseline(repository: Path) -> None:
    (repository / "models.py").write_text(MODEL.format(blocks=6))
    done = ran(command("regress", "baseline", "--layer", "deterministic"), cwd=repository)
    assert done.returncode == 0, done.stderr[-3000:]
    assert ran(command("regress", "check", "--layer", "deterministic"), cwd=repository).returncode == 0
    (repository / "models.py").write_text(MODEL.format(blocks=7))
    done = ran(command("regress", "check"), cwd=repository, results=Path("larger"))
    assert done.returncode == 3, done.stderr[-3000:]
    assert "In make the model changed: 25.6 k -> 29.8 k parameters; 3 of 3 cases fail." in " ".join(
        (done.stdout + done.stderr).split()
    )
    assert "launch" not in done.stderr + done.stdout
