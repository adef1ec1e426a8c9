"""Revisions: which is meant, its files for as long as they are needed, and orders that its own packages carry out."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
from regress_tree import commit, git

from xbench.errors import SpecError
from xbench.regress import checkout
from xbench.regress.checkout import Checkout, Incomparable, Repository, left_out, other_needs, short
from xbench.regress.protocol import VERSION, JobRequest


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two commits: `file` says 'old' and then 'new'; the suite's folder is `bench`."""
    root = tmp_path / "repository"
    (root / "bench").mkdir(parents=True)
    git(root, "init")
    for word in ("old", "new"):
        (root / "file").write_text(word)
        (root / "bench" / "xbench.toml").write_text(word)
        commit(root, word)
    return root


def test_a_folder_knows_its_repository(root: Path) -> None:
    assert Repository.around(root / "bench") == Repository(root.resolve(), Path("bench"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_checkout_of_another_user_says_what_git_wants(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.delenv("SUDO_UID", raising=False)
    for path in (root, root / ".git"):
        os.chown(path, 12345, 12345)
    with pytest.raises(SpecError, match="belongs to another user") as caught:
        Repository.around(root)
    assert "safe.directory" in str(caught.value.hint)


@pytest.mark.parametrize("revision", ["HEAD~1", "main~1", "HEAD^"])
def test_a_revision_is_a_commit(root: Path, revision: str) -> None:
    assert Repository.around(root).commit_of(revision) == git(root, "rev-parse", "HEAD~1")


@pytest.mark.parametrize("revision", ["nowhere", "", "-x", "--all", "HEAD~7"])
def test_what_is_no_revision_is_refused_in_a_sentence(root: Path, revision: str) -> None:
    with pytest.raises(SpecError, match=r"--base: .*revision") as caught:
        Repository.around(root).commit_of(revision)
    assert caught.value.hint


def test_base_is_where_the_branch_parted_from_it(root: Path) -> None:
    parted = git(root, "rev-parse", "HEAD")
    git(root, "checkout", "-b", "feature")
    git(root, "commit", "--allow-empty", "-m", "ours")
    assert Repository.around(root).branch_point(parted) == (parted, 0)
    git(root, "checkout", "main")
    git(root, "commit", "--allow-empty", "-m", "theirs")
    theirs = git(root, "commit-tree", "main^{tree}", "-p", "main", "-m", "theirs, too")
    git(root, "checkout", "feature")
    assert Repository.around(root).branch_point(theirs) == (parted, 2)
    git(root, "merge", "--no-ff", "-m", "what GitHub checks out", theirs)  # as refs/pull/N/merge
    assert Repository.around(root).branch_point(theirs) == (theirs, 0)


def test_a_base_of_another_history_is_taken_as_it_is(root: Path) -> None:
    alone = git(root, "commit-tree", "HEAD^{tree}", "-m", "no parent")
    assert Repository.around(root).branch_point(alone) == (alone, 0)


def test_a_shallow_clone_knows_the_parents_of_its_head_and_else_says_what_to_fetch(root: Path, tmp_path: Path) -> None:
    bases = [git(root, "rev-parse", f"HEAD~{back}") for back in (1, 0)]
    git(root, "commit", "--allow-empty", "-m", "three")
    git(tmp_path, "clone", "--quiet", "--depth=1", f"file://{root}", "shallow")
    shallow = Repository.around(tmp_path / "shallow")
    with pytest.raises(SpecError) as caught:
        shallow.commit_of("HEAD~1")
    assert "fetch-depth: 0" in str(caught.value.hint)
    for base in bases:
        git(shallow.root, "fetch", "--quiet", "--depth=1", "origin", base)
    assert shallow.branch_point(bases[1]) == (bases[1], 0)
    with pytest.raises(SpecError, match="shallow") as caught:
        shallow.branch_point(bases[0])
    assert "git fetch --unshallow" in str(caught.value.hint)


def test_no_hook_and_no_failing_filter_keeps_base_from_being_checked_out(root: Path) -> None:
    hook = root / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {root}/hooked\nexit 1\n")
    hook.chmod(0o755)
    (root / ".gitattributes").write_text("file filter=gone\n")
    commit(root, "a filter")
    git(root, "config", "filter.gone.smudge", "exit 3")
    git(root, "config", "filter.gone.required", "true")
    said: list[str] = []
    with Repository.around(root).checked_out("HEAD", said.append) as tree:
        assert (tree / "file").read_text() == "new"
    assert not (root / "hooked").exists()
    (told,) = said
    assert "filter" in told


@pytest.mark.parametrize(
    ("reason", "name", "why"),
    [
        ("No such file or directory: 'data/sample.pt'", "data/sample.pt", "ignored"),
        ("No such file or directory: '{base}/bench/data/sample.pt'", "data/sample.pt", "ignored"),
        ("No module named 'lib'", "lib/settings.py", "ignored"),
        ("No module named 'lib.settings' (a hint)", "lib/settings.py", "ignored"),
        ("there is no file 'new.py'", "new.py", "not committed"),
        ("No module named 'vendored.part'", "vendored", "submodule"),
        ("No such file or directory: 'nowhere'", None, None),
        ("'file' is wrong, and '../../..' and '/etc/passwd'", None, None),
    ],
)
def test_a_file_that_base_lacks_because_git_has_it_not_is_named(
    root: Path, tmp_path: Path, reason: str, name: str | None, why: str | None
) -> None:
    (root / ".gitignore").write_text("*.pt\nsettings.py\n__pycache__/\n")
    for file in ("data/sample.pt", "lib/settings.py", "lib/__pycache__/settings.pyc", "new.py"):
        (root / "bench" / file).parent.mkdir(exist_ok=True)
        (root / "bench" / file).touch()
    git(root, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", f"file://{root}", "bench/vendored")
    (root / "bench" / "vendored" / "part").mkdir()
    git(root, "add", ".gitmodules", "bench/vendored")
    git(root, "commit", "-m", "a submodule")
    tree = tmp_path / "tree"
    git(root, "worktree", "add", "--detach", str(tree), "HEAD")
    base = Checkout("base", tree, tree / "bench", root, "base")
    told = left_out(base, reason.format(base=tree))
    assert told is None if name is None else told is not None and f"'bench/{name}" in told and str(why) in told


def test_the_working_tree_says_when_it_differs_but_not_for_results(root: Path) -> None:
    repository = Repository.around(root)
    commit = git(root, "rev-parse", "HEAD")
    assert repository.head() == commit
    (root / "results").mkdir()
    (root / "results" / "new.json").write_text("{}")
    assert repository.head() == commit
    (root / "file").write_text("newer")
    assert repository.head() == f"{commit}+"
    assert short(repository.head()) == f"{commit[:10]}+"


@pytest.mark.parametrize("error", [None, KeyboardInterrupt, ValueError])
def test_a_base_is_there_inside_the_context_and_gone_after_it(root: Path, error: type[BaseException] | None) -> None:
    repository = Repository.around(root)
    expected: AbstractContextManager[object] = nullcontext() if error is None else pytest.raises(error)
    with expected, repository.checked_out(repository.commit_of("HEAD~1")) as tree:
        assert (tree / "file").read_text() == "old"
        assert (tree / repository.here / "bench" / "xbench.toml").read_text() == "old"
        if error is not None:
            raise error
    assert not tree.parent.exists()
    assert git(root, "worktree", "list").count("\n") == 0
    assert (root / "file").read_text() == "new"


def test_what_a_killed_check_left_is_removed_by_the_next(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    killed = (
        "import os; from pathlib import Path; from xbench.regress.checkout import Repository\n"
        f"with Repository.around(Path({str(root)!r})).checked_out('HEAD') as tree:\n"
        "    print(tree, flush=True); os.kill(os.getpid(), 9)"
    )
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", killed], env=environ, capture_output=True, text=True, timeout=60)
    left = Path(done.stdout.strip())
    assert left.is_dir()
    with Repository.around(root).checked_out("HEAD"):
        assert not left.parent.exists()


def test_a_git_that_dies_says_what_it_died_of(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / ".git" / "config").write_text("[core\n")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    with pytest.raises(SpecError, match=r"git cannot look at .*: fatal: bad config line 1"):
        Repository.around(root)


def test_different_requirements_are_named_from_both_sides(tmp_path: Path) -> None:
    base, head = tmp_path / "base", tmp_path / "head"
    for folder, needs in ((base, '["numpy>=1", "old"]'), (head, '["numpy>=1", "new>=2"]')):
        folder.mkdir()
        (folder / "pyproject.toml").write_text(f"[project]\nname = 'a'\ndependencies = {needs}\n")
    assert other_needs(base, head).endswith("base asks for old; head asks for new>=2")
    assert other_needs(base, base) is None
    assert other_needs(tmp_path, tmp_path) is None  # no pyproject.toml on either side
    (head / "pyproject.toml").write_text("not toml [")
    assert other_needs(head, tmp_path) is None


ORDER = JobRequest(kind="look", workload="resnet18", modes=("ddp",), fabric="local:ranks=2")


def tree(root: Path, program: str, *, head: Path | None = None) -> Checkout:
    """A tree whose package xbench is this program alone."""
    (root / "xbench").mkdir(parents=True)
    (root / "xbench" / "__init__.py").write_text("")
    (root / "xbench" / "__main__.py").write_text(program)
    return Checkout("base", root, root, head or root, "base revision 1a2b3c")


def test_an_order_is_carried_out_by_the_tree_s_own_package(tmp_path: Path) -> None:
    answered = tree(
        tmp_path,
        "import json, sys, pathlib\n"
        "order = json.loads(pathlib.Path(sys.argv[3]).read_text())\n"
        "pathlib.Path(sys.argv[4]).write_text(json.dumps({'xbench': 'its own', 'new': 1, 'failed': {'ddp':"
        " order['workload']}}))\n",
    ).carry_out(ORDER, 20)
    assert (answered.xbench, answered.failed) == ("its own", {"ddp": "resnet18"})  # and a field of later is passed over


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("import sys; print('the model is gone', file=sys.stderr); sys.exit(3)", "exit status 3: the model is gone"),
        ("import os; os.kill(os.getpid(), 9)", "exit status -9: it said nothing"),
        ("import sys, pathlib; pathlib.Path(sys.argv[4]).write_text('{')", "exit status 0: it said nothing"),
    ],
)
def test_a_launch_that_gives_no_answer_is_an_answer_with_its_reason(tmp_path: Path, program: str, told: str) -> None:
    answered = tree(tmp_path, program).carry_out(ORDER, 20)
    assert answered.error == f"a launch of base revision 1a2b3c ended with {told}"


def test_one_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    answered = tree(tmp_path, "import time; time.sleep(60)").carry_out(ORDER, 0.5)
    assert "took longer than 0 s" in answered.error or "took longer than 1 s" in answered.error


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("import sys; sys.exit(2)", "base revision 1a2b3c has no xbench regress: it is older than this gate"),
        ("raise ImportError('no such thing')", "its xbench does not start: ImportError: no such thing"),
        ("print('{\"protocol\": 99}')", f"takes orders of version 99, and head gives them in version {VERSION}"),
        ("print('hello')", "its xbench does not start"),
    ],
)
def test_a_base_that_does_not_is_not_comparable_in_one_sentence(tmp_path: Path, program: str, told: str) -> None:
    with pytest.raises(Incomparable) as caught:
        tree(tmp_path, program).ask()
    assert told in str(caught.value)


def test_what_pointed_into_head_points_into_the_base(tmp_path: Path) -> None:
    head, base = tmp_path / "head", tmp_path / "base"
    (head / "lib").mkdir(parents=True)
    (base / "src").mkdir(parents=True)
    one = Checkout("base", base, base, head.resolve(), "base")
    ours = {"PYTHONPATH": os.pathsep.join([str(head), str(head / "lib"), "/elsewhere"]), "HOME": "/home"}
    parts = one.environ(ours)["PYTHONPATH"].split(os.pathsep)
    assert parts == [str(base), str(base / "src"), str(base / "lib"), "/elsewhere"]
    assert one.environ(ours)["HOME"] == "/home"
    assert Checkout("head", head, head, head.resolve(), "head").environ({})["PYTHONPATH"] == str(head)


def test_a_package_of_a_monorepo_is_that_of_its_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The suite is in packages/net; code is imported from there, by a .pth file, and by an editable install."""
    head, base = tmp_path / "head", tmp_path / "base"
    for root in (head, base):
        for folder in ("packages/net/src", "packages/by-path", "packages/by-hook/src"):
            (root / folder).mkdir(parents=True)
    for folder in (".venv/lib/site-packages", "packages/new"):
        (head / folder).mkdir(parents=True)
    (base / ".venv/lib/site-packages").mkdir(parents=True)
    inside = ["packages/by-path", "packages/new", ".venv/lib/site-packages"]
    monkeypatch.setattr("sys.path", ["", *(str(head / folder) for folder in inside), "/usr/lib/python3"])
    hooked = head / "packages" / "by-hook"
    monkeypatch.setattr(checkout, "_editable_projects", lambda: (hooked, hooked / "src", Path("/elsewhere/src")))
    monkeypatch.chdir(tmp_path)
    for root, own in ((base, []), (head, ["packages/new"])):
        side = Checkout("base", root, root / "packages" / "net", head, "a tree")
        expected = [".", "packages/net", "packages/net/src", "packages/by-path", *own, "packages/by-hook",
                    "packages/by-hook/src"]  # fmt: skip
        assert side.environ({})["PYTHONPATH"].split(os.pathsep) == [str(root / folder) for folder in expected]


def test_projects_that_are_installed_in_editable_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = {
        "editable": '{"url": "file:///home/me/my%20net", "dir_info": {"editable": true}}',
        "plain": '{"url": "file:///home/me/other", "dir_info": {}}',
        "broken": "{",
    }
    for name, source in sources.items():
        (tmp_path / f"{name}-1.dist-info").mkdir()
        (tmp_path / f"{name}-1.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: 1\n")
        (tmp_path / f"{name}-1.dist-info" / "direct_url.json").write_text(source)
    (tmp_path / "bare-1.dist-info").mkdir()
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    project = Path("/home/me/my net")
    assert checkout._editable_projects.__wrapped__() == (project, project / "src")
