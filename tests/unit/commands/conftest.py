"""`xbench` from outside: run on words, and held to one sentence where it refuses them."""

from __future__ import annotations

from pathlib import Path

import pytest
from outcome import Outcome, Refused, Run

from xbench import cli


@pytest.fixture
def xbench(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run `xbench` on words; (exit code, stdout, stderr)."""
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)

    def call(*words: object) -> Outcome:
        code = cli.main([str(word) for word in words])
        return code, *capfd.readouterr()

    return call


@pytest.fixture
def refused(xbench: Run) -> Refused:
    """Run `xbench` on words that it refuses in one sentence, with a hint at most; return what it says on stderr."""

    def call(*words: object) -> str:
        code, out, err = xbench(*words)
        assert (code, out) == (2, "")
        assert err.startswith("error: ")
        assert all(line.startswith("  hint: ") for line in err.splitlines()[1:])
        assert len(err.splitlines()) <= 2
        return err

    return call


@pytest.fixture
def run(xbench: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run `xbench` on words in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TZ", "UTC")
    return xbench
