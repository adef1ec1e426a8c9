"""The list of `xbench runs`: when each run began, what it is, and the first sentence of its report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from xbench.records import load
from xbench.report.console import indented
from xbench.report.formats.html import contents

TUNED = "tuned.json"


@dataclass(frozen=True)
class Run:
    """One run. `created`: ISO 8601, or '' where its record cannot be read; `headline` then says why."""

    path: Path
    kind: str
    subject: str
    headline: str
    created: str
    complete: bool


def read_run(folder: Path) -> Run:
    """What is in the folder of a run. A record that cannot be read makes a run of kind 'unreadable'."""
    tuned = folder / TUNED
    try:
        record = load(tuned if tuned.is_file() else folder)
        page = contents([record])
    except Exception as error:  # one foreign file must not hide the other runs
        return Run(folder, "unreadable", "", str(error), "", complete=False)
    said = [sentence.removesuffix(".") for sentence in page.answer[:1]]
    headline = page.incomplete or (said[0] if said else "")
    return Run(folder, record.kind, page.title, headline, record.created, complete=page.incomplete is None)


def render_runs(runs: Sequence[Run], console: Console) -> None:
    """Three lines a run: when, what, of what; the answer; the path, on a line that is never folded."""
    for run in runs:
        parts = [_local(run.created), run.kind, run.subject]
        console.print(Text("  ".join(filter(None, parts)), style="bold"))
        indented(console, run.headline)
        console.print(Text(f"  {run.path}", style="dim"), soft_wrap=True)


def as_json(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The same for programs."""
    return [asdict(run) | {"path": str(run.path)} for run in runs]


def _local(created: str) -> str:
    """'2026-11-25 07:10' in the time of this machine; what is no time stays as it is."""
    try:
        return f"{datetime.fromisoformat(created).astimezone():%Y-%m-%d %H:%M}"
    except (ValueError, OverflowError, OSError):
        return created
