"""A tree is given orders in processes of its own, whose packages are the tree's and not ours."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from xbench.regress import checkout
from xbench.regress.checkout import Checkout, Incomparable
from xbench.regress.protocol import VERSION, JobRequest

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
    assert answered.error is not None
    assert "took longer than 0 s" in answered.error or "took longer than 1 s" in answered.error


def test_a_base_that_speaks_our_protocol_can_be_asked(tmp_path: Path) -> None:
    tree(tmp_path, f"print('{{\"protocol\": {VERSION}}}')").ask()


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
