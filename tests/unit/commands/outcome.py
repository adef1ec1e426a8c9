"""Outcomes of commands, the fixtures that run one, and runs in results/runs of the folder that a test works in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from golden_file import GOLDEN

from xbench.records import load, save

Outcome = tuple[int, str, str]
"""Exit code, stdout, stderr."""
Run = Callable[..., Outcome]
Refused = Callable[..., str]
RUNS = Path("results/runs")


def keep(name: str, kind: str, file: str = "record.json") -> Path:
    """A run of that folder name and kind of record."""
    return save(load(GOLDEN / f"{kind}-v1.json"), RUNS / name / file)
