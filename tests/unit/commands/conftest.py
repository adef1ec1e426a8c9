"""`xbench` from outside: run on words, and held to one sentence where it refuses them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from xbench import cli

Outcome = tuple[int, str, str]


@pytest.fixture
def xbench(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """Run `xbench` on words; (exit code, stdout, stderr)."""
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)

    def call(*words: object) -> Outcome:
        code = cli.main([str(word) for word in words])
        return code, *capfd.readouterr()

    return call


@pytest.fixture
def refused(xbench: Callable[..., Outcome]) -> Callable[..., str]:
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
def run(xbench: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Outcome]:
    """Run `xbench` on words in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TZ", "UTC")
    return xbench
