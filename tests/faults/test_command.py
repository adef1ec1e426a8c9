"""The command of the fault suite: it goes on where it was interrupted, and says how all went."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from . import __main__ as command

NAMES = ["P-raise", "P-segv", "P-term"]
WORDS = [word for name in NAMES for word in ("--only", name)]


class Cases:
    """In place of real cases: `broken` breaks a rule, at `cut` somebody presses Ctrl-C."""

    def __init__(self, *, broken: str | None = None, cut: str | None = None) -> None:
        self.broken, self.cut = broken, cut
        self.ran: list[str] = []

    def __call__(self, names: Sequence[str], asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
        for name in names:
            if name == self.cut:
                raise KeyboardInterrupt
            self.ran.append(name)
            yield {
                "name": name,
                "broken": ["a rule"] if name == self.broken else [],
                "skipped": None,
                "seen": {"code": 1},
            }


def test_an_interrupted_command_goes_on_and_a_broken_rule_is_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "faults.json"
    words = [*WORDS, "--output", str(output)]
    for cases, code, ran in (
        (Cases(cut="P-term", broken="P-segv"), 130, ["P-raise", "P-segv"]),
        (Cases(), 1, ["P-term"]),
        (Cases(), 1, []),
    ):
        monkeypatch.setattr(command, "_results", cases)
        assert command.main(words) == code
        assert cases.ran == ran
    said = capsys.readouterr().out
    assert "[2/3] P-segv: BROKEN" in said
    assert "a rule" in said
    kept = json.loads(output.read_text())
    assert list(kept["cases"]) == NAMES
    assert kept["summary"]["P"] == {
        "title": "faults in the probe of the model", "run": 3, "held": 2, "broken": 1, "skipped": 0,
    }  # fmt: skip
    again = Cases()
    monkeypatch.setattr(command, "_results", again)
    assert command.main([*words, "--again"]) == 0
    assert again.ran == ["P-segv"]


def test_a_case_runs_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "run", None)  # not here
    asked = argparse.Namespace(draws=0, seed=0, jobs=2)
    (result,) = command._results(["E-read-only"], asked)
    assert result["name"] == "E-read-only"
    assert result["broken"] == [] or result["skipped"]
