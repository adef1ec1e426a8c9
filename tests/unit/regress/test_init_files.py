"""`xbench regress init`: what it writes into a repository, what it refuses, and what the page says of it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from xbench import cli
from xbench.regress import load_suite

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "regress.md").read_text(encoding="utf-8")
WORKFLOW = ".github/workflows/xbench.yml"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Somebody's project, with a model of its own."""
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    (tmp_path / "models.py").write_text("def make():\n    return model, batch, loss\n")
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def everything(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file() and ".git" not in path.relative_to(folder).parts)
    return {path.relative_to(folder).as_posix(): path.read_text() for path in files}


def test_it_writes_what_the_page_shows(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["regress", "init", "models.py:make"]) == 0
    said = capsys.readouterr().err
    assert f"$ xbench regress init models.py:make\n{said}```\n" in PAGE
    [workflow, _] = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
    assert (repository / WORKFLOW).read_text() == workflow
    assert (repository / ".gitignore").read_text() == "/results/runs/\n"
    (check,) = load_suite(repository / "xbench.toml").checks
    assert (check.name, check.workload, check.modes) == ("make", "models.py:make", ("ddp",))
    assert check.metrics == ("collectives", "wire_bytes", "step_time")


@pytest.mark.parametrize("there", ["xbench.toml", WORKFLOW])
def test_what_is_there_is_left_and_nothing_else_is_written(
    repository: Path, there: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository / there).parent.mkdir(parents=True, exist_ok=True)
    (repository / there).write_text("mine\n")
    before = everything(repository)
    assert cli.main(["regress", "init", "models.py:make"]) == 2
    assert capsys.readouterr().err == (
        f"error: there is a {there!r} already, and it is left as it is\n  hint: move it away first\n"
    )
    assert everything(repository) == before


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("*.pyc", "*.pyc\n/results/runs/\n"),
        ("*.pyc\n", "*.pyc\n/results/runs/\n"),
        ("/results/runs/\n*.pyc\n", "/results/runs/\n*.pyc\n"),
    ],
)
def test_gitignore_gets_the_line_that_it_lacks(repository: Path, before: str, after: str) -> None:
    (repository / ".gitignore").write_text(before)
    assert cli.main(["regress", "init", "models.py:make"]) == 0
    assert (repository / ".gitignore").read_text() == after


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "missing argument 'WORKLOAD'"),
        (["model.py:make"], "there is no file 'model.py'\n  hint: did you mean 'models.py'?"),
        (["models.py:mak"], "'models.py' has no function 'mak'\n  hint: did you mean 'models.py:make'?"),
        (["models.py"], "'models.py' does not name a factory"),
        (["resnet19"], "did you mean 'resnet18'?"),
        (["/etc/../tmp/nowhere.py:make"], "there is no file '/etc/../tmp/nowhere.py'"),
        (["models.py:make", "--action", "xbench"], "--action: 'xbench' is not OWNER/REPOSITORY@REF"),
        (["models.py:make", "--action", "a/b@c\n- run: x"], "is not OWNER/REPOSITORY@REF"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_nothing_is_written(
    repository: Path, words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = everything(repository)
    assert cli.main(["regress", "init", *words]) == 2
    assert sentence.lower() in capsys.readouterr().err.lower()
    assert everything(repository) == before


def test_a_model_outside_the_repository_is_refused(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inner = repository / "inner"
    subprocess.run(["git", "init", "--quiet", str(inner)], check=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(inner)
        assert cli.main(["regress", "init", "../models.py:make"]) == 2
    assert "'../models.py' is outside of this repository" in capsys.readouterr().err
    assert everything(inner) == {}


def test_only_the_root_of_a_repository_will_do(
    repository: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    deeper, none = repository / "deeper", tmp_path_factory.mktemp("none")
    deeper.mkdir()
    for folder, sentence in (
        (deeper, f"is not the root of its git repository\n  hint: cd {repository}\n"),
        (none, "is in no git repository\n  hint: git init makes one\n"),
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            assert cli.main(["regress", "init", "resnet18"]) == 2
        assert sentence in capsys.readouterr().err
        assert everything(folder) == {}


def test_a_path_that_needs_quotes_and_an_action_of_one_s_own(repository: Path) -> None:
    odd = repository / 'a "b" ü'
    odd.mkdir()
    (odd / "nets.py").write_text("make = object\n")
    (repository / "pyproject.toml").unlink()
    (repository / "requirements.txt").touch()
    action = "us/xbench/gate@0123abc"
    assert cli.main(["regress", "init", f"{odd}/nets.py:make", "--action", action]) == 0
    (check,) = load_suite(repository / "xbench.toml").checks
    assert check.workload == 'a "b" ü/nets.py:make'
    step = yaml.safe_load((repository / WORKFLOW).read_text())["jobs"]["regress"]["steps"][-1]
    assert step["uses"] == action
    assert step["with"]["install"] == 'python -m pip install "$GITHUB_ACTION_PATH" -r requirements.txt'


def test_a_check_without_a_suite_points_here(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["regress", "check"]) == 2
    assert capsys.readouterr().err == (
        "error: there is no suite 'xbench.toml'\n  hint: xbench regress init writes one\n"
    )
