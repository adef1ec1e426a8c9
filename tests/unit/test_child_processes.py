"""The processes that xbench starts use the same xbench."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from xbench import __main__

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("first", "shared"), [(str(ROOT), True), (str(ROOT / "tests"), False), ("/usr/bin", False)])
def test_they_find_it_where_python_m_did(first: str, shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [first, *sys.path])
    monkeypatch.setenv("PYTHONPATH", "/other")
    __main__._share_with_children()
    assert os.environ["PYTHONPATH"].split(os.pathsep) == ([str(ROOT)] if shared else []) + ["/other"]
