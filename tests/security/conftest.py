"""Hostile input: foreign records, traces, suites and files of jobs. All of it runs in this process."""

from __future__ import annotations

import sys

import pytest

import xbench.report.formats.html  # noqa: F401 (the module of that name is hidden by its function)


@pytest.fixture(autouse=True)
def without_plotly(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page without plotly's own 1.2 MB, which hold nothing foreign."""
    monkeypatch.setattr(sys.modules["xbench.report.formats.html"], "_plotly", lambda: "")
