"""List of `xbench list runs`: each run's start, kind and subject, and the first sentence of its report."""

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
    """One run. `created` is ISO 8601. It is '' for an unreadable record; `headline` then gives the reason."""

    path: Path
    kind: str
    subject: str
    headline: str
    created: str
    complete: bool


def read_run(folder: Path) -> Run:
    """Read the run in a folder. A record that cannot be read makes a run of kind 'unreadable'."""
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
    """Print three lines a run: time, kind and subject; the answer; and the path, which is never folded."""
    for run in runs:
        parts = [_local(run.created), run.kind, run.subject]
        console.print(Text("  ".join(filter(None, parts)), style="bold"))
        indented(console, run.headline)
        console.print(Text(f"  {run.path}", style="dim"), soft_wrap=True)


def as_json(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return the same for programs."""
    return [asdict(run) | {"path": str(run.path)} for run in runs]


def _local(created: str) -> str:
    """Format a time as '2026-11-25 07:10' in local time; other text is returned as it is."""
    try:
        return f"{datetime.fromisoformat(created).astimezone():%Y-%m-%d %H:%M}"
    except (ValueError, OverflowError, OSError):
        return created
