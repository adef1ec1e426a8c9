"""`xbench regress init`: what it writes into a repository, what it refuses, and what the page says of it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import yaml
from regress_tree import git

from xbench import cli
from xbench.regress import init_files, load_suite
from xbench.regress.checkout import published

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "regress.md").read_text(encoding="utf-8")
WORKFLOW = ".github/workflows/xbench.yml"


COMMIT = "5f0c2d9e81b7a64f3c0de27a9b8f1e6d4c5a3b20"
FETCHED = {"url": "https://github.com/you/xbench", "vcs_info": {"vcs": "git", "commit_id": COMMIT}}


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Somebody's project, with a model of its own, beside an xbench that came from GitHub."""
    monkeypatch.setattr(init_files, "source", lambda: FETCHED)
    git(tmp_path, "init")
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
    [workflow, gitlab] = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
    python = f'"{sys.version_info[0]}.{sys.version_info[1]}"'
    assert (repository / WORKFLOW).read_text().replace(python, '"3.12"') == workflow
    for line in (f"python -m pip install 'xbench-schedules @ git+https://github.com/you/xbench@{COMMIT}'",
                 "python -m pip install -e ."):  # fmt: skip
        assert line in workflow
        assert line in gitlab
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
    assert cli.main(["regress", "init", "models.py:make", "--install", "pip install x"]) == 2
    assert f"there is a {there!r} already" in capsys.readouterr().err
    assert everything(repository) == before


def test_a_second_call_writes_what_is_missing_alone(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(init_files, "source", dict)
    assert cli.main(["regress", "init", "hf/bert"]) == 0
    suite = (repository / "xbench.toml").read_text()
    monkeypatch.setattr(init_files, "source", lambda: FETCHED)
    assert cli.main(["regress", "init"]) == 0
    assert (repository / "xbench.toml").read_text() == suite
    assert "'xbench-schedules[hf] @ git+https://" in runs_of(repository)[0]
    assert cli.main(["regress", "init"]) == 2
    assert "already" in capsys.readouterr().err


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
        (["model.py:make"], "there is no file 'model.py'\n  hint: did you mean 'models.py'?"),
        (["models.py:mak"], "'models.py' has no function 'mak'\n  hint: did you mean 'models.py:make'?"),
        (["models.py"], "'models.py' does not name a factory"),
        (["resnet19"], "did you mean 'resnet18'?"),
        (["/etc/../tmp/nowhere.py:make"], "there is no file '/etc/../tmp/nowhere.py'"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_nothing_is_written(
    repository: Path, words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = everything(repository)
    assert cli.main(["regress", "init", *words]) == 2
    assert sentence.lower() in capsys.readouterr().err.lower()
    assert everything(repository) == before


@pytest.mark.parametrize(
    ("folder", "own", "workload", "sentence"),
    [
        ("inner", True, "../models.py:make", "'../models.py' is outside of this repository"),
        ("deeper", False, "resnet18", "is not the root of its git repository\n  hint: cd {repository}\n"),
        ("/none", False, "resnet18", "is in no git repository\n  hint: git init makes one\n"),
    ],
)
def test_only_the_root_of_a_repository_and_its_own_models_will_do(
    repository: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    folder: str,
    own: bool,
    workload: str,
    sentence: str,
) -> None:
    place = tmp_path_factory.mktemp("none") if folder == "/none" else repository / folder
    place.mkdir(exist_ok=True)
    if own:
        git(place, "init")
    monkeypatch.chdir(place)
    assert cli.main(["regress", "init", workload]) == 2
    assert sentence.format(repository=repository) in capsys.readouterr().err
    assert everything(place) == {}


def runs_of(repository: Path) -> list[str]:
    steps = yaml.safe_load((repository / WORKFLOW).read_text())["jobs"]["regress"]["steps"]
    return [step["run"] for step in steps if "run" in step]


def test_a_path_that_needs_quotes_and_an_install_of_one_s_own(repository: Path) -> None:
    odd = repository / 'a "b" ü'
    odd.mkdir()
    (odd / "nets.py").write_text("make = object\n")
    (repository / "pyproject.toml").unlink()
    (repository / "requirements.txt").touch()
    own = 'pip install "ours: xbench-schedules" # {quick}'
    assert cli.main(["regress", "init", f"{odd}/nets.py:make", "--install", own]) == 0
    (check,) = load_suite(repository / "xbench.toml").checks
    assert check.workload == 'a "b" ü/nets.py:make'
    assert runs_of(repository)[:2] == [own, "python -m pip install -r requirements.txt"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("def make():\n    return model, batch, loss\n", ["models.py:make"]),
        ("def make(width=8, *, deep=False):\n    if deep:\n        return 1, 2, 3\n", ["models.py:make"]),
        ("def make(width):\n    return model, batch, loss\n", []),
        ("def make(*, width):\n    return model, batch, loss\n", []),
        ("def pair():\n    return model, batch\n\n\nclass A:\n    def make(self):\n        return 1, 2, 3\n", []),
        ("def make(:\n", []),
        ("def a():\n    return 1, 2, 3\n\n\ndef b():\n    return 1, 2, 3\n", ["models.py:a", "models.py:b"]),
    ],
)
def test_without_a_workload_the_only_factory_is_taken_or_those_found_are_named(
    repository: Path, text: str, found: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (repository / "models.py").write_text(text)
    (repository / "other.py").write_text("raise SystemExit('nothing is imported')\n")
    code = cli.main(["regress", "init"])
    said = capsys.readouterr().err
    if len(found) == 1:
        (check,) = load_suite(repository / "xbench.toml").checks
        assert (code, check.workload) == (0, found[0])
        return
    assert code == 2
    assert all(name in said for name in found or ["(model, batch, loss)"])
    assert not (repository / "xbench.toml").exists()


@pytest.mark.parametrize(
    ("came", "requirement"),
    [
        (FETCHED, f"xbench-schedules @ git+https://github.com/you/xbench@{COMMIT}"),
        ({"url": "https://you:secret@host.org/x/xbench-1.whl", "archive_info": {}},
         "xbench-schedules @ https://host.org/x/xbench-1.whl"),
        ({"url": "file:///home/you/xbench-1.whl", "archive_info": {}}, None),
        ({"url": "file:///home/you/xbench", "vcs_info": {"vcs": "git", "commit_id": COMMIT}}, None),
        ({"url": "ssh://git@host.org/xbench", "vcs_info": {"vcs": "git", "commit_id": COMMIT}}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_ci_installs_xbench_from_where_it_came_and_else_asks(
    repository: Path,
    monkeypatch: pytest.MonkeyPatch,
    came: dict[str, object],
    requirement: str | None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(init_files, "source", lambda: came)
    before = everything(repository)
    code = cli.main(["regress", "init", "models.py:make"])
    if requirement is not None:
        assert runs_of(repository)[0] == f"python -m pip install '{requirement}'"
        return
    assert code == 0
    assert "xbench regress init --install" in capsys.readouterr().err
    assert everything(repository).keys() - before.keys() == {"xbench.toml", ".gitignore"}


@pytest.mark.parametrize(
    ("remote", "public"),
    [
        ("https://github.com/you/xbench.git", "https://github.com/you/xbench.git"),
        ("git@github.com:you/xbench.git", "https://github.com/you/xbench.git"),
        ("ssh://git@host.org:2222/you/xbench", "https://host.org/you/xbench"),
        ("/srv/git/xbench", "/srv/git/xbench"),
        ("git@work:you/xbench.git", "git@work:you/xbench.git"),
    ],
)
def test_a_checkout_is_published_where_a_remote_has_its_commit(tmp_path: Path, remote: str, public: str) -> None:
    git(tmp_path, "init")
    assert published(tmp_path) is None
    git(tmp_path, "commit", "--allow-empty", "-m", "one")
    git(tmp_path, "remote", "add", "upstream", remote)
    assert published(tmp_path) is None
    git(tmp_path, "update-ref", "refs/remotes/upstream/main", "HEAD")
    assert published(tmp_path) == f"git+{public}@{git(tmp_path, 'rev-parse', 'HEAD')}"
    git(tmp_path, "commit", "--allow-empty", "-m", "not pushed")
    assert published(tmp_path) is None
