"""A repository whose trees answer at once (`regress_tree`)."""

from __future__ import annotations

from pathlib import Path

import pytest
from regress_tree import FAKE, SUITE, InThisProcess, commit, git


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs are done in this process."""
    monkeypatch.setattr("xbench.regress.checkout.Running", InThisProcess)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of one commit, whose steps take 0.1 s."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    root = tmp_path / "repository"
    (root / "xbench").mkdir(parents=True)
    (root / "xbench" / "__init__.py").write_text("")
    (root / "xbench" / "__main__.py").write_text(FAKE)
    (root / "xbench.toml").write_text(SUITE)
    (root / "step_s").write_text("0.1")
    (root / ".gitignore").write_text("launches\nresults\n__pycache__\n")
    git(root, "init", "--quiet")
    commit(root, "the base")
    return root
